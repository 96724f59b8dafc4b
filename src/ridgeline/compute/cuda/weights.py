"""Weights in a device's memory: matrices as the kernels read them, whatever file they came from.

Owns the layout of fp8 matrices; `integers.py` owns that of packed integers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ridgeline.compute.cuda.integers import INTEGER_FORMATS, IntegerMatrix, merged_integers, pack_blocks, pack_grouped
from ridgeline.compute.quant.formats import FORMATS, dequantise
from ridgeline.compute.quant.grouped import GroupedWeight
from ridgeline.compute.quant.scaled import ScaledWeight
from ridgeline.compute.quant.weight import CodedWeight, DenseWeight, StackedWeight, Weight
from ridgeline.facts.headers.quantisation import FP8

FP8_MAX: Final = 448.0
"""The largest number of e4m3."""

CHUNK_ELEMENTS: Final = 1 << 24
"""Weights that are converted at a time."""

_NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "fp16"}


@dataclass(frozen=True, slots=True)
class FloatMatrix:
    """A matrix [N, K] of fp32, bf16 or fp16 numbers."""

    values: Tensor

    @property
    def kind(self) -> str:
        """Name of the format, for merging and lowering."""
        return _NAMES[self.values.dtype]

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs N and inputs K."""
        rows, columns = self.values.shape
        return rows, columns

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self.values.nbytes


@dataclass(frozen=True, slots=True)
class Fp8Matrix:
    """weight[n, k] = codes[n, k] · scales[n // block[0], k // block[1]]

    codes   e4m3 [N, K]
    scales  fp32 [ceil(N / block[0]), ceil(K / block[1])]
    block   (1, K): a scale per row, also where the file has one per tensor; (128, 128) and others as a checkpoint has them
    """

    codes: Tensor
    scales: Tensor
    block: tuple[int, int]

    @property
    def kind(self) -> str:
        """Name of the format, for merging and lowering."""
        return "fp8" if self.per_channel else f"fp8 {self.block[0]}x{self.block[1]}"

    @property
    def per_channel(self) -> bool:
        """True where there is one scale per row."""
        return self.block == (1, self.shape[1])

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs N and inputs K."""
        rows, columns = self.codes.shape
        return rows, columns

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self.codes.nbytes + self.scales.nbytes


DeviceWeight = FloatMatrix | Fp8Matrix | IntegerMatrix


@dataclass(frozen=True, slots=True)
class DeviceWeights:
    """A model's weights on a device, by name.

    matrices  those of a merged product as one, under the name of the product's first output
    tables    of embeddings, floats [V, D]
    vectors   fp32, and biases of experts [E, N]
    experts   stacks, as `experts.py` has them; gates and ups of a fused product as one, under the name of its output
    """

    matrices: Mapping[str, DeviceWeight]
    tables: Mapping[str, torch.Tensor]
    vectors: Mapping[str, torch.Tensor]
    experts: Mapping[str, DeviceWeight]

    @property
    def nbytes(self) -> int:
        """Bytes on the device; a table that is a matrix too counts once."""
        owned = {tensor.data_ptr(): tensor.nbytes for tensor in (*self.tables.values(), *self.vectors.values())}
        values = (getattr(weight, "values", None) for weight in self.matrices.values())
        twice = sum(tensor.nbytes for tensor in values if tensor is not None and tensor.data_ptr() in owned)
        matrices = (*self.matrices.values(), *self.experts.values())
        return sum(owned.values()) + sum(weight.nbytes for weight in matrices) - twice


def place(weight: Weight, dtype: torch.dtype, device: torch.device, *, fp8: bool = False) -> DeviceWeight:
    """A stored matrix in the device's memory.

    dtype  of the activations, which matrices of floats are kept in: fp32 is exact, bf16 and fp16 round to the nearest
    fp8    quantise matrices of floats, a scale per row
    """
    if isinstance(weight, GroupedWeight):
        return pack_grouped(weight, device)
    if isinstance(weight, ScaledWeight):
        return _fp8(weight, device)
    if isinstance(weight, CodedWeight) and weight.kind in INTEGER_FORMATS:
        return pack_blocks(weight, device)
    if fp8:
        return _quantised(weight, device)
    rows, columns = weight.shape
    values = torch.empty((rows, columns), dtype=dtype, device=device)
    for start, tile in _float_tiles(weight):
        values[start : start + len(tile)] = torch.from_numpy(tile).to(dtype)
    return FloatMatrix(values)


def place_experts(weight: Weight, dtype: torch.dtype, device: torch.device, *, fp8: bool = False) -> DeviceWeight:
    """A stored matrix per expert as a stack [E · N, K]; as `place` has it. Experts that are stored in several ways, grouped integers whose
    inputs stand in orders of their own among them, become floats."""
    if isinstance(weight, StackedWeight):
        own = [part for part in weight.parts if not isinstance(part, GroupedWeight) or part.order is None]
        placed = [_scaled_by_row(place(part, dtype, device, fp8=fp8)) for part in own]
        whole = merged(placed) if len(own) == len(weight.parts) else None
        return whole or place(_rows_of(DenseWeight(weight.dense())), dtype, device, fp8=fp8)
    return place(_rows_of(weight), dtype, device, fp8=fp8)


def _rows_of(weight: Weight) -> Weight:
    """One matrix per expert [E, N, K] as one of all rows."""
    experts, rows, columns = weight.shape
    if isinstance(weight, CodedWeight):
        return CodedWeight(weight.kind, (experts * rows, columns), weight.codes)
    return DenseWeight(weight.dense().reshape(-1, columns))


def merged(weights: Sequence[DeviceWeight]) -> DeviceWeight | None:
    """One matrix with the rows of all, one after the other; None where their formats do not agree."""
    first = weights[0]
    if any(weight.shape[1] != first.shape[1] for weight in weights):
        return None
    floats = [weight for weight in weights if isinstance(weight, FloatMatrix)]
    if len(floats) == len(weights):
        return FloatMatrix(torch.cat([weight.values for weight in floats])) if len({weight.kind for weight in floats}) == 1 else None
    scaled = [weight for weight in weights if isinstance(weight, Fp8Matrix)]
    if len(scaled) == len(weights):
        return _merged_fp8(scaled)
    integers = [weight for weight in weights if isinstance(weight, IntegerMatrix)]
    return merged_integers(integers) if len(integers) == len(weights) else None


def placed_bytes(kind: str, shape: tuple[int, int], dtype: torch.dtype, group: int = 0) -> int:
    """Bytes that a matrix of the stored format `kind` takes at most once it is placed, before any data is read.

    group  of grouped integers (GPTQ4, AWQ4, INT8 …) and fp8: inputs per scale
    """
    rows, columns = shape
    if kind in FORMATS and kind not in INTEGER_FORMATS:
        return rows * columns * dtype.itemsize
    if kind == FP8:
        return rows * columns + 4 * rows * -(-columns // group)
    return IntegerMatrix.bytes_of(kind, shape, group)


def _merged_fp8(weights: Sequence[Fp8Matrix]) -> Fp8Matrix | None:
    block = weights[0].block
    if any(weight.block != block or weight.shape[0] % block[0] for weight in weights[:-1]) or weights[-1].block != block:
        return None
    codes = torch.cat([weight.codes.view(torch.uint8) for weight in weights]).view(torch.float8_e4m3fn)
    return Fp8Matrix(codes, torch.cat([weight.scales for weight in weights]), block)


def _scaled_by_row(weight: DeviceWeight) -> DeviceWeight:
    """The same matrix with blocks of one row, where others would reach into the next expert."""
    if not isinstance(weight, Fp8Matrix) or weight.shape[0] % weight.block[0] == 0:
        return weight
    height, width = weight.block
    return Fp8Matrix(weight.codes, weight.scales.repeat_interleave(height, 0)[: weight.shape[0]].contiguous(), (1, width))


def _fp8(weight: ScaledWeight, device: torch.device) -> Fp8Matrix:
    """The matrix as stored; one scale per tensor becomes one per row, as products take it."""
    rows, columns = weight.shape
    codes = torch.empty((rows, columns), dtype=torch.uint8, device=device)
    step = max(1, CHUNK_ELEMENTS // columns)
    for start in range(0, rows, step):
        part = weight.codes[start : min(start + step, rows)]
        codes[start : start + len(part)] = torch.from_numpy(np.array(part))
    scales, block = weight.scales, weight.block
    if block[0] >= rows and block[1] >= columns:
        scales, block = np.repeat(scales, rows, axis=0), (1, columns)
    elif block[0] == 1 and block[1] >= columns:
        block = (1, columns)
    return Fp8Matrix(codes.view(torch.float8_e4m3fn), torch.from_numpy(np.ascontiguousarray(scales)).to(device), block)


def _quantised(weight: Weight, device: torch.device) -> Fp8Matrix:
    """e4m3 to the nearest, the largest of a row at 448; a row that is not finite gets the scale NaN."""
    rows, columns = weight.shape
    codes = torch.empty((rows, columns), dtype=torch.float8_e4m3fn, device=device)
    scales = torch.empty((rows, 1), device=device)
    for start, tile in _float_tiles(weight):
        part = torch.from_numpy(tile).to(device)
        amax = part.abs().amax(dim=1, keepdim=True)
        amax = torch.where(torch.isfinite(part).all(dim=1, keepdim=True), amax, torch.nan)
        scale = amax / FP8_MAX
        inside = (part / torch.where(scale > 0, scale, 1)).nan_to_num(0, 0, 0).clamp(-FP8_MAX, FP8_MAX)
        codes[start : start + len(tile)] = inside.to(torch.float8_e4m3fn)
        scales[start : start + len(tile)] = scale
    return Fp8Matrix(codes, scales, (1, columns))


def _float_tiles(weight: Weight) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """(first row, fp32 [rows, K]) over all rows, copies of a bounded size."""
    rows, columns = weight.shape
    step = max(1, CHUNK_ELEMENTS // columns)
    for start in range(0, rows, step):
        end = min(rows, start + step)
        if isinstance(weight, CodedWeight):
            yield start, dequantise(weight.kind, np.ascontiguousarray(weight.codes[start:end]))
        else:
            assert isinstance(weight, DenseWeight)
            yield start, weight.rows(np.arange(start, end))
