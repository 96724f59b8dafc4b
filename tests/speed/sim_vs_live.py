"""The simulator against a live server on this machine: the same Poisson arrivals, times to first token and throughput of both.

    python tests/speed/sim_vs_live.py [--model demo] [--rates 0.5,1.2] [--seconds 60] [--rounds 1] [--verify]

A server runs in a process of its own, loaded by `bench serve`; it records itself. The recording's arrivals are simulated twice: with
`sim --device this` and nothing set ("planned"), and with times fitted to the steps that the server took ("own steps"), which leaves out the
error of the planner's prices: what remains is arrival, queue, scheduling and the front end, and holds beside other load too. The runs are
held out: no step of them has been seen by a plan. `--verify` runs `plan --verify` first in each round; without it only what the server's
own start has measured is known. Both times corrections are kept in a folder of this run alone. Takes the sum of the rates' seconds, 20 s
for each, and 20 s to verify. A shared machine is a fifth quicker or slower from one minute to the next, and p95 of a minute is that of
three requests: so the figures of all rounds are averaged, live and simulated, and their means compared.

Asked, at rest: TTFT p50 within 10 %, p95 within 15 %, output tokens per second within 5 %, with --verify; without it all within 25 %. It
ends with status 1 where one is missed.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ridgeline.config.env import cache_directory
from ridgeline.sim.fleet.measures import CURVE_SHARES

COMMAND = [sys.executable, "-c", "from ridgeline.cli.main import main; main()"]
BOUNDS = {"ttft.p50": (0.10, 0.25), "ttft.p95": (0.15, 0.25), "itl.p50": (None, None), "output_tokens_per_second": (0.05, 0.25)}
"""Figure → largest error behind `plan --verify`, and without it."""


def ridgeline(*words: str) -> str:
    """Output of a command."""
    done = subprocess.run([*COMMAND, *words], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def live(model: str, rate: float, seconds: float, folder: Path, lengths: tuple[int, int]) -> tuple[dict[str, Any], Path, Path]:
    """Report of `bench serve`; the arrivals of its requests and the steps that the server recorded."""
    recording, log, report = folder / f"{rate}.rec", folder / f"{rate}.log", folder / f"{rate}.json"
    with log.open("w") as stream:
        server = subprocess.Popen([*COMMAND, "serve", model, "--port", "0", "--record", str(recording)], stderr=stream, stdout=stream)
    try:
        url = None
        while url is None:
            assert server.poll() is None, log.read_text()
            url = re.search(r"url=(http://\S+)", log.read_text())
        load = ["--rate", str(rate), "--seconds", str(seconds), "--input-len", str(lengths[0]), "--output-len", str(lengths[1])]
        ridgeline("bench", "serve", "--url", url[1], *load, "--json", str(report))
    finally:
        server.terminate()
        server.wait(30)
    trace, steps = folder / f"{rate}.jsonl", folder / f"{rate}.steps"
    ridgeline("replay", str(recording), "--trace", str(trace), "--step-log", str(steps))
    found = json.loads(report.read_text())["runs"][0]
    lines = trace.read_text().splitlines(keepends=True)
    trace.write_text("".join(lines[-found["requests"] :]))  # before them stand the check of answers and the bench's own
    return found, trace, steps


def simulated(model: str, trace: Path, *words: str) -> dict[str, Any]:
    run: dict[str, Any] = json.loads(ridgeline("sim", model, "--device", "this", "--trace", str(trace), *words, "--json"))["runs"][0]
    return run


def figure(report: dict[str, Any], name: str) -> float:
    """A number of a report, of one run or of one seed."""
    kind, _, share = name.partition(".")
    if share:
        return float(report["curves"][kind][CURVE_SHARES.index(int(share[1:]) / 100)])
    value: Any = report.get("figures", report)[name]
    return float(value["mean"] if isinstance(value, dict) else value)


Figures = dict[tuple[float, str], list[tuple[float, float, float]]]
"""Rate and name → live, planned, by own steps, a round each."""


def add_round(given: argparse.Namespace, rate: float, folder: Path, found: Figures) -> None:
    """Runs one rate."""
    prompt, output = map(int, given.lengths.split(","))
    measured, trace, steps = live(given.model, rate, given.seconds, folder, (prompt, output))
    planned, own = simulated(given.model, trace), simulated(given.model, trace, "--set", f"step_time={steps}")
    for name in BOUNDS:
        unit = 1 if name.startswith("output") else 1e3
        each = tuple(unit * figure(report, name) for report in (measured, planned, own))
        found.setdefault((rate, name), []).append(each)
        tell(rate, name, each)


def tell(rate: float, name: str, figures: Sequence[float]) -> None:
    a, b, c = figures
    print(f"{rate:6.2f} {name:<12.12} {a:9.1f} {b:9.1f} {b / a - 1:+7.0%} {c:9.1f} {c / a - 1:+7.0%}", flush=True)


def judge(found: Figures, is_verified: bool) -> list[str]:
    """Prints the means of all rounds. What was missed."""
    missed = []
    print("means of all rounds")
    for (rate, name), rounds in found.items():
        means = [sum(each) / len(rounds) for each in zip(*rounds, strict=True)]
        tell(rate, name, means)
        bound, error = BOUNDS[name][not is_verified], means[1] / means[0] - 1
        missed += [f"{name} at {rate}: {error:+.0%}"] if bound is not None and abs(error) > bound else []
    return missed


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="demo")
    parser.add_argument("--rates", default="0.5,1.2")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--lengths", default="127,64")
    parser.add_argument("--verify", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, known = Path(name), cache_directory()
        (folder / "ridgeline").mkdir()
        for file in known.glob("*"):
            if file.name != "corrections.json":
                (folder / "ridgeline" / file.name).symlink_to(file)
        os.environ["XDG_CACHE_HOME"] = name
        found: Figures = {}
        print(f"load average {os.getloadavg()[0]:.1f}; {given.model}, {given.lengths} tokens in, out; ms")
        print(f"{'rate':>6} {'figure':<12} {'live':>9} {'planned':>9} {'error':>7} {'own steps':>9} {'error':>7}", flush=True)
        for _ in range(given.rounds):
            corrections = folder / "ridgeline" / "corrections.json"
            corrections.unlink(missing_ok=True)
            if given.verify:
                ridgeline("plan", given.model, "--verify")
            for rate in map(float, given.rates.split(",")):
                if not given.verify:
                    corrections.unlink(missing_ok=True)
                add_round(given, rate, folder, found)
        missed = judge(found, given.verify)
    print(f"missed: {', '.join(missed) or 'nothing'}")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
