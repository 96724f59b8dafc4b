"""Eviction from a tier: the value that is worth least of those that no other one hangs on.

Worth is the chance that a value is asked for times the cost of computing it again. The chance is the sum of its uses so far, each of which
counts e times less with every half turnover, which is as many uses as half of the values (LRFU; Lee et al. 2001): how often, and how long
ago. A token costs the more, the more there are before it. Worths are kept as logarithms, to which time adds the same everywhere, so that
their order changes with a use alone.
Without one block of a prompt those behind it are of no use: it stays while one of them does, whatever its own uses, which an engine that
has it in memory does not show. So a prompt loses its end first, and no more of it than there must be.
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from math import exp, log1p
from typing import Final, NamedTuple

SPARE: Final = 64
"""Entries of the heap that may say what is no longer so, beside four for each value."""
FORGETTING: Final = 0.5
"""Share of a turnover. Shorter is nearer to what was used last, longer to what was used most: found by `tests/engine/test_worth.py`."""
LEAST_VALUES: Final = 64
"""A tier that has only begun to fill forgets no faster than one of so many."""

LATEST: Final = 0.9
"""Share of values from before that are worth less than one that was used once just before the end: others have many uses."""


class Place(NamedTuple):
    """The place of a value in its prompt. `before`: the name of the one without which it is of no use, b"" for none; `position`: of its
    first token."""

    before: bytes = b""
    position: int = 0


NOWHERE: Final = Place()


class Worth:
    """The worth of values by name.

    attention_tokens  of the model (`KVShape`): a token behind so many costs twice as much as a first one; 0: all cost the same
    """

    def __init__(self, attention_tokens: float = 0.0) -> None:
        self._slope = 1 / attention_tokens if attention_tokens else 0.0
        self._of: dict[bytes, float] = {}
        self._places: dict[bytes, Place] = {}
        self._behind: dict[bytes, int] = {}
        """Number of values that hang on one."""
        self._order: list[tuple[float, int, bytes]] = []
        """Heap of (worth, order of entry, name) of all on which no other one hangs; entries that say what is no longer so are passed
        over."""
        self._entered = 0
        self._time = 0.0
        """Uses, each as a part of those behind which one counts e times less."""

    def load(self, found: Iterable[tuple[bytes, Place, float]]) -> None:
        """Takes the worth of values from before, in the place of all others."""
        self._of, self._places, self._behind = {}, {}, {}
        for name, place, worth in found:
            self._of[name], self._places[name] = worth, place
            self._behind[place.before] = self._behind.get(place.before, 0) + 1
        worths = sorted(self._of.values())
        self._time = worths[int(LATEST * len(worths))] if worths else 0.0
        self._rebuild()

    def place(self, name: bytes) -> Place:
        """The place of a value that is there."""
        return self._places[name]

    def enter(self, name: bytes, place: Place) -> float:
        """Notes a new value, which is its first use; returns its worth."""
        self._places[name] = place
        self._behind[place.before] = self._behind.get(place.before, 0) + 1
        return self.use(name)

    def use(self, name: bytes) -> float:
        """Notes a use; returns what the value is worth now."""
        self._time += 1 / (FORGETTING * max(LEAST_VALUES, len(self._of)))
        now = self._time + log1p(self._slope * self._places[name].position)
        before = self._of.get(name, 0.0)
        worth = self._of[name] = max(before, now) + log1p(exp(-abs(before - now))) if name in self._of else now
        self._push(name)
        return worth

    def forget(self, name: bytes) -> None:
        """Drops a value that has gone."""
        if self._of.pop(name, None) is not None:
            before = self._places.pop(name).before
            self._behind[before] = self._behind.get(before, 0) - 1
            if self._behind[before] <= 0:
                del self._behind[before]
                self._push(before)

    def evict(self) -> bytes:
        """Forgets the value that is worth least, of equals the oldest; returns its name. Called where there is one."""
        while True:
            if not self._order:  # a damaged file may say that values hang on each other in a ring
                self._behind.clear()
                self._rebuild()
            worth, _, name = heappop(self._order)
            if self._of.get(name) == worth and name not in self._behind:
                self.forget(name)
                return name

    def _push(self, name: bytes) -> None:
        if name in self._of and name not in self._behind:
            self._entered += 1
            heappush(self._order, (self._of[name], self._entered, name))
            if len(self._order) > 4 * len(self._of) + SPARE:
                self._rebuild()

    def _rebuild(self) -> None:
        ends = (name for name in self._of if name not in self._behind)
        self._order = [(self._of[name], number, name) for number, name in enumerate(ends)]
        heapify(self._order)
        self._entered = len(self._order)
