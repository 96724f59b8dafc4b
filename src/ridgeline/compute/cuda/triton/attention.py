"""Attention over the paged cache: how a step is cut into programs, and its launches.

Prefill, decode, mixed steps and verification are one entry. The cut depends on sizes alone, never on data, so that a graph can hold it:
which tile a step gets stands in plain tables by capability, queries a row and head dimension.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

import torch

from ridgeline.compute.cuda.cache import CacheLayer
from ridgeline.compute.cuda.triton.attention_kernels import attention_kernel, merge_kernel
from ridgeline.compute.cuda.triton.launch import capability, ceil_div, codes_of, native_fp8, power_of_2, rows_of

SPLIT: Final = 256
"""Keys of a split: a sequence's splits begin at its positions 0, 256, 512 …"""

SPLIT_BELOW: Final = 2
"""Programs a multiprocessor below which splits are computed by programs of their own."""

SPLIT_PROGRAMS: Final = 8
"""How many programs a multiprocessor that then gives, at most."""

WORK_LIMIT: Final = 256 << 20
"""Bytes of scratch beyond which one program computes all splits of its queries, in the same order."""

MULTIPROCESSORS: Final = {80: 108, 90: 132}


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows of queries and keys that a program multiplies at once; its warps and the stages of its pipeline of loads."""

    queries: int
    keys: int
    warps: int
    stages: int


FEW: Final = {
    (80, 128): Tile(16, 32, 4, 5),
    (80, 256): Tile(16, 32, 4, 3),
    (90, 128): Tile(16, 64, 4, 5),
    (90, 256): Tile(16, 32, 4, 5),
}
"""One row of queries, or few: (capability, head dimension at most) → tile; `queries` grows to what a row has.

A page's number is loaded before the page, so five stages keep two tiles of keys and values in flight.
"""

MANY: Final = {
    (80, 128): Tile(128, 64, 8, 5),
    (80, 256): Tile(64, 32, 8, 5),
    (90, 128): Tile(128, 64, 8, 5),
    (90, 256): Tile(128, 32, 8, 5),
}
"""Prompts."""

CONVERTED: Final = {False: {(80, 128): 32, (80, 256): 16}, True: {(90, 256): 16}}
"""Keys of a tile where operands are made of fp8 or int8 by arithmetic, which takes registers: of prompts, and of whatever step where sums
may not depend on it, whose splits have sums of their own."""

MANY_WARPS: Final = 64
"""Queries from which a tile of few has eight warps: four have not the registers for two sums of their values."""

FP32: Final = {128: Tile(32, 32, 4, 3), 256: Tile(16, 16, 4, 3)}
"""Head dimension at most → tile for operands in fp32, which are products of three tf32 numbers: such models are for tests."""

FEW_ROWS: Final = 64
"""Query rows of one program up to which a sequence's step counts as few."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How a step is computed.

    fold     do splits have sums of their own, folded in order? Then a token's bits do not depend on how its step is cut
    lanes    programs that share the splits of a block of queries; 0: one program computes them all
    splits   the most splits of a sequence
    one_block  does each row have one block of queries at most?
    """

    tile: Tile
    blocks: int
    one_block: bool
    fold: bool
    lanes: int
    splits: int


def cut(
    tokens: int,
    rows: int,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    most_q: int,
    most_kv: int,
    capability: int,
    fp32: bool = False,
    converted: bool = False,
    invariant: bool = False,
) -> Cut:
    """The cut of a step of so many tokens and rows, of which a row has at most `most_q` queries and `most_kv` keys.

    `fp32`: queries are. `converted`: the cache is of fp8 or int8.
    `invariant`: a token gets the same bits whatever its step: one tile and one order of sums for all. ValueError for more than 128
    query heads a KV head or head dimensions beyond 256.
    """
    group = heads // kv_heads
    if group > 128 or head_dim > 256:
        raise ValueError(f"attention on a GPU takes at most 128 query heads a KV head and 256 dimensions, got {group} and {head_dim}")
    key = (90 if capability >= 90 else 80, 128 if head_dim <= 128 else 256)
    least, mean = max(16, power_of_2(group)), power_of_2(ceil_div(tokens, max(1, rows)) * group)
    needed = power_of_2(most_q) * power_of_2(group)
    few = invariant or needed <= max(FEW_ROWS, least)
    tile = FP32[key[1]] if fp32 else FEW[key] if few else MANY[key]
    if converted and (invariant or not few):
        tile = replace(tile, keys=CONVERTED[invariant].get(key, tile.keys))
    if few:
        tile = replace(tile, queries=least if invariant else max(least, needed))
    else:
        tile = replace(tile, queries=max(least, min(tile.queries, max(32, mean))))
    most = 8 if few and tile.queries >= MANY_WARPS else tile.warps
    tile = replace(tile, warps=max(4, min(most, tile.queries // 8)))
    queries = tile.queries // group
    one_block = most_q <= queries
    blocks = rows if one_block else tokens // queries + rows
    splits, programs = ceil_div(most_kv, SPLIT), blocks * kv_heads
    lanes, processors = 0, MULTIPROCESSORS[key[0]]
    alone = programs >= SPLIT_BELOW * processors or _work_bytes(tokens, heads, head_dim, splits) > WORK_LIMIT
    if few and splits > 1 and programs and not alone:
        lanes = min(splits, ceil_div(SPLIT_PROGRAMS * processors, programs))
    return Cut(tile, blocks, one_block, few, lanes, splits)


def work_bytes(
    tokens: int,
    rows: int,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    most_q: int,
    most_kv: int,
    device: torch.device,
    fp32: bool = False,
    invariant: bool = False,
) -> int:
    """Bytes of scratch that `attention` needs for a step of these sizes; most_kv = tables.shape[1] · block_tokens."""
    made = cut(
        tokens,
        rows,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        most_q=most_q,
        most_kv=most_kv,
        capability=capability(device),
        fp32=fp32,
        invariant=invariant,
    )
    return _work_bytes(tokens, heads, head_dim, made.splits) if made.lanes else 0


def attention(
    q: torch.Tensor,
    layer: CacheLayer,
    tables: torch.Tensor,
    cu_q: torch.Tensor,
    kv_len: torch.Tensor,
    row_of_token: torch.Tensor,
    *,
    head_dim: int,
    scale: float,
    window: int,
    softcap: float,
    out: torch.Tensor,
    work: torch.Tensor | None,
    most_q: int,
    invariant: bool = False,
) -> None:
    """The op `attention`: q [T, H · head_dim] over the cached positions of each token's row, into `out` [T, H · head_dim].

    tables int32 [R, P], cu_q int32 [R + 1], kv_len int32 [R], row_of_token int32 [T]. `most_q`: no row has more tokens. `work`: at least
    `work_bytes` bytes, of any type, aligned to 4. Rows without tokens cost a look; tokens that no row owns are not written; a token whose
    row has no keys gets zeros. `out` may be q. Vaswani et al. 2017; Milakov and Gimelshein 2018 (the sums in one pass); Dao et al. 2022.
    """
    tokens, rows, kv_heads = rows_of(q, out, row_of_token), len(kv_len), layer.kv_heads
    heads = q.shape[1] // head_dim
    if not tokens or not rows:
        return
    if (cu_q.shape[0], tables.shape[0], layer.keys.shape[3]) != (rows + 1, rows, head_dim) or heads % kv_heads or tables.stride(1) != 1:
        raise ValueError(f"{heads} heads x {head_dim} over {tuple(layer.keys.shape)}, {rows} rows, tables {tuple(tables.shape)}")
    made = cut(
        tokens,
        rows,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        most_q=most_q,
        most_kv=tables.shape[1] * layer.block_tokens,
        capability=capability(q.device),
        fp32=q.dtype == torch.float32,
        converted=layer.keys.dtype.itemsize == 1,
        invariant=invariant,
    )
    partial, sums = _partials(made, tokens, heads, head_dim, work, out)
    tables_of_row = (tables, cu_q, kv_len)
    shape = (head_dim, kv_heads, heads // kv_heads, window, scale, softcap)
    _launch(made, q, layer, tables_of_row, out, (partial, sums), shape)
    if made.lanes:
        merge_kernel[(tokens, heads)](
            partial, sums, row_of_token, cu_q, kv_len, out, made.splits, out.stride(0),
            HEADS=heads, HEAD=head_dim, WINDOW=window, SPLIT=SPLIT, BLOCK_D=power_of_2(head_dim), num_warps=1,
        )  # fmt: skip


def _launch(
    made: Cut,
    q: torch.Tensor,
    layer: CacheLayer,
    tables_of_row: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    out: torch.Tensor,
    partials: tuple[torch.Tensor, torch.Tensor],
    shape: tuple[int, int, int, int, float, float],
) -> None:
    """The launch of attention itself: into `out`, or, where splits have programs of their own, into `partials`."""
    head_dim, kv_heads, group, window, scale, softcap = shape
    fp8, scales = layer.keys.dtype == torch.float8_e4m3fn, layer.key_scales
    keys, values = (codes_of(layer.keys), codes_of(layer.values)) if fp8 else (layer.keys, layer.values)
    attention_kernel[(made.blocks, kv_heads, max(1, made.lanes))](
        q,
        keys,
        values,
        keys if scales is None else scales,
        values if layer.value_scales is None else layer.value_scales,
        *tables_of_row,
        out,
        *partials,
        len(tables_of_row[2]),
        made.splits,
        scale / softcap if softcap else scale * math.log2(math.e),
        softcap * math.log2(math.e),
        q.stride(0),
        out.stride(0),
        tables_of_row[0].stride(0),
        keys.stride(0),
        0 if scales is None else scales.stride(0),
        GROUP=group,
        HEAD=head_dim,
        KV_HEADS=kv_heads,
        BLOCK_TOKENS=layer.block_tokens,
        WINDOW=window,
        SPLIT=SPLIT,
        CAPPED=softcap != 0,
        KIND="fp8" if fp8 else "plain" if scales is None else "int8",
        NATIVE=native_fp8(q.device),
        ONE_BLOCK=made.one_block,
        FOLD=made.fold and made.splits > 1,
        PARTIAL=made.lanes > 0,
        BLOCK_M=made.tile.queries,
        BLOCK_D=max(16, power_of_2(head_dim)),
        TILE=made.tile.keys,
        num_warps=made.tile.warps,
        num_stages=made.tile.stages,
    )


def _work_bytes(tokens: int, heads: int, head_dim: int, splits: int) -> int:
    """fp32: for each token, head and split its weighted values, and the greatest score and the sum of weights."""
    return 4 * tokens * heads * splits * (head_dim + 2)


def _partials(
    made: Cut, tokens: int, heads: int, head_dim: int, work: torch.Tensor | None, unused: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weighted values and (greatest score, sum of weights) of all splits, in the caller's scratch."""
    if not made.lanes:
        return unused, unused
    needed = _work_bytes(tokens, heads, head_dim, made.splits)
    if work is None or work.nbytes < needed:
        raise ValueError(f"attention needs {needed} bytes of scratch, got {0 if work is None else work.nbytes}")
    numbers = work.view(-1).view(torch.float32)
    values = tokens * heads * made.splits * head_dim
    return numbers[:values], numbers[values : values + 2 * tokens * heads * made.splits]
