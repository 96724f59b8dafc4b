"""The prefix cache: which full blocks are computed, by key, and who is computing the others.

A key is SHA-256 over the parent's key and the block's token ids; the parent of a first block is the digest of KV fingerprint and tenant
domain. Ids and identity are stored and compared on a hit, so a collision cannot serve wrong content. Owns no block.
"""

from hashlib import sha256
from struct import Struct

from ridgeline.core.plan import KVShape
from ridgeline.core.sequence import Sequence


class PrefixBlock:
    """A published block of ids: `block_ids` hold it, per group, on the device or on the host; 0 where none does (any more)."""

    __slots__ = ("block_ids", "identity", "ids", "key")

    def __init__(self, key: bytes, ids: tuple[int, ...], identity: bytes, block_ids: list[int]) -> None:
        self.key = key
        self.ids = ids
        self.identity = identity
        self.block_ids = block_ids


class PrefixIndex:
    """Published blocks by key and by KV block, and the sequence that computes each key that is not published yet.

    `shared` off: keys belong to one request (its choices still share), and a block leaves the index with its last holder.
    """

    def __init__(self, shape: KVShape, shared: bool) -> None:
        self.shape = shape
        self.shared = shared
        self.blocks: dict[bytes, PrefixBlock] = {}
        self.by_block_id: dict[int, PrefixBlock] = {}
        """Published KV block → what it holds."""
        self.computing: dict[bytes, Sequence] = {}
        self._groups = len(shape.groups)
        self.windows = [(g, group.window) for g, group in enumerate(shape.groups) if group.window]
        self._pack = Struct(f"<{shape.block_tokens}I").pack

    def is_shareable(self, sequence: Sequence) -> bool:
        """True if anybody else could ever use the sequence's blocks."""
        return self.shared or sequence.request.choices > 1

    def identity(self, sequence: Sequence) -> bytes:
        """The scope within which the sequence's blocks are shared: a tenant's domain, or the request alone."""
        if not sequence.identity:
            request = sequence.request
            scope = (b"tenant", request.domain) if self.shared else (b"request", request.request_id.encode())
            sequence.identity = b"".join(len(part).to_bytes(4, "little") + part for part in scope)
        return sequence.identity

    def keys(self, sequence: Sequence, blocks: int) -> list[bytes]:
        """Keys of at least the sequence's first `blocks` blocks, all of whose ids are known."""
        keys, size = sequence.keys, self.shape.block_tokens
        if len(keys) < blocks:
            parent = keys[-1] if keys else sha256(self.shape.fingerprint + self.identity(sequence)).digest()
            known = sequence.known
            for begin in range(len(keys) * size, blocks * size, size):
                parent = sha256(parent + self._pack(*known[begin : begin + size])).digest()
                keys.append(parent)
        return keys

    def lookup(self, sequence: Sequence, block: int) -> PrefixBlock | None:
        """The published block with the content of the sequence's block, whose key is made already."""
        found = self.blocks.get(sequence.keys[block])
        if found is not None and not self._same(found, sequence, block):
            return None
        return found

    def _same(self, found: PrefixBlock, sequence: Sequence, block: int) -> bool:
        size = self.shape.block_tokens
        return found.ids == tuple(sequence.known[block * size : (block + 1) * size]) and found.identity == self.identity(sequence)

    def find_longest_hit(self, sequence: Sequence, first: int, blocks: int) -> int:
        """The most leading blocks, at most `blocks`, that every group accepts; `first` of them are there already.

        A full group needs every block from `first` on, a window group those that the next position can see.
        """
        if not self.is_shareable(sequence):
            return first
        self.keys(sequence, blocks)
        size, windows = self.shape.block_tokens, self.windows
        runs = [first] * self._groups  # per group: from here on every block is there
        hit = first
        for block in range(first, blocks):
            found = self.lookup(sequence, block)
            if found is None or 0 in found.block_ids:
                if len(windows) < self._groups and (found is None or not self._in_full_groups(found)):
                    break
                for g, _ in windows:
                    if found is None or not found.block_ids[g]:
                        runs[g] = block + 1
            after = (block + 1) * size
            if all(runs[g] == first or runs[g] <= self.first_visible_block(window, after) for g, window in windows):
                hit = block + 1
        return hit

    def _in_full_groups(self, found: PrefixBlock) -> bool:
        return all(block_id or group.window for block_id, group in zip(found.block_ids, self.shape.groups, strict=True))

    def first_visible_block(self, window: int, position: int) -> int:
        """The first block that a query at `position` can see through the window (0: everything)."""
        return max(0, position - window + 1) // self.shape.block_tokens if window else 0

    def publish(self, sequence: Sequence, block: int) -> list[tuple[int, int]]:
        """Offers a computed, full block, so that who waited for it may look again; the (group, block id) that are taken: not where another
        block holds the same already."""
        key, block_ids = sequence.keys[block], [table[block] for table in sequence.tables]
        self.computing.pop(key, None)
        found = self.blocks.get(key)
        if found is None:
            size = self.shape.block_tokens
            ids = tuple(sequence.known[block * size : (block + 1) * size])
            taken = [(g, block_id) for g, block_id in enumerate(block_ids) if block_id]
            found = PrefixBlock(key, ids, self.identity(sequence), block_ids)
            if taken:
                self.blocks[key] = found
        elif not self._same(found, sequence, block):
            return []
        else:
            taken = [(g, block_id) for g, block_id in enumerate(block_ids) if block_id and not found.block_ids[g]]
        for g, block_id in taken:
            found.block_ids[g] = block_id
            self.by_block_id[block_id] = found
        return taken

    def remove(self, block_id: int) -> None:
        """The block is used for something else now."""
        found = self.by_block_id.pop(block_id)
        found.block_ids[found.block_ids.index(block_id)] = 0
        if not any(found.block_ids):
            del self.blocks[found.key]

    def move(self, block_id: int, to: int) -> None:
        """Notes that the content of one block is in another from now on."""
        found = self.by_block_id.pop(block_id)
        found.block_ids[found.block_ids.index(block_id)] = to
        self.by_block_id[to] = found

    def mark_computing(self, sequence: Sequence, first: int, blocks: int) -> None:
        """The sequence will compute its blocks `first` … `blocks` − 1, unless another is at it."""
        if self.is_shareable(sequence):
            for key in self.keys(sequence, blocks)[first:blocks]:
                self.computing.setdefault(key, sequence)

    def unmark_computing(self, sequence: Sequence) -> None:
        """The sequence will not go on (preempted, ended): nobody waits for it any more."""
        for key in sequence.keys[sequence.published :]:
            if self.computing.get(key) is sequence:
                del self.computing[key]

    def clear_computing(self, sequence: Sequence, block: int) -> None:
        """The block is there, computed by another: who waited for it may look again."""
        self.computing.pop(sequence.keys[block], None)

    def blocker(self, sequence: Sequence, block: int) -> Sequence | None:
        """The sequence whose work on this block is worth waiting for: it is in flight, or its owner runs earlier by policy."""
        owner = self.computing.get(sequence.keys[block]) if self.is_shareable(sequence) else None
        if owner is None or owner is sequence:
            return None
        in_flight = owner.scheduled >= (block + 1) * self.shape.block_tokens
        return owner if in_flight or owner.rank < sequence.rank else None
