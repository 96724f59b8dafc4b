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
from ridgeline.compute.cuda.triton.dependent import after_previous
from ridgeline.compute.cuda.triton.formulas import field_of, from_e2m1, gated, program_rows, scale_of, zero_of
from ridgeline.compute.cuda.triton.launch import BoundLaunch, Run, capability, ceil_div, multiprocessors, nothing, one_by_one, rows_of
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
"""Tiles prefetched at a time: 2 to 4 KB each for every program. The loop says it, so that scales are prefetched as codes are, though none
of them is a factor of a product."""

_EXPONENT_OFFSETS: Final = {torch.float32: 0, torch.bfloat16: 128, torch.float16: 64}
"""Number that setting the exponent adds to a code."""


@triton.jit
def _operand(codes, VALUES: tl.constexpr, SUBTRACT: tl.constexpr, OFFSET: tl.constexpr, kind: tl.constexpr):
    """Integers 0 … 255 as an operand: OFFSET + code, or code - SUBTRACT where OFFSET is 0. Exact."""
    if VALUES == "e2m1":
        codes = from_e2m1(codes)
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
    LOW: tl.constexpr, HIGH: tl.constexpr, FIELDS: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, SPAN: tl.constexpr,
    SUPERBLOCK: tl.constexpr, SCALE_TYPE: tl.constexpr, GROUP_BYTES: tl.constexpr, MINS: tl.constexpr, ZEROS: tl.constexpr,
    SUBTRACT: tl.constexpr, ADDED: tl.constexpr, VALUES: tl.constexpr, OFFSET: tl.constexpr, EVEN: tl.constexpr, STAGES: tl.constexpr,
    GATE: tl.constexpr, BIAS: tl.constexpr, SHARED: tl.constexpr, TILE_ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_N outputs of BLOCK_M rows over one split of the inputs. SIZE 0: a group is a row; SPAN: inputs of one in a tile.
    `all_rows`: of the matrix. GATE: an activation; of BLOCK_N rows half are of gate, and half, `up_rows` further on, of up. SHARED,
    TILE_ROWS and BIAS are SHARED, TILE and BIAS of `matmul_kernel`."""
    after_previous(PDL)
    m, present, x_row, base = program_rows(order, choices, tl.program_id(2), rows, columns, SHARED, TILE_ROWS, BLOCK_M)
    if SHARED > 0:  # noqa: SIM102
        if base < 0:
            return
    output, half = _outputs(GATE, BLOCK_N)
    n, there, split = base + output + half * up_rows, output < columns, tl.program_id(1)
    TILE: tl.constexpr = FIELDS * WIDTH
    SUMS: tl.constexpr = ADDED != 0 or MINS or ZEROS
    ones = tl.full((BLOCK_N, WIDTH), 1.0, tl.float32).to(x.dtype.element_ty)
    zeros = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    total, dots, sums = zeros, zeros, zeros
    above = tl.zeros((BLOCK_N,), tl.int32)
    for tile in tl.range(split * tiles_per_split, tl.minimum((split + 1) * tiles_per_split, tiles), num_stages=STAGES):
        row = tile * tl.cast(all_rows, tl.int64) + n
        if SUPERBLOCK > 0:
            above = _word(super_scales, tile * TILE // SUPERBLOCK, superblocks, all_rows, n, there)
        for field in tl.static_range(FIELDS):
            if field % (8 // LOW) == 0:
                low_run = _run(low, row, there, field, LOW, TILE, WIDTH)
            codes = field_of(low_run, field, LOW)
            if HIGH > 0:
                if field % (8 // HIGH) == 0:
                    high_run = _run(high, row, there, field, HIGH, TILE, WIDTH)
                codes = codes | (field_of(high_run, field, HIGH) << LOW)
            part = _inputs(x, x_row, present, x_stride, tile * TILE + field * WIDTH, inputs, EVEN, WIDTH)
            dots = tl.dot(_operand(codes, VALUES, SUBTRACT, OFFSET, x.dtype.element_ty), part, dots, input_precision="ieee")
            if SUMS:
                sums = tl.dot(ones, part, sums, input_precision="ieee")
            if SIZE > 0 and (field + 1) * WIDTH % SPAN == 0:
                if ((field + 1) * WIDTH // SPAN - 1) * GROUP_BYTES % 4 == 0:
                    number = (tile * TILE + (field + 1) * WIDTH - SPAN) // SIZE * GROUP_BYTES // 4
                    word, after = _words(scale_words, number, words, all_rows, n, there, GROUP_BYTES)
                total += _share(
                    dots, sums, word, after, above, SCALE_TYPE, GROUP_BYTES, (field + 1) * WIDTH // SPAN - 1, MINS, ZEROS, ADDED
                )
                dots, sums = zeros, zeros
    if SIZE == 0:
        word, after = _words(scale_words, 0, words, all_rows, n, there, GROUP_BYTES)
        total = _share(dots, sums, word, after, above, SCALE_TYPE, GROUP_BYTES, 0, MINS, ZEROS, ADDED)
    total, output = _finished(total, bias, up_bias, base, output, half, there, GATE, BIAS, BLOCK_N, BLOCK_M)
    place = out + split.to(tl.int64) * out_split + m[None, :] * out_stride + output[:, None]
    tl.store(place, total.to(out.dtype.element_ty), mask=(output < columns)[:, None] & present[None, :])


@triton.jit
def _word(words, number, most, all_rows, n, there):
    """Word `number` of the rows n, or the last one: int32 [N]."""
    return tl.load(words + tl.minimum(number, most - 1) * tl.cast(all_rows, tl.int64) + n, mask=there, other=0)


@triton.jit
def _words(words, number, most, all_rows, n, there, GROUP_BYTES: tl.constexpr):
    """Word `number` of the rows n, and the one that follows where a group's scale has two."""
    word = _word(words, number, most, all_rows, n, there)
    after = word
    if GROUP_BYTES == 8:
        after = _word(words, number + 1, most, all_rows, n, there)
    return word, after


@triton.jit
def _inputs(x, x_row, present, x_stride, first, inputs, EVEN: tl.constexpr, WIDTH: tl.constexpr):
    """WIDTH inputs of the rows of a program: [WIDTH, M]."""
    k = first + tl.arange(0, WIDTH)
    mask = present[None, :] if EVEN else present[None, :] & (k < inputs)[:, None]
    return tl.load(x + x_row[None, :] * x_stride + k[:, None], mask=mask, other=0.0)


@triton.jit
def _finished(
    total, bias, up_bias, base, output, half, there, GATE: tl.constexpr, BIAS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Sums with their biases, or the unit of gate and up with theirs, and the outputs that these are."""
    if BIAS:
        added = tl.load(bias + base + output, mask=there & (half == 0), other=0.0)
        total += (added + tl.load(up_bias + base + output, mask=there & (half > 0), other=0.0))[:, None]
    if GATE != "":
        gate, up = tl.split(tl.permute(tl.reshape(total, (2, BLOCK_N // 2, BLOCK_M)), (1, 2, 0)))
        total = gated(gate, up, GATE)
        output = tl.program_id(0) * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
    return total, output


@triton.jit
def _outputs(GATE: tl.constexpr, BLOCK_N: tl.constexpr):
    """Outputs of a program, and the half of its rows in which each stands; of one half where there is no gate."""
    at = tl.arange(0, BLOCK_N)
    SPAN: tl.constexpr = BLOCK_N // 2 if GATE != "" else BLOCK_N
    return tl.program_id(0) * SPAN + at % SPAN, at // SPAN


@triton.jit
def _run(plane, row, there, FIELD: tl.constexpr, BITS: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr):
    """Bytes [N, WIDTH] of a plane in which a field's bits stand."""
    at = plane + row[:, None] * (TILE * BITS // 8) + FIELD // (8 // BITS) * WIDTH
    return tl.load(at + tl.arange(0, WIDTH)[None, :], mask=there[:, None], other=0)


@triton.jit
def _share(
    dots, sums, word, after, above, SCALE_TYPE: tl.constexpr, GROUP_BYTES: tl.constexpr, PLACE: tl.constexpr, MINS: tl.constexpr,
    ZEROS: tl.constexpr, ADDED: tl.constexpr,
):  # fmt: skip
    """The share of the result [N, M] of the group at PLACE among those whose scales begin with `word`; `above`: scales of superblocks;
    ADDED is the number that was added to every code."""
    scale = scale_of(word, above, SCALE_TYPE, PLACE * GROUP_BYTES % 4)
    zero = zero_of(word, after, above, SCALE_TYPE, PLACE * GROUP_BYTES % 4, 0)
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
def reduce_kernel(parts, out, columns, splits, part_stride, out_stride, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """out[m, n] = parts[0, m, n] + parts[1, m, n] + …, in this order."""
    after_previous(PDL)
    m = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for split in range(splits):
        total += tl.load(parts + split * tl.cast(part_stride, tl.int64) + m * columns + n, mask=n < columns, other=0.0)
    tl.store(out + m * out_stride + n, total.to(out.dtype.element_ty), mask=n < columns)


def rows_per_program(weight: IntegerMatrix, x: Tensor, rows: int | None = None, *, invariant: bool = False) -> int:
    """Rows of x per program: of those that it has memory for the fewest that take all of x [M, K], or `rows` of them, else the most;
    invariant: not a function of M."""
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


def linear_grouped(x: Tensor, weight: IntegerMatrix, out: Tensor, scratch: Tensor, *, invariant: bool = False) -> Run:
    """The launches of x [M, K] · weightᵀ → out [M, N]; columns of x in the order of the codes.

    scratch    uint8, at least `scratch_bytes`
    invariant  a row's sums do not depend on M

    ValueError where shapes do not fit.
    """
    rows, (columns, inputs) = rows_of(x, out), weight.shape
    if x.shape[1] != inputs or out.shape[1] != columns:
        raise ValueError(f"x {tuple(x.shape)} and out {tuple(out.shape)} do not fit weights {weight.shape}")
    if not rows:
        return nothing
    block = rows_per_program(weight, x, invariant=invariant)
    splits = splits_of(weight, 1 if invariant else ceil_div(rows, block))
    if splits == 1:
        return bound(x, weight, out, block)
    parts = scratch[: 4 * splits * rows * columns].view(torch.float32)
    product = bound(x, weight, parts.view(splits * rows, columns)[:rows], block, splits=splits)
    return one_by_one([product, reduce_splits(parts, splits, out)])


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
    offset = 0 if form.low + form.high == 8 else _EXPONENT_OFFSETS[x.dtype]
    subtract = form.centre if offset == 0 and form.offset == "centre" else 0
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
            "SPAN": min(form.size, weight.tile) or weight.tile, "SUPERBLOCK": form.superblock, "SCALE_TYPE": form.scale_type,
            "GROUP_BYTES": GROUP_BYTES[form.scale_type], "MINS": form.offset == "mins", "ZEROS": form.offset == "zeros",
            "SUBTRACT": subtract, "ADDED": offset if form.offset == "mins" else offset + form.centre - subtract, "VALUES": form.values,
            "OFFSET": offset, "EVEN": weight.tiles * weight.tile == x.shape[1], "STAGES": STAGES, "GATE": gate, "BIAS": bool(bias),
            "SHARED": 0 if choices is None else choices.shared, "TILE_ROWS": block if choices is None else choices.height,
            "BLOCK_N": BLOCK_N, "BLOCK_M": block,
        },
        num_warps=_warps(block, capability(x.device), experts=choices is not None),
    )  # fmt: skip


def _warps(block: int, capability: int, *, experts: bool) -> int:
    """Warps of a program of `block` rows. Where sums lie in registers beside operands (before 9.0, and in 12.x) four have none left for
    the places of 64 choices."""
    return 8 if block == ROWS[-1] or (experts and block == 64 and not 90 <= capability < 120) else 4


def reduce_splits(parts: Tensor, splits: int, out: Tensor) -> BoundLaunch:
    """The launch that sums fp32 [splits, M, N] over the splits, first to last, into out [M, N]."""
    rows, columns = out.shape
    grid = (rows, ceil_div(columns, REDUCE_BLOCK))
    arguments = (parts, out, columns, splits, rows * columns, out.stride(0))
    return BoundLaunch(reduce_kernel, grid, arguments, {"BLOCK": REDUCE_BLOCK})
