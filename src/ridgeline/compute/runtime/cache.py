"""The paged KV cache of a runner that keeps fp32 on the host.

Owns the memory of all pages. One pool of equal pages serves every KV group: a page belongs to one block of one sequence and group at a
time, so that groups share the arrays. Page 0 is reserved: never handed out, never read.
"""

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.plan import KVShape


class KVCache:
    """Keys and values by slot: `page · block_tokens + offset`.

    keys, values   fp32 [layers of a group, slots, KV heads, head dimension]

    Memory is touched when a page is first written: pages that no sequence ever needed cost nothing.
    """

    def __init__(self, shape: KVShape, kv_heads: int, head_dim: int) -> None:
        layers = {len(group.layers) for group in shape.groups}
        if len(layers) != 1:
            raise ValueError(f"groups of {sorted(layers)} layers cannot share a pool of equal pages")
        self.shape = shape
        self._place = {layer: index for group in shape.groups for index, layer in enumerate(group.layers)}
        size = (layers.pop(), (shape.pages + 1) * shape.block_tokens, kv_heads, head_dim)
        self.keys = np.zeros(size, np.float32)
        self.values = np.zeros(size, np.float32)

    @property
    def nbytes(self) -> int:
        """Bytes of all pages, touched or not."""
        return self.keys.nbytes + self.values.nbytes

    def layer(self, layer: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Keys and values of a model layer, fp32 [slots, KV heads, head dimension], to write and read in place."""
        place = self._place[layer]
        return self.keys[place], self.values[place]
