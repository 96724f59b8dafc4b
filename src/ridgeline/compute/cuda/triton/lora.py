"""Changes of products by adapters: grouped products of low rank, for rows of several adapters, of any ranks and of none in one launch.

    sums[split, token, part, r] = Σ a[r, k] · x[token, k]                k in the split
    y[token, n] += scale · Σ (Σ sums over splits)[r] · b[r, n]

Tokens come in tiles of one adapter each, whose order the host makes; a tile without an adapter launches and does nothing, so that one
captured graph serves any mixture. The head of a slot says what lies in it: rank, scale and places of each matrix. A token's sums run over
its own inputs and ranks in ascending order, in parts of fixed places: its bits depend on the height of tiles and on nothing else.
"""

from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ridgeline.compute.cuda.triton.dependent import after_previous
from ridgeline.compute.cuda.triton.launch import BoundLaunch, Run, ceil_div, nothing, one_by_one, power_of_2, rows_of

WORDS: Final = 4
"""int32 in the head of a slot for each matrix: rank, scale as the bits of an fp32, places of a and b in units of 16 bytes."""
PLACE_BYTES: Final = 16

SMALL_TILE, LARGE_TILE = 16, 64
"""Tokens of a tile: of steps that read adapters more than they compute, and of prompts."""
SMALL_TOKENS: Final = 256
"""Most tokens of a step with small tiles."""
SPLIT_INPUTS: Final = 1024
"""Inputs that a program of a small tile sums up: a step of few tokens has few tiles, and all multiprocessors are to read."""
MOST_RANKS: Final = 64
"""Ranks of a program's step."""
BLOCK_K: Final = {2: 128, 4: 64}
BLOCK_N: Final = {2: 128, 4: 64}
"""Inputs and outputs of a program's step, by bytes of a number."""


class Tiles(NamedTuple):
    """Tokens of a step by adapter.

    tokens  int32 [tiles, height]: numbers of tokens, ascending within an adapter; -1: none
    slots   int32 [tiles]: the slot that all of a tile's tokens have; -1: an empty tile
    """

    tokens: Tensor
    slots: Tensor


class Slots(NamedTuple):
    """Adapters on the device. A slot begins with the head of all matrices.

    memory     uint8 [slots, bytes]
    most_rank  of any adapter
    """

    memory: Tensor
    most_rank: int


def tile_height(tokens: int, *, invariant: bool) -> int:
    """Tokens of a tile in a step of so many; of one height where bits may not depend on what else is in the step."""
    return SMALL_TILE if invariant or tokens <= SMALL_TOKENS else LARGE_TILE


def most_tiles(tokens: int, slots: int, *, invariant: bool) -> int:
    """Tiles that suffice for a step of so many tokens, however many of the slots they have."""
    height = tile_height(tokens, invariant=invariant)
    return min(tokens, (tokens + slots * (height - 1)) // height)


@triton.jit
def shrink_kernel(
    x, words, numbers, tokens, slots, sums,
    inputs, x_stride, slot_words, slot_numbers, entry, sums_stride, split_stride,
    RANKS: tl.constexpr, BLOCKS: tl.constexpr, UNIT: tl.constexpr, SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_R ranks of one matrix for a tile over SPLIT inputs. UNIT: numbers in 16 bytes; BLOCKS: programs of a matrix."""
    after_previous(PDL)
    tile, part, split = tl.program_id(0), tl.program_id(1) // BLOCKS, tl.program_id(2)
    slot = tl.load(slots + tile)
    if slot >= 0:
        head = words + slot * tl.cast(slot_words, tl.int64) + (entry + part) * 4
        rank = tl.load(head)
        first = tl.program_id(1) % BLOCKS * BLOCK_R
        if first < rank:
            token = tl.load(tokens + tile * BLOCK_M + tl.arange(0, BLOCK_M))
            r, k = first + tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_K)
            a = numbers + slot * tl.cast(slot_numbers, tl.int64) + tl.load(head + 2).to(tl.int64) * UNIT
            x_at = x + tl.maximum(token, 0)[:, None].to(tl.int64) * x_stride + k[None, :]
            a_at = a + tl.minimum(r, rank - 1)[None, :].to(tl.int64) * inputs + k[:, None]
            total = tl.zeros((BLOCK_M, BLOCK_R), tl.float32)
            for start in range(split * SPLIT, tl.minimum((split + 1) * SPLIT, inputs), BLOCK_K):
                inside = k < inputs - start
                left = tl.load(x_at + start, mask=(token >= 0)[:, None] & inside[None, :], other=0.0)
                right = tl.load(a_at + start, mask=(r < rank)[None, :] & inside[:, None], other=0.0)
                total = tl.dot(left, right, total, input_precision="ieee")
            place = sums + split * tl.cast(split_stride, tl.int64) + token[:, None].to(tl.int64) * sums_stride + part * RANKS + r[None, :]
            tl.store(place, total, mask=(token >= 0)[:, None] & (r < rank)[None, :])


@triton.jit
def expand_kernel(
    sums, words, numbers, tokens, slots, y,
    width_0, width_1, width_2, y_stride, slot_words, slot_numbers, entry, sums_stride, split_stride, splits,
    RANKS: tl.constexpr, UNIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_N outputs of one matrix for a tile. Outputs of up to three matrices lie one behind the other."""
    after_previous(PDL)
    tile, block = tl.program_id(0), tl.program_id(1)
    slot = tl.load(slots + tile)
    if slot >= 0:
        blocks_0, blocks_1 = tl.cdiv(width_0, BLOCK_N), tl.cdiv(width_1, BLOCK_N)
        part = (block >= blocks_0).to(tl.int32) + (block >= blocks_0 + blocks_1).to(tl.int32)
        width = tl.where(part == 0, width_0, tl.where(part == 1, width_1, width_2))
        block -= tl.where(part == 0, 0, tl.where(part == 1, blocks_0, blocks_0 + blocks_1))
        column = tl.where(part == 0, 0, tl.where(part == 1, width_0, width_0 + width_1))
        head = words + slot * tl.cast(slot_words, tl.int64) + (entry + part) * 4
        rank = tl.load(head)
        if rank > 0:
            scale = tl.load(head + 1).to(tl.float32, bitcast=True)
            b = numbers + slot * tl.cast(slot_numbers, tl.int64) + tl.load(head + 3).to(tl.int64) * UNIT
            token = tl.load(tokens + tile * BLOCK_M + tl.arange(0, BLOCK_M))
            n, ranks = block * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_R)
            sums_at = sums + tl.maximum(token, 0)[:, None].to(tl.int64) * sums_stride + part * RANKS
            total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            for start in range(0, rank, BLOCK_R):
                r = start + ranks
                there = (token >= 0)[:, None] & (r < rank)[None, :]
                shrunk = tl.zeros((BLOCK_M, BLOCK_R), tl.float32)
                for split in range(splits):
                    shrunk += tl.load(sums_at + split * tl.cast(split_stride, tl.int64) + r[None, :], mask=there, other=0.0)
                wide = tl.load(
                    b + tl.minimum(r, rank - 1)[:, None].to(tl.int64) * width + n[None, :],
                    mask=(r < rank)[:, None] & (n < width)[None, :], other=0.0,
                )  # fmt: skip
                total = tl.dot(shrunk.to(wide.dtype), wide, total, input_precision="ieee")
            place = y + tl.maximum(token, 0)[:, None].to(tl.int64) * y_stride + column + n[None, :]
            mask = (token >= 0)[:, None] & (n < width)[None, :]
            changed = tl.load(place, mask=mask, other=0.0).to(tl.float32) + scale * total
            tl.store(place, changed.to(y.dtype.element_ty), mask=mask)


def scratch_bytes(tokens: int, parts: int, most_rank: int, inputs: int, *, invariant: bool) -> int:
    """Scratch bytes of `add_changes` for up to so many tokens: where there are more than `SMALL_TOKENS`, or fewer."""
    few = tokens if invariant else min(tokens, SMALL_TOKENS)
    return 4 * parts * most_rank * max(tokens, few * ceil_div(inputs, SPLIT_INPUTS))


def add_changes(
    x: Tensor, y: Tensor, widths: tuple[int, ...], slots: Slots, entry: int, tiles: Tiles, scratch: Tensor
) -> Run:  # fmt: skip
    """The launches that add to y [T, ΣN] the changes of its tokens' adapters, given x [T, K] in the type of y: y += scale · b · (a · x).

    widths   N of each of up to three matrices, whose products lie one behind the other in y
    entry    number of the first matrix in the head of a slot
    tiles    looked at when it runs, as `slots` are
    scratch  uint8, at least `scratch_bytes`

    ValueError where shapes do not fit.
    """
    (count, inputs), parts, (many, height) = x.shape, len(widths), tiles.tokens.shape
    if rows_of(x, y) != count or x.dtype != y.dtype or y.shape[1] != sum(widths) or not 1 <= parts <= 3 or len(tiles.slots) != many:
        raise ValueError(f"x {tuple(x.shape)}, y {tuple(y.shape)} of {widths} and {many} tiles do not fit each other")
    if not many:
        return nothing
    split = ceil_div(inputs, BLOCK_K[x.element_size()]) * BLOCK_K[x.element_size()] if height == LARGE_TILE else SPLIT_INPUTS
    splits, stride = ceil_div(inputs, split), parts * slots.most_rank
    sums = scratch[: 4 * splits * count * stride].view(torch.float32)
    words, numbers = slots.memory.view(torch.int32), slots.memory.view(x.dtype)
    block_r = min(MOST_RANKS, max(16, power_of_2(slots.most_rank)))
    blocks = ceil_div(slots.most_rank, block_r)
    unit, block_n = PLACE_BYTES // x.element_size(), BLOCK_N[x.element_size()]
    shrink = BoundLaunch(
        shrink_kernel, (many, parts * blocks, splits),
        (
            x, words, numbers, tiles.tokens, tiles.slots, sums,
            inputs, x.stride(0), words.shape[1], numbers.shape[1], entry, stride, count * stride,
        ),
        {
            "RANKS": slots.most_rank, "BLOCKS": blocks, "UNIT": unit, "SPLIT": split,
            "BLOCK_M": height, "BLOCK_R": block_r, "BLOCK_K": BLOCK_K[x.element_size()],
        },
        num_warps=4, num_stages=3,
    )  # fmt: skip
    expand = BoundLaunch(
        expand_kernel, (many, sum(ceil_div(width, block_n) for width in widths)),
        (
            sums, words, numbers, tiles.tokens, tiles.slots, y,
            *widths, *(0 for _ in range(3 - parts)), y.stride(0), words.shape[1], numbers.shape[1], entry, stride, count * stride, splits,
        ),
        {"RANKS": slots.most_rank, "UNIT": unit, "BLOCK_M": height, "BLOCK_R": block_r, "BLOCK_N": block_n},
        num_warps=4, num_stages=2,
    )  # fmt: skip

    return one_by_one([shrink, expand])
