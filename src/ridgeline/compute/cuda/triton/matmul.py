"""Matrix products: of floats independent of the batch, of e4m3 with e4m3, of floats with e4m3, of all with experts, and gated units.

`matmul` has one tile shape at every number of rows, and sums inputs in one ascending loop: cuBLAS picks another kernel for another number
of rows, and with it another order of sums. `linear_glu` makes gate and up in one program, which need not be stored between. `linear_fp8`
has scales per row of activations, and per row or block of weights; it gives floats codes itself, `BLOCK_K` neighbours of a row a scale.
Sums of `BLOCK_K` products become fp32 before they are added up: the tensor cores of a Hopper keep fewer bits inside a sum of fp8 products
(DeepSeek-AI 2024, section 3.3.2), and such scales belong there. It needs a device that computes with fp8 by itself.
"""

from typing import Final, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from ridgeline.compute.cuda.triton.dependent import after_previous
from ridgeline.compute.cuda.triton.formulas import fp8_scale, from_fp8, gated, program_rows, to_fp8
from ridgeline.compute.cuda.triton.launch import BoundLaunch, Run, ceil_div, native_fp8, nothing, rows_of, same_width
from ridgeline.compute.cuda.weights import Fp8Matrix


class Tile(NamedTuple):
    """Rows, outputs and inputs of a program's step, and how Triton compiles it."""

    m: int
    n: int
    k: int
    warps: int
    stages: int


TILES: Final = {2: Tile(64, 64, 64, 4, 4), 4: Tile(32, 64, 32, 4, 2)}
"""Tiles by bytes of an operand. 64 rows are the least that Hopper's tensor cores take; 64 outputs give a narrow matrix enough programs."""

GLU_TILES: Final = ((16, Tile(16, 32, 128, 4, 4)), (32, Tile(32, 32, 128, 4, 4)), (64, Tile(64, 32, 64, 4, 4)))
"""(most rows, tile) of operands of 2 bytes, whose gate and up are a tile of outputs each."""
GLU_LARGEST: Final = Tile(128, 64, 64, 8, 3)

FP8_TILES: Final = ((16, Tile(16, 32, 128, 4, 5)), (32, Tile(32, 32, 128, 4, 5)), (64, Tile(64, 64, 128, 4, 4)))
"""(most rows, tile): few rows need many programs, as each streams part of the weights."""
FP8_LARGEST: Final = Tile(128, 128, 128, 8, 3)
FP8_INVARIANT: Final = Tile(64, 64, 128, 4, 4)
"""The tile for every number of rows in the batch-invariant mode."""

FP8_GLU_TILES: Final = ((16, Tile(16, 32, 128, 4, 4)), (32, Tile(32, 32, 128, 4, 4)), (64, Tile(64, 32, 128, 4, 4)))
FP8_GLU_LARGEST: Final = {True: Tile(128, 64, 128, 8, 2), False: Tile(64, 32, 128, 4, 4)}
"""Largest tiles by whether rows of weights have a scale each: scales of blocks take registers that larger ones lack on 8.9 and 12.x."""
FLOATS_FP8_TILES: Final = ((16, Tile(16, 32, 128, 4, 4)), (32, Tile(32, 32, 128, 4, 4)))
FLOATS_FP8_LARGEST: Final = Tile(64, 64, 128, 4, 3)
"""Largest tile of floats with e4m3: to make codes takes longer than larger tiles gain."""


@triton.jit
def codes_of_tile(numbers):
    """Numbers [M, K] as e4m3, and the scale of each row."""
    wide = numbers.to(tl.float32)
    factor, inverse = fp8_scale(tl.max(tl.abs(wide), axis=1))
    return to_fp8(wide * inverse[:, None], True).to(tl.float8e4nv, bitcast=True), factor


@triton.jit
def product_of_codes(x, weight, scale_at, start, mask, WIDTH: tl.constexpr):
    """Products of inputs from `start` on, times the scales of the blocks of weights that they lie in, where there are some."""
    made = tl.dot(x, weight, input_precision="ieee")
    if WIDTH > 0:
        made *= tl.load(scale_at + start // WIDTH, mask=mask, other=0.0)[None, :]
    return made


@triton.jit
def matmul_kernel(
    x, x_scales, weight, scales, bias, up_bias, order, tiles, out,
    rows, columns, inputs, up_rows, x_stride, x_scales_stride, weight_stride, scales_stride, out_stride,
    CODES: tl.constexpr, NATIVE: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, GATE: tl.constexpr, BIAS: tl.constexpr,
    SHARED: tl.constexpr, TILE: tl.constexpr, HEADS: tl.constexpr, EVEN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_M rows, BLOCK_N outputs, all inputs; where HEADS have a matrix each, of one of them.

    CODES   "both": x and weight are e4m3; "quantise": weight is, and of x codes are made here, each BLOCK_K of a row by their largest;
            "weight": of weight, as bytes, numbers are made; WIDTH 0: a scale per row of weights
    GATE    an activation: rows n and up_rows + n of weight are gate and up of output n
    BIAS    fp32 [E, N] are added to sums, `up_bias` to those of up
    SHARED  choices that read the same row of x: rows are those of a tile of `tiles`, of TILE choices, whose expert has rows of weight
            by itself; 0: there are no experts
    """
    after_previous(PDL)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    m, there, x_row, base = program_rows(order, tiles, tl.program_id(1), rows, columns, SHARED, TILE, BLOCK_M)
    if HEADS:
        x, out, base = x + tl.program_id(2) * inputs, out + tl.program_id(2) * columns, base + tl.program_id(2) * columns
    if SHARED > 0:  # noqa: SIM102
        if base < 0:
            return
    x_at = x + x_row[:, None] * x_stride + k[None, :]
    weight_at = weight + (base + n)[None, :] * weight_stride + k[:, None]
    up_at = weight_at + up_rows * tl.cast(weight_stride, tl.int64)
    scale_at = scales + (base + n) // HEIGHT * scales_stride
    up_scale_at = scales + (base + up_rows + n) // HEIGHT * scales_stride
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    up = total
    for start in range(0, inputs, BLOCK_K):
        inside = k < inputs - start
        left = there[:, None] if EVEN else there[:, None] & inside[None, :]
        right = (n < columns)[None, :] if EVEN else (n < columns)[None, :] & inside[:, None]
        part, factor = tl.load(x_at + start, mask=left, other=0.0), 1.0
        if CODES == "quantise":
            part, factor = codes_of_tile(part)
        total = _step(total, part, factor, weight_at + start, right, scale_at, start, n < columns, CODES, NATIVE, WIDTH)
        if GATE != "":
            up = _step(up, part, factor, up_at + start, right, up_scale_at, start, n < columns, CODES, NATIVE, WIDTH)
    if CODES != "" and WIDTH == 0:
        total *= tl.load(scale_at, mask=n < columns, other=0.0)[None, :]
        if GATE != "":
            up *= tl.load(up_scale_at, mask=n < columns, other=0.0)[None, :]
    if CODES == "both":
        of_row = tl.load(x_scales + m * x_scales_stride, mask=there, other=0.0)[:, None]
        total *= of_row
        up *= of_row
    if BIAS:
        total += tl.load(bias + base + n, mask=n < columns, other=0.0)[None, :]
        if GATE != "":
            up += tl.load(up_bias + base + n, mask=n < columns, other=0.0)[None, :]
    if GATE != "":
        total = gated(total, up, GATE)
    place = out + m[:, None] * out_stride + n[None, :]
    tl.store(place, total.to(out.dtype.element_ty), mask=there[:, None] & (n < columns)[None, :])


@triton.jit
def _step(
    total, part, factor, at, mask, scale_at, start, inside, CODES: tl.constexpr, NATIVE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """total + part · the block of weights at `at`. factor: of the rows of part, where codes were made of it."""
    numbers = tl.load(at, mask=mask, other=0.0)
    if CODES == "weight":
        numbers = from_fp8(numbers, NATIVE).to(part.dtype)
    if CODES == "" or (CODES == "weight" and WIDTH == 0):
        total = tl.dot(part, numbers, total, input_precision="ieee")
    elif CODES == "quantise":
        total += product_of_codes(part, numbers, scale_at, start, inside, WIDTH) * factor[:, None]
    else:
        total += product_of_codes(part, numbers, scale_at, start, inside, WIDTH)
    return total


class Choices(NamedTuple):
    """Rows of a product with experts: those of `ops/sorted_experts.py`.

    order   int32 [T · k, 1]
    tiles   int32 [T · k, 3]
    shared  choices that read one row of x: k, or 1 where x has a row per choice
    height  choices of a tile
    most    tiles that a step may have
    """

    order: Tensor
    tiles: Tensor
    shared: int
    height: int
    most: int


def bound(
    x: Tensor, weight: Tensor, out: Tensor, tile: Tile, *, scales: tuple[Tensor, Tensor] | None = None, block: tuple[int, int] = (1, 0),
    codes: str = "", gate: str = "", up_rows: int = 0, bias: tuple[Tensor, ...] = (), choices: Choices | None = None, heads: int = 1,
) -> BoundLaunch:  # fmt: skip
    """The launch of x [M, K], weight [N or 2 N, K] → out [M, N].

    scales   of x [M] and of the weights' blocks, [1, K] as (1, 0)
    up_rows  rows of weight in front of those of up
    bias     of the product, or of gate and of up
    choices  out has a row for each; weight has N rows, or twice as many, for each expert
    heads    x, weight and out have so many parts, [M, H · K], [H · N, K] and [M, H · N]: products of their own
    """
    rows, columns, inputs = len(out), out.shape[1] // heads, x.shape[1] // heads
    of_x, of_weight = (x, weight) if scales is None else scales
    biases = (*bias, *bias) if bias else (x, x)
    order, tiles = (x, x) if choices is None else (choices.order, choices.tiles)
    blocks = ceil_div(rows, tile.m) if choices is None else choices.most * (choices.height // tile.m)
    return BoundLaunch(
        matmul_kernel, (ceil_div(columns, tile.n), blocks, heads),
        (
            x, of_x, weight, of_weight, biases[0], biases[1], order, tiles, out,
            rows, columns, inputs, up_rows, x.stride(0), of_x.stride(0), weight.stride(0), of_weight.stride(0), out.stride(0),
        ),
        {
            "CODES": codes, "NATIVE": native_fp8(x.device), "HEIGHT": block[0], "WIDTH": block[1], "GATE": gate, "BIAS": bool(bias),
            "SHARED": 0 if choices is None else choices.shared, "TILE": tile.m if choices is None else choices.height,
            "HEADS": heads > 1, "EVEN": inputs % tile.k == 0, "BLOCK_M": tile.m, "BLOCK_N": tile.n, "BLOCK_K": tile.k,
        },
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


def matmul(x: Tensor, weight: Tensor, out: Tensor) -> Run:
    """The launch of x [M, K] · weight [N, K]ᵀ → out [M, N]; x and weight of one type, summed in fp32. ValueError where shapes do not
    fit."""
    rows, _, columns = rows_of(x, out), same_width(x, weight), weight.shape[0]
    if x.dtype != weight.dtype or out.shape[1] != columns:
        raise ValueError(f"x {x.dtype}, weights {weight.dtype} {tuple(weight.shape)} and out {tuple(out.shape)} do not fit each other")
    if not rows:
        return nothing
    return bound(x, weight, out, TILES[x.element_size()])


def linear_heads(x: Tensor, weight: Tensor, heads: int, out: Tensor) -> Run:
    """The launch of x [M, H · K], weight [H · N, K] → out [M, H · N], every head's numbers times its own matrix; as `matmul`."""
    rows, columns, inputs = rows_of(x, out), len(weight) // heads, weight.shape[1]
    if x.dtype != weight.dtype or (x.shape[1], out.shape[1]) != (heads * inputs, heads * columns):
        raise ValueError(f"x {tuple(x.shape)}, weights {tuple(weight.shape)} and out {tuple(out.shape)} are no {heads} heads")
    if not rows:
        return nothing
    return bound(x, weight, out, TILES[x.element_size()], heads=heads)


def linear_glu(x: Tensor, weight: Tensor, activation: str, out: Tensor, *, invariant: bool = False) -> Run:
    """The launch of activation(x · gateᵀ) · (x · upᵀ) → out [M, F]: x [M, K], weight [2 F, K], the rows of gate and then of up; both of
    one type, summed in fp32 and rounded once. `invariant`: results do not depend on M. ValueError where shapes do not fit."""
    rows, _, columns = rows_of(x, out), same_width(x, weight), weight.shape[0] // 2
    if x.dtype != weight.dtype or out.shape[1] != columns:
        raise ValueError(f"x {x.dtype}, weights {weight.dtype} {tuple(weight.shape)} and out {tuple(out.shape)} do not fit each other")
    if not rows:
        return nothing
    fixed = invariant or x.element_size() == 4
    tile = TILES[x.element_size()] if fixed else next((tile for most, tile in GLU_TILES if rows <= most), GLU_LARGEST)
    return bound(x, weight, out, tile, gate=activation, up_rows=columns)


def linear_fp8(x: Tensor, scales: Tensor | None, weight: Fp8Matrix, out: Tensor, *, invariant: bool = False, activation: str = "") -> Run:
    """The launch of x [M, K], as codes e4m3 with scales fp32 [M] or as floats with None, · weightᵀ → out [M, N]. ValueError where shapes do
    not fit.

    activation  `weight` has the rows of gate and then of up, and out is their unit
    invariant   results do not depend on M
    """
    rows, _, columns = rows_of(x, out), same_width(x, weight.codes), weight.shape[0] // (2 if activation else 1)
    fits = scales is None or len(scales) == rows
    if out.shape[1] != columns or not fits or not (weight.per_channel or weight.block[1] % FP8_LARGEST.k == 0):
        raise ValueError(f"x {tuple(x.shape)}, out {tuple(out.shape)} and weights {weight.shape} of blocks {weight.block} do not fit")
    if not rows:
        return nothing
    few, largest = (
        (FLOATS_FP8_TILES, FLOATS_FP8_LARGEST) if scales is None else (FP8_GLU_TILES, FP8_GLU_LARGEST[weight.per_channel]) if activation
        else (FP8_TILES, FP8_LARGEST)
    )  # fmt: skip
    tile = FP8_INVARIANT if invariant else next((tile for most, tile in few if rows <= most), largest)
    height, width = weight.block
    both = (weight.scales if scales is None else scales), weight.scales
    block, codes = (height, 0 if weight.per_channel else width), "quantise" if scales is None else "both"
    return bound(x, weight.codes, out, tile, scales=both, block=block, codes=codes, gate=activation, up_rows=columns)
