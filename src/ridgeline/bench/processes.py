"""Processes that measurements start; their groups are killed when this process ends, however it ends.

`ProcessGuard` owns a shell that waits for a pipe to close, in a session of its own, so that a signal to this process does not reach it.
`busy_processes` simulates a machine that is shared with others: processes that each keep a CPU core busy.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import sleep
from typing import Final

GUARD_SCRIPT: Final = 'read -r word || kill -s KILL -- "-$0"'
"""A line means that the group has ended; the end of the pipe without one, that this process is gone."""


class ProcessGuard:
    """Kills process group `group` when this process is gone, until released."""

    def __init__(self, group: int) -> None:
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", GUARD_SCRIPT, str(group)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def release(self) -> None:
        """Ends the guard: the group has ended, and its number may be reused."""
        with suppress(BrokenPipeError):
            self._watcher.communicate(b"ended\n")


BUSY_LOOP: Final = "while True: pass"
SETTLE_SECONDS: Final = 0.3
"""Until each of them is busy."""


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Runs `count` processes that each keep a CPU core busy, in sessions of their own."""
    found = [subprocess.Popen([sys.executable, "-S", "-c", BUSY_LOOP], start_new_session=True) for _ in range(count)]
    guards = [ProcessGuard(each.pid) for each in found]
    try:
        sleep(SETTLE_SECONDS)
        yield
    finally:
        for each, guard in zip(found, guards, strict=True):
            each.kill()
            each.wait()
            guard.release()
