"""Formats taken apart into integers, scales and mins are the weights that dequantisation gives."""

import numpy as np
import pytest

from ridgeline.compute.quant.formats import FORMATS, dequantise
from ridgeline.compute.quant.groups import BLOCKS, groups

LIMITS = {
    "Q4_0": (0, 15, 32, 32), "Q4_1": (0, 15, 32, 32), "Q5_0": (0, 31, 32, 32), "Q5_1": (0, 31, 32, 32), "Q8_0": (-128, 127, 32, 32),
    "Q2_K": (0, 3, 256, 16), "Q3_K": (0, 7, 256, 16), "Q4_K": (0, 15, 256, 32), "Q5_K": (0, 31, 256, 32), "Q6_K": (0, 63, 256, 16),
    "IQ4_NL": (-127, 113, 32, 32), "IQ4_XS": (-127, 113, 32, 32), "MXFP4": (-12, 12, 32, 32), "NVFP4": (-12, 12, 16, 16),
    "TQ1_0": (0, 2, 256, 256), "TQ2_0": (0, 3, 256, 256), "IQ1_S": (-9, 9, 256, 32), "IQ1_M": (-9, 9, 256, 16),
    "IQ2_XXS": (-43, 43, 256, 32), "IQ2_XS": (-43, 43, 256, 16), "IQ2_S": (-43, 43, 256, 16),
    "IQ3_XXS": (-31, 31, 256, 32), "IQ3_S": (-15, 15, 256, 32),
}  # fmt: skip
"""Least and greatest code, weights of a span and of a group."""

HALVES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,), "TQ1_0": (52,), "TQ2_0": (64,),
    **dict.fromkeys(("IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"), (0,)),
}  # fmt: skip
"""Byte offsets of the fp16 fields; those of IQ1_M lie in pieces, and scales of MXFP4 and NVFP4 are always finite."""


def finite_rows(kind: str, rows: int, blocks: int) -> np.ndarray:
    """Random bytes, with every fp16 field any finite number of full length."""
    rng = np.random.default_rng(sum(kind.encode()))
    data = rng.integers(0, 256, (rows * blocks, FORMATS[kind].block_bytes), np.uint8)
    for start in HALVES.get(kind, ()):
        exponents = rng.integers(0, 31, len(data), np.uint16) << 10
        field = exponents | rng.integers(0, 1 << 10, len(data), np.uint16) | (rng.integers(0, 2, len(data), np.uint16) << 15)
        data[:, start : start + 2] = field.astype("<u2")[:, None].view(np.uint8)
    if kind == "MXFP4":
        data[:, 0] = rng.integers(0, 250, len(data))
    if kind == "IQ1_M":
        data[:, 55] &= 0xBF  # a bit of the exponent
    return data.reshape(rows, -1)


@pytest.mark.parametrize("kind", sorted(BLOCKS))
def test_parts_make_the_weights_exactly(kind: str) -> None:
    rows = finite_rows(kind, 64, 64)
    parts = groups(kind, rows)
    least, greatest, span, size = LIMITS[kind]
    assert (parts.span, parts.size) == (span, size) and parts.codes.flags.c_contiguous
    assert parts.codes.dtype == (np.int8 if least < 0 else np.uint8)
    assert (parts.codes.min(), parts.codes.max()) == (least, greatest)
    assert parts.scales.dtype == np.float32 and (parts.mins is None or parts.mins.dtype == np.float32)
    scales, mins = (floats.repeat(size, axis=1) for floats in (parts.group_scales, parts.group_mins))
    weights = scales * (parts.codes.astype(np.int32) - parts.zero).astype(np.float32) - mins
    assert np.array_equal(weights, dequantise(kind, rows))
    factors = 1 if parts.factors is None else parts.factors.astype(np.int32).repeat(size, axis=1)
    assert np.array_equal(parts.integers, (parts.codes.astype(np.int32) - parts.zero) * factors)


def test_what_is_not_finite_stays_so() -> None:
    for kind in HALVES:
        rows = finite_rows(kind, 1, 1)
        rows[:, HALVES[kind][0] : HALVES[kind][0] + 2] = np.array([np.nan], np.float16).view(np.uint8)
        parts = groups(kind, rows)
        assert not np.isfinite(parts.scales).any() and not np.isfinite(dequantise(kind, rows)).any()


def test_every_format_but_floats() -> None:
    assert set(FORMATS) - set(BLOCKS) == {"F32", "F16", "BF16"}
    with pytest.raises(ValueError, match="no whole number of 18-byte blocks"):
        groups("Q4_0", np.zeros((1, 19), np.uint8))
