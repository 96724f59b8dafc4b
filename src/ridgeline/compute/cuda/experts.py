"""Products with routed experts: selects kernel and tile for a format and a number of choices.

A stack of experts is a matrix of all their rows, one expert's behind another's: of [E · N, K], or of gate and up [2 E · F, K], first the
gates of all. Integers are unpacked and codes of fp8 converted as they are read, at every number of rows: no step dequantises an expert that
none of its tokens chose.
"""

from collections.abc import Callable
from typing import Final

from torch import Tensor

from ridgeline.compute.cuda.integers import IntegerMatrix
from ridgeline.compute.cuda.triton import linear_grouped, matmul
from ridgeline.compute.cuda.triton.launch import codes_of, rows_of
from ridgeline.compute.cuda.triton.matmul import Choices, Tile
from ridgeline.compute.cuda.weights import DeviceWeight, FloatMatrix, Fp8Matrix
from ridgeline.compute.ops.sorted_experts import FEW, MANY, most_tiles, tile_height

TILES: Final = {FEW: Tile(16, 64, 128, 4, 3), MANY: Tile(64, 128, 64, 4, 3)}
GATED_TILES: Final = {FEW: Tile(16, 32, 128, 4, 3), MANY: Tile(64, 64, 64, 4, 3)}
"""Tiles by choices, of operands of two bytes and of weights of one; 99 KB of shared memory hold them."""
BLOCK_TILES: Final = {True: Tile(64, 32, 64, 4, 3), False: Tile(64, 64, 64, 4, 3)}
"""Tiles of many choices and scales per block, whose products have sums of their own first: by whether they are gated."""
WIDE_TILE: Final = Tile(16, 32, 32, 4, 2)
"""Tile of operands of four bytes."""


def experts_product(
    x: Tensor, order: Tensor, tiles: Tensor, count: int, weight: DeviceWeight, out: Tensor, *, gate: str = "",
    bias: tuple[Tensor, ...] = (), invariant: bool = False,
) -> Callable[[], None]:  # fmt: skip
    """The launch of x [T, K] or [T · k, K] · the chosen experts' weightᵀ → out [T · k, N], as `ops/sorted_experts.py` has it.

    order, tiles  of the same choices, by `triton.experts.sort_experts`
    count         experts of the stack
    gate          an activation: the stack has gates and ups, and out their unit
    bias          fp32 [E, N] of the product, or of gate and of up
    invariant     a choice's bits do not depend on the others

    Rows of x per token are those of `order` divided by k = rows of out / rows of x. ValueError where shapes do not fit.
    """
    choices, columns, rows = len(out), out.shape[1], rows_of(x)
    per_expert = columns * (2 if gate else 1)
    if weight.shape != (count * per_expert, x.shape[1]) or len(order) != choices or (rows and choices % rows):
        raise ValueError(
            f"x {tuple(x.shape)}, {len(order)} choices of {count} experts {weight.shape} and out {tuple(out.shape)} do not fit"
        )
    if not choices:
        return lambda: None
    height = tile_height(choices, count)
    sorted_ = Choices(order, tiles, choices // rows, height, most_tiles(choices, count))
    up_rows = count * columns if gate else 0
    if isinstance(weight, IntegerMatrix):
        fixed = FEW if invariant else min(height, linear_grouped.rows_per_program(weight, x, height))
        return linear_grouped.bound(x, weight, out, fixed, gate=gate, up_rows=up_rows, bias=bias, choices=sorted_)
    tile = _tile(weight, x, FEW if invariant else height, gated=bool(gate))
    if isinstance(weight, Fp8Matrix):
        block = (weight.block[0], 0 if weight.per_channel else weight.block[1])
        return matmul.bound(
            x, codes_of(weight.codes), out, tile, scales=(weight.scales, weight.scales), block=block, codes="weight", gate=gate,
            up_rows=up_rows, bias=bias, choices=sorted_,
        )  # fmt: skip
    return matmul.bound(x, weight.values, out, tile, gate=gate, up_rows=up_rows, bias=bias, choices=sorted_)


def _tile(weight: FloatMatrix | Fp8Matrix, x: Tensor, height: int, *, gated: bool) -> Tile:
    """The tile for so many choices of one expert."""
    if x.element_size() == 4:
        return WIDE_TILE
    if height == MANY and isinstance(weight, Fp8Matrix) and not weight.per_channel:
        return BLOCK_TILES[gated]
    return (GATED_TILES if gated else TILES)[height]
