"""Tiers of a simulated engine: what it has published, kept through its ends and brought back after a while, whole or with gaps."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from ridgeline.core.commands import BlocksFetched, Command
from ridgeline.core.events import Event
from ridgeline.core.kv_blocks import KVBlocks
from ridgeline.core.params import Admitted
from ridgeline.core.plan import KVShape
from ridgeline.core.prefix_cache import PrefixIndex
from ridgeline.core.sequence import Sequence as CoreSequence
from ridgeline.engine.executor import BlockContents

LOST_SHARE: Final = 0.05
Contents = dict[tuple[bytes, int], bytes]


class SimStore:
    """Implements `engine.engine.Store`.

    contents  of blocks by prefix key and group, which an engine leaves to the next
    seconds   that a fetch takes at most
    """

    pending = False

    def __init__(
        self, seed: int, shape: KVShape, blocks: BlockContents, contents: Contents, send: Callable[[float, Command], None], seconds: float
    ) -> None:
        self._rng = Random(seed)
        self._index, self._groups = PrefixIndex(shape, shared=True), range(len(shape.groups))
        self._blocks, self._contents, self._send, self._seconds = blocks, contents, send, seconds
        self._block_tokens = shape.block_tokens
        self._number = 0

    def ask(self, request: Admitted, cache: KVBlocks) -> bool:
        """Sends `BlocksFetched` after a while, unless nothing is there."""
        sequence = CoreSequence(request, 0, 0, len(self._groups))
        blocks = sequence.reusable // self._block_tokens
        if not blocks or not self._index.is_shareable(sequence):
            return False
        found = []
        for block, key in enumerate(self._index.keys(sequence, blocks)):
            for group in self._groups:
                content = self._contents.get((key, group))
                if content is not None and self._rng.random() >= LOST_SHARE:
                    self._number += 1
                    self._blocks.staged[self._number] = content
                    found.append((block, group, self._number))
        if found:
            self._send(self._rng.random() * self._seconds, BlocksFetched(request.request_id, "sim", tuple(found)))
        return bool(found)

    def take(self) -> Sequence[Command]:
        return ()

    def fileno(self) -> int:
        return -1

    def keep(self, cache: KVBlocks) -> None:
        """Keeps what has been published, and drops what has been brought in vain."""
        for number in cache.unused:
            del self._blocks.staged[number]
        cache.unused.clear()
        for _, block_id, _ in cache.fresh or ():
            entry = cache.index.by_block_id[block_id]
            self._contents[entry.key, entry.block_ids.index(block_id)] = self._blocks.read(block_id)
        if cache.fresh:
            cache.fresh.clear()

    def used(self) -> Sequence[Event]:
        return ()

    def close(self) -> None:
        """Nothing is to be freed."""
