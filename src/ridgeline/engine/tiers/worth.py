"""Eviction from a tier: the value that is worth least.

Worth is the chance that a value is asked for: the uses that it has had, behind the worth of the last one that went (GreedyDual, Cao and
Irani 1997), so that what nobody uses grows old. All blocks of a tier are as large and cost about as much to compute; each use of one is a
use of those in front of it that are still seen, so that a prompt loses its end first.
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Final

SPARE: Final = 64
"""Entries of the heap that may say what is no longer so, beside four for each value."""


class Worth:
    """The worth of values by name. `age`: that of the last one that went."""

    def __init__(self) -> None:
        self._of: dict[bytes, float] = {}
        self._order: list[tuple[float, int, bytes]] = []
        """Heap of (worth, order of entry, name); entries that say what is no longer so are passed over."""
        self._entered = 0
        self.age = 0.0

    def load(self, found: Iterable[tuple[bytes, float]], is_full: bool) -> None:
        """Takes the worth of values from before, in the place of all others."""
        self._of = dict(found)
        self._rebuild()
        self.age = self._order[0][0] if self._order and is_full else 0.0

    def use(self, name: bytes) -> float:
        """Notes a use, the first one too; returns what the value is worth now."""
        worth = self._of[name] = max(self._of.get(name, 0.0), self.age) + 1.0
        self._entered += 1
        heappush(self._order, (worth, self._entered, name))
        if len(self._order) > 4 * len(self._of) + SPARE:
            self._rebuild()
        return worth

    def forget(self, name: bytes) -> None:
        """The value has gone."""
        self._of.pop(name, None)

    def evict(self) -> bytes:
        """Forgets the value that is worth least, of equals the oldest; returns its name. Called where there is one."""
        while True:
            worth, _, name = heappop(self._order)
            if self._of.get(name) == worth:
                del self._of[name]
                self.age = worth
                return name

    def _rebuild(self) -> None:
        self._order = [(worth, number, name) for number, (name, worth) in enumerate(self._of.items())]
        heapify(self._order)
        self._entered = len(self._order)
