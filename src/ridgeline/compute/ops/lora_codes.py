"""Adapters in codes of 8 bits, for products whose own weights are codes: half the bytes of 16 bits, which a step with many adapters waits for.

The order of operations is part of their meaning: kernels give the same bits.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.ops.definition import Floats
from ridgeline.compute.ops.quantised import SCALE_CODES, Codes, linear_codes, quantise
from ridgeline.compute.quant.bits import Groups

CODE_SPAN: Final = 256
"""Columns of A, or outputs of B, that share a scale for each rank."""


@dataclass(frozen=True, slots=True)
class CodedMatrix:
    """A or B of an adapter, [rank, N]: codes int8 in rows, times scales fp32 [rank, ceil(N / CODE_SPAN)], amax / 127 of each span."""

    codes: Codes
    scales: Floats

    @property
    def shape(self) -> tuple[int, ...]:
        """(rank, N)."""
        return self.codes.shape


@dataclass(frozen=True, slots=True)
class CodedPair:
    """The change scale · (b · a), as `ops.lora.Pair`, of coded matrices."""

    a: CodedMatrix
    b: CodedMatrix
    scale: float


def coded(matrix: Floats) -> CodedMatrix:
    """A matrix [rank, N] in codes: each number is off by half its scale at most, normal ones by 0.7 % in the root mean square."""
    rank, width = matrix.shape
    spans = _padded(matrix, CODE_SPAN).reshape(rank, -1, CODE_SPAN)
    scales = np.maximum(spans.max(axis=2), -spans.min(axis=2)) * np.float32(1 / 127)
    spans *= (1 / np.maximum(scales, np.finfo(np.float32).tiny))[:, :, None]
    return CodedMatrix(np.rint(spans, out=spans).astype(np.int8).reshape(rank, -1)[:, :width], scales)


def coded_change(x: Floats, pair: CodedPair) -> Floats:
    """x [T, K] → scale · b · (a · x), fp32 [T, N].

    x is quantised in spans and multiplied as `linear_codes` has it; for each span of outputs what comes of it takes B's scales and is
    quantised again, as one group.
    """
    a = Groups(_padded(pair.a.codes, CODE_SPAN), pair.a.scales)
    shrunk = linear_codes(*quantise(_padded(x, CODE_SPAN), group=CODE_SPAN), a)
    parts = []
    for span, first in enumerate(range(0, pair.b.shape[1], CODE_SPAN)):
        scaled = _padded(shrunk * pair.b.scales[:, span], SCALE_CODES)
        codes = _padded(np.ascontiguousarray(pair.b.codes[:, first : first + CODE_SPAN].T), SCALE_CODES)
        b = Groups(codes, np.full((len(codes), 1), pair.scale, np.float32))
        parts.append(linear_codes(*quantise(scaled, group=scaled.shape[1]), b))
    return np.concatenate(parts, axis=1)


def _padded(matrix: NDArray[Any], multiple: int) -> NDArray[Any]:
    """A copy of [M, N] with columns of zeros up to a multiple."""
    return np.pad(matrix, ((0, 0), (0, -matrix.shape[1] % multiple)))
