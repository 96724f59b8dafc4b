"""Processes that measurements start, and what ends them: a group ends when this process is gone, however it went.

`Guard` owns a shell that waits for a pipe to close; it stands in a session of its own, so that what ends this process does not reach it.
`hogs` are foreign processes that want a CPU core each and give nothing back: a machine that is shared with others.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import sleep
from typing import Final

WATCH: Final = 'read -r word || kill -s KILL -- "-$0"'
"""A line means that the group has ended; the end of the pipe without one, that nobody is left to end it."""


class Guard:
    """A guard over the process group with this number, until it is released."""

    def __init__(self, group: int) -> None:
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", WATCH, str(group)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def release(self) -> None:
        """The group has ended: its number may become another's."""
        with suppress(BrokenPipeError):
            self._watcher.communicate(b"ended\n")


WORK: Final = "while True: pass"
SETTLE_SECONDS: Final = 0.3
"""Until each of them computes."""


@contextmanager
def hogs(count: int) -> Iterator[None]:
    """So many of them run, each in a session of its own, as somebody else's would."""
    found = [subprocess.Popen([sys.executable, "-S", "-c", WORK], start_new_session=True) for _ in range(count)]
    guards = [Guard(each.pid) for each in found]
    try:
        sleep(SETTLE_SECONDS)
        yield
    finally:
        for each, guard in zip(found, guards, strict=True):
            each.kill()
            each.wait()
            guard.release()
