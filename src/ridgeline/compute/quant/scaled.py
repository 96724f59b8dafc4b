"""Floats of 8 bits with scales: the form in memory of fp8 checkpoints (e4m3; one scale per tensor, row or block).

Owns their layout and dequantisation. Knows no file: `compute/load/grouped.py` reads those.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.quant.bits import Bytes, Floats
from ridgeline.compute.quant.formats import TILE_ELEMENTS
from ridgeline.compute.quant.weight import tile_bounds

LARGEST_SCALE: Final = 256.0
"""Native kernels multiply scales below this one by 2^120, and what is not finite."""


def _e4m3() -> Floats:
    """The number of each byte: a sign, four bits of exponent (bias 7), three of mantissa; 0x7F and 0xFF are NaN and nothing is infinite.

    Micikevicius et al. 2022, "FP8 formats for deep learning", table 1.
    """
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    size = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    size[codes & 127 == 127] = np.nan
    return np.where(codes & 128, -size, size).astype(np.float32)


E4M3: Final = _e4m3()


@dataclass(frozen=True, slots=True)
class ScaledWeight:
    """A matrix [N, K]: weight[n, k] = E4M3[codes[n, k]] · scales[n // block[0], k // block[1]], rounded once to fp32.

    codes   uint8 [N, K], may be a read-only map of the file
    scales  fp32 [ceil(N / block[0]), ceil(K / block[1])]
    block   rows and inputs that share a scale: (N, K) for one scale per tensor, (1, K) for one per row
    """

    codes: Bytes
    scales: Floats
    block: tuple[int, int]

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.codes.shape
        return rows, columns

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes

    @property
    def size(self) -> int:
        """Inputs that share a scale."""
        return self.block[1]

    @property
    def kind(self) -> str:
        """The extension's name of them; as fp32 where a scale is too large."""
        return "FP8" if (~(np.abs(self.scales) >= LARGEST_SCALE) | np.isinf(self.scales)).all() else "F32"

    @property
    def record_bytes(self) -> int:
        """Bytes of a row in `records`."""
        return self.shape[1] + 4 * self.scales.shape[1]

    def records(self, part: slice) -> Bytes:
        """The rows `part` whole, as native packing takes them: uint8 [rows, record_bytes], codes and then scales."""
        start, end, _ = part.indices(self.shape[0])
        scales = self.scales[np.arange(start, end) // self.block[0]].astype("<f4")
        return np.concatenate([self.codes[start:end], scales.view(np.uint8)], axis=1)

    def write(self, part: slice, out: Floats) -> int:
        """The rows `part` as fp32 into `out` [rows, K]; returns the bytes of their codes."""
        start, end, _ = part.indices(self.shape[0])
        self._write(np.arange(start, end), out)
        return (end - start) * self.shape[1]

    def tiles(self) -> Iterator[tuple[int, Floats]]:
        for start, end in tile_bounds(self.shape):
            yield start, self.rows(np.arange(start, end))

    def rows(self, ids: NDArray[np.integer]) -> Floats:
        out = np.empty((len(ids), self.shape[1]), np.float32)
        self._write(ids, out)
        return out

    def dense(self) -> Floats:
        return self.rows(np.arange(self.shape[0]))

    def _write(self, ids: NDArray[np.integer], out: Floats) -> None:
        """A few rows at a time, so that they stay in a core's cache."""
        height, width = self.block
        columns = self.shape[1]
        step = max(1, TILE_ELEMENTS // columns)
        for start in range(0, len(ids), step):
            few = ids[start : start + step]
            scales = np.repeat(self.scales[few // height], width, axis=1)[:, :columns] if width < columns else self.scales[few // height]
            with np.errstate(all="ignore"):
                np.multiply(E4M3[self.codes[few]], scales, out=out[start : start + step])
