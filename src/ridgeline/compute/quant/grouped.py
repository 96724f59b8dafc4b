"""Grouped integers: the one form in memory of int8 per channel, GPTQ, AWQ and compressed-tensors weights, whatever file they came from.

Owns the layout of codes, scales and zeros, and their dequantisation. Knows no file: `compute/load/grouped.py` reads those.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.quant.bits import Bytes, Floats
from ridgeline.compute.quant.formats import TILE_ELEMENTS, Rows
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
    size    inputs of a group: a multiple of 32, or K itself (one scale per row)
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
        """The codes of the rows `part`, one per byte: uint8 [rows, K], in the order of the codes."""
        return unpacked(self.codes[part], self.bits)

    @property
    def kind(self) -> str:
        """The extension's name of them."""
        return f"INT{self.bits}"

    @property
    def record_bytes(self) -> int:
        """Bytes of a row in `records`."""
        return self.shape[1] * self.bits // 8 + 5 * self.scales.shape[1]

    def records(self, part: slice) -> Bytes:
        """The rows `part` whole, as native packing takes them: uint8 [rows, record_bytes].

        A row is its codes, then its scales as fp32 (little-endian, at any byte), then its zeros.
        """
        codes, scales = self.codes[part], self.scales[part].astype("<f4")
        return np.concatenate([codes, scales.view(np.uint8), self.zeros[part]], axis=1)

    def write(self, part: slice, out: Floats) -> int:
        """The rows `part` as fp32 into `out` [rows, K]; returns the bytes of their codes, scales and zeros."""
        codes = self.codes[part]
        self._write(codes, part, out)
        return codes.nbytes + self.scales[part].nbytes + self.zeros[part].nbytes

    def tiles(self) -> Iterator[tuple[int, Floats]]:
        scratch: Floats | None = None
        for start, end in tile_bounds(self.shape):
            if scratch is None:
                scratch = np.empty((end - start, self.shape[1]), np.float32)
            self.write(slice(start, end), scratch[: end - start])
            yield start, scratch[: end - start]

    def rows(self, ids: NDArray[np.integer]) -> Floats:
        out = np.empty((len(ids), self.shape[1]), np.float32)
        if isinstance(self.codes, np.ndarray):
            self._write(self.codes[ids], ids, out)
        else:
            for place, i in enumerate(ids.tolist()):
                self.write(slice(i, i + 1), out[place : place + 1])
        return out

    def dense(self) -> Floats:
        out = np.empty(self.shape, np.float32)
        for start, end in tile_bounds(self.shape):
            self.write(slice(start, end), out[start:end])
        return out

    def _write(self, codes: Bytes, which: slice | NDArray[np.integer], out: Floats) -> None:
        """fp32 [rows, K] in the order of the inputs, a few rows at a time so that they stay in a core's cache."""
        scales, zeros = self.scales[which], self.zeros[which]
        place = None if self.order is None else np.argsort(self.order)
        step = max(1, TILE_ELEMENTS // self.shape[1])
        for start in range(0, len(codes), step):
            few = slice(start, start + step)
            values = dequantise_grouped(unpacked(codes[few], self.bits), scales[few], zeros[few])
            out[few] = values if place is None else values.take(place, axis=1)


def unpacked(codes: Bytes, bits: int) -> Bytes:
    """uint8 [n, K·bits / 8] → uint8 [n, K]: one code per byte."""
    if bits == 8:
        return codes
    pairs = codes.astype("<u2")
    pairs |= pairs << np.uint16(4)
    pairs &= np.uint16(0x0F0F)
    fields: Bytes = pairs.view(np.uint8)
    return fields


def packed(codes: Bytes, bits: int) -> Bytes:
    """The inverse of `unpacked`; K is even where bits is 4."""
    codes = np.ascontiguousarray(codes)
    if bits == 8:
        return codes
    pairs = codes.view("<u2")
    halves: Bytes = (pairs | (pairs >> np.uint16(4))).astype(np.uint8)
    return halves


def dequantise_grouped(codes: Bytes, scales: Scales, zeros: Bytes) -> Floats:
    """(code - zero)·scale in fp32: codes uint8 [n, K], scales and zeros [n, groups] → fp32 [n, K]."""
    values = codes.astype(np.float32)
    grouped = values.reshape(*scales.shape, codes.shape[1] // scales.shape[1])
    # Scales of garbage files overflow: infinities and NaN are values here, found in the results.
    with np.errstate(all="ignore"):
        grouped -= zeros.astype(np.float32)[..., None]
        grouped *= scales.astype(np.float32)[..., None]
    return values
