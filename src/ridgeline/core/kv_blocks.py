"""The block tables of sequences, one per KV group: allocated, shared by prefix, freed and published.

The tables of a sequence are equally long; entries behind a sliding window become block 0 when they are freed. With a host tier, evicted
content moves there, and back to the device on a hit.
"""

from collections.abc import Callable
from collections.abc import Sequence as Items

from ridgeline.core.block_pool import BlockPool, HostBlocks
from ridgeline.core.events import Event, Evicted, Moved, Published
from ridgeline.core.plan import KVShape
from ridgeline.core.prefix_cache import DIGEST_BYTES, PrefixIndex
from ridgeline.core.sequence import Sequence
from ridgeline.errors import LawViolation


class BlockNews:
    """Tells of blocks that are published, once it has been asked to `begin`: those of one KV group, all of which a hit needs if there is
    such a group."""

    def __init__(self, index: PrefixIndex, emit: Callable[[Event], None]) -> None:
        self._index, self._emit = index, emit
        self._group = next((g for g, group in enumerate(index.shape.groups) if not group.window), 0)
        self._has_begun = False

    def begin(self) -> None:
        """Tells of the blocks that there are, and from now on of each that comes."""
        self._has_begun = self._index.shared
        self.tell(list(self._index.by_block_id))

    def tell(self, block_ids: Items[int]) -> None:
        """These have been published."""
        if self._has_begun:
            entries, group = self._index.by_block_id, self._group
            told = [block_id for block_id in block_ids if entries[block_id].block_ids[group] == block_id]
            if told:
                self._emit(Published(tuple(told), b"".join([entries[block_id].key[:DIGEST_BYTES] for block_id in told])))


class KVBlocks:
    """Keeps block pools, prefix index and the tables of sequences consistent.

    copies  (from, to): block copies that the next plan carries out, in this order
    fresh   (block of its sequence, block id, key of the block before it) published since the list was emptied last, for tiers that keep
            them; None: there are none
    news    tells of blocks that are published
    unused  numbers of content that tiers have brought in vain
    """

    def __init__(self, shape: KVShape, shared: bool, emit: Callable[[Event], None]) -> None:
        self.shape = shape
        self.index = PrefixIndex(shape, shared)
        self.pool = BlockPool(shape.blocks, self._on_evict)
        self.host = HostBlocks(shape.blocks + 1, shape.host_blocks, self._forget)
        self.copies: list[tuple[int, int]] = []
        self.fresh: list[tuple[int, int, bytes]] | None = None
        self.unused: list[int] = []
        self._emit = emit
        self.news = BlockNews(self.index, emit)

    def _on_evict(self, block_id: int) -> None:
        """Moves the content of an evicted device block to the host tier, or forgets it."""
        to = self.host.allocate()
        if to:
            self._move(block_id, to)
            self.host.put(to)
        else:
            self._forget(block_id)

    def _forget(self, block_id: int) -> None:
        self.index.remove(block_id)
        self._emit(Evicted(block_id))

    def _move(self, block_id: int, to: int) -> None:
        self.index.move(block_id, to)
        self.copies.append((block_id, to))
        self._emit(Moved(block_id, to))

    def find_longest_hit(self, sequence: Sequence) -> int:
        """Returns the number of leading blocks that are published in every group and that the sequence need not compute itself."""
        size = self.shape.block_tokens
        return self.index.find_longest_hit(sequence, sequence.capacity // size, sequence.reusable // size)

    def attach_prefix(self, sequence: Sequence, blocks: int) -> None:
        """Puts the published ones of the sequence's first `blocks` blocks into its tables, as computed. Nothing of it is in flight.

        Host blocks stay in the tables until `restore_from_host` or `free`, one of which follows before the next plan.
        """
        size = self.shape.block_tokens
        first = sequence.capacity // size
        for g, group in enumerate(self.shape.groups):
            seen = max(first, self.index.first_visible_block(group.window, blocks * size))
            shared = [self.index.blocks[key].block_ids[g] for key in sequence.keys[seen:blocks]]
            for block_id in shared:
                if block_id > self.shape.blocks:
                    self.host.reserve(block_id)
                else:
                    self.pool.hold(block_id)
            block_ids = [0] * (seen - first) + shared
            sequence.tables[g] += block_ids
            sequence.new_blocks.append((g, first, tuple(block_ids)))
        for block in range(first, blocks):
            self.index.clear_computing(sequence, block)
        sequence.computed = sequence.scheduled = blocks * size
        sequence.set_capacity(blocks * size)
        self._mark_published(sequence, blocks)

    def land(self, sequence: Sequence, brought: Items[tuple[int, int, int]]) -> set[int]:
        """Publishes content that tiers have brought, as (block, group, number), in blocks without holders, which the next plan fills. As
        much as there are such blocks, and as is not here already. Returns the sequence's blocks that got content."""
        left, landed = self.pool.available, set[int]()
        self.index.keys(sequence, 1 + max((block for block, *_ in brought), default=-1))
        for block, group, number in brought:
            if not left or not self.index.misses(sequence, block, group):
                self.unused.append(number)
                continue
            left -= 1
            (block_id,) = self.pool.allocate(1)
            self.index.add(sequence, block, group, block_id)
            self.pool.published[block_id] = 1
            self.news.tell((block_id,))
            self.pool.drop(block_id)
            self.copies.append((-number, block_id))
            landed.add(block)
        return landed

    def attach_brought(self, sequence: Sequence, hit: int, brought: Items[tuple[int, int, int]]) -> tuple[int, int]:
        """Lands what tiers have brought, and attaches what that adds to the first `hit` blocks, which the sequence has. Returns the blocks
        that it has then, and the tokens of those that got content."""
        landed = self.land(sequence, brought)
        longer = self.find_longest_hit(sequence)
        if longer > hit:
            self.attach_prefix(sequence, longer)
        return longer, sum([block < longer for block in landed]) * self.shape.block_tokens

    def count_host_blocks(self, sequence: Sequence) -> int:
        """Returns the number of host blocks in the sequence's tables."""
        device = self.shape.blocks
        return sum([block_id > device for table in sequence.tables for block_id in table]) if self.host.count else 0

    def can_attach(self, sequence: Sequence, blocks: int) -> bool:
        """Returns True if there are blocks for `attach_prefix` and `restore_from_host` of `blocks` leading blocks (`find_longest_hit`)."""
        if not self.host.count:
            return True
        size, pool = self.shape.block_tokens, self.pool
        first, needed = sequence.capacity // size, 0
        for g, group in enumerate(self.shape.groups):
            seen = max(first, self.index.first_visible_block(group.window, blocks * size))
            shared = [self.index.blocks[key].block_ids[g] for key in sequence.keys[seen:blocks]]
            needed += sum([block_id > pool.count or not pool.holders[block_id] for block_id in shared])
        return needed <= pool.available

    def restore_from_host(self, sequence: Sequence) -> int:
        """Moves the host blocks of the tables back to the device; the caller has checked `available`. Returns the tokens that they hold."""
        on_host = [(table, at) for table in sequence.tables for at, block_id in enumerate(table) if block_id > self.shape.blocks]
        if not on_host:
            return 0
        for (table, at), block_id in zip(on_host, self.pool.allocate(len(on_host)), strict=True):
            self._move(table[at], block_id)
            self.pool.published[block_id] = 1
            self.host.release(table[at])
            table[at] = block_id
        tables = sequence.tables
        sequence.new_blocks = [(g, first, tuple(tables[g][first : first + len(block_ids)])) for g, first, block_ids in sequence.new_blocks]
        return len({at for _, at in on_host}) * self.shape.block_tokens

    def allocate(self, sequence: Sequence, upto: int) -> None:
        """Allocates blocks for the positions below `upto`. The caller has checked `available`."""
        size = self.shape.block_tokens
        first, blocks = sequence.capacity // size, -(-upto // size)
        if blocks <= first:
            return
        more = blocks - first
        taken = tuple(self.pool.allocate(more * len(sequence.tables)))
        for g, table in enumerate(sequence.tables):
            block_ids = taken[g * more : (g + 1) * more]
            table += block_ids
            sequence.new_blocks.append((g, first, block_ids))
        sequence.set_capacity(blocks * size)

    def count_out_of_window(self, sequence: Sequence) -> int:
        """Returns the number of blocks that the sequence holds behind the windows of its next position, committed or not."""
        return sum(
            sum(block_id != 0 for block_id in sequence.tables[g][: self.index.first_visible_block(window, sequence.scheduled)])
            for g, window in self.index.windows
        )

    def free_out_of_window(self, sequence: Sequence) -> None:
        """Frees committed blocks that are behind the window of every further position."""
        for g, window in self.index.windows:
            first = sequence.released[g]
            last = min(sequence.computed // self.shape.block_tokens, self.index.first_visible_block(window, sequence.scheduled))
            if last > first:
                table = sequence.tables[g]
                self._release_holds(sequence, [block_id for block_id in reversed(table[first:last]) if block_id])
                table[first:last] = [0] * (last - first)
                sequence.released[g] = last

    def free(self, sequence: Sequence) -> None:
        """Frees all blocks of the sequence, the last ones first, so that the start of a shared prefix is evicted last."""
        self.index.unmark_computing(sequence)
        deepest_first = zip(*[reversed(table) for table in sequence.tables], strict=True)
        self._release_holds(sequence, [block_id for block_ids in deepest_first for block_id in block_ids if block_id])
        for table in sequence.tables:
            table.clear()
        sequence.new_blocks.clear()
        sequence.released = [0] * len(sequence.tables)
        sequence.computed = sequence.scheduled = sequence.drafted = 0
        sequence.set_capacity(0)
        self._mark_published(sequence, 0)

    def _release_holds(self, sequence: Sequence, block_ids: list[int]) -> None:
        if sequence.in_flight:
            self.pool.transfer_to_step(block_ids, sequence.last_step)
            return
        for block_id in block_ids:
            self._drop(block_id)

    def _drop(self, block_id: int) -> None:
        if block_id > self.shape.blocks:
            self.host.put(block_id)
            return
        if not self.index.shared and self.pool.holders[block_id] == 1 and self.pool.published[block_id]:
            self.index.remove(block_id)
            self.pool.unpublish(block_id)
        self.pool.drop(block_id)

    def release_step(self, step: int) -> None:
        """Removes a committed step as a holder of blocks."""
        for block_id in self.pool.held_by_steps.pop(step, ()):
            self._drop(block_id)

    def publish(self, sequence: Sequence) -> None:
        """Publishes blocks that are full of committed content in the prefix index."""
        filled = sequence.computed // self.shape.block_tokens
        if sequence.computed > len(sequence.known):
            raise LawViolation(4, f"sequence {sequence.number} has computed {sequence.computed} positions of {len(sequence.known)} ids")
        if not self.index.is_shareable(sequence):
            self._mark_published(sequence, filled)
            return
        self.index.keys(sequence, filled)
        taken: list[int] = []
        for block in range(sequence.published, filled):
            published = self.index.publish(sequence, block)
            for block_id in published:
                self.pool.published[block_id] = 1
            if self.fresh is not None:
                before = sequence.keys[block - 1] if block else b""
                self.fresh += [(block, block_id, before) for block_id in published]
            taken += published
        self.news.tell(taken)
        self._mark_published(sequence, filled)

    def _mark_published(self, sequence: Sequence, blocks: int) -> None:
        sequence.published = blocks
        sequence.publish_at = (blocks + 1) * self.shape.block_tokens
