"""Times at which who is refused should come again: when those who wait are served, and others who were told to come again have had their
places.

Owns what has been promised, and how long one turn takes. Clocks are passed in.
"""

from collections.abc import Hashable
from math import ceil
from typing import Final

MAX_RETRY_AFTER_SECONDS: Final = 60
"""The official clients wait no longer, whatever the header says."""
RETURNING_SHARE: Final = 0.4
"""Share of the places that become free which is promised to those who were refused; newcomers have the rest."""
SPREAD, GOLDEN = 0.7, 0.618033988749895
"""Constants of the time that who comes too late for a promised place is told: in the last 70 % of the longest, by the golden ratio."""
MAX_KEPT: Final = 1_024
"""Clients of whom promises are kept that may have been met; more are looked through."""
TURN_WEIGHT: Final = 1 / 32
"""Weight of a new turn in the mean of what turns take."""


class Promises:
    """Places that were promised to those who were refused, by who shares them."""

    def __init__(self) -> None:
        self._until: dict[Hashable, float] = {}
        """Time until which places are promised."""
        self._spread = 0.0

    def retry_after(self, whose: Hashable, wait: float, places: float, now: float) -> int:
        """Whole seconds until those who wait should have been served, in `wait` seconds, and promised places are taken. `places`: seconds
        in which as many become free as the refused request brings."""
        promised = max(now, self._until.get(whose, now)) + places / RETURNING_SHARE
        at = max(now + wait, promised)
        if at - now > MAX_RETRY_AFTER_SECONDS:
            self._spread = (self._spread + GOLDEN) % 1
            return ceil(MAX_RETRY_AFTER_SECONDS * (1 - SPREAD * self._spread))
        if len(self._until) >= MAX_KEPT:
            self._until = {each: until for each, until in self._until.items() if until > now}
        self._until[whose] = promised
        return max(1, ceil(at - now))


class TurnTime:
    """Seconds that one turn at something takes: the mean of the newest. 0 before the first has ended."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._count = 0

    def add(self, seconds: float) -> None:
        """A turn has taken so long."""
        self._count += 1
        self.seconds += (seconds - self.seconds) * max(TURN_WEIGHT, 1 / self._count)
