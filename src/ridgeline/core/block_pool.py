"""The pool of equal KV blocks. A block is free, cached (published, no holder) or held; it is handed out only with no holder.

Holders are sequences, through their tables, and steps in flight, through hand-overs: when a sequence drops a block that a step in
flight may still touch, the hold passes to that step and ends when the step commits. Behind the device's blocks there may be a tier of the
host's, where published content goes instead of being forgotten; plans do the copying.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable

from ridgeline.errors import LawViolation


class BlockPool:
    """Blocks 1 … `count`. Block 0 is reserved: it stands in tables for what nobody reads.

    cached       used for longest first; a plain dict would walk over every entry that has left its front
    published    1 where the block is in the prefix index; whoever changes the index sets it
    held_by_steps  step in flight → blocks that it holds
    """

    def __init__(self, count: int, evicted: Callable[[int], None]) -> None:
        self.count = count
        self.free = list(range(count, 0, -1))
        self.holders = [0] * (count + 1)
        self.cached: OrderedDict[int, None] = OrderedDict()
        self.held = 0
        self.published = bytearray(count + 1)
        self.held_by_steps: dict[int, list[int]] = {}
        self._evicted = evicted

    @property
    def available(self) -> int:
        """Blocks that can be taken now."""
        return len(self.free) + len(self.cached)

    def allocate(self, count: int) -> list[int]:
        """`count` ≥ 1 blocks with one holder each: free ones, then those cached and unused for longest. The caller checks `available`."""
        while len(self.free) < count:
            block_id, _ = self.cached.popitem(last=False)
            self.published[block_id] = 0
            self.free.append(block_id)
            self._evicted(block_id)
        free, holders = self.free, self.holders
        block_ids = free[: -count - 1 : -1]
        del free[-count:]
        for block_id in block_ids:
            if holders[block_id]:
                raise LawViolation(3, f"block {block_id} is handed out and has {holders[block_id]} holders")
            holders[block_id] = 1
        self.held += count
        return block_ids

    def hold(self, block_id: int) -> None:
        """One more holder of a block that is cached or held."""
        if self.holders[block_id] == 0:
            if block_id not in self.cached:
                raise LawViolation(3, f"block {block_id} is shared, and is free")
            del self.cached[block_id]
            self.held += 1
        self.holders[block_id] += 1

    def drop(self, block_id: int) -> None:
        """One holder less. Without any, a published block stays cached as the most recently used, another is free."""
        self.holders[block_id] -= 1
        if self.holders[block_id] > 0:
            return
        if self.holders[block_id] < 0:
            raise LawViolation(2, f"block {block_id} is dropped once more than it was held")
        self.held -= 1
        if self.published[block_id]:
            self.cached[block_id] = None
        else:
            self.free.append(block_id)

    def transfer_to_step(self, block_ids: Iterable[int], step: int) -> None:
        """The hold on them passes from a sequence to a step in flight."""
        self.held_by_steps.setdefault(step, []).extend(block_ids)

    def count_pending_free(self) -> int:
        """Blocks that will have no holder once the steps in flight have committed."""
        return sum(self.holders[block_id] == 1 for block_ids in self.held_by_steps.values() for block_id in block_ids)

    def unpublish(self, block_id: int) -> None:
        """The block left the prefix index; if cached it becomes free."""
        self.published[block_id] = 0
        if block_id in self.cached:
            del self.cached[block_id]
            self.free.append(block_id)


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

    def allocate(self) -> int:
        """A block for what leaves the device, if need be that of the block moved here longest ago; 0 where there is none."""
        if self.free:
            return self.free.pop()
        if not self.cached:
            return 0
        block_id, _ = self.cached.popitem(last=False)
        self._forgotten(block_id)
        return block_id

    def put(self, block_id: int) -> None:
        """The block holds published content, and may be taken after all that do now."""
        self.cached[block_id] = None

    def reserve(self, block_id: int) -> None:
        """Nobody takes the block until it is kept or given back."""
        del self.cached[block_id]

    def release(self, block_id: int) -> None:
        """Its content is on the device again. Copies of a plan run in order, so that a later one may write to it."""
        self.free.append(block_id)
