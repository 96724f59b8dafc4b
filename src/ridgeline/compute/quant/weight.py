"""Weight handles: a stored matrix as fp32, or as the file's codes that are dequantised a tile of rows at a time.

All kinds cut a matrix into the same tiles, so that products tile by tile have the same bits with any of them. A handle of one matrix
per expert gives them one by one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.quant.bits import Bytes, Floats
from ridgeline.compute.quant.formats import dequantise

TILE_BYTES = 64 << 20
"""The most fp32 that a tile takes."""

DENSE_SHARE = 0.40
"""The share of the memory of the process that fp32 weights may take."""


class Weight(Protocol):
    """A stored matrix [N, K], a vector [K], or one of either per expert."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def nbytes(self) -> int:
        """Bytes that the handle keeps."""
        ...

    def dense(self) -> Floats:
        """The whole as fp32 of `shape`."""
        ...


@dataclass(frozen=True, slots=True)
class DenseWeight:
    """fp32 in memory."""

    values: Floats

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def nbytes(self) -> int:
        return self.values.nbytes

    def tiles(self) -> Iterator[tuple[int, Floats]]:
        """(first row, fp32 [rows, K]) over all rows of a matrix, ascending; a tile may be overwritten when the next one is taken."""
        for start, end in tile_bounds(self.shape):
            yield start, self.values[start:end]

    def rows(self, ids: NDArray[np.integer]) -> Floats:
        """fp32 [len(ids), K]: the rows `ids` of a matrix, a copy."""
        return self.values[ids]

    def part(self, number: int) -> "DenseWeight":
        return DenseWeight(self.values[number])

    def dense(self) -> Floats:
        return self.values


@dataclass(frozen=True, slots=True)
class CodedWeight:
    """The file's codes: `codes` uint8 [rows, bytes of a row], with N rows per expert where there are several; for a vector one row."""

    kind: str
    shape: tuple[int, ...]
    codes: Bytes

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes

    def tiles(self) -> Iterator[tuple[int, Floats]]:
        scratch: Floats | None = None
        for start, end in tile_bounds(self.shape):
            if scratch is None:
                scratch = np.empty((end - start, self.shape[1]), np.float32)
            yield start, dequantise(self.kind, self.codes[start:end], scratch[: end - start])

    def rows(self, ids: NDArray[np.integer]) -> Floats:
        return dequantise(self.kind, self.codes[ids])

    def part(self, number: int) -> "CodedWeight":
        _, rows, columns = self.shape
        return CodedWeight(self.kind, (rows, columns), self.codes[number * rows : (number + 1) * rows])

    def dense(self) -> Floats:
        return dequantise(self.kind, self.codes).reshape(self.shape)


@dataclass(frozen=True, slots=True)
class StackedWeight:
    """One matrix per expert [E, N, K], or a bias per expert [E, N], each with a handle of its own."""

    parts: tuple[Weight, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.parts), *self.parts[0].shape

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def part(self, number: int) -> Weight:
        return self.parts[number]

    def dense(self) -> Floats:
        return np.stack([part.dense() for part in self.parts])


def tile_bounds(shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Rows of the tiles of a matrix: a function of its shape alone."""
    rows, columns = shape
    step = max(1, TILE_BYTES // (4 * columns))
    for start in range(0, rows, step):
        yield start, min(rows, start + step)
