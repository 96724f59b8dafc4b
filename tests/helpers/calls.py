"""Single native calls of products with packed weights and of attention, one by one; serving calls kernels through a plan.

Owns shapes and scratch of a call; never the weights, never the cache. Signatures of attention are those of `ops/attention.py`, over
records of any type of `cpu/cache.py`.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.cache import Records, layer_record
from ridgeline.compute.cpu.memory import allocate
from ridgeline.compute.cpu.packing import PackedWeight
from ridgeline.compute.ops.definition import Floats, Ints
from ridgeline.compute.ops.quantised import SCALE_CODES, SUM_CODES

SCRATCH_BYTES = 1 << 20
"""What a call may use beside its arguments."""

Codes = tuple[NDArray[np.int8], Floats, Ints]


def quantise(x: Floats, *, group: int, stepped: bool = False, level: str | None = None) -> Codes:
    """The op `quantise` at an ISA level: x fp32 [M, K] → codes int8 [M, K], scales fp32 [M, K/32], sums int32 [M, K/16]."""
    if group < SCALE_CODES or group % SCALE_CODES:
        raise ValueError(f"groups of activations are multiples of {SCALE_CODES}, got {group}")
    if x.ndim != 2 or x.shape[1] == 0 or x.shape[1] % group:
        raise ValueError(f"activations are [M, K] with K a positive multiple of {group}, got {x.shape}")
    m, k = x.shape
    codes, scales, sums = np.empty((m, k), np.int8), np.empty((m, k // SCALE_CODES), np.float32), np.empty((m, k // SUM_CODES), np.int32)
    source = ext.address(x, np.float32, (m, k))
    made = {f"out_{name}": array.ctypes.data for name, array in (("codes", codes), ("scales", scales), ("sums", sums))}
    record = ext.record(ext.params("quantise"), {"x": source, **made, "width": k, "group": group, "stepped": stepped})
    ext.native().run_rows(ext.level_number(level), "quantise", record, m)
    return codes, scales, sums


def linear_codes(
    x: Codes, weight: PackedWeight, *, level: str | None = None, out: Floats | None = None, blocks: range | None = None
) -> Floats:
    """The op `linear_codes` at an ISA level: x as `quantise` makes it, packed weight [N, K] → fp32 [M, N].

    out     where results go, fp32 [M, N], contiguous
    blocks  consecutive blocks of 16 rows to compute; the others' outputs stay
    """
    codes, scales, sums = x
    m, k = codes.shape
    given = (
        ext.address(codes, np.int8, (m, k)),
        ext.address(scales, np.float32, (m, k // SCALE_CODES)),
        ext.address(sums, np.int32, (m, k // SUM_CODES)),
    )
    return _multiply(ext.native().linear_codes, given, (m, k), weight, level, out, blocks)


def linear_floats(
    x: Floats, weight: PackedWeight, *, level: str | None = None, out: Floats | None = None, blocks: range | None = None
) -> Floats:
    """The product with a packed matrix of floats at an ISA level: x fp32 [M, K] → fp32 [M, N]. The rest as `linear_codes`.

    An output is summed with fused multiply-adds over ascending inputs, in fp32.
    """
    given = (ext.address(x, np.float32, x.shape),)
    return _multiply(ext.native().linear_floats, given, x.shape, weight, level, out, blocks)


def _multiply(
    kernel: Callable[..., None],
    given: tuple[int, ...],
    shape: tuple[int, ...],
    weight: PackedWeight,
    level: str | None,
    out: Floats | None,
    blocks: range | None,
) -> Floats:
    (m, k), (n, columns) = shape, weight.shape
    if k != columns:
        raise ValueError(f"activations of width {k} do not fit weights {weight.shape}")
    blocks = range(weight.blocks) if blocks is None else blocks
    if len(blocks) and not 0 <= blocks[0] <= blocks[-1] < weight.blocks:
        raise ValueError(f"{blocks} are not blocks of a matrix of {weight.blocks}")
    out = np.empty((m, n), np.float32) if out is None else out
    target, scratch = ext.address(out, np.float32, (m, n)), allocate(SCRATCH_BYTES)
    kernel(ext.level_number(level), *weight.matrix, *given, m, target, n, blocks.start, len(blocks), int(scratch.ctypes.data))
    return out


ITEM: Final = np.dtype([(name, np.int32) for name in ("row", "kv_head", "first_token", "tokens", "first_split", "splits", "partial")])
"""`AttentionItem` in csrc/attention/attention.h, field for field."""

Items = NDArray[np.void]


def kv_write(k: Floats, v: Floats, keys: Records, values: Records, slots: NDArray[np.int64], *, level: str | None = None) -> None:
    """k, v fp32 [T, KV heads · D] into the slots [T] of a cache layer: copied, rounded to bf16, or as int8 with one scale per head."""
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
    sinks: Floats | None = None,
    *,
    head_dim: int,
    scale: float,
    window: int,
    softcap: float,
    causal: bool = True,
    value_dim: int = 0,
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
    value_dim = value_dim or head_dim
    out = np.empty((len(q), q.shape[1] // head_dim * value_dim), np.float32)
    fields = {"q": ext.address(q, np.float32, q.shape), "out": out.ctypes.data, "cache": layer_record(keys, values, head_dim)}
    fields |= {"kv_group": 0, "heads": q.shape[1] // head_dim, "scale": scale, "window": window, "softcap": softcap, "causal": causal}
    fields["value_dim"] = value_dim
    fields["sinks"] = 0 if sinks is None else ext.address(sinks, np.float32, (q.shape[1] // head_dim,))
    record = ext.record(ext.params("attention"), fields)
    step = _step(q, tables, cu_q, kv_len, len(keys), keys.shape[2])
    room = np.empty((2 * len(q) + int((kv_len // native.KV_SPLIT).sum()) + len(kv_len)) * keys.shape[1], ITEM)
    count, partial_floats = native.attention_items(number, record, step, threads, int(room.ctypes.data), len(room))
    items = room[:count] if arrange is None else np.ascontiguousarray(arrange(room[:count]))
    partials, scratch = np.empty(partial_floats, np.float32), allocate(native.ATTENTION_SCRATCH)
    native.attend(number, record, step, int(items.ctypes.data), len(items), int(partials.ctypes.data), int(scratch.ctypes.data))
    return out


def _step(q: Floats, tables: Ints, cu_q: Ints, kv_len: Ints, blocks: int, block_tokens: int) -> tuple[int, ...]:
    """Tokens, rows, blocks of a row, then the addresses of cu_q, kv_len and the tables."""
    rows, width = tables.shape
    if not 0 <= tables.min(initial=0) <= tables.max(initial=0) < blocks:
        raise ValueError(f"tables name blocks {tables.min()} … {tables.max()}, the cache has {blocks}")
    counts = np.diff(cu_q)
    if cu_q[0] != 0 or cu_q[-1] != len(q) or (counts < 0).any() or (kv_len < counts).any() or kv_len.max() > width * block_tokens:
        raise ValueError(f"rows of {counts} tokens and {kv_len} positions do not fit {len(q)} queries and {width} blocks")
    inputs = ((cu_q, (rows + 1,)), (kv_len, (rows,)), (tables, tables.shape))
    return (len(q), rows, width, *(ext.address(array, np.int32, shape) for array, shape in inputs))
