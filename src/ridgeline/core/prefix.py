"""The prefix cache: which full blocks are computed, by key, and who is computing the others.

A key is SHA-256 over parent key, token ids, KV fingerprint, tenant domain and further identity. The ids and the domain are stored and compared on a hit, so a
collision cannot serve wrong content.
"""

from array import array
from dataclasses import dataclass
from hashlib import sha256

from ridgeline.core.plan import KVShape
from ridgeline.core.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Block:
    """What a published page holds."""

    group: int
    key: bytes
    ids: tuple[int, ...]
    domain: bytes


def block_key(parent: bytes, ids: list[int], fingerprint: bytes, domain: bytes, extra: bytes) -> bytes:
    """Key of the block with these ids after `parent` (empty for the first block)."""
    digest = sha256(parent)
    digest.update(array("i", ids).tobytes())
    digest.update(fingerprint)
    digest.update(len(domain).to_bytes(4, "little") + domain + extra)
    return digest.digest()


class PrefixIndex:
    """Published pages by (group, key), and the sequence that computes each key that is not published yet.

    `shared` off: keys belong to one request (its choices still share), and a page leaves the index with its last holder.
    """

    def __init__(self, shape: KVShape, shared: bool) -> None:
        self.shape = shape
        self.shared = shared
        self.pages: list[dict[bytes, int]] = [{} for _ in shape.groups]
        self.blocks: dict[int, Block] = {}
        self.computing: dict[bytes, Sequence] = {}

    def domain(self, sequence: Sequence) -> bytes:
        """Who may share the sequence's blocks."""
        request = sequence.request
        return b"tenant" + request.domain if self.shared else b"request" + request.request_id.encode()

    def keys(self, sequence: Sequence, blocks: int) -> list[bytes]:
        """Keys of the sequence's first `blocks` blocks, all of whose ids are known."""
        keys, size = sequence.keys, self.shape.block_tokens
        if len(keys) < blocks:
            domain, extra = self.domain(sequence), sequence.request.extra
            for i in range(len(keys), blocks):
                ids = sequence.known[i * size : (i + 1) * size]
                keys.append(block_key(keys[-1] if keys else b"", ids, self.shape.fingerprint, domain, extra))
        return keys

    def page(self, sequence: Sequence, group: int, block: int) -> int:
        """The published page of the sequence's block, 0 if there is none."""
        page = self.pages[group].get(sequence.keys[block], 0)
        if page:
            stored, size = self.blocks[page], self.shape.block_tokens
            if stored.ids != tuple(sequence.known[block * size : (block + 1) * size]) or stored.domain != self.domain(sequence):
                return 0
        return page

    def longest_hit(self, sequence: Sequence, first: int, blocks: int) -> int:
        """The most leading blocks, at most `blocks`, that every group accepts; `first` of them are there already.

        A full group needs every block from `first` on, a window group those that the next position can see.
        """
        self.keys(sequence, blocks)
        hit = blocks
        for g, group in enumerate(self.shape.groups):
            if group.window == 0:
                block = first
                while block < hit and self.page(sequence, g, block):
                    block += 1
                hit = block
        shrunk = True
        while shrunk and hit > first:
            shrunk = False
            for g, group in enumerate(self.shape.groups):
                if group.window:
                    fitting = self._window_hit(sequence, g, group.window, first, hit)
                    shrunk |= fitting < hit
                    hit = fitting
        return max(hit, first)

    def _window_hit(self, sequence: Sequence, group: int, window: int, first: int, hit: int) -> int:
        """The most blocks, at most `hit`, such that all blocks seen from the next position are published."""
        while hit > first:
            low = max(first, self.first_seen(window, hit * self.shape.block_tokens))
            block = hit - 1
            while block >= low and self.page(sequence, group, block):
                block -= 1
            if block < low:
                return hit
            hit = block
        return first

    def first_seen(self, window: int, position: int) -> int:
        """The first block that a query at `position` can see through the window (0: everything)."""
        return max(0, position - window + 1) // self.shape.block_tokens if window else 0

    def publish(self, sequence: Sequence, group: int, block: int, page: int) -> bool:
        """Offers a computed, full block; False if another page already holds it."""
        key = sequence.keys[block]
        if key in self.pages[group]:
            return False
        size = self.shape.block_tokens
        self.pages[group][key] = page
        self.blocks[page] = Block(group, key, tuple(sequence.known[block * size : (block + 1) * size]), self.domain(sequence))
        return True

    def forget(self, page: int) -> None:
        """The page is used for something else now."""
        block = self.blocks.pop(page)
        del self.pages[block.group][block.key]

    def announce(self, sequence: Sequence, first: int, blocks: int) -> None:
        """The sequence will compute its blocks `first` … `blocks` − 1, unless another is at it."""
        for key in self.keys(sequence, blocks)[first:blocks]:
            self.computing.setdefault(key, sequence)

    def renounce(self, sequence: Sequence) -> None:
        """The sequence will not go on (preempted, ended): nobody waits for it any more."""
        for key in sequence.keys[sequence.published :]:
            if self.computing.get(key) is sequence:
                del self.computing[key]

    def settle(self, sequence: Sequence, block: int) -> None:
        """The block is computed: who waited for it may look again."""
        self.computing.pop(sequence.keys[block], None)

    def blocker(self, sequence: Sequence, block: int) -> Sequence | None:
        """The sequence whose work on this block is worth waiting for: it is in flight, or its owner runs earlier by policy."""
        owner = self.computing.get(sequence.keys[block])
        if owner is None or owner is sequence:
            return None
        in_flight = owner.scheduled >= (block + 1) * self.shape.block_tokens
        return owner if in_flight or owner.rank < sequence.rank else None
