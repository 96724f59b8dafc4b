"""The host tier of the prefix cache: blocks behind the device's, where published blocks go instead of being forgotten.

Owns which of them are free, which hold a block, and which block is forgotten next. Copies nothing: plans do.
"""

from collections import OrderedDict
from collections.abc import Callable


class HostBlocks:
    """Blocks `first` … `first` + `count` − 1. Each is free, cached, or claimed by whoever is about to copy it back to the device.

    cached  holds published content; moved here longest ago first
    """

    def __init__(self, first: int, count: int, forgotten: Callable[[int], None]) -> None:
        self.first = first
        self.count = count
        self.free = list(range(first + count - 1, first - 1, -1))
        self.cached: OrderedDict[int, None] = OrderedDict()
        self._forgotten = forgotten

    def take(self) -> int:
        """A block for what leaves the device, if need be that of the block moved here longest ago; 0 where there is none."""
        if self.free:
            return self.free.pop()
        if not self.cached:
            return 0
        block_id, _ = self.cached.popitem(last=False)
        self._forgotten(block_id)
        return block_id

    def keep(self, block_id: int) -> None:
        """The block holds published content, and may be taken after all that do now."""
        self.cached[block_id] = None

    def claim(self, block_id: int) -> None:
        """Nobody takes the block until it is kept or given back."""
        del self.cached[block_id]

    def give_back(self, block_id: int) -> None:
        """Its content is on the device again. Copies of a plan run in order, so that a later one may write to it."""
        self.free.append(block_id)
