"""Expiry of values on a server that evicts what expires next: what is worth more expires later.

An expiry is the logarithm of a worth, as `Worth` has it, in time: a use counts e times less with every `FORGETTING_SECONDS`, and a value
that costs e times as much to compute begins so much later. It is rounded up to a level, less a millisecond for each token in front of it:
of a prompt whose values have one level the end goes first, and no value has a higher one than those in front of it.
"""

import time
from collections.abc import Callable
from math import ceil, exp, log1p
from typing import Final

from ridgeline.engine.tiers.worth import Place

KEPT_SECONDS: Final = 7 * 86_400
"""Seconds behind its last use after which a value goes, even where there is room."""
FORGETTING_SECONDS: Final = 3_600
LEVEL: Final = FORGETTING_SECONDS * 1_000 // 16
"""Milliseconds: values in front of one are told that it lasts longer once for so much."""
MOST_KNOWN: Final = 1 << 16
"""Values whose places are kept, the newest."""
Expiry = tuple[bytes, int]
"""A value's name, and when it expires: milliseconds since the epoch."""


class Lifetimes:
    """Expiries of the values that an engine writes and reads.

    attention_tokens  see `Worth`
    """

    def __init__(self, attention_tokens: float = 0.0, clock: Callable[[], float] = time.time) -> None:
        self._slope = 1 / attention_tokens if attention_tokens else 0.0
        self._clock = clock
        self._known: dict[bytes, tuple[Place, int]] = {}
        """Places and levels of values that were written."""

    def enter(self, name: bytes, place: Place) -> list[Expiry]:
        """The expiry of a new value, and of those in front of it that would expire before."""
        level = self._level(self._now() + 1_000 * FORGETTING_SECONDS * log1p(self._slope * place.position))
        if len(self._known) >= MOST_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[name] = place, level
        found = [(name, level - _behind(place))]
        while (front := self._known.get(place.before)) is not None and front[1] < level:
            self._known[place.before] = front[0], level
            found.append((place.before, level - _behind(front[0])))
            place = front[0]
        return found

    def use(self, expiry: int) -> int:
        """The expiry of a value that has been read, and had this one till then. Uses count alike all along a prompt, whose end is of no use
        without its beginning."""
        now, level = self._now(), self._level(expiry)
        most, unit = max(level, now), 1_000 * FORGETTING_SECONDS
        longer = self._level(most + unit * log1p(exp(-abs(level - now) / unit)))
        return longer - (level - expiry)

    def _now(self) -> float:
        return 1_000 * (self._clock() + KEPT_SECONDS)

    @staticmethod
    def _level(expiry: float) -> int:
        return ceil(expiry / LEVEL) * LEVEL


def _behind(place: Place) -> int:
    return min(place.position, LEVEL - 1)
