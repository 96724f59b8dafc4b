"""Adapters in codes of 8 bits, for products whose own weights are codes: half of what a step with many adapters waits for.

The order of operations is part of their meaning: kernels give the same bits.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.ops.definition import Floats
from ridgeline.compute.ops.quantised import SCALE_CODES, Codes, linear_codes, quantise
from ridgeline.compute.quant.bits import Groups

CODE_SPAN: Final = 256
"""Columns of A, or outputs of B, that share a scale for each rank."""

_TINY = np.finfo(np.float32).tiny


def coded(matrix: Floats) -> tuple[Codes, Floats]:
    """A or B of an adapter [rank, N] → codes int8 [rank, N padded to spans], scales fp32 [rank, ceil(N / CODE_SPAN)], amax / 127 of each.

    A number is off by half its scale at most, normal ones by 0.7 % in the root mean square. A span that is not finite has the scale NaN and
    codes 0.
    """
    spans = _padded(matrix, CODE_SPAN).reshape(len(matrix), -1, CODE_SPAN)
    finite = np.isfinite(spans).all(axis=2, keepdims=True)
    spans = np.where(finite, spans, np.float32(0))
    scales = np.abs(spans).max(axis=2, keepdims=True) * np.float32(1 / 127)
    codes = np.rint(spans * (1 / np.maximum(scales, _TINY))).astype(np.int8)
    return codes.reshape(len(matrix), -1), np.where(finite, scales, np.float32(np.nan))[:, :, 0]


def coded_change(x: Floats, a: Floats, b: Floats, scale: float) -> Floats:
    """x [T, K], a [rank, K], b [rank, N] → scale · b · (a · x), fp32 [T, N], of matrices in codes.

    x is quantised in spans and multiplied as `linear_codes` has it; for each span of outputs what comes of it takes B's scales and is
    quantised again, as one group.
    """
    shrunk = linear_codes(*quantise(_padded(x, CODE_SPAN), group=CODE_SPAN), Groups(*coded(a)))
    (codes, scales), parts = coded(b), []
    for own, by in zip(np.split(codes, scales.shape[1], axis=1), scales.T, strict=True):
        scaled = _padded(shrunk * by, SCALE_CODES)
        outputs = Groups(_padded(np.ascontiguousarray(own.T), SCALE_CODES), np.full((CODE_SPAN, 1), scale, np.float32))
        parts.append(linear_codes(*quantise(scaled, group=scaled.shape[1]), outputs))
    return np.concatenate(parts, axis=1)[:, : b.shape[1]]


def _padded(matrix: NDArray[Any], multiple: int) -> NDArray[Any]:
    """[M, N] with columns of zeros up to a multiple."""
    return np.pad(matrix, ((0, 0), (0, -matrix.shape[1] % multiple)))
