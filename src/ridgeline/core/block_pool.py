"""Pools of KV blocks of equal size: the device's, and the host tier behind them.

A block is free, cached (published, no holder) or held; only blocks without holders are allocated. Holders are sequences, through their
block tables, and steps in flight: a block that a sequence drops while a step in flight may touch it is held by that step until it commits.
With a host tier an evicted block's content is copied to the host instead of being lost; plans carry the copies out.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable

from ridgeline.errors import LawViolation


class BlockPool:
    """Blocks 1 … `count` of the device. Block 0 is reserved: it stands in block tables where nothing is read.

    holders        per block the number of sequences and steps that hold it (vLLM: ref_cnt)
    cached         least recently used first. An OrderedDict, as popping from the front of a dict walks over its removed entries
    published      1 for blocks in the prefix index; set by whoever changes the index
    held_by_steps  step in flight → blocks that it holds
    """

    def __init__(self, count: int, on_evict: Callable[[int], None]) -> None:
        self.count = count
        self.free = list(range(count, 0, -1))
        self.holders = [0] * (count + 1)
        self.cached: OrderedDict[int, None] = OrderedDict()
        self.held = 0
        self.published = bytearray(count + 1)
        self.held_by_steps: dict[int, list[int]] = {}
        self._on_evict = on_evict

    @property
    def available(self) -> int:
        """Blocks that can be allocated now."""
        return len(self.free) + len(self.cached)

    def allocate(self, count: int) -> list[int]:
        """Returns `count` ≥ 1 blocks with one holder each: free ones, then the least recently used cached ones, which are evicted. The
        caller has checked `available`."""
        while len(self.free) < count:
            block_id, _ = self.cached.popitem(last=False)
            self.published[block_id] = 0
            self.free.append(block_id)
            self._on_evict(block_id)
        free, holders = self.free, self.holders
        block_ids = free[: -count - 1 : -1]
        del free[-count:]
        for block_id in block_ids:
            if holders[block_id]:
                raise LawViolation(3, f"block {block_id} is allocated and has {holders[block_id]} holders")
            holders[block_id] = 1
        self.held += count
        return block_ids

    def hold(self, block_id: int) -> None:
        """Adds a holder to a block that is cached or held."""
        if self.holders[block_id] == 0:
            if block_id not in self.cached:
                raise LawViolation(3, f"block {block_id} is shared, and is free")
            del self.cached[block_id]
            self.held += 1
        self.holders[block_id] += 1

    def drop(self, block_id: int) -> None:
        """Removes a holder. A block without holders becomes the most recently used cached one if it is published, else free."""
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
        """Makes a step in flight the holder of blocks that a sequence has held."""
        self.held_by_steps.setdefault(step, []).extend(block_ids)

    def count_pending_free(self) -> int:
        """Returns the number of blocks that have no holder once the steps in flight are committed."""
        return sum(self.holders[block_id] == 1 for block_ids in self.held_by_steps.values() for block_id in block_ids)

    def unpublish(self, block_id: int) -> None:
        """Notes that the block has left the prefix index; a cached block becomes free."""
        self.published[block_id] = 0
        if block_id in self.cached:
            del self.cached[block_id]
            self.free.append(block_id)


class HostBlocks:
    """Blocks `first` … `first` + `count` − 1 of the host tier. Each is free, cached, or reserved to be copied back to the device.

    cached  blocks with published content, longest here first
    """

    def __init__(self, first: int, count: int, on_evict: Callable[[int], None]) -> None:
        self.first = first
        self.count = count
        self.free = list(range(first + count - 1, first - 1, -1))
        self.cached: OrderedDict[int, None] = OrderedDict()
        self._on_evict = on_evict

    def allocate(self) -> int:
        """Returns a block for content that leaves the device, or 0 if there is none; evicts the block longest here if it must."""
        if self.free:
            return self.free.pop()
        if not self.cached:
            return 0
        block_id, _ = self.cached.popitem(last=False)
        self._on_evict(block_id)
        return block_id

    def put(self, block_id: int) -> None:
        """Makes the block cached, behind all that are."""
        self.cached[block_id] = None

    def reserve(self, block_id: int) -> None:
        """Protects a cached block from eviction until it is put back or released."""
        del self.cached[block_id]

    def release(self, block_id: int) -> None:
        """Frees a block whose content is on the device again. The copies of a plan run in order, so a later one may overwrite it."""
        self.free.append(block_id)
