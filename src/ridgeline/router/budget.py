"""Requests that replicas are sent again, and what they may cost: retries, second copies of slow ones, streams that go on. Where much
fails, they must not be the overload.

A request has one move of its own, for the replica that ends under it: however many a replica had, each goes on at once. Everything else is
paid from one budget, by a share of the requests and some per second. What has reached nobody, as there was no connection, is free.
"""

import time
from collections.abc import Callable
from typing import Final

SHARE: Final = 0.2
"""Requests sent again per request."""
FLOOR_PER_SECOND: Final = 5.0
"""The same per second, however few requests there are."""
MOST_SAVED: Final = 10.0
OWN_SECONDS: Final = 10.0
"""Time behind a move of a stream's own in which another one is paid from the budget."""


class Budget:
    """`earn` with each request, `take` before one is sent again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._saved, self._seen = MOST_SAVED, clock()

    def earn(self) -> None:
        """A request has come."""
        self._saved = min(MOST_SAVED, self._saved + SHARE)

    def take(self) -> bool:
        """Pays for one, if there is as much."""
        now = self._clock()
        self._saved, self._seen = min(MOST_SAVED, self._saved + FLOOR_PER_SECOND * (now - self._seen)), now
        has_one = self._saved >= 1
        self._saved -= has_one
        return has_one


class Moves:
    """Those of one request."""

    def __init__(self, budget: Budget, clock: Callable[[], float] = time.monotonic) -> None:
        self._budget, self._clock = budget, clock
        self._own_from = 0.0

    def pay(self, is_loss: bool) -> bool:
        """Pays for the request to be sent once more; False: it may not now. `is_loss`: its replica has ended under it."""
        if is_loss and self._clock() >= self._own_from:
            self._own_from = self._clock() + OWN_SECONDS
            return True
        return self._budget.take()
