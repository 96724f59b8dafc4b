"""The KV cache of the numpy runner.

Owns the pool's layout: fp32 [layers of a group, records, slots, KV heads, head dimension], K then V, or a latent that is both; slot =
block id · block_tokens + offset. All groups share the pool: a block belongs to one group at a time, and layer j of any group lies at
index j.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.compute.ops.definition import Floats
from ridgeline.compute.states import StateCache
from ridgeline.core.plan import KVShape
from ridgeline.facts.model import CachedHeads


@dataclass(frozen=True, slots=True)
class KVCache:
    """One pool of blocks, of which block 0 is never handed out, and of those of the host tier; touched lazily."""

    pool: Floats
    block_tokens: int
    value_dim: int
    states: StateCache | None = None
    """States of recurrent layers."""

    def layer(self, index: int) -> tuple[Floats, Floats]:
        """K and V of the `index`-th layer of a group: views fp32 [slots, KV heads, head dimension], V's of `value_dim`."""
        return self.pool[index, 0], self.pool[index, -1, ..., : self.value_dim]

    def copy(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copies blocks (from, to), one after the other."""
        for source, target in copies:
            self._blocks[:, :, target] = self._blocks[:, :, source]

    def touch(self, pages: Sequence[int]) -> None:
        """Has the system give memory for blocks that hold nothing."""
        self._blocks[:, :, pages] = 0

    @property
    def type(self) -> str:
        """The type of its numbers."""
        return "f32"

    @property
    def head_dim(self) -> int:
        """Numbers of a head."""
        return int(self.pool.shape[-1])

    @property
    def runs(self) -> int:
        """Parts of a content that have the tokens of a block in order: one for each head's K and V of each layer."""
        layers, records, _, heads, _ = self.pool.shape
        return int(layers * records * heads)

    def content(self, page: int) -> bytes:
        """The bytes of a block, as `fill` takes them: [layers, records, KV heads, tokens of a block, head dimension], as in any cache."""
        return self._blocks[:, :, page].swapaxes(2, 3).tobytes()

    def fill(self, page: int, content: bytes) -> None:
        """Writes a block."""
        held = self._blocks[:, :, page].swapaxes(2, 3)
        held[...] = np.frombuffer(content, held.dtype).reshape(held.shape)

    @property
    def _blocks(self) -> Floats:
        """A view [layers, records, blocks, tokens of a block, KV heads, head dimension]."""
        return self.pool.reshape(*self.pool.shape[:2], -1, self.block_tokens, *self.pool.shape[3:])


def allocate_kv(shape: KVShape, cached: CachedHeads, states: StateCache | None = None) -> KVCache:
    """An empty cache of `shape` for what layers cache of a token, with the states of recurrent layers. The operating system gives memory
    when it is first written."""
    layers = {len(group.layers) for group in shape.groups}
    if len(layers) != 1:
        raise ValueError(f"groups of one pool must have equally many layers, got {sorted(layers)}")
    slots = (shape.blocks + 1 + shape.host_blocks) * shape.block_tokens
    pool = np.zeros((layers.pop(), cached.records, slots, cached.heads, cached.head_dim), np.float32)
    return KVCache(pool, shape.block_tokens, cached.latent or cached.head_dim, states)
