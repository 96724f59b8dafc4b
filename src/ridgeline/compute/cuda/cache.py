"""The KV cache of a device.

Owns the pool: bytes [layers of a group, 2, pages + 1, bytes of a page], K then V; page 0 is never handed out. A page holds its numbers
[tokens of a block, KV heads, head dimension] and, for int8, behind them their fp32 scales [tokens of a block, KV heads]: what stands
before a scale stays aligned for wide loads. slot = page · block_tokens + offset. All groups share the pool: a page belongs to one group
at a time, and layer j of any group lies at index j. Pages have the bytes that `planning.memory` counts.
"""

from dataclasses import dataclass
from typing import Final

import torch

from ridgeline.core.plan import KVShape

DTYPES: Final = {
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.float8_e4m3fn,
    "int8": torch.int8,
}
"""By the cache's type. fp8 is e4m3, saturated, without a scale."""

SCALE_BYTES: Final = 4
"""Of an int8 head of one token."""


@dataclass(frozen=True, slots=True)
class CacheLayer:
    """K and V of one layer: views [pages + 1, tokens of a block, KV heads, head dimension]; scales without the last, int8 alone."""

    keys: torch.Tensor
    values: torch.Tensor
    key_scales: torch.Tensor | None = None
    value_scales: torch.Tensor | None = None

    @property
    def block_tokens(self) -> int:
        """Tokens of a page."""
        return self.keys.shape[1]

    @property
    def kv_heads(self) -> int:
        """Heads of a token."""
        return self.keys.shape[2]


@dataclass(frozen=True, slots=True)
class DeviceKVCache:
    """One pool of pages 0 … pages."""

    pool: torch.Tensor
    type: str
    block_tokens: int
    kv_heads: int
    head_dim: int

    def layer(self, index: int) -> CacheLayer:
        """The `index`-th layer of a group."""
        keys, values = (self._numbers(self.pool[index, which]) for which in (0, 1))
        if self.type != "int8":
            return CacheLayer(keys, values)
        return CacheLayer(keys, values, *(self._scales(self.pool[index, which]) for which in (0, 1)))

    def read(self, index: int, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of some slots of a layer, each as fp32 [slots, KV heads, head dimension]: what tests look at."""
        layer, page, offset = self.layer(index), slots // self.block_tokens, slots % self.block_tokens
        found = []
        for records, scales in ((layer.keys, layer.key_scales), (layer.values, layer.value_scales)):
            numbers = records[page, offset].float()
            found.append(numbers if scales is None else numbers * scales[page, offset][..., None])
        return found[0], found[1]

    def _numbers(self, pages: torch.Tensor) -> torch.Tensor:
        """The numbers of pages [pages + 1, bytes]."""
        typed = pages.view(DTYPES[self.type])
        shape = (len(pages), self.block_tokens, self.kv_heads, self.head_dim)
        return typed.as_strided(shape, (typed.stride(0), self.kv_heads * self.head_dim, self.head_dim, 1))

    def _scales(self, pages: torch.Tensor) -> torch.Tensor:
        """The scales of int8 pages [pages + 1, bytes]."""
        numbers = self.block_tokens * self.kv_heads * self.head_dim
        return pages[:, numbers:].view(torch.float32).unflatten(1, (self.block_tokens, self.kv_heads))


def block_bytes(type: str, block_tokens: int, kv_heads: int, head_dim: int) -> int:
    """Bytes of K, or of V, of one page and layer."""
    return block_tokens * kv_heads * (head_dim * DTYPES[type].itemsize + (SCALE_BYTES if type == "int8" else 0))


def allocate_device_kv(shape: KVShape, kv_heads: int, head_dim: int, type: str, device: torch.device) -> DeviceKVCache:
    """A cache of `shape` on a device, of zeros; `type` is one of `DTYPES`.

    ValueError unless all groups have equally many layers and the scales of int8 pages are aligned.
    """
    layers = {len(group.layers) for group in shape.groups}
    if len(layers) != 1:
        raise ValueError(f"groups of one pool must have equally many layers, got {sorted(layers)}")
    if type == "int8" and shape.block_tokens * kv_heads * head_dim % SCALE_BYTES:
        raise ValueError(f"int8 pages of {shape.block_tokens} tokens x {kv_heads} heads x {head_dim} leave their scales unaligned")
    extent = (layers.pop(), 2, shape.blocks + 1, block_bytes(type, shape.block_tokens, kv_heads, head_dim))
    return DeviceKVCache(torch.zeros(extent, dtype=torch.uint8, device=device), type, shape.block_tokens, kv_heads, head_dim)
