"""Parts of every head of a token, apart and together: what latent attention moves between its products."""

import triton
import triton.language as tl
from torch import Tensor

from ridgeline.compute.cuda.triton.dependent import after_previous
from ridgeline.compute.cuda.triton.launch import BoundLaunch, Run, ceil_div, nothing, rows_of

BLOCK = 1024
"""Numbers of a row per program."""


@triton.jit
def split_heads_kernel(
    x, plain, rotary, heads, x_stride, plain_stride, rotary_stride, PLAIN: tl.constexpr, ROTARY: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Each program: `BLOCK` numbers of one token."""
    after_previous(PDL)
    row, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    head, within = at // (PLAIN + ROTARY), at % (PLAIN + ROTARY)
    number = tl.load(x + row * x_stride + at, mask=head < heads, other=0.0)
    tl.store(plain + row * plain_stride + head * PLAIN + within, number, mask=(head < heads) & (within < PLAIN))
    turned = within - PLAIN  # pairs lie side by side: first halves of all, then second ones
    place = rotary + row * rotary_stride + head * ROTARY + turned % 2 * (ROTARY // 2) + turned // 2
    tl.store(place, number, mask=(head < heads) & (turned >= 0))


def split_heads(x: Tensor, plain_numbers: int, rotary_numbers: int, plain: Tensor, rotary: Tensor) -> Run:
    """The launch of x [T, H · (plain + rotary)] → `plain` [T, H · plain] and `rotary` [T, H · rotary], halves as pairs. ValueError where
    shapes do not fit."""
    rows, heads = rows_of(x, plain, rotary), x.shape[1] // (plain_numbers + rotary_numbers)
    if (plain.shape[1], rotary.shape[1]) != (heads * plain_numbers, heads * rotary_numbers):
        raise ValueError(
            f"{tuple(x.shape)}: no heads of {plain_numbers} + {rotary_numbers} for {tuple(plain.shape)}, {tuple(rotary.shape)}"
        )
    if not rows:
        return nothing
    arguments = (x, plain, rotary, heads, x.stride(0), plain.stride(0), rotary.stride(0))
    constants = {"PLAIN": plain_numbers, "ROTARY": rotary_numbers, "BLOCK": BLOCK}
    return BoundLaunch(split_heads_kernel, (rows, ceil_div(x.shape[1], BLOCK)), arguments, constants)


@triton.jit
def join_heads_kernel(
    x, y, out, heads, x_stride, y_stride, out_stride, X: tl.constexpr, Y: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Each program: `BLOCK` numbers of one token."""
    after_previous(PDL)
    row, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    head, within = at // (X + Y), at % (X + Y)
    first = tl.load(x + row * x_stride + head * X + within, mask=(head < heads) & (within < X), other=0.0)
    second = tl.load(y + row * y_stride + head * Y + within - X, mask=(head < heads) & (within >= X), other=0.0)
    tl.store(out + row * out_stride + at, tl.where(within < X, first, second), mask=head < heads)


def join_heads(x: Tensor, y: Tensor, heads: int, out: Tensor) -> Run:
    """The launch of x [T, H · A], y [T, H · B] → out [T, H · (A + B)]. ValueError where shapes do not fit."""
    rows = rows_of(x, y, out)
    if out.shape[1] != x.shape[1] + y.shape[1] or x.shape[1] % heads or y.shape[1] % heads:
        raise ValueError(f"{tuple(x.shape)} and {tuple(y.shape)} do not have {heads} heads that fit {tuple(out.shape)}")
    if not rows:
        return nothing
    arguments = (x, y, out, heads, x.stride(0), y.stride(0), out.stride(0))
    constants = {"X": x.shape[1] // heads, "Y": y.shape[1] // heads, "BLOCK": BLOCK}
    return BoundLaunch(join_heads_kernel, (rows, ceil_div(out.shape[1], BLOCK)), arguments, constants)
