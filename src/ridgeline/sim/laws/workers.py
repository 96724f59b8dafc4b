"""Runs a swarm on several cores: one subprocess a worker, JSON lines on its standard output.

Owns the processes that it starts and ends them all before it returns.
"""

import subprocess
import sys
import threading
from collections.abc import Callable

from ridgeline.sim.laws.swarm import Tally, tally

FEW_STEPS = 20_000
"""Below this a second process costs more than it saves."""


def run_swarm(seed: int, steps: int, workers: int, progress: Callable[[int], None]) -> Tally:
    """Explores seeds from `seed` on for `steps` steps; `progress` is told of steps as they are done, from any thread."""
    total, lock = Tally(), threading.Lock()

    def take(part: Tally) -> None:
        with lock:
            total.merge(part)
            progress(part.steps)

    if workers == 1 or steps < FEW_STEPS:
        tally(seed, 1, steps, take)
        return total
    shares = [steps // workers + (index < steps % workers) for index in range(workers)]
    children = [_start(seed + index, workers, share) for index, share in enumerate(shares)]
    threads = [threading.Thread(target=_read, args=(child, take)) for child in children]
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


def _read(child: "subprocess.Popen[str]", take: Callable[[Tally], None]) -> None:
    assert child.stdout is not None
    with child.stdout:
        for line in child.stdout:
            take(Tally.from_json(line))
