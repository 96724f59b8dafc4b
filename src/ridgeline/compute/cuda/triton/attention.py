"""Attention over the paged cache: how a step is cut into programs, and its launches.

Prefill, decode, mixed steps and verification are one entry. The cut depends on sizes alone, never on data, so that a graph can hold it:
which tile a step gets stands in plain tables by capability, queries a row and head dimension.
"""

import math
from dataclasses import dataclass
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
    (80, 128): Tile(16, 32, 4, 3),
    (80, 256): Tile(16, 32, 4, 2),
    (90, 128): Tile(16, 64, 4, 3),
    (90, 256): Tile(16, 32, 4, 3),
}
"""One row of queries, or few: (capability, head dimension at most) → tile; `queries` grows to what a row has."""

MANY: Final = {
    (80, 128): Tile(128, 64, 8, 2),
    (80, 256): Tile(64, 32, 4, 2),
    (90, 128): Tile(128, 64, 8, 3),
    (90, 256): Tile(64, 64, 4, 2),
}
"""Prompts."""

FP32: Final = {128: Tile(64, 64, 4, 1), 256: Tile(32, 32, 4, 1)}
"""Head dimension at most → tile. Operands in fp32 know no matrix unit that keeps their precision; models of such operands are for tests."""

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
    invariant: bool = False,
) -> Cut:
    """The cut of a step of so many tokens and rows, of which a row has at most `most_q` queries and `most_kv` keys.

    `invariant`: a token gets the same bits whatever its step: one tile and one order of sums for all. ValueError for more than 128
    query heads a KV head or head dimensions beyond 256.
    """
    group = heads // kv_heads
    if group > 128 or head_dim > 256:
        raise ValueError(f"attention on a GPU takes at most 128 query heads a KV head and 256 dimensions, got {group} and {head_dim}")
    tile, few = _tile(group, head_dim, most_q, tokens, rows, capability, fp32, invariant)
    queries = tile.queries // group
    one_block = most_q <= queries
    blocks = rows if one_block else tokens // queries + rows
    splits, programs = ceil_div(most_kv, SPLIT), blocks * kv_heads
    many, limit = programs >= SPLIT_BELOW * _multiprocessors(capability), WORK_LIMIT < _work_bytes(tokens, heads, head_dim, splits)
    lanes = 0 if not few or splits < 2 or many or limit else min(splits, ceil_div(SPLIT_PROGRAMS * _multiprocessors(capability), programs))
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
    if (cu_q.shape[0], tables.shape[0], layer.keys.shape[3]) != (rows + 1, rows, head_dim) or heads % kv_heads or tables.stride(1) != 1:
        raise ValueError(f"{heads} heads x {head_dim} over {tuple(layer.keys.shape)}, {rows} rows, tables {tuple(tables.shape)}")
    if not tokens or not rows:
        return
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
        invariant=invariant,
    )
    partial, sums = _partials(made, tokens, heads, head_dim, work, out)
    tables_of_row = (tables, cu_q, kv_len)
    shape = (head_dim, kv_heads, heads // kv_heads, window, scale, softcap)
    _launch(made, q, layer, tables_of_row, out, (partial, sums), shape)
    if made.lanes:
        merge_kernel[(tokens, heads)](
            partial,
            sums,
            row_of_token,
            cu_q,
            kv_len,
            out,
            made.splits,
            out.stride(0),
            HEADS=heads,
            HEAD=head_dim,
            WINDOW=window,
            SPLIT=SPLIT,
            BLOCK_D=power_of_2(head_dim),
            num_warps=1,
        )


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


def _tile(
    group: int, head_dim: int, most_q: int, tokens: int, rows: int, capability: int, fp32: bool, invariant: bool
) -> tuple[Tile, bool]:
    """The tile of a step, and whether its rows count as few."""
    key = (90 if capability >= 90 else 80, 128 if head_dim <= 128 else 256)
    least = max(16, power_of_2(group))
    rows_of_q = power_of_2(most_q) * power_of_2(group)
    few, many = (FP32[key[1]], FP32[key[1]]) if fp32 else (FEW[key], MANY[key])
    if invariant or rows_of_q <= max(FEW_ROWS, least):
        return _of(few, least if invariant else max(least, rows_of_q)), True
    mean = power_of_2(ceil_div(tokens, rows) * group)
    return _of(many, max(least, min(many.queries, max(32, mean)))), False


def _of(tile: Tile, queries: int) -> Tile:
    """The tile with so many rows of queries. A warp has at least 16."""
    return Tile(queries, tile.keys, max(1, min(tile.warps, 8 if queries > 64 else 4)), tile.stages)


def _multiprocessors(capability: int) -> int:
    return MULTIPROCESSORS[90 if capability >= 90 else 80]


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
