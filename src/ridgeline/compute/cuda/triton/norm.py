"""Normalisation of rows: by root mean square, alone, after an addition, into fp8; by mean and standard deviation.

A row's sums have an order that is a function of its width alone.
"""

import torch
import triton
import triton.language as tl

from ridgeline.compute.cuda.triton.dependent import after_previous
from ridgeline.compute.cuda.triton.formulas import fp8_scale, to_fp8
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

PROGRAM_NUMBERS = 1024
"""Numbers that a program normalises, about: as many short pieces."""


@triton.jit(do_not_specialize=["pieces"])
def rms_norm_kernel(
    x, y, weight, total, out, scales, eps, pieces, pieces_of_row, x_stride, y_stride, total_stride, out_stride, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr, PIECES: tl.constexpr, ADD: tl.constexpr, FP8: tl.constexpr, NATIVE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Each program: `PIECES` pieces of `WIDTH` numbers; with ADD of x + y, which goes to `total`; with FP8 to codes and scales."""
    after_previous(PDL)
    piece = tl.program_id(0) * PIECES + tl.arange(0, PIECES)
    row = (piece // pieces_of_row).to(tl.int64)[:, None]
    at = tl.arange(0, BLOCK)[None, :]
    column = (piece % pieces_of_row)[:, None] * WIDTH + at
    mask = (piece < pieces)[:, None] & (at < WIDTH)
    numbers = tl.load(x + row * x_stride + column, mask=mask, other=0.0).to(tl.float32)
    if ADD:
        numbers += tl.load(y + row * y_stride + column, mask=mask, other=0.0).to(tl.float32)
        stored = numbers.to(total.dtype.element_ty)
        tl.store(total + row * total_stride + column, stored, mask=mask)
        numbers = stored.to(tl.float32)  # what a norm of its own would read back
    mean = tl.sum(numbers * numbers, axis=1) / WIDTH
    normed = numbers * tl.rsqrt(mean + eps)[:, None] * tl.load(weight + at, mask=at < WIDTH, other=0.0).to(tl.float32)
    place = out + row * out_stride + column
    if FP8:
        scale, inverse = fp8_scale(tl.max(tl.abs(normed), axis=1))
        tl.store(place, to_fp8(normed * inverse[:, None], NATIVE), mask=mask)
        tl.store(scales + piece, scale, mask=piece < pieces)
    else:
        tl.store(place, normed.to(out.dtype.element_ty), mask=mask)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor) -> Run:
    """The launch of x [T, D] over its root mean square, times `weight` [D], into `out` [T, D]; a narrower weight normalises each
    piece of its width.

    Zhang and Sennrich 2019, equation 4. `out` may be x.
    """
    return _launch(x, None, weight, eps, None, out, None)


def add_rms_norm(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, eps: float, total: torch.Tensor, out: torch.Tensor) -> Run:
    """The launch of total = x + y [T, D], out = rms_norm(total). `total` may be x or y."""
    return _launch(x, y, weight, eps, total, out, None)


def rms_norm_fp8(x: torch.Tensor, weight: torch.Tensor, eps: float, codes: torch.Tensor, scales: torch.Tensor) -> Run:
    """The launch of rms_norm(x) as e4m3 `codes` [T, D] and fp32 `scales` [T] = the largest size of the normalised row / 448."""
    return _launch(x, None, weight, eps, None, codes, scales)


def add_rms_norm_fp8(
    x: torch.Tensor,
    y: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    total: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
) -> Run:
    """The launch of total = x + y [T, D], (codes, scales) = rms_norm_fp8(total)."""
    return _launch(x, y, weight, eps, total, codes, scales)


def _launch(
    x: torch.Tensor,
    y: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    total: torch.Tensor | None,
    out: torch.Tensor,
    scales: torch.Tensor | None,
) -> Run:
    """The launch of all RMS norms; absent arguments are not touched."""
    summand, summed = (x if y is None else y), (x if total is None else total)
    rows, width, piece = rows_of(x, summand, summed, out), same_width(x, summand, summed, out), weight.shape[0]
    if width % piece or (scales is not None and (piece != width or scales.shape != (rows,))):
        raise ValueError(f"a weight of {piece} for rows of {width}, scales {None if scales is None else tuple(scales.shape)}")
    block = power_of_2(piece)
    pieces_per_program = 1 if width == piece else max(1, PROGRAM_NUMBERS // block)
    pieces = rows * (width // piece)
    if not pieces:
        return nothing
    arguments = (
        x, summand, weight, summed, out if scales is None else codes_of(out), weight if scales is None else scales, eps, pieces,
        width // piece, x.stride(0), summand.stride(0), summed.stride(0), out.stride(0),
    )  # fmt: skip
    constants = {
        "WIDTH": piece, "BLOCK": block, "PIECES": pieces_per_program, "ADD": y is not None, "FP8": scales is not None,
        "NATIVE": native_fp8(x.device),
    }  # fmt: skip
    grid = (ceil_div(pieces, pieces_per_program),)
    return BoundLaunch(rms_norm_kernel, grid, arguments, constants, num_warps=warps(block * pieces_per_program))


@triton.jit
def layer_norm_kernel(x, weight, bias, out, eps, x_stride, out_stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """Each program: one row."""
    after_previous(PDL)
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    mask = at < WIDTH
    numbers = tl.load(x + row * x_stride + at, mask=mask, other=0.0).to(tl.float32)
    centred = tl.where(mask, numbers - tl.sum(numbers, axis=0) / WIDTH, 0.0)
    deviation = tl.sum(centred * centred, axis=0) / WIDTH
    normed = centred * tl.rsqrt(deviation + eps) * tl.load(weight + at, mask=mask, other=0.0).to(tl.float32)
    moved = normed + tl.load(bias + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + at, moved.to(out.dtype.element_ty), mask=mask)


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float, out: torch.Tensor) -> Run:
    """The launch of (x - mean) / √(variance + eps) · weight + bias of each row of x [T, D], into `out`, which may be
    x.

    Ba, Kiros and Hinton 2016, equation 4.
    """
    rows, width = rows_of(x, out), same_width(x, weight, bias, out)
    if not rows:
        return nothing
    block = power_of_2(width)
    arguments = (x, weight, bias, out, eps, x.stride(0), out.stride(0))
    return BoundLaunch(layer_norm_kernel, (rows,), arguments, {"WIDTH": width, "BLOCK": block}, num_warps=warps(block))
