"""Rests of a thread that works beside the steps of its process.

A kernel's threads wait for the slowest of them, so that whoever takes a core for a while lengthens a step by as much, whatever its
priority: a low one gives way to threads that wake, and those of a step have been awake. Work in pieces with rests between them lengthens
many steps a little.
"""

import time
from collections.abc import Callable
from typing import Final

Rest = Callable[[], None]

PIECE_SECONDS: Final = 0.001
SHARE: Final = 1 / 8
"""Share of a core that such a thread may have while its process's other threads compute."""


def no_rest() -> None:
    """No rest, where nothing runs beside the work."""


class Rests:
    """Called by a thread between pieces of its work: sleeps, once these took `PIECE_SECONDS`, so long that it has `SHARE` of a core; not
    where the process's other threads used less than half of what it did meanwhile."""

    def __init__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        self._sleep = sleep
        self._mark()

    def _mark(self) -> None:
        self._own, self._all = time.thread_time(), time.process_time()

    def __call__(self) -> None:
        """Rests where it is time to."""
        own = time.thread_time() - self._own
        if own < PIECE_SECONDS:
            return
        if time.process_time() - self._all > 1.5 * own:
            self._sleep(own * (1 / SHARE - 1))
        self._mark()
