"""The simulator against a live server on this machine: the same Poisson arrivals, times to first token and throughput of both.

    python tests/speed/sim_vs_live.py [--model demo] [--rates 0.5,1.2] [--seconds 60] [--rounds 1] [--only KIND]

A server runs in a process of its own, loaded by `bench serve`; it records itself. The recording's arrivals are simulated by `sim --device
this` with nothing set, behind `plan --verify` ("verified"), where a server's start is all that has been measured ("start"), where a server
has answered other arrivals and ended ("served"), and with times fitted to the steps that the server took ("own steps"), which leaves out
the error of the planner's prices: what remains is arrival, queue, scheduling and the front end, and holds beside other load too. The
first three are held out: no step of the run that is compared has been seen by them. In each round one server is verified, another one
started, and another one asked, before those that are loaded, or what `--only` leaves of these; corrections are kept in folders of this
run alone. Takes the sum of the rates' seconds, 20 s for each, 40 s to verify, and 70 s to serve, for each round. A shared machine is a
fifth quicker or slower from one minute to the next, and p95 of a minute is that of three requests: so each simulation has ten seeds, the
figures of all rounds are averaged, live and simulated, and their means compared. Many short rounds even out more of it than few long ones.

Asked, at rest: TTFT p50 within 10 %, p95 within 15 %, output tokens per second within 5 %, verified; else all within 25 %. It ends with
status 1 where one is missed.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ridgeline.config.env import cache_directory
from ridgeline.sim.fleet.measures import CURVE_SHARES

COMMAND = [sys.executable, "-c", "from ridgeline.cli.main import main; main()"]
BOUNDS = {"ttft.p50": (0.10, 0.25), "ttft.p95": (0.15, 0.25), "itl.p50": (None, None), "output_tokens_per_second": (0.05, 0.25)}
"""Figure → largest error behind `plan --verify`, and without it."""
KINDS = ("verified", "start", "served")
OWN_STEPS = "own steps"
SEEDS = "10"
SERVED_LOAD = ("--rate", "0.6", "--seconds", "60")
"""Other arrivals than those that are compared (seeds are random), most of them alone."""


def ridgeline(*words: str) -> str:
    """Output of a command."""
    done = subprocess.run([*COMMAND, *words], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded(model: str, log: Path, flags: Sequence[str], load: Sequence[str], lengths: Sequence[int]) -> None:
    """Starts a server, sends it the load, and ends it."""
    with log.open("w") as stream:
        server = subprocess.Popen([*COMMAND, "serve", model, "--port", "0", *flags], stderr=stream, stdout=stream)
    try:
        url = None
        while url is None:
            assert server.poll() is None, log.read_text()
            url = re.search(r"url=(http://\S+)", log.read_text())
            time.sleep(0.05)
        sizes = ["--input-len", str(lengths[0]), "--output-len", str(lengths[1])]
        ridgeline("bench", "serve", "--url", url[1], *load, *sizes)
    finally:
        server.terminate()
        server.wait(30)


def live(model: str, rate: float, seconds: float, folder: Path, lengths: Sequence[int]) -> tuple[dict[str, Any], Path, Path]:
    """Report of `bench serve`; the arrivals of its requests and the steps that the server recorded."""
    recording, log, report = folder / f"{rate}.rec", folder / f"{rate}.log", folder / f"{rate}.json"
    load = ["--rate", str(rate), "--seconds", str(seconds), "--json", str(report)]
    loaded(model, log, ["--record", str(recording)], load, lengths)
    trace, steps = folder / f"{rate}.jsonl", folder / f"{rate}.steps"
    ridgeline("replay", str(recording), "--trace", str(trace), "--step-log", str(steps))
    found = json.loads(report.read_text())["runs"][0]
    lines = trace.read_text().splitlines(keepends=True)
    trace.write_text("".join(lines[-found["requests"] :]))  # before them stand the check of answers and the bench's own
    return found, trace, steps


def simulated(model: str, trace: Path, cache: Path, *words: str) -> dict[str, Any]:
    """The run with what `cache` knows of this machine."""
    os.environ["XDG_CACHE_HOME"] = str(cache)
    told = ridgeline("sim", model, "--device", "this", "--trace", str(trace), "--seeds", SEEDS, *words, "--json")
    run: dict[str, Any] = json.loads(told)["runs"][0]
    return run


def start(model: str, cache: Path) -> None:
    """Starts a server for what it learns of this machine; nobody asks it."""
    kept = cache / "ridgeline" / "corrections.json"
    os.environ["XDG_CACHE_HOME"] = str(cache)
    server = subprocess.Popen([*COMMAND, "serve", model, "--port", "0"], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        while not kept.exists():
            assert server.poll() is None, "the server ended"
            time.sleep(0.2)
    finally:
        server.terminate()
        server.wait(30)


def figure(report: dict[str, Any], name: str) -> float:
    """A number of a report, of one run or of one seed."""
    kind, _, share = name.partition(".")
    if share:
        return float(report["curves"][kind][CURVE_SHARES.index(int(share[1:]) / 100)])
    value: Any = report.get("figures", report)[name]
    return float(value["mean"] if isinstance(value, dict) else value)


Figures = dict[tuple[float, str], list[tuple[float, ...]]]
"""Rate and name → live, simulated in the order of kinds, and by its own steps; a round each."""
Caches = dict[str, Path]
"""Kind → cache directory with what is known by it."""


def prepare(given: argparse.Namespace, caches: Caches) -> None:
    """Lets each kind learn of this machine what it may."""
    for kind, cache in caches.items():
        (cache / "ridgeline" / "corrections.json").unlink(missing_ok=True)
        os.environ["XDG_CACHE_HOME"] = str(cache)
        match kind:
            case "verified":
                ridgeline("plan", given.model, "--verify")
            case "start":
                start(given.model, cache)
            case _:
                loaded(given.model, cache / "served.log", (), SERVED_LOAD, lengths_of(given))


def lengths_of(given: argparse.Namespace) -> tuple[int, int]:
    prompt, output = map(int, given.lengths.split(","))
    return prompt, output


def add_round(given: argparse.Namespace, rate: float, caches: Caches, found: Figures) -> None:
    """Runs one rate."""
    first = next(iter(caches.values()))
    os.environ["XDG_CACHE_HOME"] = str(first)
    measured, trace, steps = live(given.model, rate, given.seconds, first, lengths_of(given))
    told = [simulated(given.model, trace, each) for each in caches.values()]
    told.append(simulated(given.model, trace, first, "--set", f"step_time={steps}"))
    for name in BOUNDS:
        unit = 1 if name.startswith("output") else 1e3
        each = tuple(unit * figure(report, name) for report in (measured, *told))
        found.setdefault((rate, name), []).append(each)
        tell(rate, name, each)


def tell(rate: float, name: str, figures: Sequence[float]) -> None:
    seen, *told = figures
    print(f"{rate:6.2f} {name:<12.12} {seen:9.1f} {' '.join(f'{each:9.1f} {each / seen - 1:+7.0%}' for each in told)}", flush=True)


def judge(found: Figures, kinds: Sequence[str]) -> list[str]:
    """Prints the means of all rounds. What was missed."""
    missed = []
    print("means of all rounds")
    for (rate, name), rounds in found.items():
        means = [sum(each) / len(rounds) for each in zip(*rounds, strict=True)]
        tell(rate, name, means)
        behind, without = BOUNDS[name]
        for kind, told in zip(kinds, means[1:], strict=False):
            bound, error = behind if kind == "verified" else without, told / means[0] - 1
            missed += [f"{kind}: {name} at {rate}: {error:+.0%}"] if bound is not None and abs(error) > bound else []
    return missed


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="demo")
    parser.add_argument("--rates", default="0.5,1.2")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--lengths", default="127,64")
    parser.add_argument("--only", choices=KINDS)
    given = parser.parse_args()
    kinds = (given.only,) if given.only else KINDS
    with tempfile.TemporaryDirectory() as name:
        known, caches = cache_directory(), {kind: Path(name) / kind for kind in kinds}
        for cache in caches.values():
            (cache / "ridgeline").mkdir(parents=True)
            for file in known.glob("*"):
                if file.name != "corrections.json":
                    (cache / "ridgeline" / file.name).symlink_to(file)
        found: Figures = {}
        print(f"load average {os.getloadavg()[0]:.1f}; {given.model}, {given.lengths} tokens in, out; ms")
        print(f"{'rate':>6} {'figure':<12} {'live':>9} {' '.join(f'{kind:>9}   error' for kind in (*kinds, OWN_STEPS))}", flush=True)
        for _ in range(given.rounds):
            prepare(given, caches)
            for rate in map(float, given.rates.split(",")):
                add_round(given, rate, caches, found)
        missed = judge(found, kinds)
    print(f"missed: {', '.join(missed) or 'nothing'}")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
