"""Products of integers: activations quantised in groups, weights as a file stores them. Only lowering introduces these ops.

The order of operations is part of their meaning: kernels give the same bits.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.ops.definition import Floats, Ints, Sample, floats, op
from ridgeline.compute.quant.bits import Groups

SCALE_CODES: Final = 32
"""Codes of a scale in memory: a wider group has its scale as often as it has 32 codes, so that a product may take narrower ones."""

SUM_CODES: Final = 16
"""Codes that a sum counts."""

_TINY, _TINY_STEPPED = np.float32(1e-36), np.float32(1e-34)
"""Below these a group is zero, as 127 / amax would overflow; its parts have its own scale, as a quarter of it would not be exact."""

Codes = NDArray[np.int8]


def _quantise_samples() -> list[Sample]:
    strange, wide = floats(3, 6, 96), floats(4, 7, 768)
    strange[0, 5], strange[1, 40], strange[2, :32], strange[3, :] = np.inf, np.nan, 1e-38, 0
    strange[4, 64:] = np.where(np.arange(32) % 2, 3.0e38, -3.0e38)
    wide[1, 5], wide[2, 300], wide[3, :256], wide[4, 256:512] = np.nan, np.inf, 1e-38, 0
    wide[5, 511], wide[6, ::256] = 1e4, -3.0e38
    stepped = wide * np.exp2(-np.arange(768) // 32 % 4).astype(np.float32)
    stepped[0, :256], stepped[0, 256:512] = np.arange(256) * 2e-38, np.repeat([4, 2, 1, 0, 3.9, 1.9, 0.9, -4], 32)
    cases = {
        "ragged": (floats(1, 7, 64), 32), "one row": (floats(2, 1, 640, size=1e4), 128), "no row": (np.zeros((0, 32), np.float32), 32),
        "not finite": (strange, 32), "wide, not finite": (wide, 256), "stepped, not finite": (stepped, 256),
    }  # fmt: skip
    return [Sample(name, {"x": x, "group": group, "stepped": x is stepped}) for name, (x, group) in cases.items()]


@op(samples=_quantise_samples, per_token=True, semantic=False)
def quantise(x: Floats, *, group: int, stepped: bool = False) -> Any:
    """x [T, K] → codes int8 [T, K], scales fp32 [T, K/32], sums of 16 codes int32 [T, K/16]: symmetric, amax / 127, ties to even.

    `group` neighbours, a multiple of 32 that K is one of, share a scale. A group with a value that is not finite gets the scale NaN and
    codes 0, so that whatever reads it is NaN too.
    stepped: 32 neighbours in a group of 256 whose amax is at most a half or a quarter of the group's have a half or a quarter of its scale.
    Sums count codes in the smallest scale of their group, as products do.

    Any other number is off by half its scale at most. In the root mean square normal numbers lose 0.5 % in groups of 32, 0.65 % of 128 and
    0.7 % of 256; where one column of a hundred is 20 times as large, 1.1, 2.1 and 2.7 %. A product with such weights loses as much.
    """
    rows, columns = x.shape
    groups = x.reshape(rows, columns // group, group // SCALE_CODES, SCALE_CODES)
    finite = np.isfinite(groups).all(axis=(2, 3), keepdims=True)
    each = np.abs(np.where(finite, groups, np.float32(0))).max(axis=3, keepdims=True)
    amax = each.max(axis=2, keepdims=True)
    live = amax >= _TINY
    halvings = np.where(stepped & (amax >= _TINY_STEPPED), (each <= amax / 2).astype(np.int32) + (each <= amax / 4), 0)
    power = np.exp2(halvings).astype(np.float32)
    inverse = np.float32(127) / np.where(live, amax, np.float32(1)) * power
    codes = np.rint(np.where(live, groups, np.float32(0)) * inverse).astype(np.int8)
    scales = np.where(finite, np.where(live, amax / np.float32(127), np.float32(0)) / power, np.float32(np.nan)).astype(np.float32)
    sums = codes.reshape(*groups.shape[:3], 2, SUM_CODES).sum(axis=4, dtype=np.int32) << halvings.max(axis=2, keepdims=True) - halvings
    return codes.reshape(rows, columns), scales.reshape(rows, columns // SCALE_CODES), sums.reshape(rows, columns // SUM_CODES)


def _linear_samples() -> list[Sample]:
    def integers(seed: int, most: int, *shape: int) -> Any:
        return np.random.default_rng(seed).integers(0, most, shape).astype(np.uint8)

    made = []
    for name, rows, outputs, columns, span, size in (
        ("ragged", 7, 33, 96, 32, 32), ("one row", 1, 20, 512, 256, 16), ("no row", 0, 8, 32, 32, 32), ("spans", 5, 9, 256, 128, 32)
    ):  # fmt: skip
        codes, scales, sums = quantise(floats(rows, rows, columns), group=span)
        spans, parts = (outputs, columns // span), (outputs, columns // size)
        weight = Groups(
            integers(1, 32, outputs, columns), floats(5, *spans), 16, integers(2, 64, *parts), floats(6, *spans), integers(3, 64, *parts)
        )
        made.append(Sample(name, {"codes": codes, "scales": scales, "sums": sums, "weight": weight}))
    return made


@op(samples=_linear_samples, weights=("weight",), matrices=("weight",), per_token=True, semantic=False)
def linear_codes(codes: Codes, scales: Floats, sums: Ints, weight: Groups) -> Floats:
    """codes int8 [T, K], scales fp32 [T, K/32], sums int32 [T, K/16], weight as integers [N, K] in spans that are activations' groups or
    parts of them → fp32 [T, N].

    acc = 0; for spans ascending acc = fma(Σ factor·(code - zero)·x, fp32(weight's scale · activations' scale), acc), then, where there are
    minima, acc = fma(Σ offset·(Σ x), -fp32(minimum · activations' scale), acc). Sums of integers are exact, below 2^31, and then fp32.
    Where activations are stepped, their scale is the smallest of the span and x their code times what its own scale is of that.
    """
    (rows, columns), outputs = codes.shape, weight.codes.shape[0]
    integers, totals = weight.integers, sums.reshape(rows, columns // weight.size, weight.size // SUM_CODES).sum(axis=2)
    offsets = np.ones((outputs, totals.shape[1]), np.uint8) if weight.offsets is None else weight.offsets
    acc = np.zeros((rows, outputs), np.float32)
    with np.errstate(all="ignore"):
        for span, first in enumerate(range(0, columns, weight.span)):
            part, groups = slice(first, first + weight.span), slice(first // weight.size, (first + weight.span) // weight.size)
            own = scales[:, first // SCALE_CODES : (first + weight.span) // SCALE_CODES]
            x_scale = own.min(axis=1, keepdims=True)
            x = codes[:, part] * np.where(own > x_scale, own / x_scale, np.float32(1)).repeat(SCALE_CODES, axis=1)
            acc = _fma(_dots(x, integers[:, part]), weight.scales[:, span] * x_scale, acc)
            if weight.mins is not None:
                acc = _fma(_dots(totals[:, groups], offsets[:, groups]), -(weight.mins[:, span] * x_scale), acc)
    return acc


def _linear_add_samples() -> list[Sample]:
    made = []
    for number, sample in enumerate(_linear_samples()):
        rows, outputs = len(sample.arguments["codes"]), len(sample.arguments["weight"].codes)
        made.append(Sample(sample.name, {**sample.arguments, "residual": floats(20 + number, rows, outputs, size=3.0)}))
    return made


@op(samples=_linear_add_samples, weights=("weight",), matrices=("weight",), per_token=True, semantic=False)
def linear_codes_add(codes: Codes, scales: Floats, sums: Ints, residual: Floats, weight: Groups) -> Floats:
    """residual [T, N] + `linear_codes` [T, N]: the product is rounded to fp32, then the sum."""
    with np.errstate(all="ignore"):
        return residual + linear_codes(codes, scales, sums, weight)


def _dots(x: NDArray[Any], y: NDArray[Any]) -> Floats:
    """Integers [T, n] and [N, n] → Σ x·y [T, N] to the nearest fp32. Doubles hold all of it exactly, in any order."""
    return (x.astype(np.float64) @ y.astype(np.float64).T).astype(np.int64).astype(np.float32)


def _fma(x: Floats, y: Floats, z: Floats) -> Floats:
    """x · y + z rounded once: the product is exact in double precision.

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
