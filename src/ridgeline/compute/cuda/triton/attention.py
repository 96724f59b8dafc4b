"""Attention over a paged KV cache: the division of a step into programs, and its launches.

Prefill, decode, mixed steps and verification are one entry, bound once. The division depends on sizes alone, never on data, so that a graph
can hold it: tiles stand in plain tables by capability, queries per row and head dimension. Rows of one token beside prompts have a launch
of their own, with the tiles and splits of decode.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

import torch

from ridgeline.compute.cuda.cache import CacheLayer
from ridgeline.compute.cuda.triton.attention_kernels import attention_kernel
from ridgeline.compute.cuda.triton.launch import (
    BoundLaunch,
    Run,
    capability,
    ceil_div,
    codes_of,
    multiprocessors,
    native_fp8,
    nothing,
    one_by_one,
    power_of_2,
    rows_of,
)

SPLIT_KEYS: Final = 256
"""Keys per split: the splits of a sequence begin at its positions 0, 256, 512 …"""

SPLIT_BELOW: Final = 1.5
"""Programs per multiprocessor below which splits are computed by programs of their own: so many read as fast as memory is."""

SPLIT_PROGRAMS: Final = 8
"""Most programs per multiprocessor that split programs then make."""

LONGEST_KEYS: Final = 4096
"""Keys that a program computes at most, however many programs there are: one long row among short ones would be waited for."""

WORK_LIMIT: Final = 256 << 20
"""Bytes of scratch beyond which one program computes all splits of its queries, in the same order."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Query rows and keys that a program multiplies at once, its warps, and the stages of its pipeline of loads."""

    queries: int
    keys: int
    warps: int
    stages: int


DECODE_TILES: Final = {
    (80, 128): Tile(16, 32, 4, 5),
    (80, 256): Tile(16, 32, 4, 3),
    (80, 512): Tile(16, 32, 8, 3),
    (86, 128): Tile(16, 32, 4, 5),
    (86, 256): Tile(16, 32, 4, 3),
    (86, 512): Tile(16, 32, 8, 2),
    (90, 128): Tile(16, 64, 4, 5),
    (90, 256): Tile(16, 32, 4, 5),
    (90, 512): Tile(16, 32, 8, 3),
}
"""Decode, and rows of few queries: (capability, largest head dimension) → tile; `queries` grows with the row's. 512: values of a latent.

A block id is loaded before the block, so five stages keep two tiles of keys and values in flight. 86: devices with 99 KB of shared memory.
"""

PREFILL_TILES: Final = {
    (80, 128): Tile(128, 64, 8, 5),
    (80, 256): Tile(64, 32, 8, 5),
    (80, 512): Tile(32, 32, 8, 3),
    (86, 128): Tile(64, 32, 4, 4),
    (86, 256): Tile(32, 16, 4, 3),
    (86, 512): Tile(16, 16, 4, 3),
    (90, 128): Tile(128, 64, 8, 5),
    (90, 256): Tile(128, 32, 8, 5),
    (90, 512): Tile(64, 32, 8, 3),
}
"""Prefill: (capability, largest head dimension) → tile."""

QUANTISED_KEYS: Final = {False: {(80, 128): 32, (80, 256): 16, (90, 256): 16}, True: {(90, 256): 16}}
"""Keys per tile over a cache of fp8 or int8, whose conversion takes registers: of prefill (False), and of every batch-invariant step
(True), whose splits have sums of their own."""

INT8_KEYS: Final = {False: {(80, 128): 16, (100, 128): 32}, True: {(80, 256): 16, (86, 256): 16}}
"""The same over int8, whose scales take more. 100: capabilities 10.x and 11.x, where else the tiles are those of 90."""

EIGHT_WARP_QUERIES: Final = 64
"""Query rows from which a tile of few queries has eight warps: four lack registers for two sums of their values."""

FP32_TILES: Final = {128: Tile(32, 32, 4, 3), 256: Tile(16, 16, 4, 3), 512: Tile(16, 16, 4, 1)}
"""Largest head dimension → tile for operands in fp32, which are products of three tf32 numbers: such models are for tests."""

DECODE_QUERY_ROWS: Final = 64
"""Most query rows of a program for which the tiles of decode are used."""

LATENT_HEADS: Final = 16
"""Most query heads of a program over a latent, and most query rows for which the tiles of decode are used there: two sums of 512 numbers
for each take 128 registers of a thread."""

MAX_DIMENSIONS: Final = {False: 256, True: 512}
"""Largest value of a head, by whether keys and values are a latent."""


def table_row(capability: int) -> int:
    """The row of the tables of tiles, by shared memory of a program: 163, 99 or 227 KB. NVIDIA, CUDA programming guide, features."""
    return 80 if capability in (80, 87) else 90 if 90 <= capability < 120 else 86


@dataclass(frozen=True, slots=True)
class Schedule:
    """A launch: its division into programs.

    blocks          blocks of queries
    one_block       True where each row has at most one block of queries
    fold            True where splits have sums of their own, merged in order: a token's bits then do not depend on the schedule
    split_programs  programs that share the splits of a block of queries; 0: one program computes all of them
    splits          most splits of a sequence
    row_tokens      tokens of the rows that are its own: "one", "several" or "any"; of "one" partial results are kept by row
    """

    tile: Tile
    blocks: int
    one_block: bool
    fold: bool
    split_programs: int
    splits: int
    row_tokens: str


def make_schedules(
    tokens: int, rows: int, *, heads: int, kv_heads: int, head_dim: int, max_q: int, max_kv: int, device: torch.device, latent: int = 0,
    fp32: bool = False, cached: str = "plain", invariant: bool = False,
) -> tuple[Schedule, ...]:  # fmt: skip
    """The launches of a step of so many tokens and rows, of which a row has at most `max_q` queries and `max_kv` keys.

    latent     the first numbers of a key that are its value too; 0: keys and values are apart
    fp32       queries are fp32
    cached     `CacheLayer.kind`
    invariant  a token gets the same bits in every step: one tile and one order of sums for all

    ValueError for more than 128 query heads per KV head, or values beyond 256 dimensions, of a latent 512.
    """
    group, summed = heads_of_program(heads, kv_heads, latent), latent or head_dim
    if heads // kv_heads > 128 or summed > MAX_DIMENSIONS[latent > 0]:
        raise ValueError(
            f"attention on a GPU takes at most 128 query heads per KV head and {MAX_DIMENSIONS[latent > 0]} dimensions, got "
            f"{heads // kv_heads} and {summed}"
        )
    key = (table_row(capability(device)), 512 if latent > 128 else 128 if summed <= 128 else 256)
    min_queries, needed = max(16, power_of_2(group)), power_of_2(max_q) * power_of_2(group)
    splits = ceil_div(max_kv, SPLIT_KEYS)
    few_queries = invariant or needed <= max(LATENT_HEADS if latent else DECODE_QUERY_ROWS, min_queries)
    few = FP32_TILES[key[1]] if fp32 else DECODE_TILES[key]
    if invariant:
        few = _over(cached, few, capability(device), key, invariant=True)

    def of_few(row_tokens: str, queries: int) -> Schedule:
        tile = _with_queries(few, queries, EIGHT_WARP_QUERIES)
        one_block = row_tokens == "one" or max_q <= tile.queries // group
        blocks = rows if one_block else tokens // (tile.queries // group) + rows
        work = _work_bytes(rows if row_tokens == "one" else tokens, heads, summed, splits)
        programs = _split_programs(blocks * (heads // group), splits, max_kv, multiprocessors(device)) if work <= WORK_LIMIT else 0
        return Schedule(tile, blocks, one_block, True, programs, splits, row_tokens)

    if few_queries:
        return (of_few("one" if max_q == 1 else "any", min_queries if invariant else max(min_queries, needed)),)
    many = FP32_TILES[key[1]] if fp32 else PREFILL_TILES[key]
    many = _over(cached, many, capability(device), key, invariant=False)
    tile = _with_queries(many, max(min_queries, many.queries), 0)
    prompts = Schedule(tile, tokens // (tile.queries // group) + rows, False, False, 0, splits, "any" if rows == 1 else "several")
    return (prompts,) if rows == 1 else (of_few("one", min_queries), prompts)


def heads_of_program(heads: int, kv_heads: int, latent: int) -> int:
    """Query heads that a program computes at once: all of a KV head, of a latent as many as divide them."""
    group = heads // kv_heads
    return max(each for each in range(1, LATENT_HEADS + 1) if group % each == 0) if latent else group


def _over(cached: str, tile: Tile, capability: int, key: tuple[int, int], *, invariant: bool) -> Tile:
    """The tile of a row of the tables over a cache of this kind."""
    if cached == "plain":
        return tile
    keys = QUANTISED_KEYS[invariant].get(key, tile.keys)
    if cached == "int8":
        row = 100 if 100 <= capability < 120 else key[0]
        keys = INT8_KEYS[invariant].get((row, key[1]), keys)
    return replace(tile, keys=keys)


def _with_queries(tile: Tile, queries: int, eight_warps_from: int) -> Tile:
    """The tile with so many query rows, and the warps that they take, where the table has others."""
    if queries == tile.queries:
        return tile
    warps = 8 if eight_warps_from and queries >= eight_warps_from else tile.warps
    return replace(tile, queries=queries, warps=max(4, min(warps, queries // 8)))


def _split_programs(programs: int, splits: int, max_kv: int, multiprocessors: int) -> int:
    """Programs that share the splits of a block of queries: as many as fill the device, and so many that none has more than its keys."""
    filling = ceil_div(SPLIT_PROGRAMS * multiprocessors, programs) if 0 < programs < SPLIT_BELOW * multiprocessors else 1
    shared = min(splits, max(filling, ceil_div(max_kv, LONGEST_KEYS)))
    return shared if shared > 1 else 0


def work_bytes(
    tokens: int, rows: int, *, heads: int, kv_heads: int, head_dim: int, max_q: int, max_kv: int, device: torch.device, latent: int = 0,
    fp32: bool = False, invariant: bool = False,
) -> int:  # fmt: skip
    """Bytes of scratch that `attention` needs for a step of these sizes; max_kv = tables.shape[1] · block_tokens."""
    schedules = make_schedules(
        tokens, rows, heads=heads, kv_heads=kv_heads, head_dim=head_dim, max_q=max_q, max_kv=max_kv, device=device, latent=latent,
        fp32=fp32, invariant=invariant,
    )  # fmt: skip
    split = ((rows if each.row_tokens == "one" else tokens, each.splits) for each in schedules if each.split_programs)
    return max((_work_bytes(slots, heads, latent or head_dim, splits) for slots, splits in split), default=0)


def counters_of(tokens: int, rows: int, parts: int, device: torch.device) -> torch.Tensor:
    """Zeros int32 for the `counters` of every step of at most so many tokens and rows, whose heads have so many programs; launches leave
    them zero."""
    return torch.zeros((tokens + rows) * parts, dtype=torch.int32, device=device)


def attention(
    q: torch.Tensor, layer: CacheLayer, tables: torch.Tensor, table_row: torch.Tensor, cu_q: torch.Tensor, kv_len: torch.Tensor, *,
    head_dim: int, scale: float, window: int, softcap: float, out: torch.Tensor, work: torch.Tensor | None, counters: torch.Tensor,
    max_q: int, sinks: torch.Tensor | None = None, invariant: bool = False,
) -> Run:  # fmt: skip
    """The launch of the op `attention`: q [T, H · head_dim] over the cached positions of each token's row, into `out` [T, H · head_dim],
    of a latent [T, H · its values].

    tables        int32 [permanent rows, P]: block ids
    table_row     int32 [R]: the row of `tables` that each row has
    cu_q          int32 [R + 1]: cumulative query counts
    kv_len        int32 [R]
    sinks         fp32 [H], contiguous, or None
    max_q         most tokens of a row
    work          at least `work_bytes` bytes, of any type, aligned to 4
    counters      of `counters_of`

    Tokens that no row owns are not written; a token whose row has no keys gets zeros. `out` may be q where they are as wide.
    ValueError where shapes do not fit.
    Vaswani et al. 2017; Milakov and Gimelshein 2018 (online softmax); Dao et al. 2022.
    """
    tokens, rows, kv_heads = rows_of(q, out), len(kv_len), layer.kv_heads
    heads = q.shape[1] // head_dim
    if not tokens or not rows:
        return nothing
    if (cu_q.shape[0], len(table_row), layer.keys.shape[3]) != (rows + 1, rows, head_dim) or heads % kv_heads or tables.stride(1) != 1:
        raise ValueError(f"{heads} heads x {head_dim} over {tuple(layer.keys.shape)}, {rows} rows, tables {tuple(tables.shape)}")
    schedules = make_schedules(
        tokens, rows, heads=heads, kv_heads=kv_heads, head_dim=head_dim, max_q=max_q, max_kv=tables.shape[1] * layer.block_tokens,
        device=q.device, latent=layer.latent, fp32=q.dtype == torch.float32, cached=layer.kind, invariant=invariant,
    )  # fmt: skip
    shape = (head_dim, kv_heads, heads, window, scale, softcap)
    launches: list[Run] = []
    for schedule in schedules:
        slots = rows if schedule.row_tokens == "one" else tokens
        partials = (*_partials(schedule, slots, heads, layer.latent or head_dim, work, out), counters)
        launches.append(_bind(schedule, q, layer, (tables, table_row, cu_q, kv_len), out, partials, shape, sinks))
    return one_by_one(launches)


def _bind(
    schedule: Schedule,
    q: torch.Tensor,
    layer: CacheLayer,
    row_columns: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    out: torch.Tensor,
    partials: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    shape: tuple[int, int, int, int, float, float],
    sinks: torch.Tensor | None,
) -> BoundLaunch:
    """One launch into `out`, by way of `partials` where splits have programs of their own."""
    head_dim, kv_heads, heads, window, scale, softcap = shape
    group, value = heads_of_program(heads, kv_heads, layer.latent), layer.latent or head_dim
    fp8, scales = layer.keys.dtype == torch.float8_e4m3fn, layer.key_scales
    keys, values = (codes_of(layer.keys), codes_of(layer.values)) if fp8 else (layer.keys, layer.values)
    arguments = (
        q, keys, values, keys if scales is None else scales, values if layer.value_scales is None else layer.value_scales,
        q if sinks is None else sinks, *row_columns, out, *partials, len(row_columns[3]), schedule.splits,
        scale / softcap if softcap else scale * math.log2(math.e),
        softcap * math.log2(math.e), q.stride(0), out.stride(0), row_columns[0].stride(0), keys.stride(0),
        0 if scales is None else scales.stride(0),
    )  # fmt: skip
    constants = {
        "GROUP": group, "PARTS": heads // kv_heads // group, "HEAD": head_dim, "VALUE": value, "KV_HEADS": kv_heads,
        "BLOCK_TOKENS": layer.block_tokens, "WINDOW": window, "SPLIT": SPLIT_KEYS,
        "CAPPED": softcap != 0, "KIND": layer.kind, "NATIVE": native_fp8(q.device),
        "ONE_BLOCK": schedule.one_block, "FOLD": schedule.fold and schedule.splits > 1, "PARTIAL": schedule.split_programs > 0,
        "TOKENS": schedule.row_tokens, "SINKS": sinks is not None,
        "BLOCK_M": schedule.tile.queries, "BLOCK_D": max(16, power_of_2(value)),
        "REST": max(16, power_of_2(head_dim - value)) if layer.latent else 0, "TILE": schedule.tile.keys,
    }  # fmt: skip
    grid = (schedule.blocks, heads // group, max(1, schedule.split_programs))
    return BoundLaunch(attention_kernel, grid, arguments, constants, num_warps=schedule.tile.warps, num_stages=schedule.tile.stages)


def _work_bytes(slots: int, heads: int, value: int, splits: int) -> int:
    """Bytes of fp32 partial results: for each row or token, head and split the weighted values, the greatest score and the sum of
    weights."""
    return 4 * slots * heads * splits * (value + 2)


def _partials(
    schedule: Schedule, slots: int, heads: int, value: int, work: torch.Tensor | None, unused: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of the caller's scratch for the weighted values and the (greatest score, sum of weights) of all splits."""
    if not schedule.split_programs:
        return unused, unused
    needed = _work_bytes(slots, heads, value, schedule.splits)
    if work is None or work.nbytes < needed:
        raise ValueError(f"attention needs {needed} bytes of scratch, got {0 if work is None else work.nbytes}")
    numbers = work.view(-1).view(torch.float32)
    values = slots * heads * schedule.splits * value
    return numbers[:values], numbers[values : values + 2 * slots * heads * schedule.splits]
