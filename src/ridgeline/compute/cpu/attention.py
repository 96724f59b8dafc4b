"""Single native calls of attention, for tests and benchmarks: serving calls the kernels through a plan.

Owns shapes and scratch of a call; never the cache. Signatures are those of `ops/attention.py`, over records of any type of `cpu/cache.py`.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.cache import Records, layer_record
from ridgeline.compute.cpu.packing import allocate
from ridgeline.compute.ops.definition import Floats, Ints

ITEM: Final = np.dtype([(name, np.int32) for name in ("row", "kv_head", "first_token", "tokens", "first_split", "splits", "partial")])
"""`AttentionItem` in csrc/attention/attention.h, field for field."""

Items = NDArray[np.void]


def kv_write(k: Floats, v: Floats, keys: Records, values: Records, slots: NDArray[np.int64], *, level: str | None = None) -> None:
    """k, v fp32 [T, KV heads · D] into the slots [T] of a cache layer: copied, rounded to bf16, or as int8 with one scale a head."""
    tokens, heads, room = len(slots), keys.shape[1], len(keys) * keys.shape[2]
    head_dim = k.shape[1] // heads
    if tokens and not 0 <= slots.min() <= slots.max() < room:
        raise ValueError(f"slots reach from {slots.min()} to {slots.max()}, the cache has {room}")
    fields = {name: ext.address(array, np.float32, (tokens, heads * head_dim)) for name, array in (("k", k), ("v", v))}
    record = ext.record(ext.params("kv_write"), {**fields, "cache": layer_record(keys, values, head_dim), "kv_group": 0})
    ext.native().kv_write(ext.level_number(level), record, ext.address(slots, np.int64, (tokens,)), tokens)


def attention(
    q: Floats,
    keys: Records,
    values: Records,
    tables: Ints,
    cu_q: Ints,
    kv_len: Ints,
    block_tokens: int,
    *,
    head_dim: int,
    scale: float,
    window: int,
    softcap: float,
    threads: int = 1,
    arrange: Callable[[Items], Items] | None = None,
    level: str | None = None,
) -> Floats:
    """q [T, H · D] → [T, H · D]; see `ops/attention.py` for the meaning of the arguments up to `softcap`.

    threads  for how many the step is cut into items, which are computed one after the other
    arrange  puts the items in another order; those of the same tokens and KV head must stay together, splits ascending
    """
    if keys.shape[2] != block_tokens:
        raise ValueError(f"blocks are of {block_tokens} tokens, the cache's of {keys.shape[2]}")
    native, number = ext.native(), ext.level_number(level)
    out = np.empty_like(q)
    fields = {"q": ext.address(q, np.float32, q.shape), "out": out.ctypes.data, "cache": layer_record(keys, values, head_dim)}
    fields |= {"kv_group": 0, "heads": q.shape[1] // head_dim, "scale": scale, "window": window, "softcap": softcap}
    record = ext.record(ext.params("attention"), fields)
    step = _step(q, tables, cu_q, kv_len, len(keys), keys.shape[2])
    room = np.empty((2 * len(q) + int((kv_len // native.KV_SPLIT).sum()) + len(kv_len)) * keys.shape[1], ITEM)
    count, partial_floats = native.attention_items(number, record, step, threads, int(room.ctypes.data), len(room))
    items = room[:count] if arrange is None else np.ascontiguousarray(arrange(room[:count]))
    partials, scratch = np.empty(partial_floats, np.float32), allocate(native.ATTENTION_SCRATCH)
    native.attend(number, record, step, int(items.ctypes.data), len(items), int(partials.ctypes.data), int(scratch.ctypes.data))
    return out


def _step(q: Floats, tables: Ints, cu_q: Ints, kv_len: Ints, pages: int, block_tokens: int) -> tuple[int, ...]:
    """Tokens, rows, blocks of a row, then the addresses of cu_q, kv_len and the tables."""
    rows, width = tables.shape
    if not 0 <= tables.min(initial=0) <= tables.max(initial=0) < pages:
        raise ValueError(f"tables name pages {tables.min()} … {tables.max()}, the cache has {pages}")
    counts = np.diff(cu_q)
    if cu_q[0] != 0 or cu_q[-1] != len(q) or (counts < 0).any() or (kv_len < counts).any() or kv_len.max() > width * block_tokens:
        raise ValueError(f"rows of {counts} tokens and {kv_len} positions do not fit {len(q)} queries and {width} blocks")
    inputs = ((cu_q, (rows + 1,)), (kv_len, (rows,)), (tables, tables.shape))
    return (len(q), rows, width, *(ext.address(array, np.int32, shape) for array, shape in inputs))
