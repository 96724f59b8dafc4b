"""Many seeds: runs worlds until so many steps are done, on several cores, and adds up what they came to.

Owns the tally and the processes that it starts, which it ends all before it returns; as a program (`python -m ridgeline.sim.laws.swarm SEED
STRIDE STEPS`) it is one worker that prints tallies as JSON lines.
"""

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields
from itertools import count

from ridgeline.sim.laws.run import SeedOutcome, Violation, run_seed

REPORT_INTERVAL = 32
MAX_VIOLATIONS = 20
"""A worker stops after so many: more of them add nothing."""


@dataclass(slots=True)
class Tally:
    """Sums over seeds. `rows` are sequences scheduled, over all steps; `seeds_with_groups` counts seeds with two KV groups or more."""

    seeds: int = 0
    steps: int = 0
    rows: int = 0
    seeds_with_groups: int = 0
    seeds_with_preemption: int = 0
    situation_counts: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)

    def add(self, outcome: SeedOutcome) -> None:
        """Adds one seed."""
        self.seeds += 1
        self.steps += outcome.steps
        self.rows += outcome.rows
        self.seeds_with_groups += outcome.groups > 1
        self.seeds_with_preemption += outcome.situation_counts["preempted"] > 0
        self.situation_counts.update(outcome.situation_counts)
        if outcome.violation is not None:
            self.violations.append(outcome.violation)

    def merge(self, other: "Tally") -> None:
        """Adds another tally."""
        self.seeds += other.seeds
        self.steps += other.steps
        self.rows += other.rows
        self.seeds_with_groups += other.seeds_with_groups
        self.seeds_with_preemption += other.seeds_with_preemption
        self.situation_counts.update(other.situation_counts)
        self.violations.extend(other.violations)

    def to_json(self) -> str:
        """One line."""
        sums = {each.name: getattr(self, each.name) for each in fields(self)}
        return json.dumps(sums | {"violations": [asdict(violation) for violation in self.violations]})

    @classmethod
    def from_json(cls, line: str) -> "Tally":
        """The tally that `to_json` wrote."""
        sums = json.loads(line)
        sums["situation_counts"] = Counter(sums["situation_counts"])
        sums["violations"] = [Violation(**each) for each in sums["violations"]]
        return cls(**sums)


def run_seeds(seed: int, stride: int, steps: int) -> Iterator[SeedOutcome]:
    """Outcomes of seeds seed, seed + stride, … until exactly `steps` steps are done; the last seed is cut short."""
    for each in count(seed, stride):
        outcome = run_seed(each, steps)
        yield outcome
        steps -= outcome.steps
        if steps <= 0:
            return


def run_worker(seed: int, stride: int, steps: int, report: Callable[[Tally], None]) -> None:
    """Runs seeds and reports partial tallies."""
    part, found = Tally(), 0
    for outcome in run_seeds(seed, stride, steps):
        part.add(outcome)
        found += outcome.violation is not None
        if part.seeds >= REPORT_INTERVAL or found >= MAX_VIOLATIONS:
            report(part)
            part = Tally()
        if found >= MAX_VIOLATIONS:
            return
    report(part)


def _print_tally(part: Tally) -> None:
    print(part.to_json(), flush=True)


MIN_PARALLEL_STEPS = 20_000
"""Below this a second process costs more than it saves."""


def run_swarm(seed: int, steps: int, workers: int, progress: Callable[[int], None]) -> Tally:
    """Runs seeds from `seed` on for `steps` steps; `progress` is called with numbers of finished steps, from any thread."""
    total, lock = Tally(), threading.Lock()

    def merge(part: Tally) -> None:
        with lock:
            total.merge(part)
            progress(part.steps)

    if workers == 1 or steps < MIN_PARALLEL_STEPS:
        run_worker(seed, 1, steps, merge)
        return total
    shares = [steps // workers + (index < steps % workers) for index in range(workers)]
    children = [_start(seed + index, workers, share) for index, share in enumerate(shares)]
    threads = [threading.Thread(target=_read, args=(child, merge)) for child in children]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        failed = [status for child in children if (status := child.wait())]
    finally:
        for child in children:
            child.kill()
            child.wait()
    if failed:
        raise RuntimeError(f"a worker of the simulator ended with status {failed[0]}")
    return total


def _start(seed: int, stride: int, steps: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "ridgeline.sim.laws.swarm", str(seed), str(stride), str(steps)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _read(child: "subprocess.Popen[str]", merge: Callable[[Tally], None]) -> None:
    assert child.stdout is not None
    with child.stdout:
        for line in child.stdout:
            merge(Tally.from_json(line))


if __name__ == "__main__":
    run_worker(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), _print_tally)
