"""Routing of experts on the device: scores of a token, its choices, their order by expert, and the weighted sum of what experts give.

Nothing is read back: grids depend on sizes alone, and what a step's routing needs fewer tiles for ends at once. Tokens of padding choose
no expert, so that a step reads no matrix that none of its tokens chose.
"""

from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from ridgeline.compute.cuda.triton.dependent import after_previous
from ridgeline.compute.cuda.triton.launch import BoundLaunch, Run, ceil_div, nothing, one_by_one, power_of_2, rows_of
from ridgeline.compute.ops.sorted_experts import tile_height

FEW_TOKENS: Final = 256
"""Tokens up to which the inputs of a router are cut in parts: with more there are programs enough."""
SPLIT_INPUTS: Final = 256
"""Inputs of such a part."""
BLOCK_K: Final = {2: 128, 4: 32}
"""Inputs of a program's step, by bytes of a number."""
BLOCK_N: Final = 1024
"""Numbers of a row of the weighted sum per program."""
CHUNK: Final = 4096
"""Choices that a program of the sort looks at in one step, at most."""


@triton.jit
def router_kernel(
    x, weight, parts, tokens, experts, inputs, x_stride, weight_stride, part_stride,
    SPLIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_K: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_M tokens, BLOCK_E experts, SPLIT inputs (0: all) → parts fp32 [splits, T, E]."""
    after_previous(PDL)
    e = tl.program_id(0) * BLOCK_E + tl.arange(0, BLOCK_E)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    split, k = tl.program_id(2), tl.arange(0, BLOCK_K)
    first = split * SPLIT
    last = tl.minimum(first + SPLIT, inputs) if SPLIT > 0 else inputs
    x_at = x + m[:, None].to(tl.int64) * x_stride + k[None, :]
    weight_at = weight + e[None, :].to(tl.int64) * weight_stride + k[:, None]
    total = tl.zeros((BLOCK_M, BLOCK_E), tl.float32)
    for start in range(first, last, BLOCK_K):
        inside = k < inputs - start
        left = tl.load(x_at + start, mask=(m < tokens)[:, None] & inside[None, :], other=0.0)
        right = tl.load(weight_at + start, mask=(e < experts)[None, :] & inside[:, None], other=0.0)
        total = tl.dot(left, right, total, input_precision="ieee")
    place = parts + split.to(tl.int64) * part_stride + m[:, None].to(tl.int64) * experts + e[None, :]
    tl.store(place, total, mask=(m < tokens)[:, None] & (e < experts)[None, :])


@triton.jit
def _keys(values, allowed, places):
    """int64 in the order of the values, of equal ones the lower place first: NaN is below all numbers, what is not allowed below NaN."""
    bits = tl.where(values == 0.0, 0.0, values).to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    ordered = tl.where(values != values, -2147483647, ordered)
    ordered = tl.where(allowed, ordered, -2147483648)
    return (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - places).to(tl.int64)


@triton.jit
def _best(keys, COUNT: tl.constexpr):
    """True at the COUNT largest keys."""
    found = keys != keys
    for _ in tl.static_range(COUNT):
        largest = tl.max(tl.where(found, -9223372036854775807, keys), axis=0)
        found = found | (keys == largest)
    return found


@triton.jit
def choose_kernel(
    parts, bias, ids, weights, experts, splits, part_stride, weights_stride, least, scale,
    K: tl.constexpr, SCORES: tl.constexpr, NORMALISE: tl.constexpr, GROUPS: tl.constexpr, KEPT: tl.constexpr, TOP2: tl.constexpr,
    BIAS: tl.constexpr, SELECTS: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program: one token. Its experts stand in GROUPS groups, padded to ROWS rows of SIZE places."""
    after_previous(PDL)
    token = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, ROWS * SIZE)
    own = experts // GROUPS
    group, inner = place // SIZE, place % SIZE
    there = (group < GROUPS) & (inner < own)
    e = group * own + inner
    logits = tl.zeros((ROWS * SIZE,), tl.float32)
    for split in range(splits):
        logits += tl.load(parts + split * tl.cast(part_stride, tl.int64) + token * experts + e, mask=there, other=0.0)
    if BIAS:
        added = tl.load(bias + e, mask=there, other=0.0)
        if not SELECTS:
            logits += added
    scores, values = logits, logits
    if SCORES == "softmax":
        powers = tl.where(there, tl.exp(logits - tl.max(tl.where(there, logits, float("-inf")), axis=0)), 0.0)
        scores = powers / tl.sum(powers, axis=0)
    elif SCORES == "sigmoid":
        scores = 1.0 / (1.0 + tl.exp(-logits))
    if SELECTS:
        values = scores + added
    allowed = there
    if GROUPS > 1:
        known = tl.where(there & (values == values), values, float("-inf"))
        table = tl.reshape(known, (ROWS, SIZE))
        best = tl.max(table, axis=1)
        if TOP2:
            keys = tl.reshape(_keys(known, there, place), (ROWS, SIZE))
            rest = tl.where(keys == tl.max(keys, axis=1)[:, None], float("-inf"), table)
            best += tl.max(rest, axis=1)
        row = tl.arange(0, ROWS)
        kept = _best(_keys(best, row < GROUPS, row), KEPT)
        allowed = there & tl.reshape(tl.broadcast_to(kept[:, None], (ROWS, SIZE)), (ROWS * SIZE,))
    chosen = _best(_keys(values, allowed, place), K)
    if SCORES == "softmax_chosen":
        powers = tl.where(chosen, tl.exp(logits - tl.max(tl.where(chosen, logits, float("-inf")), axis=0)), 0.0)
        scores = powers / tl.sum(powers, axis=0)
    if NORMALISE:
        scores = scores / (tl.sum(tl.where(chosen, scores, 0.0), axis=0) + least)
    at = tl.cumsum(chosen.to(tl.int32), axis=0) - 1
    tl.store(ids + token * K + at, e, mask=chosen)
    tl.store(weights + token * weights_stride + at, scores * scale, mask=chosen)


@triton.jit
def sort_kernel(
    ids, count, order, tiles, choices, experts,
    K: tl.constexpr, HEIGHT: tl.constexpr, BINS: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program: one expert's choices and tiles; the last one ends the table of tiles. `count`: tokens that are no padding."""
    after_previous(PDL)
    expert = tl.program_id(0)
    real = tl.minimum(tl.load(count) * K, choices)
    at, bins, block = tl.arange(0, CHUNK), tl.arange(0, BINS), tl.arange(0, BLOCK)
    counts = tl.zeros((BINS,), tl.int32)
    for start in range(0, real, CHUNK):
        found = tl.load(ids + start + at, mask=start + at < real, other=BINS - 1)
        counts += tl.histogram(found, BINS)
    counts = tl.where(bins < experts, counts, 0)
    heights = (counts + (HEIGHT - 1)) // HEIGHT
    place = tl.sum(tl.where(bins < expert, counts, 0), axis=0)
    tile = tl.sum(tl.where(bins < expert, heights, 0), axis=0)
    own = tl.sum(tl.where(bins == expert, counts, 0), axis=0)
    if expert == experts:
        for start in range(tile, choices, BLOCK):
            into = tiles + 3 * (start + block)
            tl.store(into, -1 + block * 0, mask=start + block < choices)
            tl.store(into + 1, block * 0, mask=start + block < choices)
            tl.store(into + 2, block * 0, mask=start + block < choices)
        for start in range(place, choices, BLOCK):
            tl.store(order + start + block, block * 0, mask=start + block < choices)
    if own > 0:
        for start in range(0, tl.cdiv(own, HEIGHT), BLOCK):
            number = start + block
            into, mask = tiles + 3 * (tile + number), number < tl.cdiv(own, HEIGHT)
            tl.store(into, expert + block * 0, mask=mask)
            tl.store(into + 1, place + number * HEIGHT, mask=mask)
            tl.store(into + 2, tl.minimum(own - number * HEIGHT, HEIGHT), mask=mask)
        for start in range(0, real, CHUNK):
            mine = (tl.load(ids + start + at, mask=start + at < real, other=BINS - 1) == expert).to(tl.int32)
            tl.store(order + place + tl.cumsum(mine, axis=0) - 1, start + at, mask=mine > 0)
            place += tl.sum(mine, axis=0)


@triton.jit
def combine_kernel(y, weights, out, width, y_stride, weights_stride, out_stride, K: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """One program: BLOCK numbers of one token, choices ascending."""
    after_previous(PDL)
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for choice in tl.static_range(K):
        weight = tl.load(weights + token * weights_stride + choice)
        total += weight * tl.load(y + (token * K + choice) * y_stride + at, mask=at < width, other=0.0).to(tl.float32)
    tl.store(out + token * out_stride + at, total.to(out.dtype.element_ty), mask=at < width)


def route_bytes(tokens: int, experts: int, inputs: int, *, invariant: bool) -> int:
    """Scratch bytes of `route` for up to so many tokens: where there are more than `FEW_TOKENS`, or fewer."""
    few = tokens if invariant else min(tokens, FEW_TOKENS)
    return 4 * experts * max(tokens, few * ceil_div(inputs, SPLIT_INPUTS))


def route(
    x: Tensor, weight: Tensor, bias: Tensor | None, ids: Tensor, weights: Tensor, scratch: Tensor, *, invariant: bool, k: int, scores: str,
    normalise: bool, scale: float, groups: int, groups_kept: int, group_score: str, bias_selects: bool,
) -> Run:  # fmt: skip
    """The launches of x [T, D] · weight [E, D]ᵀ → `ids` int32 [T, k] and `weights` fp32 [T, k], as `ops/experts.py` has them.

    scratch    uint8, at least `route_bytes`
    invariant  a token's bits do not depend on T

    ValueError where shapes do not fit.
    """
    tokens, (experts, inputs) = rows_of(x, ids, weights), weight.shape
    if x.shape[1] != inputs or x.dtype != weight.dtype or ids.shape[1] != k or not ids.is_contiguous():
        raise ValueError(f"x {x.dtype} {tuple(x.shape)}, router {weight.dtype} {tuple(weight.shape)} and ids {tuple(ids.shape)} do not fit")
    if not tokens:
        return nothing
    few = invariant or tokens <= FEW_TOKENS
    splits = ceil_div(inputs, SPLIT_INPUTS) if few else 1
    parts = scratch[: 4 * splits * tokens * experts].view(torch.float32)
    block_m = 16 if few or x.element_size() == 4 else 64
    block_e = min(32 if few else 64, max(16, power_of_2(experts)))
    router = BoundLaunch(
        router_kernel, (ceil_div(experts, block_e), ceil_div(tokens, block_m), splits),
        (x, weight, parts, tokens, experts, inputs, x.stride(0), weight.stride(0), tokens * experts),
        {"SPLIT": SPLIT_INPUTS if few else 0, "BLOCK_M": block_m, "BLOCK_E": block_e, "BLOCK_K": BLOCK_K[x.element_size()]},
        num_warps=4, num_stages=2,
    )  # fmt: skip
    size = max(2, power_of_2(experts // groups))
    choose = BoundLaunch(
        choose_kernel, (tokens,),
        (parts, parts if bias is None else bias, ids, weights, experts, splits, tokens * experts, weights.stride(0), 1e-20, scale),
        {
            "K": k, "SCORES": scores, "NORMALISE": normalise, "GROUPS": groups, "KEPT": groups_kept,
            "TOP2": group_score == "top2" and experts > groups, "BIAS": bias is not None, "SELECTS": bias is not None and bias_selects,
            "ROWS": power_of_2(groups), "SIZE": size,
        },
        num_warps=1,
    )  # fmt: skip
    return one_by_one([router, choose])


def sort_experts(ids: Tensor, count: Tensor, order: Tensor, tiles: Tensor, experts: int) -> Run:
    """The launch of `ids` int32 [T, k] of so many experts → `order` int32 [T · k, 1] and `tiles` int32 [T · k, 3], as
    `ops/sorted_experts.py` has them, of the first `count` int32 [1] tokens. ValueError where shapes do not fit."""
    choices = ids.numel()
    if order.shape != (choices, 1) or tiles.shape != (choices, 3) or not all(each.is_contiguous() for each in (ids, order, tiles)):
        raise ValueError(f"order {tuple(order.shape)} and tiles {tuple(tiles.shape)} do not fit ids {tuple(ids.shape)}")
    if not choices:
        return nothing
    chunk = min(CHUNK, max(64, power_of_2(choices)))
    return BoundLaunch(
        sort_kernel, (experts + 1,), (ids, count, order, tiles, choices, experts),
        {
            "K": ids.shape[1], "HEIGHT": tile_height(choices, experts), "BINS": max(32, power_of_2(experts + 1)), "CHUNK": chunk,
            "BLOCK": 64,
        },
        num_warps=8 if chunk > 1024 else 4,
    )  # fmt: skip


def combine(y: Tensor, weights: Tensor, out: Tensor) -> Run:
    """The launch of y [T · k, N] and weights fp32 [T, k] → out [T, N] = Σ over j: weights[t, j] · y[t · k + j]. ValueError where shapes do
    not fit."""
    (tokens, k), width = weights.shape, y.shape[1]
    if len(y) != tokens * k or rows_of(out, weights) != tokens or out.shape[1] != width:
        raise ValueError(f"y {tuple(y.shape)}, weights {tuple(weights.shape)} and out {tuple(out.shape)} do not fit each other")
    if not tokens:
        return nothing
    arguments: tuple[Any, ...] = (y, weights, out, width, y.stride(0), weights.stride(0), out.stride(0))
    return BoundLaunch(combine_kernel, (tokens, ceil_div(width, BLOCK_N)), arguments, {"K": k, "BLOCK": BLOCK_N}, num_warps=4)
