"""The product of floats whose results do not depend on the batch: one shape of tile at every number of rows, inputs in one ascending loop.

cuBLAS picks another kernel for another number of rows, and with it another order of sums.
"""

from typing import Final, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from ridgeline.compute.cuda.triton.launch import ceil_div, rows_of, same_width


class Tile(NamedTuple):
    """Rows, outputs and inputs of a program's step, and how Triton compiles it."""

    m: int
    n: int
    k: int
    warps: int
    stages: int


TILES: Final = {2: Tile(64, 64, 64, 4, 4), 4: Tile(32, 64, 32, 4, 2)}
"""By bytes of an operand. 64 rows are the least that Hopper's tensor cores take; 64 outputs give a narrow matrix enough programs."""


@triton.jit
def matmul_kernel(
    x, weight, out, rows, columns, inputs, x_stride, weight_stride, out_stride,
    EVEN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_M rows, BLOCK_N outputs, all inputs."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    k = tl.arange(0, BLOCK_K)
    x_at = x + m[:, None].to(tl.int64) * x_stride + k[None, :]
    weight_at = weight + n[None, :].to(tl.int64) * weight_stride + k[:, None]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, inputs, BLOCK_K):
        inside = k < inputs - start
        left = (m < rows)[:, None] if EVEN else (m < rows)[:, None] & inside[None, :]
        right = (n < columns)[None, :] if EVEN else (n < columns)[None, :] & inside[:, None]
        part, codes = tl.load(x_at + start, mask=left, other=0.0), tl.load(weight_at + start, mask=right, other=0.0)
        total = tl.dot(part, codes, total, input_precision="ieee")
    place = out + m[:, None].to(tl.int64) * out_stride + n[None, :]
    tl.store(place, total.to(out.dtype.element_ty), mask=(m < rows)[:, None] & (n < columns)[None, :])


def matmul(x: Tensor, weight: Tensor, out: Tensor) -> None:
    """x [M, K] · weight [N, K]ᵀ → out [M, N]; x and weight of one type, summed in fp32."""
    rows, inputs, columns = rows_of(x, out), same_width(x, weight), weight.shape[0]
    if x.dtype != weight.dtype or out.shape[1] != columns:
        raise ValueError(f"x {x.dtype}, weights {weight.dtype} {tuple(weight.shape)} and out {tuple(out.shape)} do not fit each other")
    if not rows:
        return
    tile = TILES[x.element_size()]
    matmul_kernel[(ceil_div(columns, tile.n), ceil_div(rows, tile.m))](
        x, weight, out, rows, columns, inputs, x.stride(0), weight.stride(0), out.stride(0),
        EVEN=inputs % tile.k == 0, BLOCK_M=tile.m, BLOCK_N=tile.n, BLOCK_K=tile.k, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
