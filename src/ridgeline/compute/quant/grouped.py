"""Grouped integers: the one form in memory of int8 per channel, GPTQ, AWQ and compressed-tensors weights, whatever file they came from.

Owns the layout of codes, scales and zeros, and their dequantisation. Knows no file: `compute/load/grouped.py` reads those.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.quant.bits import Bytes, Floats
from ridgeline.compute.quant.formats import Rows
from ridgeline.compute.quant.weight import tile_bounds

Scales = NDArray[np.float16 | np.float32]


@dataclass(frozen=True, slots=True)
class GroupedWeight:
    """A matrix [N, K] of unsigned integers; `size` neighbours of a row, in the order of the codes, share a scale and a zero:

        weight[n, order[k]] = (code[n, k] - zeros[n, k // size]) · scales[n, k // size]        (order[k] is k where order is None)

    The difference is an integer of at most 8 bits and a sign, so that with 16-bit scales the fp32 product is exact. Libraries that
    expand to the checkpoint's 16-bit type round that product once more; integer kernels never see it, and nothing here does.

    shape   (N, K); K is a multiple of `size`
    bits    4 or 8
    size    inputs of a group: a multiple of 32, or K itself (a scale a row)
    codes   `codes[a:b]` is uint8 [b - a, K·bits / 8] contiguous, rows a … b - 1, gathered from the file when asked or an array in memory.
            4 bits: byte j of a row holds k = 2j in its low half and k = 2j + 1 in its high half. 8 bits: byte k. Signed codes of a
            file are stored + 2^(bits - 1), and so is their zero: a symmetric weight has the zero 8 or 128
    scales  fp16 where the file has fp16, else fp32 (bf16 files: their values), [N, K / size] contiguous
    zeros   uint8 [N, K / size] contiguous, 0 … 2^bits - 1
    order   intp [K], a permutation: column k of the codes multiplies input order[k] (act-order of GPTQ: inputs sorted by group, in a group
            by position); None where the codes are in the order of the inputs
    """

    shape: tuple[int, int]
    bits: int
    size: int
    codes: Rows
    scales: Scales
    zeros: Bytes
    order: NDArray[np.intp] | None = None

    @property
    def nbytes(self) -> int:
        rows, columns = self.shape
        order = 0 if self.order is None else self.order.nbytes
        return rows * columns * self.bits // 8 + self.scales.nbytes + self.zeros.nbytes + order

    def integers(self, part: slice) -> Bytes:
        """The codes of the rows `part`, one a byte: uint8 [rows, K], in the order of the codes."""
        return unpacked(self.codes[part], self.bits)

    def write(self, part: slice, out: Floats) -> int:
        """The rows `part` as fp32 into `out` [rows, K]; returns the bytes of their codes, scales and zeros."""
        codes = self.codes[part]
        out[...] = self._rows(codes, part)
        return codes.nbytes + self.scales[part].nbytes + self.zeros[part].nbytes

    def tiles(self) -> Iterator[tuple[int, Floats]]:
        for start, end in tile_bounds(self.shape):
            yield start, self._rows(self.codes[start:end], slice(start, end))

    def rows(self, ids: NDArray[np.integer]) -> Floats:
        if isinstance(self.codes, np.ndarray):
            return self._rows(self.codes[ids], ids)
        if not len(ids):
            return np.empty((0, self.shape[1]), np.float32)
        return self._rows(np.concatenate([self.codes[i : i + 1] for i in ids.tolist()]), ids)

    def dense(self) -> Floats:
        out = np.empty(self.shape, np.float32)
        for start, tile in self.tiles():
            out[start : start + len(tile)] = tile
        return out

    def _rows(self, codes: Bytes, which: slice | NDArray[np.integer]) -> Floats:
        """fp32 [rows, K] in the order of the inputs."""
        values = dequantise_grouped(unpacked(codes, self.bits), self.scales[which], self.zeros[which])
        if self.order is None:
            return values
        placed = np.empty_like(values)
        placed[:, self.order] = values
        return placed


def unpacked(codes: Bytes, bits: int) -> Bytes:
    """uint8 [n, K·bits / 8] → uint8 [n, K]: one code a byte."""
    if bits == 8:
        return codes
    out = np.empty((codes.shape[0], 2 * codes.shape[1]), np.uint8)
    np.bitwise_and(codes, np.uint8(15), out=out[:, 0::2])
    np.right_shift(codes, np.uint8(4), out=out[:, 1::2])
    return out


def packed(codes: Bytes, bits: int) -> Bytes:
    """The inverse of `unpacked`; K is even where bits is 4."""
    if bits == 8:
        return np.ascontiguousarray(codes)
    return codes[:, 0::2] | (codes[:, 1::2] << np.uint8(4))


def dequantise_grouped(codes: Bytes, scales: Scales, zeros: Bytes) -> Floats:
    """(code - zero)·scale in fp32: codes uint8 [n, K], scales and zeros [n, groups] → fp32 [n, K]."""
    values = codes.astype(np.float32)
    grouped = values.reshape(*scales.shape, codes.shape[1] // scales.shape[1])
    # Scales of garbage files overflow: infinities and NaN are values here, found by whoever looks at results.
    with np.errstate(all="ignore"):
        grouped -= zeros.astype(np.float32)[..., None]
        grouped *= scales.astype(np.float32)[..., None]
    return values
