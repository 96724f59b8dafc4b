"""Products of integers: activations quantised in groups of 32, weights as a file stores them. Only lowering introduces these ops.

The order of operations is part of their meaning: kernels give the same bits.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.ops.definition import Floats, Ints, Sample, floats, op
from ridgeline.compute.quant.groups import Groups

GROUP = 32
"""Activations that share a scale."""

_TINY = np.float32(1e-36)
"""Below this a group is zero: 127 / amax would overflow."""

Codes = NDArray[np.int8]


def _quantise_samples() -> list[Sample]:
    strange = floats(3, 6, 96)
    strange[0, 5], strange[1, 40], strange[2, :32], strange[3, :] = np.inf, np.nan, 1e-38, 0
    strange[4, 64:] = np.where(np.arange(32) % 2, 3.0e38, -3.0e38)
    return [
        Sample("ragged", {"x": floats(1, 7, 64)}),
        Sample("one row", {"x": floats(2, 1, 640, size=1e4)}),
        Sample("no row", {"x": np.zeros((0, 32), np.float32)}),
        Sample("not finite", {"x": strange}),
    ]


@op(samples=_quantise_samples, per_token=True, semantic=False)
def quantise(x: Floats) -> Any:
    """x [T, K] → codes int8 [T, K], scales fp32 [T, K/32], sums of 16 codes int32 [T, K/16]: symmetric, amax / 127, ties to even.

    A group with a value that is not finite gets the scale NaN and codes 0, so that whatever reads it is NaN too.
    """
    rows, columns = x.shape
    groups = x.reshape(rows, columns // GROUP, GROUP)
    finite = np.isfinite(groups).all(axis=2)
    amax = np.abs(np.where(finite[..., None], groups, np.float32(0))).max(axis=2)
    live = amax >= _TINY
    inverse = np.float32(127) / np.where(live, amax, np.float32(1))
    codes = np.rint(np.where(live[..., None], groups, np.float32(0)) * inverse[..., None]).astype(np.int8).reshape(rows, columns)
    scales = np.where(finite, np.where(live, amax / np.float32(127), np.float32(0)), np.float32(np.nan)).astype(np.float32)
    sums = codes.reshape(rows, columns // 16, 16).sum(axis=2, dtype=np.int32)
    return codes, scales, sums


def _linear_samples() -> list[Sample]:
    made = []
    for name, rows, outputs, columns, size in (("ragged", 7, 33, 96, 32), ("one row", 1, 20, 256, 16), ("no row", 0, 8, 32, 32)):
        codes, scales, sums = quantise(floats(rows, rows, columns))
        integers = np.random.default_rng(columns).integers(0, 32, (outputs, columns)).astype(np.uint8)
        weight = Groups(integers, floats(5, outputs, columns // size), floats(6, outputs, columns // size))
        made.append(Sample(name, {"codes": codes, "scales": scales, "sums": sums, "weight": weight}))
    return made


@op(samples=_linear_samples, weights=("weight",), per_token=True, semantic=False)
def linear_codes(codes: Codes, scales: Floats, sums: Ints, weight: Groups) -> Floats:
    """codes int8 [T, K], scales fp32 [T, K/32], sums int32 [T, K/16], weight as integers [N, K] in groups of 16 or 32 → fp32 [T, N].

    acc = 0; for groups ascending acc = fma(Σ integers, fp32(weight's scale · activation's scale), acc), then
    acc = fma(Σ codes, -fp32(min · activation's scale), acc). Sums of integers are exact.
    """
    rows, outputs, size = codes.shape[0], weight.codes.shape[0], weight.size
    acc = np.zeros((rows, outputs), np.float32)
    with np.errstate(all="ignore"):
        for group in range(weight.scales.shape[1]):
            part = slice(group * size, (group + 1) * size)
            x_scale = scales[:, group * size // GROUP, None]
            dots = codes[:, part].astype(np.int32) @ weight.codes[:, part].astype(np.int32).T
            acc = _fma(dots, weight.scales[:, group] * x_scale, acc)
            total = sums[:, group * size // 16 : (group + 1) * size // 16].sum(axis=1, keepdims=True)
            acc = _fma(total, -(weight.mins[:, group] * x_scale), acc)
    return acc


def _fma(x: Ints, y: Floats, z: Floats) -> Floats:
    """x · y + z rounded once, x whole and below 2^24: the product is exact in double precision.

    The sum is rounded to odd there, so that rounding it again to fp32 is the only rounding (Boldo and Melquiond 2008).
    """
    product, addend = x.astype(np.float64) * y, z.astype(np.float64)
    total = product + addend
    virtual = total - product
    error = (product - (total - virtual)) + (addend - virtual)
    bits = total.view(np.int64)
    inexact = np.isfinite(total) & (error != 0) & (bits % 2 == 0)
    bits += np.where(inexact, np.where((error > 0) == (total > 0), 1, -1), 0)
    return total.astype(np.float32)
