"""The prefix cache: full, computed blocks by the hash of their prefix, and the sequences that compute further ones.

A key is SHA-256 over the key before it and the token ids of a unit; a block's key is that of its last unit, so that it is the same for any
size of blocks. The parent of a first block is the digest of `KVShape.root` and tenant domain. Ids and identity are stored and compared on a
hit, so that a collision cannot serve wrong content. Blocks belong to their pools.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Items
from hashlib import sha256
from itertools import islice
from struct import Struct
from typing import Final

from ridgeline.core.params import Adapter
from ridgeline.core.plan import KVShape, unit_tokens
from ridgeline.core.sequence import Sequence

DIGEST_BYTES: Final = 8
"""Bytes of a key by which others name a block: two of 10⁶ blocks are taken for each other with a chance of 3 · 10⁻⁸, which costs a miss."""


class PrefixBlock:
    """A published block of token ids. `block_ids`: per KV group the device or host block that holds it, 0 for none."""

    __slots__ = ("block_ids", "identity", "ids", "key")

    def __init__(self, key: bytes, ids: tuple[int, ...], identity: bytes, block_ids: list[int]) -> None:
        self.key = key
        self.ids = ids
        self.identity = identity
        self.block_ids = block_ids


class PrefixIndex:
    """The published blocks by key and by block id, and the sequence that computes each key that is not published yet.

    shared  False: keys belong to one request, whose choices share blocks, and a block leaves the index with its last holder
    """

    def __init__(self, shape: KVShape, shared: bool) -> None:
        self.shape = shape
        self.shared = shared
        self.blocks: dict[bytes, PrefixBlock] = {}
        self.by_block_id: dict[int, PrefixBlock] = {}
        """Published block id → its entry."""
        self.computing: dict[bytes, Sequence] = {}
        self._groups = len(shape.groups)
        self.windows = [(g, group.window) for g, group in enumerate(shape.groups) if group.window]
        self._unit = shape.unit_tokens

    def is_shareable(self, sequence: Sequence) -> bool:
        """True if another sequence could use the blocks of this one."""
        if self.shape.recurrent or (sequence.pooling is not None and sequence.pooling.whole):
            return False
        return self.shared or sequence.request.choices > 1

    def identity(self, sequence: Sequence) -> bytes:
        """Returns the scope in which the sequence's blocks are shared: its tenant, or the request alone, and its adapter."""
        if not sequence.identity:
            request = sequence.request
            scope = (b"tenant", request.domain) if self.shared else (b"request", request.request_id.encode())
            sequence.identity = _identity(scope, request.adapter)
        return sequence.identity

    def keys(self, sequence: Sequence, blocks: int) -> list[bytes]:
        """Returns the keys of at least the sequence's first `blocks` blocks, all of whose ids are known."""
        keys, size = sequence.keys, self.shape.block_tokens
        if len(keys) < blocks:
            parent = keys[-1] if keys else sha256(self.shape.root + self.identity(sequence)).digest()
            ids = sequence.known[len(keys) * size : blocks * size]
            keys += islice(unit_keys(parent, ids, self._unit), size // self._unit - 1, None, size // self._unit)
        return keys

    def lookup(self, sequence: Sequence, block: int) -> PrefixBlock | None:
        """Returns the published block with the content of the sequence's block, or None. Its key has been made."""
        found = self.blocks.get(sequence.keys[block])
        if found is not None and not self._same(found, sequence, block):
            return None
        return found

    def _same(self, found: PrefixBlock, sequence: Sequence, block: int) -> bool:
        size = self.shape.block_tokens
        return found.ids == tuple(sequence.known[block * size : (block + 1) * size]) and found.identity == self.identity(sequence)

    def find_longest_hit(self, sequence: Sequence, first: int, blocks: int) -> int:
        """Returns the greatest number of leading blocks, at most `blocks`, that are published as far as the next position sees them. The
        sequence has `first` of them already.

        A full-attention group needs every block from `first` on, a sliding-window group those within the window of the next position.
        """
        if not self.is_shareable(sequence):
            return first
        self.keys(sequence, blocks)
        size, windows = self.shape.block_tokens, self.windows
        runs = [first] * self._groups  # per group: from here on every block is published
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
        """Returns the first block that a query at `position` can see through the window (0: no window)."""
        return max(0, position - window + 1) // self.shape.block_tokens if window else 0

    def publish(self, sequence: Sequence, block: int) -> list[int]:
        """Publishes a full, computed block, whose key has been made, and ends the waits for it. Returns the block ids that enter the index:
        not those whose content another block holds already."""
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
        return [block_id for _, block_id in taken]

    def misses(self, sequence: Sequence, block: int, group: int) -> bool:
        """True if the group's block could be published with content from elsewhere. Its key has been made."""
        found = self.blocks.get(sequence.keys[block])
        return found is None or (not found.block_ids[group] and self._same(found, sequence, block))

    def add(self, sequence: Sequence, block: int, group: int, block_id: int) -> None:
        """Publishes one group's block, which `misses`, and which nobody of this engine has computed."""
        key, size = sequence.keys[block], self.shape.block_tokens
        found = self.blocks.get(key)
        if found is None:
            ids = tuple(sequence.known[block * size : (block + 1) * size])
            self.blocks[key] = found = PrefixBlock(key, ids, self.identity(sequence), [0] * self._groups)
        found.block_ids[group] = block_id
        self.by_block_id[block_id] = found

    def remove(self, block_id: int) -> None:
        """Removes an evicted block."""
        found = self.by_block_id.pop(block_id)
        found.block_ids[found.block_ids.index(block_id)] = 0
        if not any(found.block_ids):
            del self.blocks[found.key]

    def move(self, block_id: int, to: int) -> None:
        """Notes that the content of block `block_id` is in block `to` from now on."""
        found = self.by_block_id.pop(block_id)
        found.block_ids[found.block_ids.index(block_id)] = to
        self.by_block_id[to] = found

    def mark_computing(self, sequence: Sequence, first: int, blocks: int) -> None:
        """Notes that the sequence will compute its blocks `first` … `blocks` − 1, except those that another one computes."""
        if self.is_shareable(sequence):
            for key in self.keys(sequence, blocks)[first:blocks]:
                self.computing.setdefault(key, sequence)

    def unmark_computing(self, sequence: Sequence) -> None:
        """Ends all waits for a sequence that is preempted or has ended."""
        for key in sequence.keys[sequence.published :]:
            if self.computing.get(key) is sequence:
                del self.computing[key]

    def clear_computing(self, sequence: Sequence, block: int) -> None:
        """Ends the waits for a block that was found published."""
        self.computing.pop(sequence.keys[block], None)

    def blocker(self, sequence: Sequence, block: int) -> Sequence | None:
        """Returns the sequence whose computation of this block is worth waiting for, or None. It is if a step in flight computes the block,
        or if that sequence comes first in the policy's order."""
        owner = self.computing.get(sequence.keys[block]) if self.is_shareable(sequence) else None
        if owner is None or owner is sequence:
            return None
        in_flight = owner.scheduled >= (block + 1) * self.shape.block_tokens
        return owner if in_flight or owner.rank < sequence.rank else None


def _identity(scope: tuple[bytes, ...], adapter: Adapter | None) -> bytes:
    parts = scope if adapter is None else (*scope, b"adapter", adapter.digest)
    return b"".join(len(part).to_bytes(4, "little") + part for part in parts)


def root_key(root: bytes, domain: bytes, adapter: Adapter | None) -> bytes:
    """The parent of the first block's key, for prompts of one model (`KVShape.root`), domain and adapter, where blocks are shared."""
    return sha256(root + _identity((b"tenant", domain), adapter)).digest()


def block_keys(root: bytes, ids: Items[int], block_tokens: int) -> Iterator[bytes]:
    """The keys of the full blocks of a prompt, one after the other, behind `root_key`."""
    unit = unit_tokens(block_tokens)
    return islice(unit_keys(root, ids, unit), block_tokens // unit - 1, None, block_tokens // unit)


def unit_keys(parent: bytes, ids: Items[int], unit: int) -> Iterator[bytes]:
    """The keys of the full units of these ids, one after the other, behind the key of what is before them."""
    pack = Struct(f"<{unit}I").pack
    for begin in range(0, len(ids) - unit + 1, unit):
        parent = sha256(parent + pack(*ids[begin : begin + unit])).digest()
        yield parent
