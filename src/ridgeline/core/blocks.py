"""The pool of equal pages. A page is free, cached (published, no holder) or held; it is handed out only with no holder.

Holders are sequences, through their tables, and steps in flight, through hand-overs: when a sequence drops a page that a step in flight may
still touch, the hold passes to that step and ends when the step commits.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable

from ridgeline.errors import LawViolation


class Pages:
    """Pages 1 … `count`. Page 0 is reserved: it stands in tables for blocks that nobody reads.

    cached       used for longest first; a plain dict would walk over every entry that has left its front
    published    1 where the page's block is in the prefix index; whoever changes the index sets it
    handed_over  step in flight → pages that it holds
    """

    def __init__(self, count: int, evicted: Callable[[int], None]) -> None:
        self.count = count
        self.free = list(range(count, 0, -1))
        self.holders = [0] * (count + 1)
        self.cached: OrderedDict[int, None] = OrderedDict()
        self.held = 0
        self.published = bytearray(count + 1)
        self.handed_over: dict[int, list[int]] = {}
        self._evicted = evicted

    @property
    def available(self) -> int:
        """Pages that can be taken now."""
        return len(self.free) + len(self.cached)

    def take(self, count: int) -> list[int]:
        """`count` ≥ 1 pages with one holder each: free ones, then those cached and unused for longest. The caller checks `available`."""
        while len(self.free) < count:
            page, _ = self.cached.popitem(last=False)
            self.published[page] = 0
            self.free.append(page)
            self._evicted(page)
        free, holders = self.free, self.holders
        pages = free[: -count - 1 : -1]
        del free[-count:]
        for page in pages:
            if holders[page]:
                raise LawViolation(3, f"page {page} is handed out and has {holders[page]} holders")
            holders[page] = 1
        self.held += count
        return pages

    def hold(self, page: int) -> None:
        """One more holder of a page that is cached or held."""
        if self.holders[page] == 0:
            del self.cached[page]
            self.held += 1
        self.holders[page] += 1

    def drop(self, page: int) -> None:
        """One holder less. Without any, a published page stays cached as the most recently used, another is free."""
        self.holders[page] -= 1
        if self.holders[page] > 0:
            return
        if self.holders[page] < 0:
            raise LawViolation(2, f"page {page} is dropped once more than it was held")
        self.held -= 1
        if self.published[page]:
            self.cached[page] = None
        else:
            self.free.append(page)

    def hand_over(self, pages: Iterable[int], step: int) -> None:
        """The hold on `pages` passes from a sequence to a step in flight."""
        self.handed_over.setdefault(step, []).extend(pages)

    def coming(self) -> int:
        """Pages that will have no holder once the steps in flight have committed."""
        return sum(self.holders[page] == 1 for pages in self.handed_over.values() for page in pages)

    def withdraw(self, page: int) -> None:
        """The page's block left the prefix index; a cached page becomes free."""
        self.published[page] = 0
        if page in self.cached:
            del self.cached[page]
            self.free.append(page)
