"""Pages of `docs/scale`: `python docs/scale.py [NAME …]`. Fleets in the simulator, and on this machine what their router must bear.

All of llama-3-8b with bf16 weights and a million users of 40 requests per day; a few minutes of processor time each.
"""

import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final

from ridgeline.cli.output import write_page
from ridgeline.cli.scenarios import make_scenario
from ridgeline.cli.sim_runs import SimulationRuns
from ridgeline.core.routing import ROUTING, ReplicaLoad
from ridgeline.router.chooser import Chooser
from ridgeline.router.prompts import BYTES_PER_TOKEN, PART_BYTES, Prompt
from ridgeline.sim.fleet.experiment import runs_page

FOLDER: Final = Path(__file__).resolve().parent / "scale"
MODEL: Final = "llama-3-8b"
REQUESTS_PER_SECOND: Final = 1_000_000 * 40 / 86_400
"""The mean of a day; its peak is twice that."""
PROMPT_TOKENS: Final = 500
BLOCK_TOKENS: Final = 16
DIGEST_BYTES: Final = 16
USUAL: Final = {
    "device": "l4", "replicas": "1000", "context": "2048", "prompt": f"lognormal:{PROMPT_TOKENS}", "output": "uniform:40",
    "slo": "ttft=1s,itl=150ms",
}  # fmt: skip
PEAK: Final = {"rate": f"{2 * REQUESTS_PER_SECOND:.6g}", "requests": "15000"}
DAY: Final = {"arrivals": "diurnal", "rate": f"{REQUESTS_PER_SECOND:.6g}", "sample": "0.0002", "settle": "6"}
ZONE: Final = {"outage": "6:600:0.3333"}
PAGES: Final[dict[str, dict[str, dict[str, str]]]] = {
    "day": {"1,000 × L4": DAY},
    "zone": {
        "1,000 × L4": PEAK, "1,000, a third lost": PEAK | ZONE, "400, a third lost": PEAK | ZONE | {"replicas": "400"},
    },
    "cost": {
        f"{count} × {device}": {**PEAK, "replicas": str(count), "device": device}
        for device, count in (("l4", 1000), ("l40s", 300), ("h100-sxm", 100))
    },
}  # fmt: skip
"""Page → what it compares: name of a run → its settings beside `USUAL`."""


def simulate(name: str, scenarios: dict[str, dict[str, str]]) -> None:
    """Runs the scenarios, writes their page and prints the figures that its table of contents quotes."""
    with SimulationRuns(1, quiet=False) as runs:
        for title, changes in scenarios.items():
            runs.run(title, make_scenario(MODEL, USUAL | changes, None))
        if "sample" in next(iter(scenarios.values())):
            runs.note_sample()
    write_page(FOLDER / f"{name}.html", runs_page(runs.as_dict(), runs.table(), runs.notes))
    for row in runs.table():
        print(f"{name:5} {row[0]:40}", *(f"{cell:>16}" for cell in row[1:]))


def router_load(replicas: int, requests: int) -> dict[str, float]:
    """What a router with so many replicas bears, measured with the real policy, loads and index on prompts that nobody sent before.

    choices  per second and core; index_bytes per part; parts and gossip (digests of blocks, bytes) per second at the peak of the day;
    horizon  seconds of that traffic that an index of `MOST_PARTS` parts remembers
    """
    from ridgeline.router.chooser import MOST_PARTS

    rng, loads, parts = Random(1), [ReplicaLoad(number) for number in range(replicas)], PROMPT_TOKENS * BYTES_PER_TOKEN // PART_BYTES
    prompts = [Prompt(PROMPT_TOKENS, tuple(rng.randbytes(DIGEST_BYTES) for _ in range(parts))) for _ in range(requests)]
    chooser, began = Chooser(ROUTING["cache-aware"], seed=1), time.process_time()
    for prompt in prompts:
        number, cached = chooser.choose(loads, prompt)
        loads[number].waiting_tokens += prompt.tokens - cached
    seconds = time.process_time() - began
    tracemalloc.start()
    filled = Chooser(ROUTING["round-robin"], seed=1)
    for _ in range(requests):
        filled.choose(loads[:1], Prompt(PROMPT_TOKENS, tuple(rng.randbytes(DIGEST_BYTES) for _ in range(parts))))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    peak = 2 * REQUESTS_PER_SECOND
    return {
        "choices": requests / seconds, "index_bytes": held / (requests * parts), "parts": peak * parts,
        "horizon": MOST_PARTS / (peak * parts), "gossip": 2 * peak * PROMPT_TOKENS / BLOCK_TOKENS * DIGEST_BYTES,
    }  # fmt: skip


def router() -> None:
    """Prints what the router bears, for fleets of several sizes."""
    for replicas in (4, 100, 1_000):
        found = router_load(replicas, 3_000)
        print(f"router {replicas:5} replicas:", ", ".join(f"{name} {value:,.0f}" for name, value in found.items()))


def main() -> None:
    """Makes the pages that are named, or all."""
    makers: dict[str, Callable[[], None]] = {name: lambda name=name: simulate(name, PAGES[name]) for name in PAGES} | {"router": router}
    FOLDER.mkdir(exist_ok=True)
    for name in sys.argv[1:] or makers:
        makers[name]()


if __name__ == "__main__":
    main()
