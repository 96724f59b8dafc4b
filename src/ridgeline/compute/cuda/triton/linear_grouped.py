"""Products of some rows with matrices of packed integers: weights are read once, packed, and become operands in registers.

    out[m, n] = Σ over groups g: scale[n, g] · (Σ code[n, k] · x[m, k] - zero[n, g] · Σ x[m, k])         k in g

Codes are exact in every operand type, so scales touch fp32 sums only. A code of up to 6 bits becomes a bf16 number by setting the bits of
its exponent (128 + code; fp16: 64 + code), and this offset is subtracted with the zero; Σ x comes from a product with ones, which stays in
the layout of the sums. Inputs are cut in `splits` parts of fixed places, which depend on the matrix and on blocks of rows alone:
`reduce_splits` adds them in order.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from ridgeline.compute.cuda.integers import GROUP_BYTES, IntegerMatrix
from ridgeline.compute.cuda.triton.formulas import choices_of, field_of, from_e2m1, gated, scale_of, zero_of
from ridgeline.compute.cuda.triton.launch import BoundLaunch, capability, ceil_div, multiprocessors, rows_of
from ridgeline.compute.cuda.triton.matmul import Choices

BLOCK_N: Final = 64
ROWS: Final = (16, 32, 64, 128)
"""Rows of x that a program may take."""
FIELD_ROWS: Final = 512
"""Most fields × rows of a program: beyond, inputs in flight need more shared memory than there is, or sums spill. A quarter for fp32."""
TENSOR_MEMORY_FIELD_ROWS: Final = 128
"""The same for capabilities 10.x and 11.x, where the sums of every field have columns of tensor memory: half of its 512 then, so that two
programs share a multiprocessor. Of a kernel that needs more than there are the compiler makes a trap."""
INVARIANT_ROWS: Final = 32
"""Rows that a program takes in the batch-invariant mode."""
REDUCE_BLOCK: Final = 1024

PROGRAMS: Final = 4
"""Programs per multiprocessor that fill a device."""
MIN_TILES: Final = 4
"""Least tiles that a program reads: with fewer its start costs more than its work."""

STAGES: Final = 4
"""Tiles prefetched at a time: 2 to 4 KB each for every program."""

_EXPONENT_OFFSETS: Final = {torch.float32: 0, torch.bfloat16: 128, torch.float16: 64}
"""Number that setting the exponent adds to a code."""


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
    x, low, high, scale_words, super_scales, bias, up_bias, order, choices, out,
    rows, columns, inputs, all_rows, up_rows, x_stride, out_stride, out_split, tiles, tiles_per_split, words, superblocks,
    LOW: tl.constexpr, HIGH: tl.constexpr, FIELDS: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, SUPERBLOCK: tl.constexpr,
    SCALE_TYPE: tl.constexpr, GROUP_BYTES: tl.constexpr, MINS: tl.constexpr, ZEROS: tl.constexpr, CENTRE: tl.constexpr,
    VALUES: tl.constexpr, OFFSET: tl.constexpr, EVEN: tl.constexpr, STAGES: tl.constexpr, GATE: tl.constexpr, BIAS: tl.constexpr,
    SHARED: tl.constexpr, TILE_ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_N outputs of BLOCK_M rows over one split of the inputs. SIZE 0: a group is a row.

    all_rows  of the matrix: `columns` of them, or twice as many, for each expert
    GATE      an activation: of BLOCK_N rows half are of gate, and half, `up_rows` further on, of up
    SHARED, TILE_ROWS, BIAS  as SHARED, TILE and BIAS of `matmul_kernel`
    """
    half = tl.arange(0, BLOCK_N) // (BLOCK_N // 2)
    if GATE != "":
        output = tl.program_id(0) * (BLOCK_N // 2) + tl.arange(0, BLOCK_N) % (BLOCK_N // 2)
    else:
        output = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    if SHARED > 0:
        expert, m, present = choices_of(order, choices, tl.program_id(2), TILE_ROWS, BLOCK_M)
        if expert < 0:
            return
        x_row, base = m // SHARED, expert * columns
    else:
        m = (tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
        present = m < rows
        x_row, base = m, 0
    n = base + output + half * up_rows if GATE != "" else base + output
    split, w, there = tl.program_id(1), tl.arange(0, WIDTH), output < columns
    TILE: tl.constexpr = FIELDS * WIDTH
    SPAN: tl.constexpr = TILE if SIZE > TILE or SIZE == 0 else SIZE
    SUBTRACT: tl.constexpr = 0 if OFFSET != 0 or MINS or ZEROS else CENTRE
    ADDED: tl.constexpr = OFFSET if MINS else OFFSET + CENTRE - SUBTRACT
    SUMS: tl.constexpr = ADDED != 0 or MINS or ZEROS
    kind: tl.constexpr = x.dtype.element_ty
    ones = tl.full((BLOCK_N, WIDTH), 1.0, tl.float32).to(kind)
    zeros = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    total, dots, sums = zeros, zeros, zeros
    super_scale, after = tl.zeros((BLOCK_N,), tl.int32), tl.zeros((BLOCK_N,), tl.int32)
    # num_stages makes Triton prefetch scales as it does codes, though no product reads them.
    for tile in tl.range(split * tiles_per_split, tl.minimum((split + 1) * tiles_per_split, tiles), num_stages=STAGES):
        row = tile * tl.cast(all_rows, tl.int64) + n
        if SUPERBLOCK > 0:
            super_scale = tl.load(
                super_scales + tl.minimum(tile * TILE // SUPERBLOCK, superblocks - 1) * tl.cast(all_rows, tl.int64) + n, mask=there, other=0
            )
        for field in tl.static_range(FIELDS):
            if field % (8 // LOW) == 0:
                low_at = low + row[:, None] * (TILE * LOW // 8) + field // (8 // LOW) * WIDTH
                low_run = tl.load(low_at + w[None, :], mask=there[:, None], other=0)
            codes = field_of(low_run, field, LOW)
            if HIGH > 0:
                if field % (8 // HIGH) == 0:
                    high_at = high + row[:, None] * (TILE * HIGH // 8) + field // (8 // HIGH) * WIDTH
                    high_run = tl.load(high_at + w[None, :], mask=there[:, None], other=0)
                codes = codes | (field_of(high_run, field, HIGH) << LOW)
            if VALUES == "e2m1":
                codes = from_e2m1(codes)
            k = tile * TILE + field * WIDTH + w
            mask = present[None, :] if EVEN else present[None, :] & (k < inputs)[:, None]
            part = tl.load(x + x_row[None, :] * x_stride + k[:, None], mask=mask, other=0.0)
            dots = tl.dot(_operand(codes, SUBTRACT, OFFSET, kind), part, dots, input_precision="ieee")
            if SUMS:
                sums = tl.dot(ones, part, sums, input_precision="ieee")
            if SIZE > 0 and (field + 1) * WIDTH % SPAN == 0:
                if ((field + 1) * WIDTH // SPAN - 1) * GROUP_BYTES % 4 == 0:
                    number = (tile * TILE + (field + 1) * WIDTH - SPAN) // SIZE * GROUP_BYTES // 4
                    word = tl.load(scale_words + tl.minimum(number, words - 1) * tl.cast(all_rows, tl.int64) + n, mask=there, other=0)
                    if GROUP_BYTES == 8:
                        after = tl.load(
                            scale_words + tl.minimum(number + 1, words - 1) * tl.cast(all_rows, tl.int64) + n, mask=there, other=0
                        )
                scale = scale_of(word, super_scale, SCALE_TYPE, ((field + 1) * WIDTH // SPAN - 1) * GROUP_BYTES % 4)
                zero = zero_of(word, after, super_scale, SCALE_TYPE, ((field + 1) * WIDTH // SPAN - 1) * GROUP_BYTES % 4, 0)
                total += _scaled(dots, sums, scale, zero, MINS, ZEROS, ADDED)
                dots, sums = zeros, zeros
    if SIZE == 0:
        word = tl.load(scale_words + n, mask=there, other=0)
        if GROUP_BYTES == 8:
            after = tl.load(scale_words + all_rows + n, mask=there, other=0)
        scale, zero = scale_of(word, super_scale, SCALE_TYPE, 0), zero_of(word, after, super_scale, SCALE_TYPE, 0, 0)
        total = _scaled(dots, sums, scale, zero, MINS, ZEROS, ADDED)
    if BIAS:
        added = tl.load(bias + base + output, mask=there, other=0.0)
        if GATE != "":
            added = tl.where(half == 0, added, tl.load(up_bias + base + output, mask=there, other=0.0))
        total += added[:, None]
    if GATE != "":
        gate, up = tl.split(tl.permute(tl.reshape(total, (2, BLOCK_N // 2, BLOCK_M)), (1, 2, 0)))
        total = gated(gate, up, GATE)
        output = tl.program_id(0) * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
    place = out + split.to(tl.int64) * out_split + m[None, :] * out_stride + output[:, None]
    tl.store(place, total.to(out.dtype.element_ty), mask=(output < columns)[:, None] & present[None, :])


@triton.jit
def _scaled(dots, sums, scale, zero, MINS: tl.constexpr, ZEROS: tl.constexpr, ADDED: tl.constexpr):
    """A group's share of the result [N, M]; ADDED is the number that was added to every code."""
    if MINS:
        share = scale[:, None] * (dots - ADDED * sums) - zero[:, None] * sums
    elif ZEROS:
        share = scale[:, None] * (dots - (zero + ADDED)[:, None] * sums)
    elif ADDED != 0:
        share = scale[:, None] * (dots - ADDED * sums)
    else:
        share = scale[:, None] * dots
    return share


@triton.jit
def reduce_kernel(parts, out, columns, splits, part_stride, out_stride, BLOCK: tl.constexpr):
    """out[m, n] = parts[0, m, n] + parts[1, m, n] + …, in this order."""
    m = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for split in range(splits):
        total += tl.load(parts + split * tl.cast(part_stride, tl.int64) + m * columns + n, mask=n < columns, other=0.0)
    tl.store(out + m * out_stride + n, total.to(out.dtype.element_ty), mask=n < columns)


def rows_per_program(weight: IntegerMatrix, x: Tensor, rows: int | None = None, *, invariant: bool = False) -> int:
    """Of the rows that a program has memory for the fewest that take all of x [M, K], or `rows` of them, else the most; invariant: not a
    function of M."""
    most = TENSOR_MEMORY_FIELD_ROWS if 100 <= capability(x.device) < 120 else FIELD_ROWS
    if x.dtype == torch.float32:
        most //= 4
    allowed = [each for each in ROWS if weight.fields * each <= most] or ROWS[:1]
    if invariant:
        return min(INVARIANT_ROWS, allowed[-1])
    wanted = len(x) if rows is None else rows
    return next((each for each in allowed if wanted <= each), allowed[-1])


def splits_of(weight: IntegerMatrix, row_blocks: int = 1) -> int:
    """Number of splits of the inputs: a function of the matrix, the device and blocks of rows."""
    blocks = ceil_div(weight.shape[0], BLOCK_N) * row_blocks
    return max(1, min(ceil_div(PROGRAMS * multiprocessors(weight.low.device), blocks), weight.tiles // MIN_TILES, 16))


def scratch_bytes(weight: IntegerMatrix, rows: int) -> int:
    """Scratch bytes of `linear_grouped` for up to so many rows."""
    splits = splits_of(weight)
    return 4 * splits * rows * weight.shape[0] if splits > 1 else 0


def linear_grouped(x: Tensor, weight: IntegerMatrix, out: Tensor, scratch: Tensor, *, invariant: bool = False) -> None:
    """x [M, K] · weightᵀ → out [M, N]; columns of x in the order of the codes.

    scratch    uint8, at least `scratch_bytes`
    invariant  a row's sums do not depend on M

    ValueError where shapes do not fit.
    """
    rows, (columns, inputs) = rows_of(x, out), weight.shape
    if x.shape[1] != inputs or out.shape[1] != columns:
        raise ValueError(f"x {tuple(x.shape)} and out {tuple(out.shape)} do not fit weights {weight.shape}")
    if not rows:
        return
    block = rows_per_program(weight, x, invariant=invariant)
    splits = splits_of(weight, 1 if invariant else ceil_div(rows, block))
    if splits == 1:
        bound(x, weight, out, block)()
        return
    parts = scratch[: 4 * splits * rows * columns].view(torch.float32)
    bound(x, weight, parts.view(splits * rows, columns)[:rows], block, splits=splits)()
    reduce_splits(parts, splits, out)


def bound(
    x: Tensor, weight: IntegerMatrix, out: Tensor, block: int, *, splits: int = 1, gate: str = "", up_rows: int = 0,
    bias: tuple[Tensor, ...] = (), choices: Choices | None = None,
) -> BoundLaunch:  # fmt: skip
    """The launch of x [M, K] · weightᵀ → out [M, N], or the first of so many splits, the others behind it. block: rows of a program; the
    rest as `matmul.bound` has it."""
    (rows, columns), form = out.shape, weight.form
    biases = (*bias, *bias) if bias else (x, x)
    order, tiles = (x, x) if choices is None else (choices.order, choices.tiles)
    blocks = ceil_div(rows, block) if choices is None else choices.most * (choices.height // block)
    return BoundLaunch(
        grouped_kernel, (ceil_div(columns * (2 if gate else 1), BLOCK_N), splits, blocks),
        (
            x, weight.low, weight.low if weight.high is None else weight.high, weight.scale_words,
            weight.scale_words if weight.super_scales is None else weight.super_scales, biases[0], biases[1], order, tiles, out,
            rows, columns, x.shape[1], weight.shape[0], up_rows, x.stride(0), out.stride(0), rows * columns if splits > 1 else 0,
            weight.tiles, ceil_div(weight.tiles, splits), len(weight.scale_words),
            1 if weight.super_scales is None else len(weight.super_scales),
        ),
        {
            "LOW": form.low, "HIGH": form.high, "FIELDS": weight.fields, "WIDTH": weight.width, "SIZE": form.size,
            "SUPERBLOCK": form.superblock, "SCALE_TYPE": form.scale_type, "GROUP_BYTES": GROUP_BYTES[form.scale_type],
            "MINS": form.offset == "mins", "ZEROS": form.offset == "zeros", "CENTRE": form.centre, "VALUES": form.values,
            "OFFSET": 0 if form.low + form.high == 8 else _EXPONENT_OFFSETS[x.dtype],
            "EVEN": weight.tiles * weight.tile == x.shape[1], "STAGES": STAGES, "GATE": gate, "BIAS": bool(bias),
            "SHARED": 0 if choices is None else choices.shared, "TILE_ROWS": block if choices is None else choices.height,
            "BLOCK_N": BLOCK_N, "BLOCK_M": block,
        },
        num_warps=8 if block == ROWS[-1] else 4,
    )  # fmt: skip


def reduce_splits(parts: Tensor, splits: int, out: Tensor) -> None:
    """Sums fp32 [splits, M, N] over the splits, first to last, into out [M, N]."""
    rows, columns = out.shape
    grid = (rows, ceil_div(columns, REDUCE_BLOCK))
    reduce_kernel[grid](parts, out, columns, splits, rows * columns, out.stride(0), BLOCK=REDUCE_BLOCK)
