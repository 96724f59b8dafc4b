"""Products with matrices of packed integers while rows are few: weights are read once, packed, and become operands in registers.

    out[m, n] = Σ over groups g: scale[n, g] · (Σ code[n, k] · x[m, k] - zero[n, g] · Σ x[m, k])         k in g

Codes are exact in every operand type, so scales touch fp32 sums only. A code of up to 6 bits becomes a bf16 number by setting the bits of
its exponent (128 + code; fp16: 64 + code), and what that adds goes with the zero; Σ x comes from a product with ones, which stays in the
layout of the sums. Inputs are cut in `splits` parts of fixed places, which depend on the matrix alone: `reduce_splits` adds them in order.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from ridgeline.compute.cuda.integers import Integers
from ridgeline.compute.cuda.triton.launch import ceil_div, rows_of

BLOCK_N: Final = 64
MOST_ROWS: Final = 32
"""Rows of x up to which a program takes all of them."""
REDUCE_BLOCK: Final = 1024

PROGRAMS: Final = 528
"""Programs that keep a device busy: four on each of the 132 multiprocessors of an H200."""
LEAST_TILES: Final = 4
"""A program reads at least so many tiles, or its start costs more than its work."""

_ZEROS: Final = {"centre": 0, "zeros": 1, "mins": 2}
_OFFSETS: Final = {torch.float32: 0, torch.bfloat16: 128, torch.float16: 64}
"""What setting the exponent adds to a code."""


@triton.jit
def _operand(codes, SUBTRACT: tl.constexpr, OFFSET: tl.constexpr, kind: tl.constexpr):
    """Integers 0 … 255 as an operand: OFFSET + code, or code - SUBTRACT where OFFSET is 0. Exact."""
    if OFFSET == 128:
        made = (codes.to(tl.int16) | 0x4300).to(tl.bfloat16, bitcast=True)
    elif OFFSET == 64:
        made = ((codes.to(tl.int16) << 4) | 0x5400).to(tl.float16, bitcast=True)
    else:
        # 2^23 + code is exact in fp32; converting integers takes four times as long.
        wide = (codes.to(tl.int32) | 0x4B000000).to(tl.float32, bitcast=True)
        made = (wide - (8388608.0 + SUBTRACT)).to(kind)
    return made


@triton.jit
def grouped_kernel(
    x, low, high, scales, fine, mins, fine_mins, zeros, out,
    rows, columns, inputs, x_stride, out_stride, out_split, tiles, tiles_a_split, groups, bases,
    LOW: tl.constexpr, HIGH: tl.constexpr, FIELDS: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, BASE: tl.constexpr,
    ZERO: tl.constexpr, CENTRE: tl.constexpr, OFFSET: tl.constexpr, EVEN: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_N outputs of BLOCK_M rows over one split of the inputs. `Integers` says how planes lie; SIZE 0: a group a row."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(1)
    m = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    w = tl.arange(0, WIDTH)
    there = n < columns
    TILE: tl.constexpr = FIELDS * WIDTH
    SPAN: tl.constexpr = TILE if SIZE == 0 or SIZE > TILE else SIZE
    LOW_BYTES: tl.constexpr = TILE * LOW // 8
    HIGH_BYTES: tl.constexpr = TILE * HIGH // 8
    SUBTRACT: tl.constexpr = CENTRE if OFFSET == 0 and ZERO == 0 else 0
    SUMS: tl.constexpr = OFFSET + CENTRE - SUBTRACT != 0 or ZERO != 0
    kind: tl.constexpr = x.dtype.element_ty
    ones = tl.full((BLOCK_N, WIDTH), 1.0, tl.float32).to(kind)
    total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    dots = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    sums = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    first = split * tiles_a_split
    for tile in range(first, tl.minimum(first + tiles_a_split, tiles)):
        row = tile * tl.cast(columns, tl.int64) + n
        for field in tl.static_range(FIELDS):
            if field % (8 // LOW) == 0:
                low_run = tl.load(low + row[:, None] * LOW_BYTES + field // (8 // LOW) * WIDTH + w[None, :], mask=there[:, None], other=0)
            codes = (low_run >> (LOW * (field % (8 // LOW)))) & ((1 << LOW) - 1)
            if HIGH > 0:
                if field % (8 // HIGH) == 0:
                    high_at = high + row[:, None] * HIGH_BYTES + field // (8 // HIGH) * WIDTH
                    high_run = tl.load(high_at + w[None, :], mask=there[:, None], other=0)
                codes = codes | (((high_run >> (HIGH * (field % (8 // HIGH)))) & ((1 << HIGH) - 1)) << LOW)
            k = tile * TILE + field * WIDTH + w
            mask = (m < rows)[None, :] if EVEN else (m < rows)[None, :] & (k < inputs)[:, None]
            part = tl.load(x + m[None, :].to(tl.int64) * x_stride + k[:, None], mask=mask, other=0.0)
            dots = tl.dot(_operand(codes, SUBTRACT, OFFSET, kind), part, dots, input_precision="ieee")
            if SUMS:
                sums = tl.dot(ones, part, sums, input_precision="ieee")
            if (field + 1) * WIDTH % SPAN == 0:
                start = tile * TILE + field * WIDTH
                group = tl.minimum(start // SIZE, groups - 1) if SIZE > 0 else 0
                base = tl.minimum(start // BASE, bases - 1) if BASE > 0 else group
                scale = tl.load(scales + base * columns + n, mask=there, other=0.0).to(tl.float32)
                if BASE > 0:
                    scale *= tl.load(fine + group * columns + n, mask=there, other=0).to(tl.float32)
                if ZERO == 0:
                    total += scale[:, None] * (dots - (OFFSET + CENTRE - SUBTRACT) * sums)
                elif ZERO == 1:
                    zero = OFFSET + tl.load(zeros + group * columns + n, mask=there, other=0).to(tl.float32)
                    total += scale[:, None] * (dots - zero[:, None] * sums)
                else:
                    least = tl.load(mins + base * columns + n, mask=there, other=0.0).to(tl.float32)
                    if BASE > 0:
                        least *= tl.load(fine_mins + group * columns + n, mask=there, other=0).to(tl.float32)
                    total += scale[:, None] * (dots - OFFSET * sums) - least[:, None] * sums
                dots = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
                sums = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    place = out + split.to(tl.int64) * out_split + m[None, :].to(tl.int64) * out_stride + n[:, None]
    tl.store(place, total.to(out.dtype.element_ty), mask=there[:, None] & (m < rows)[None, :])


@triton.jit
def reduce_kernel(parts, out, columns, splits, part_stride, out_stride, BLOCK: tl.constexpr):
    """out[m, n] = parts[0, m, n] + parts[1, m, n] + …, in this order."""
    m = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for split in range(splits):
        total += tl.load(parts + split * tl.cast(part_stride, tl.int64) + m * columns + n, mask=n < columns, other=0.0)
    tl.store(out + m * out_stride + n, total.to(out.dtype.element_ty), mask=n < columns)


def splits_of(weight: Integers) -> int:
    """In how many parts the inputs are summed: a function of the matrix alone, so that no batch changes a sum."""
    blocks = ceil_div(weight.shape[0], BLOCK_N)
    return max(1, min(ceil_div(PROGRAMS, blocks), weight.tiles // LEAST_TILES, 16))


def scratch_bytes(weight: Integers, rows: int) -> int:
    """What `linear_grouped` needs beside its arguments for so many rows."""
    splits = splits_of(weight)
    return 4 * splits * rows * weight.shape[0] if splits > 1 else 0


def linear_grouped(x: Tensor, weight: Integers, out: Tensor, scratch: Tensor, *, block_rows: int | None = None) -> None:
    """x [M, K] · weightᵀ → out [M, N]; columns of x in the order of the codes.

    scratch     uint8, `scratch_bytes`
    block_rows  rows a program takes, 16 or 32; None: as few as M needs
    """
    rows, (columns, inputs) = rows_of(x, out), weight.shape
    if x.shape[1] != inputs or out.shape[1] != columns:
        raise ValueError(f"x {tuple(x.shape)} and out {tuple(out.shape)} do not fit weights {weight.shape}")
    if not rows:
        return
    splits, form = splits_of(weight), weight.form
    block = block_rows or (16 if rows <= 16 else MOST_ROWS)
    parts = scratch[: scratch_bytes(weight, rows)].view(torch.float32) if splits > 1 else out
    offset = 0 if form.low + form.high == 8 else _OFFSETS[x.dtype]
    nothing = weight.low
    grid = (ceil_div(columns, BLOCK_N), splits, ceil_div(rows, block))
    grouped_kernel[grid](
        x, weight.low, _or(weight.high, nothing), weight.scales, _or(weight.fine, nothing), _or(weight.mins, nothing),
        _or(weight.fine_mins, nothing), _or(weight.zeros, nothing), parts,
        rows, columns, inputs, x.stride(0), columns if splits > 1 else out.stride(0), rows * columns if splits > 1 else 0,
        weight.tiles, ceil_div(weight.tiles, splits), inputs // (form.size or inputs), weight.scales.shape[0],
        LOW=form.low, HIGH=form.high, FIELDS=weight.fields, WIDTH=weight.width, SIZE=form.size, BASE=form.base,
        ZERO=_ZEROS[form.zero], CENTRE=form.centre, OFFSET=offset, EVEN=weight.tiles * weight.tile == inputs,
        BLOCK_N=BLOCK_N, BLOCK_M=block, num_warps=4, num_stages=4,
    )  # fmt: skip
    if splits > 1:
        reduce_splits(parts, splits, out)


def reduce_splits(parts: Tensor, splits: int, out: Tensor) -> None:
    """Sums fp32 [splits, M, N] over the splits, first to last, into out [M, N]."""
    rows, columns = out.shape
    grid = (rows, ceil_div(columns, REDUCE_BLOCK))
    reduce_kernel[grid](parts, out, columns, splits, rows * columns, out.stride(0), BLOCK=REDUCE_BLOCK)


def _or(part: Tensor | None, nothing: Tensor) -> Tensor:
    """Kernels take a pointer even for what they never read."""
    return nothing if part is None else part
