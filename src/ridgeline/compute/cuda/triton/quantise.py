"""Quantisation to fp8, and dequantisation of fp8 and packed integers.

`dequantise` gives the bits of the reference in fp32, rounded once to the type of its output.
"""

from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from ridgeline.compute.cuda.integers import GROUP_BYTES, IntegerMatrix
from ridgeline.compute.cuda.triton.dependent import after_previous
from ridgeline.compute.cuda.triton.formulas import field_of, fp8_scale, from_e2m1, from_fp8, scale_of, to_fp8, zero_of
from ridgeline.compute.cuda.triton.launch import (
    BoundLaunch,
    Run,
    ceil_div,
    codes_of,
    native_fp8,
    nothing,
    power_of_2,
    rows_of,
    same_width,
    warps,
)
from ridgeline.compute.cuda.weights import Fp8Matrix

BLOCK_N: Final = 64
BLOCK_K: Final = 128


@triton.jit
def quantise_fp8_kernel(
    x, codes, scales, x_stride, codes_stride, scales_stride, width, NATIVE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program: one row."""
    after_previous(PDL)
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    mask = at < width
    numbers = tl.load(x + row * x_stride + at, mask=mask, other=0.0).to(tl.float32)
    scale, inverse = fp8_scale(tl.max(tl.abs(numbers), axis=0))
    tl.store(codes + row * codes_stride + at, to_fp8(numbers * inverse, NATIVE), mask=mask)
    tl.store(scales + row * scales_stride, scale)


@triton.jit
def dequantise_grouped_kernel(
    low, high, scale_words, super_scales, out, first, rows, columns, inputs, out_stride, words, superblocks,
    LOW: tl.constexpr, HIGH: tl.constexpr, FIELDS: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, SUPERBLOCK: tl.constexpr,
    SCALE_TYPE: tl.constexpr, GROUP_BYTES: tl.constexpr, MINS: tl.constexpr, CENTRE: tl.constexpr, VALUES: tl.constexpr,
    BLOCK_N: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program: one tile of BLOCK_N rows, of which the first is row `first` of the matrix. `IntegerMatrix` says how planes lie."""
    after_previous(PDL)
    tile = tl.program_id(0)
    row = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    w = tl.arange(0, WIDTH)
    there = row < rows
    n = first + row
    TILE: tl.constexpr = FIELDS * WIDTH
    SPAN: tl.constexpr = TILE if SIZE > TILE or SIZE == 0 else SIZE
    place = tile.to(tl.int64) * columns + n
    super_scale = tl.zeros((BLOCK_N,), tl.int32)
    after = tl.zeros((BLOCK_N,), tl.int32)
    if SUPERBLOCK > 0:
        super_scale = tl.load(super_scales + tl.minimum(tile * TILE // SUPERBLOCK, superblocks - 1) * columns + n, mask=there, other=0)
    for field in tl.static_range(FIELDS):
        low_at = low + place[:, None] * (TILE * LOW // 8) + field // (8 // LOW) * WIDTH
        codes = field_of(tl.load(low_at + w[None, :], mask=there[:, None], other=0), field, LOW)
        if HIGH > 0:
            high_at = high + place[:, None] * (TILE * HIGH // 8) + field // (8 // HIGH) * WIDTH
            codes = codes | (field_of(tl.load(high_at + w[None, :], mask=there[:, None], other=0), field, HIGH) << LOW)
        if VALUES == "e2m1":
            codes = from_e2m1(codes)
        number = (tile * TILE + field * WIDTH) // SIZE * GROUP_BYTES // 4 if SIZE > 0 else 0
        word = tl.load(scale_words + tl.minimum(number, words - 1) * columns + n, mask=there, other=0)
        if GROUP_BYTES == 8:
            after = tl.load(scale_words + tl.minimum(number + 1, words - 1) * columns + n, mask=there, other=0)
        scale = scale_of(word, super_scale, SCALE_TYPE, field * WIDTH // SPAN * GROUP_BYTES % 4)
        zero = zero_of(word, after, super_scale, SCALE_TYPE, field * WIDTH // SPAN * GROUP_BYTES % 4, CENTRE)[:, None]
        numbers = codes.to(tl.float32)
        numbers = scale[:, None] * numbers - zero if MINS else scale[:, None] * (numbers - zero)
        k = tile * TILE + field * WIDTH + w
        target = out + row[:, None].to(tl.int64) * out_stride + k[None, :]
        tl.store(target, numbers.to(out.dtype.element_ty), mask=there[:, None] & (k < inputs)[None, :])


@triton.jit
def dequantise_fp8_kernel(
    codes, scales, out, first, rows, inputs, out_stride, scales_stride, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    NATIVE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_N rows, of which the first is row `first` of the matrix, and BLOCK_K inputs."""
    after_previous(PDL)
    row = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    mask = (row < rows)[:, None] & (k < inputs)[None, :]
    n = (first + row).to(tl.int64)
    numbers = from_fp8(tl.load(codes + n[:, None] * inputs + k[None, :], mask=mask, other=0), NATIVE)
    scale = tl.load(scales + (n // HEIGHT)[:, None] * scales_stride + (k // WIDTH)[None, :], mask=mask, other=0.0)
    tl.store(out + row[:, None].to(tl.int64) * out_stride + k[None, :], (numbers * scale).to(out.dtype.element_ty), mask=mask)


def quantise_fp8(x: Tensor, codes: Tensor, scales: Tensor) -> Run:
    """The launch of x [T, K] → codes e4m3 [T, K], scales fp32 [T]: amax / 448 of a row, codes to the nearest. A row that is not finite gets
    a NaN."""
    rows, width = rows_of(x, codes), same_width(x, codes)
    if not rows:
        return nothing
    block = power_of_2(width)
    arguments = (x, codes_of(codes), scales, x.stride(0), codes.stride(0), scales.stride(0), width)
    return BoundLaunch(quantise_fp8_kernel, (rows,), arguments, {"NATIVE": native_fp8(x.device), "BLOCK": block}, num_warps=warps(block))


def dequantise(weight: IntegerMatrix | Fp8Matrix, first: int, out: Tensor) -> Run:
    """The launch of rows `first` … of a matrix [N, K] → out [rows, K], columns in the order of the codes. ValueError where out does
    not fit."""
    rows, (columns, inputs) = len(out), weight.shape
    if not 0 <= first <= first + rows <= columns or out.shape[1] != inputs:
        raise ValueError(f"rows {first} … of weights {weight.shape} do not fill {tuple(out.shape)}")
    if not rows:
        return nothing
    if isinstance(weight, Fp8Matrix):
        height, width = weight.block
        return BoundLaunch(
            dequantise_fp8_kernel, (ceil_div(rows, BLOCK_N), ceil_div(inputs, BLOCK_K)),
            (codes_of(weight.codes), weight.scales, out, first, rows, inputs, out.stride(0), weight.scales.stride(0)),
            {"HEIGHT": height, "WIDTH": width, "NATIVE": native_fp8(out.device), "BLOCK_N": BLOCK_N, "BLOCK_K": BLOCK_K},
        )  # fmt: skip
    form = weight.form
    arguments = (
        weight.low, weight.low if weight.high is None else weight.high, weight.scale_words,
        weight.scale_words if weight.super_scales is None else weight.super_scales, out,
        first, rows, columns, inputs, out.stride(0), len(weight.scale_words),
        1 if weight.super_scales is None else len(weight.super_scales),
    )  # fmt: skip
    constants = {
        "LOW": form.low, "HIGH": form.high, "FIELDS": weight.fields, "WIDTH": weight.width, "SIZE": form.size,
        "SUPERBLOCK": form.superblock, "SCALE_TYPE": form.scale_type,
        "GROUP_BYTES": GROUP_BYTES[form.scale_type], "MINS": form.offset == "mins", "CENTRE": form.centre,
        "VALUES": form.values, "BLOCK_N": BLOCK_N,
    }  # fmt: skip
    return BoundLaunch(dequantise_grouped_kernel, (weight.tiles, ceil_div(rows, BLOCK_N)), arguments, constants)
