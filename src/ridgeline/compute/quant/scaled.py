"""Small floats under scales: the form in memory of fp8 checkpoints (e4m3; one scale per tensor, row or block) and of those of NVFP4.

Owns their layout and dequantisation. Knows no file: `compute/load/grouped.py` reads those.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.quant.bits import Bytes, Floats
from ridgeline.compute.quant.codebooks import E2M1_DOUBLED
from ridgeline.compute.quant.formats import TILE_ELEMENTS
from ridgeline.compute.quant.weight import tile_bounds

LARGEST_SCALE: Final = 256.0
"""Native kernels multiply scales below this one by 2^120, and what is not finite."""
LEAST_FACTOR: Final = 2.0**-60


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
E2M1: Final = E2M1_DOUBLED * np.float32(0.5)
PAIRS: Final = np.stack([E2M1[np.arange(256) & 15], E2M1[np.arange(256) >> 4]], axis=1)
"""The two numbers of each byte [256, 2], that of the lower bits first."""


class _Small:
    """Rows as fp32, of what gives those of some ids."""

    __slots__ = ()
    codes: Bytes

    @property
    def shape(self) -> tuple[int, int]:
        raise NotImplementedError

    def _write(self, ids: NDArray[np.integer], out: Floats) -> None:
        raise NotImplementedError

    def write(self, part: slice, out: Floats) -> int:
        """The rows `part` as fp32 into `out` [rows, K]; returns the bytes of their codes."""
        start, end, _ = part.indices(self.shape[0])
        self._write(np.arange(start, end), out)
        return (end - start) * self.codes.shape[1]

    def tiles(self) -> Iterator[tuple[int, Floats]]:
        for start, end in tile_bounds(self.shape):
            yield start, self.rows(np.arange(start, end))

    def rows(self, ids: NDArray[np.integer]) -> Floats:
        out = np.empty((len(ids), self.shape[1]), np.float32)
        self._write(ids, out)
        return out

    def dense(self) -> Floats:
        return self.rows(np.arange(self.shape[0]))


@dataclass(frozen=True, slots=True)
class ScaledWeight(_Small):
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


@dataclass(frozen=True, slots=True)
class Nvfp4Weight(_Small):
    """A matrix [N, K]: weight[n, k] = e2m1 · s, rounded once to fp32; s = scale / factor or scale · factor, rounded once too.

    NVIDIA 2025, "Pretraining Large Language Models with NVFP4"; compressed-tensors divides, ModelOpt multiplies.

    codes   uint8 [N, K / 2], two inputs each, the lower bits first; may be a read-only map of the file
    scales  uint8 [N, K / 16], e4m3 of 16 inputs
    """

    codes: Bytes
    scales: Bytes
    factor: np.float32
    divides: bool

    @property
    def shape(self) -> tuple[int, int]:
        rows, pairs = self.codes.shape
        return rows, 2 * pairs

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes + self.factor.nbytes

    @property
    def size(self) -> int:
        """Inputs that share a scale."""
        return self.shape[1] // self.scales.shape[1]

    @property
    def kind(self) -> str:
        """The extension's name of them; as fp32 where a scale is less than nothing or no number, or that of all has hardly an inverse."""
        return "NVFP4" if LEAST_FACTOR <= self.factor <= 1 / LEAST_FACTOR and self.scales.max(initial=0) < 0x7F else "F32"

    @property
    def record_bytes(self) -> int:
        """Bytes of a row in `records`."""
        return 9 * self.scales.shape[1] + 12

    def records(self, part: slice) -> Bytes:
        """The rows `part` whole, as native packing takes them: of each group the scale and bytes of inputs i and i + 8; then fp32 f, d, e.

        s = q + (scale + q · d) · e with q = scale · f, each sum rounded once: with e = 0 the product, with f = e = 1 / -d a quotient,
        rounded as a division is (Markstein 1990, "Computation of elementary functions on the IBM RISC System/6000 processor").
        """
        codes, scales = self.codes[part].reshape(-1, self.scales.shape[1], 8), self.scales[part]
        even, odd = codes & np.uint8(15), codes >> np.uint8(4)
        groups = np.empty((*scales.shape, 9), np.uint8)
        groups[..., 0] = scales
        groups[..., 1::2] = even[..., :4] | even[..., 4:] << np.uint8(4)
        groups[..., 2::2] = odd[..., :4] | odd[..., 4:] << np.uint8(4)
        inverse = np.float32(1) / self.factor
        tail = np.array([inverse, -self.factor, inverse] if self.divides else [self.factor, 0, 0], "<f4").view(np.uint8)
        return np.concatenate([groups.reshape(len(scales), -1), np.broadcast_to(tail, (len(scales), 12))], axis=1)

    def _write(self, ids: NDArray[np.integer], out: Floats) -> None:
        """A few rows at a time, so that they stay in a core's cache."""
        step = max(1, TILE_ELEMENTS // self.shape[1])
        for start in range(0, len(ids), step):
            few = ids[start : start + step]
            with np.errstate(all="ignore"):
                scales = E4M3[self.scales[few]]
                scales = scales / self.factor if self.divides else scales * self.factor
                values = PAIRS[self.codes[few]].reshape(*scales.shape, -1)
                np.multiply(values, scales[..., None], out=out[start : start + step].reshape(values.shape))
