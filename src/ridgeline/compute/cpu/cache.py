"""The KV cache of the native runner.

Owns the pool's layout: [layers of a group, records, pages, KV heads, tokens of a block, record], K then V, or a latent that is both;
slot = page · block_tokens + offset.
What one head reads of a page lies together. A record is a head's numbers in fp32 or bf16, or int8 codes and behind them their fp32 scale.
All groups share the pool: a page belongs to one group at a time, and layer j of any group lies at index j.
"""

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.memory import allocate
from ridgeline.compute.ops.definition import Floats
from ridgeline.compute.states import StateCache
from ridgeline.core.plan import KVShape
from ridgeline.facts.model import CachedHeads

Records = NDArray[Any]
"""K or V of one layer [pages, KV heads, tokens of a block, record]: a record is head_dim float32 or uint16, or head_dim + 4 int8."""

DTYPES: Final[dict[str, type[np.generic]]] = {"f32": np.float32, "bf16": np.uint16, "int8": np.int8}
SCALE_BYTES: Final = 4
"""Bytes of the scale of an int8 head."""
TINY: Final = np.float32(1e-36)
"""An int8 head whose numbers are all smaller is zero."""


@dataclass(frozen=True, slots=True)
class NativeKVCache:
    """One pool of pages 0 … pages, of which 0 is never handed out, and of those of the host tier; touched page by page, by steps or
    ahead of them."""

    pool: Records
    type: str
    head_dim: int
    value_dim: int
    states: StateCache | None = None
    """States of recurrent layers, if there are any."""

    @property
    def kv_heads(self) -> int:
        """Heads in a page."""
        return int(self.pool.shape[3])

    def layer(self, index: int) -> tuple[Records, Records]:
        """K and V of the `index`-th layer of a group, the same ones of a latent: views [pages, KV heads, tokens of a block, record]."""
        return self.pool[index, 0], self.pool[index, -1]

    def record(self, index: int) -> tuple[int, ...]:
        """The `index`-th layer of a group as the extension takes it."""
        return layer_record(*self.layer(index), self.head_dim)

    def read(self, index: int, slots: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """K and V of some slots of a layer, each as fp32 [slots, KV heads, head dimension], V of `value_dim`."""
        keys, values = self.layer(index)
        return widened(of_slots(keys, slots)), widened(of_slots(values, slots))[..., : self.value_dim]

    def copy(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copies pages (from, to), one after the other."""
        for source, target in copies:
            self.pool[:, :, target] = self.pool[:, :, source]

    def touch(self, pages: Sequence[int]) -> None:
        """Has the system give memory for pages that hold nothing. Otherwise it does when a step first writes them, 1 ms a MB."""
        apart = mmap.PAGESIZE // self.pool.itemsize
        self.pool.reshape(*self.pool.shape[:3], -1)[:, :, pages, ::apart] = 0

    @property
    def runs(self) -> int:
        """Parts of a content that have the tokens of a block in order: one for each head's K and V of each layer."""
        layers, records, _, heads = self.pool.shape[:4]
        return int(layers * records * heads)

    def content(self, page: int) -> bytes:
        """The bytes of a page, as `fill` takes them."""
        return self.pool[:, :, page].tobytes()

    def fill(self, page: int, content: bytes) -> None:
        """Writes a page."""
        held = self.pool[:, :, page]
        self.pool[:, :, page] = np.frombuffer(content, held.dtype).reshape(held.shape)


def layer_record(keys: Records, values: Records, head_dim: int) -> tuple[int, ...]:
    """K and V of a layer as the extension's `KVLayer`."""
    type = next(name for name, dtype in DTYPES.items() if dtype == keys.dtype)
    blocks, kv_heads, block_tokens, _ = keys.shape
    shape = (blocks, kv_heads, block_tokens, record_width(type, head_dim))
    at = (ext.address(records, DTYPES[type], shape) for records in (keys, values))
    return (ext.values("KVType").index(type), *at, *keys.strides[:3], kv_heads, head_dim, block_tokens)


def of_slots(records: Records, slots: NDArray[np.int64]) -> Records:
    """Records [slots, KV heads, record] of some slots of a layer."""
    block_tokens = records.shape[2]
    found: Records = records[slots // block_tokens, :, slots % block_tokens]
    return found


def record_width(type: str, head_dim: int) -> int:
    """Elements of one head's record: numbers, and for int8 the bytes of its scale."""
    return head_dim + (SCALE_BYTES if type == "int8" else 0)


def head_bytes(type: str, head_dim: int) -> int:
    """Bytes of one head's record."""
    return record_width(type, head_dim) * np.dtype(DTYPES[type]).itemsize


def widened(records: Records) -> Floats:
    """Records [..., record] of any type as fp32 [..., head dimension]."""
    if records.dtype == np.float32:
        return np.array(records)
    if records.dtype == np.uint16:
        return (records.astype(np.uint32) << 16).view(np.float32)
    scales = np.ascontiguousarray(records[..., -SCALE_BYTES:]).view(np.float32)
    return records[..., :-SCALE_BYTES].astype(np.float32) * scales


def narrowed(numbers: Floats, type: str) -> Records:
    """fp32 [..., head dimension] as records [..., record] of a type, with the bits that a step writes (csrc/attention/write.cpp)."""
    if type == "f32":
        return np.array(numbers)
    if type == "bf16":
        bits = numbers.view(np.uint32)
        halves = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        return np.where(np.isnan(numbers), (bits >> np.uint32(16)) | np.uint32(0x40), halves).astype(np.uint16)
    finite = np.isfinite(numbers).all(axis=-1, keepdims=True)
    largest = np.abs(np.where(finite, numbers, np.float32(0))).max(axis=-1, keepdims=True)
    live = largest >= TINY
    codes = np.rint(np.where(live, numbers, np.float32(0)) * (np.float32(127) / np.where(live, largest, np.float32(1)))).astype(np.int8)
    scales = np.where(finite, np.where(live, largest / np.float32(127), np.float32(0)), np.float32(np.nan)).astype(np.float32)
    return np.concatenate([codes, scales.view(np.int8)], axis=-1)


def converted(content: bytes, head_dim: int, type: str, to: str) -> bytes:
    """The content of a block, or a part of it, whose records have one type, with records of another."""
    records = np.frombuffer(content, DTYPES[type]).reshape(-1, record_width(type, head_dim))
    return narrowed(widened(records), to).tobytes()


def allocate_native_kv(shape: KVShape, cached: CachedHeads, type: str, states: StateCache | None = None) -> NativeKVCache:
    """An empty cache of `shape` for what layers cache of a token; `type` is f32, bf16 or int8. With the states of recurrent layers.

    The operating system gives memory when a page is first written.
    """
    layers = {len(group.layers) for group in shape.groups}
    if len(layers) != 1:
        raise ValueError(f"groups of one pool must have equally many layers, got {sorted(layers)}")
    head_dim, pages = cached.head_dim, shape.blocks + 1 + shape.host_blocks
    extent = (layers.pop(), cached.records, pages, cached.heads, shape.block_tokens)
    memory = allocate(prod(extent) * head_bytes(type, head_dim))
    pool = memory.view(DTYPES[type]).reshape(*extent, record_width(type, head_dim))
    return NativeKVCache(pool, type, head_dim, cached.latent or head_dim, states)
