"""The product with a weight matrix: selects the kernel or library call for a format and a number of rows.

Owns how the caller's scratch is divided. A captured graph repeats what was selected when it was captured.
"""

from functools import partial
from typing import Final

import torch
from torch import Tensor

from ridgeline.compute.cuda.integers import IntegerMatrix
from ridgeline.compute.cuda.triton import elements
from ridgeline.compute.cuda.triton import linear_grouped as grouped
from ridgeline.compute.cuda.triton.launch import Run, native_fp8, nothing, one_by_one
from ridgeline.compute.cuda.triton.matmul import linear_fp8, linear_glu, matmul
from ridgeline.compute.cuda.triton.quantise import dequantise, quantise_fp8
from ridgeline.compute.cuda.weights import DeviceWeight, FloatMatrix, Fp8Matrix

DENSE_ELEMENTS: Final = 64 << 20
"""Weights that are dequantised at a time, for cuBLAS: large enough to fill the device, and 128 MB of bf16."""

PACKED_ROWS: Final = 256
"""Rows up to which packed integers are multiplied as they are; with more, every block of them would unpack the matrix again, and to
dequantise it once for cuBLAS takes less."""

GATED_ROWS: Final = 256
"""Rows up to which gate, up and their unit are one launch; from there cuBLAS gains more than a launch takes."""

QUANTISED_ROWS: Final = 256
"""Rows up to which a product with fp8 gives floats their codes itself."""

_ALIGNMENT: Final = 256
_LIBRARY_UNIT: Final = 16
"""`_scaled_mm` takes inputs and outputs in multiples of this."""

Fp8Activations = tuple[Tensor, Tensor]
"""Activations as e4m3 [M, K] and scales fp32 [M]."""


def linear(x: Tensor | Fp8Activations, weight: DeviceWeight, out: Tensor, scratch: Tensor, *, invariant: bool = False) -> Run:
    """The launch of x [M, K] · weightᵀ → out [M, N], in the type of `out`.

    x          floats of the type of `out`; codes only for fp8 weights
    scratch    uint8, at least `scratch_bytes`, aligned to 256 bytes
    invariant  a row's result does not depend on the other rows
    """
    if len(out) == 0:
        return nothing
    if isinstance(x, tuple):
        if not isinstance(weight, Fp8Matrix):
            raise ValueError(f"activations in fp8 do not fit {weight.kind} weights")
        return _fp8(*x, weight, out, invariant)
    if isinstance(weight, FloatMatrix):
        return matmul(x, weight.values, out) if invariant else partial(torch.mm, x, weight.values.t(), out=out)
    if isinstance(weight, IntegerMatrix):
        return _integers(x, weight, out, scratch, invariant)
    if not native_fp8(x.device):
        return _dense(x, weight, out, scratch, invariant)
    if invariant or len(x) <= QUANTISED_ROWS:
        return linear_fp8(x, None, weight, out, invariant=invariant)
    codes, rest = _split_scratch(scratch, x.shape, torch.float8_e4m3fn)
    scales, _ = _split_scratch(rest, (len(x),), torch.float32)
    return one_by_one([quantise_fp8(x, codes, scales), _fp8(codes, scales, weight, out, False)])


def gated_unit(
    x: Tensor | Fp8Activations, weight: FloatMatrix | Fp8Matrix, activation: str, out: Tensor, scratch: Tensor, *, invariant: bool = False
) -> Run:
    """The launches of activation(x · gateᵀ) · (x · upᵀ) → out [M, F]; `weight` [2 F, K] has the rows of gate, then of up; x is codes
    where it is fp8. scratch: `gated_bytes`."""
    if invariant or len(out) <= GATED_ROWS:
        if isinstance(x, tuple):
            assert isinstance(weight, Fp8Matrix), "codes are for weights in fp8"
            return linear_fp8(*x, weight, out, invariant=invariant, activation=activation)
        assert isinstance(weight, FloatMatrix), "floats are for weights of floats"
        return linear_glu(x, weight.values, activation, out, invariant=invariant)
    both, rest = _split_scratch(scratch, (len(out), weight.shape[0]), out.dtype)
    gate, up = both.chunk(2, dim=1)
    return one_by_one([linear(x, weight, both, rest), elements.glu(gate, up, activation, out)])


def gated_bytes(weight: FloatMatrix | Fp8Matrix, rows: int, dtype: torch.dtype, *, invariant: bool = False) -> int:
    """Scratch bytes of `gated_unit` for up to `rows` rows of results in `dtype`."""
    return 0 if invariant or rows <= GATED_ROWS else rows * weight.shape[0] * dtype.itemsize


def scratch_bytes(weight: DeviceWeight, rows: int, *, invariant: bool = False) -> int:
    """Scratch bytes of `linear` for up to `rows` rows of activations of any type."""
    if isinstance(weight, FloatMatrix):
        return 0
    columns, inputs = weight.shape
    dense = _aligned(4 * min(columns, _dense_rows(inputs)) * inputs)
    if isinstance(weight, Fp8Matrix):
        return _aligned(rows * inputs) + _aligned(4 * rows) if native_fp8(weight.codes.device) else dense
    ordered = _aligned(4 * rows * inputs) if weight.order is not None else 0
    packed = rows if invariant else min(rows, PACKED_ROWS)  # rows for which codes are multiplied as they are packed
    return ordered + max(_aligned(grouped.scratch_bytes(weight, packed)), dense if rows > packed else 0)


def _integers(x: Tensor, weight: IntegerMatrix, out: Tensor, scratch: Tensor, invariant: bool) -> Run:
    launches: list[Run] = []
    if weight.order is not None:
        ordered, scratch = _split_scratch(scratch, x.shape, x.dtype)
        launches.append(partial(torch.index_select, x, 1, weight.order, out=ordered))
        x = ordered
    if invariant or len(x) <= PACKED_ROWS:
        launches.append(grouped.linear_grouped(x, weight, out, scratch, invariant=invariant))
    else:
        launches.append(_dense(x, weight, out, scratch, invariant))
    return one_by_one(launches)


def _fp8(codes: Tensor, scales: Tensor, weight: Fp8Matrix, out: Tensor, invariant: bool) -> Run:
    if codes.device.type == "cpu" and not invariant:
        return partial(_plain_fp8, codes, scales, weight, out)
    if invariant or not _is_for_library(weight, out):
        return linear_fp8(codes, scales, weight, out, invariant=invariant)
    return partial(
        torch._scaled_mm, codes, weight.codes.t(), scales[:, None], weight.scales.view(1, -1),
        out_dtype=out.dtype, use_fast_accum=True, out=out,
    )  # fmt: skip


def _is_for_library(weight: Fp8Matrix, out: Tensor) -> bool:
    """True where `_scaled_mm` takes the weights: scales per row need contiguous results in bf16."""
    whole = all(size % _LIBRARY_UNIT == 0 for size in weight.shape)
    return weight.per_channel and whole and out.dtype == torch.bfloat16 and out.is_contiguous()


def _plain_fp8(codes: Tensor, scales: Tensor, weight: Fp8Matrix, out: Tensor) -> None:
    """The product as one library call: a thousand times faster than an interpreted kernel."""
    dense = (
        weight.codes.float()
        * weight.scales.repeat_interleave(weight.block[0], 0)[: weight.shape[0]].repeat_interleave(weight.block[1], 1)[:, : weight.shape[1]]
    )
    out.copy_((codes.float() @ dense.t()) * scales[:, None])


def _dense(x: Tensor, weight: IntegerMatrix | Fp8Matrix, out: Tensor, scratch: Tensor, invariant: bool) -> Run:
    """The product with a matrix that is dequantised to the type of x, a few rows at a time."""
    columns, inputs = weight.shape
    step = _dense_rows(inputs)
    launches: list[Run] = []
    for first in range(0, columns, step):
        last = min(first + step, columns)
        numbers, _ = _split_scratch(scratch, (last - first, inputs), x.dtype)
        part = out[:, first:last]
        launches.append(dequantise(weight, first, numbers))
        launches.append(matmul(x, numbers, part) if invariant else partial(torch.mm, x, numbers.t(), out=part))
    return one_by_one(launches)


def _dense_rows(inputs: int) -> int:
    """Rows of a matrix that are dequantised at a time."""
    return max(128, DENSE_ELEMENTS // inputs // 128 * 128)


def _aligned(count: int) -> int:
    return -(-count // _ALIGNMENT) * _ALIGNMENT


def _split_scratch(scratch: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A tensor at the start of the scratch, and the rest of it. ValueError where the scratch is too small."""
    count = dtype.itemsize
    for size in shape:
        count *= size
    if count > len(scratch):
        raise ValueError(f"a scratch of {len(scratch)} bytes is left, {count} are needed: size it with scratch_bytes")
    return scratch[:count].view(dtype).view(shape), scratch[_aligned(count) :]
