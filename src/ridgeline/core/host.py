"""The host tier of the prefix cache: pages behind the device's, where published blocks go instead of being forgotten.

Owns which of them are free, which hold a block, and which block is forgotten next. Copies nothing: plans do.
"""

from collections import OrderedDict
from collections.abc import Callable


class HostPages:
    """Pages `first` … `first` + `count` − 1. Each is free, cached, or claimed by whoever is about to copy it back to the device.

    cached  holds a published block; moved here longest ago first
    """

    def __init__(self, first: int, count: int, forgotten: Callable[[int], None]) -> None:
        self.first = first
        self.count = count
        self.free = list(range(first + count - 1, first - 1, -1))
        self.cached: OrderedDict[int, None] = OrderedDict()
        self._forgotten = forgotten

    def take(self) -> int:
        """A page for a block that leaves the device, if need be that of the block moved here longest ago; 0 where there is none."""
        if self.free:
            return self.free.pop()
        if not self.cached:
            return 0
        page, _ = self.cached.popitem(last=False)
        self._forgotten(page)
        return page

    def keep(self, page: int) -> None:
        """The page holds a published block, and may be taken after all that do now."""
        self.cached[page] = None

    def claim(self, page: int) -> None:
        """Nobody takes the page until it is kept or given back."""
        del self.cached[page]

    def give_back(self, page: int) -> None:
        """Its block is on the device again. Copies of a plan run in order, so that a later one may write to it."""
        self.free.append(page)
