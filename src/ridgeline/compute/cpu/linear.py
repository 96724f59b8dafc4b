"""Single native calls of products with packed weights, for tests and benchmarks: serving calls the kernels through a plan.

Owns shapes and scratch of a call; never the weights.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.packing import PackedWeight, allocate
from ridgeline.compute.ops.definition import Floats, Ints
from ridgeline.compute.ops.quantised import SCALE_CODES, SUM_CODES

SCRATCH_BYTES = 1 << 20
"""What a call may use beside its arguments."""

Codes = tuple[NDArray[np.int8], Floats, Ints]


def quantise(x: Floats, *, group: int, level: str | None = None) -> Codes:
    """The op `quantise` at an ISA level: x fp32 [M, K] → codes int8 [M, K], scales fp32 [M, K/32], sums int32 [M, K/16]."""
    if group < SCALE_CODES or group % SCALE_CODES:
        raise ValueError(f"groups of activations are multiples of {SCALE_CODES}, got {group}")
    if x.ndim != 2 or x.shape[1] == 0 or x.shape[1] % group:
        raise ValueError(f"activations are [M, K] with K a positive multiple of {group}, got {x.shape}")
    m, k = x.shape
    codes, scales, sums = np.empty((m, k), np.int8), np.empty((m, k // SCALE_CODES), np.float32), np.empty((m, k // SUM_CODES), np.int32)
    source = ext.address(x, np.float32, (m, k))
    made = {f"out_{name}": array.ctypes.data for name, array in (("codes", codes), ("scales", scales), ("sums", sums))}
    record = ext.record(ext.params("quantise"), {"x": source, **made, "width": k, "group": group})
    ext.native().run_rows(ext.level_number(level), "quantise", record, m)
    return codes, scales, sums


def linear_codes(
    x: Codes, weight: PackedWeight, *, level: str | None = None, out: Floats | None = None, blocks: range | None = None
) -> Floats:
    """The op `linear_codes` at an ISA level: x as `quantise` makes it, packed weight [N, K] → fp32 [M, N].

    out     where results go, fp32 [M, N], contiguous
    blocks  consecutive blocks of 16 rows to compute; the others' outputs stay
    """
    codes, scales, sums = x
    m, k = codes.shape
    given = (
        ext.address(codes, np.int8, (m, k)),
        ext.address(scales, np.float32, (m, k // SCALE_CODES)),
        ext.address(sums, np.int32, (m, k // SUM_CODES)),
    )
    return _multiply(ext.native().linear_codes, given, (m, k), weight, level, out, blocks)


def linear_floats(
    x: Floats, weight: PackedWeight, *, level: str | None = None, out: Floats | None = None, blocks: range | None = None
) -> Floats:
    """The product with a packed matrix of floats at an ISA level: x fp32 [M, K] → fp32 [M, N]. The rest as `linear_codes`.

    An output is summed with fused multiply-adds over ascending inputs, in fp32.
    """
    given = (ext.address(x, np.float32, x.shape),)
    return _multiply(ext.native().linear_floats, given, x.shape, weight, level, out, blocks)


def _multiply(
    kernel: Callable[..., None],
    given: tuple[int, ...],
    shape: tuple[int, ...],
    weight: PackedWeight,
    level: str | None,
    out: Floats | None,
    blocks: range | None,
) -> Floats:
    (m, k), (n, columns) = shape, weight.shape
    if k != columns:
        raise ValueError(f"activations of width {k} do not fit weights {weight.shape}")
    blocks = range(weight.blocks) if blocks is None else blocks
    if len(blocks) and not 0 <= blocks[0] <= blocks[-1] < weight.blocks:
        raise ValueError(f"{blocks} are not blocks of a matrix of {weight.blocks}")
    out = np.empty((m, n), np.float32) if out is None else out
    target, scratch = ext.address(out, np.float32, (m, n)), allocate(SCRATCH_BYTES)
    kernel(ext.level_number(level), *weight.matrix, *given, m, target, n, blocks.start, len(blocks), int(scratch.ctypes.data))
    return out
