"""Pages of `docs/scale`: `python docs/scale.py [NAME …]`. Fleets in the simulator, two pages at a time; then, alone, what a router bears.

All of llama-3-8b with bf16 weights and a million users of 40 requests per day. Each prompt begins with the instructions of one of 200
assistants, so routing has something to find.
"""

import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Final

import scale_router

from ridgeline.cli.output import write_page
from ridgeline.cli.scenarios import make_scenario
from ridgeline.cli.sim_runs import SimulationRuns
from ridgeline.sim.fleet.experiment import runs_page
from ridgeline.sim.fleet.fleet import Outage
from ridgeline.sim.fleet.measures import SimulationReport

FOLDER: Final = Path(__file__).resolve().parent / "scale"
MODEL: Final = "llama-3-8b"
REQUESTS_PER_SECOND: Final = 1_000_000 * 40 / 86_400
"""The mean of a day; its peak is twice that."""
PEAK_RATE: Final = 2 * REQUESTS_PER_SECOND
INSTRUCTIONS: Final = 300
"""Tokens that prompts of one assistant share."""
USUAL: Final = {
    "device": "l4", "replicas": "1000", "routing": "cache-aware", "context": "2048", "prompt": "310-690", "output": "uniform:40",
    "prefixes": "200", "shared": str(INSTRUCTIONS), "slo": "ttft=1s,itl=150ms",
}  # fmt: skip
PEAK: Final = {"rate": f"{PEAK_RATE:.6g}", "requests": "15000"}
DAY: Final = {"arrivals": "diurnal", "rate": f"{REQUESTS_PER_SECOND:.6g}", "sample": "0.001", "windows": "24", "settle": "5"}
ZONE: Final = {"rate": f"{PEAK_RATE:.6g}", "requests": "50000"}
OUTAGE: Final = Outage(20.0, 15.0, 1 / 3)
"""A third of the replicas is lost when caches are warm, and comes back with empty ones, both within the run."""
LOST: Final = {"outage": f"{OUTAGE.at:g}:{OUTAGE.seconds:g}:{OUTAGE.share:.4f}"}
RECOVERED: Final = 0.98
"""Share of what was within the objective before, from which on a fleet has recovered."""


@dataclass(frozen=True)
class Page:
    """A comparison: name of a run → its settings beside `USUAL`, each simulated with so many seeds."""

    runs: dict[str, dict[str, str]]
    outages: dict[str, Outage] = field(default_factory=dict)
    """Of runs that lose a zone."""
    seeds: int = 1


PAGES: Final = {
    "day": Page({"1,000 × L4": DAY}),
    "routing": Page({f"1,000 × L4, {name}": PEAK | {"routing": name} for name in ("cache-aware", "prefix", "least-requests")}),
    "zone": Page(
        {f"{count:,} × L4, a third lost": ZONE | LOST | {"replicas": str(count)} for count in (1_000, 240, 200)},
        outages={f"{count:,} × L4, a third lost": OUTAGE for count in (1_000, 240, 200)},
    ),
    "cost": Page({
        f"{count} × {device}": {**PEAK, "replicas": str(count), "device": device}
        for device, count in (("l4", 1000), ("l40s", 300), ("h100-sxm", 100))
    }),
}  # fmt: skip


def simulate(name: str, page: Page) -> list[str]:
    """Runs the scenarios, writes their page, and returns lines with the figures that the table of contents quotes."""
    with SimulationRuns(page.seeds, quiet=True) as runs:
        for title, changes in page.runs.items():
            run = runs.run(title, make_scenario(MODEL, USUAL | changes, None))
            if title in page.outages:
                runs.notes.append(f"{title}: {phases(run.reports[0], page.outages[title])}.")
        runs.note_sample()
    write_page(FOLDER / f"{name}.html", runs_page(runs.as_dict(), runs.table(), runs.notes))
    lines = [f"{name:7} {row[0]:40}" + "".join(f" {cell:>22}" for cell in row[1:]) for row in runs.table()]
    return lines + [f"{name:7} {note}" for note in runs.notes]


def phases(report: SimulationReport, outage: Outage) -> str:
    """Shares of requests within the objective in the time before a zone is lost, half of which warms caches, while it is lost, and behind
    its return, and when it is as before."""
    told = list(zip(report.over_time["time"], report.over_time["met"], strict=True))
    back = outage.at + outage.seconds
    before, meanwhile, behind = (
        [met for time, met in told if begin <= time < end]
        for begin, end in ((outage.at / 2, outage.at), (outage.at, back), (back, float("inf")))
    )  # fmt: skip
    good = mean(before)
    late = [time for time, met in told if time >= back and met < RECOVERED * good]
    again = "at once" if not late else f"{max(late) - back:.0f} s later" if max(late) < told[-1][0] else "not within the run"
    return (
        f"{good:.1%} within the objective from {outage.at / 2:g} to {outage.at:g} s, "
        f"{mean(meanwhile):.1%} while {outage.share:.0%} of the replicas are lost, "
        f"{mean(behind):.1%} from {back:g} s on, as before {again}"
    )


def main() -> None:
    """Makes the pages that are named, or all, and prints their figures."""
    FOLDER.mkdir(exist_ok=True)
    names = sys.argv[1:] or [*PAGES, "router"]
    pages = [each for each in names if each in PAGES]
    with ProcessPoolExecutor(2) as pool:
        for lines in pool.map(simulate, pages, [PAGES[each] for each in pages]):
            print("\n".join(lines), flush=True)
    if "router" in names:
        print("\n".join(scale_router.report(PEAK_RATE, INSTRUCTIONS)))


if __name__ == "__main__":
    main()
