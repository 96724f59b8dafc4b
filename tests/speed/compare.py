"""Two commits in turn: is the new one as fast as the old one?

    python tests/speed/compare.py --old PYTHON --new PYTHON [--old-path SRC] [--new-path SRC] [--rounds 20] [--json]

Each PYTHON has the package installed, or finds it at SRC. Every load is run by one process (probe.py) and the other in turn, the order
changing from round to round, so that what a machine does to both cancels. Where a process's memory lies is worth some per cent and stays
as long as it does: so both start anew every few rounds. A load ends when the 90 % interval of the median of its paired ratios is within
± 2 %, or after all rounds. Ratios are old over new: above 1 the new one is faster.
"""

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

PROBE = Path(__file__).with_name("probe.py")
LOADS = {"decode": (1, 4, 16, 32), "prefill": (512, 2_048), "host": (32, 256)}
"""Streams, tokens of a prompt, rows of a step whose host side alone is timed."""
LEAST_ROUNDS, WIDTH = 5, 0.02
ROUNDS_PER_START = 4
LEAST_SPEED, MOST_CPU = 0.98, 1.02
RESAMPLES = 2_000


class Side:
    """One installation: a probe that waits for the next load."""

    def __init__(self, python: str, path: str | None, model: str) -> None:
        self.command = [python, "-P", str(PROBE), model]
        self.environment = {**os.environ, **({"PYTHONPATH": path} if path else {})}
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=self.environment)

    def start_anew(self, load: str, size: int) -> None:
        """A fresh process, warmed by the load."""
        self.close()
        self.start()
        self.run(load, size)

    def run(self, load: str, size: int) -> dict[str, float]:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps({"load": load, "size": size}), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the probe ended with status {self.process.wait()}")
        found: dict[str, float] = json.loads(line)
        return found

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)


@dataclass(frozen=True)
class Comparison:
    """Medians of a load in both, in seconds of a token or step, and of the paired ratios, with their 90 % intervals."""

    load: str
    size: int
    rounds: int
    old_seconds: float
    new_seconds: float
    speed: float
    speed_interval: tuple[float, float]
    cpu: float
    cpu_interval: tuple[float, float]

    @property
    def holds(self) -> bool:
        """Not slower and not dearer than allowed."""
        return self.speed >= LEAST_SPEED and self.cpu <= MOST_CPU


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Where 90 % of medians of samples drawn again from these lie."""
    draws = random.Random(0)
    medians = sorted(median(draws.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return medians[RESAMPLES // 20], medians[-RESAMPLES // 20 - 1]


def compare(old: Side, new: Side, load: str, size: int, rounds: int) -> Comparison:
    pairs: list[tuple[dict[str, float], dict[str, float]]] = []
    while True:
        if len(pairs) % ROUNDS_PER_START == 0:
            for side in (old, new):
                side.start_anew(load, size)
        order = (old, new) if len(pairs) % 2 == 0 else (new, old)
        found = {side: side.run(load, size) for side in order}
        pairs.append((found[old], found[new]))
        speeds = [before["seconds"] / after["seconds"] for before, after in pairs]
        costs = [after["cpu"] / before["cpu"] for before, after in pairs]
        narrow = all(high - low <= 2 * WIDTH for low, high in (interval(speeds), interval(costs)))
        if len(pairs) >= rounds or (len(pairs) >= LEAST_ROUNDS and narrow):
            break
    return Comparison(
        load, size, len(pairs), median(before["seconds"] for before, _ in pairs), median(after["seconds"] for _, after in pairs),
        median(speeds), interval(speeds), median(costs), interval(costs),
    )  # fmt: skip


def line(each: Comparison) -> str:
    unit = {"decode": "streams", "prefill": "tokens", "host": "rows"}[each.load]
    both = (each.old_seconds, each.new_seconds)
    old, new = (f"{seconds * 1e6:,.0f} µs" if each.load == "host" else f"{1 / seconds:,.0f}/s" for seconds in both)
    low, high = each.speed_interval
    least, most = each.cpu_interval
    return (
        f"| {each.load}, {each.size} {unit} | {old} | {new} | {each.speed:.3f} ({low:.3f}–{high:.3f}) "
        f"| {each.cpu:.3f} ({least:.3f}–{most:.3f}) | {each.rounds} | {'yes' if each.holds else 'NO'} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for side in ("old", "new"):
        parser.add_argument(f"--{side}", required=True, metavar="PYTHON")
        parser.add_argument(f"--{side}-path", metavar="SRC")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--loads", default=",".join(LOADS), help="decode, prefill, host, with commas")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    old, new = Side(asked.old, asked.old_path, asked.model), Side(asked.new, asked.new_path, asked.model)
    found = []
    if not asked.json:
        print("| load | old | new | speed, old time / new time | CPU time, new / old | rounds | holds |")
        print("|---|---|---|---|---|---|---|")
    for load in asked.loads.split(","):
        for size in LOADS[load]:
            found.append(compare(old, new, load, size, asked.rounds))
            if not asked.json:
                print(line(found[-1]), flush=True)
    for side in (old, new):
        side.close()
    if asked.json:
        print(json.dumps([{**asdict(each), "holds": each.holds} for each in found]))
    sys.exit(0 if all(each.holds for each in found) else 1)


if __name__ == "__main__":
    main()
