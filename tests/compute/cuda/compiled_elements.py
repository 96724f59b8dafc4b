"""Norms, elements, rotations, KV writes and copies as they are launched for real models."""

from collections.abc import Callable
from functools import partial

import torch
from compile_only import TESTED, Case

from ridgeline.compute.cuda import tables
from ridgeline.compute.cuda.cache import allocate_device_kv
from ridgeline.compute.cuda.triton import copy, elements, heads, norm, rope, states
from ridgeline.compute.cuda.triton.verify import keep, verify
from ridgeline.core.plan import KVGroup, KVShape
from ridgeline.facts.model import CachedHeads, Rope

CPU, FP8, F32 = torch.device("cpu"), torch.float8_e4m3fn, torch.float32


def rows(width: int, dtype: torch.dtype = torch.bfloat16, count: int = 16) -> torch.Tensor:
    """Rows of activations, of no particular numbers."""
    return torch.empty(count, width, dtype=dtype)


def vector(width: int, dtype: torch.dtype = F32) -> torch.Tensor:
    """A norm's weight, a bias, scales of rows."""
    return torch.empty(width, dtype=dtype)


def write(kind: str, head_dim: int, *, norms: bool) -> None:
    """RoPE, norms of heads and the KV write of 32 heads over 8."""
    cache = allocate_device_kv(KVShape((KVGroup("full", (0,), 0),), 16, 3, b""), CachedHeads(8, head_dim), kind, CPU)
    q, kv, slots = rows(32 * head_dim), (rows(8 * head_dim), rows(8 * head_dim)), torch.empty(16, dtype=torch.int64)
    weights = (vector(head_dim), vector(head_dim)) if norms else (None, None)
    rope.rotate_write(q, *kv, rows(head_dim, F32), slots, cache.layer(0), head_dim, rows(32 * head_dim), *weights, 1e-6)()
    rope.kv_write(*kv, slots, cache.layer(0))()


def latent(kind: str) -> None:
    """What latent attention moves of 128 heads of 128 + 64, and writes of a latent of 512 + 64."""
    cache = allocate_device_kv(KVShape((KVGroup("full", (0,), 0),), 16, 3, b""), CachedHeads(1, 576, 512), kind, CPU)
    heads.split_heads(rows(128 * 192), 128, 64, rows(128 * 128), rows(128 * 64))()
    heads.join_heads(rows(128 * 512), rows(128 * 64), 128, rows(128 * 576))()
    rope.kv_write(rows(576), rows(512), torch.empty(16, dtype=torch.int64), cache.layer(0))()


def rotation() -> None:
    """Cosines and sines of a step."""
    turns = rope.frequencies(Rope(500_000.0, 128), CPU)
    rope.rotation(torch.empty(1, 16, dtype=torch.int32), turns, 1.0, rows(128, F32))()


def copies() -> None:
    """A few blocks of a pool to the host."""
    pool, host = torch.empty(4, 2, 9, 32768, dtype=torch.uint8), torch.empty(4, 2, 5, 32768, dtype=torch.uint8)
    copy.copy_blocks(pool, host, torch.empty(2, 2, dtype=torch.int32))


def every_norm(width: int) -> None:
    """All norms of a residual stream."""
    x, y, total, out, weight = rows(width), rows(width), rows(width), rows(width), vector(width)
    norm.rms_norm(x, weight, 1e-6, out)()
    norm.add_rms_norm(x, y, weight, 1e-6, total, out)()
    norm.rms_norm_fp8(x, weight, 1e-6, rows(width, FP8), vector(16))()
    norm.add_rms_norm_fp8(x, y, weight, 1e-6, total, rows(width, FP8), vector(16))()
    norm.layer_norm(x, weight, vector(width), 1e-6, out)()


def every_element(width: int) -> None:
    """All ops on numbers and rows."""
    x, y, out, ids = rows(width), rows(width), rows(width), torch.empty(16, dtype=torch.int32)
    calls: list[Callable[[], None]] = [
        partial(elements.add, x, y, out),
        partial(elements.add_bias, x, vector(width), out),
        partial(elements.scale, x, 2.0, out),
        partial(elements.softcap, x, 30.0, out),
        partial(elements.activate, x, "silu", out),
        partial(elements.glu, x, y, "gelu_tanh", out),
        partial(elements.glu, x, y, "silu", out),
        partial(elements.embed, ids, rows(width, count=99), out),
        partial(elements.select, x, ids, out),
    ]
    for call in calls:
        call()()


def begin() -> None:
    """Of a step, with changes of block tables."""
    ids, rows = (torch.empty(count, dtype=torch.int32) for count in (16, 257))
    tables.begin(ids, ids, rows, ids, torch.empty(1, 257, 512, dtype=torch.int32), torch.empty(2, 256, dtype=torch.int32), 16, 256)()


def verification() -> None:
    """32 rows that verify four drafts each, and that keep an id each."""
    tokens, ends, rows = (torch.empty(count, dtype=torch.int32) for count in (160, 34, 33))
    targets, kept = torch.empty(33, dtype=torch.int64), torch.empty(257, 6, dtype=torch.int32)
    verify(tokens, tokens, tokens, ends, rows, rows, targets, kept, kept[:, 0], rows, rows, 8)()
    keep(rows, rows, targets, kept, kept[:, 0])()


def placement() -> None:
    """Of 160 tokens, of a step that verifies and of one that does not, with two groups of blocks of 16."""
    tokens, rows = torch.empty(160, dtype=torch.int32), torch.empty(257, dtype=torch.int32)
    block_tables, slots = torch.empty(2, 257, 512, dtype=torch.int32), torch.empty(2, 160, dtype=torch.int64)
    for places in (tokens, None):
        tables.place(tokens, tokens, rows, tokens, rows, places, block_tables, slots, 16)()


def hidden_states() -> None:
    """Of 16 tokens, those that heads take, those of the target, and those that heads leave."""
    values, kept, ids, columns = (
        rows(4096),
        torch.empty(257, 134, 3 * 4096, dtype=torch.bfloat16),
        *(torch.empty(257, dtype=torch.int32) for _ in "ab"),
    )
    kept_ids = torch.empty(257, 134, dtype=torch.int32)
    states.take_states(kept, values, kept_ids, ids, *(columns,) * 6)()
    states.keep_states(values, kept[:, :, 4096:], ids, kept_ids, *(columns,) * 4)()
    states.keep_states(values, kept, ids, kept_ids, *(columns,) * 5)()


CASES = [
    Case("begin", begin),
    Case("drafts that are verified", verification),
    Case("places of open rows", placement),
    Case("hidden states", hidden_states),
    Case("norms", partial(every_norm, 4096)),
    Case("norms of wide rows", partial(every_norm, 16384), capabilities=TESTED),
    Case("norms of heads", lambda: norm.rms_norm(rows(4096), vector(128), 1e-6, rows(4096))()),
    Case("elements", partial(every_element, 4096)),
    Case("rotation", rotation),
    Case("rotate", lambda: rope.rotate(rows(4096), rows(128, F32), 128, rows(4096))()),
    Case("write bf16, norms of heads", partial(write, "bf16", 128, norms=True)),
    Case("write fp8", partial(write, "fp8", 128, norms=False)),
    Case("write int8", partial(write, "int8", 64, norms=False)),
    Case("latent heads, bf16", partial(latent, "bf16")),
    Case("latent heads, int8", partial(latent, "int8"), capabilities=TESTED),
    Case("copies", copies),
]
