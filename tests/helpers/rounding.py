"""Sums that are rounded once, as a fused multiply-add does, and results that agree in every bit."""

import numpy as np


def rounded_to_odd_sum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a + b in fp64: exact, or the neighbour of the exact sum whose last bit is 1."""
    total = a + b
    rest = total - a
    error = (a - (total - rest)) + (b - rest)
    bits = total.view(np.int64)
    away = np.sign(error) * np.sign(total) > 0
    return np.where((error != 0) & (bits % 2 == 0), np.where(away, bits + 1, bits - 1), bits).view(np.float64)


def assert_same_bits(ours: np.ndarray, reference: np.ndarray) -> None:
    assert ours.shape == reference.shape
    nan = np.isnan(reference)
    assert np.array_equal(np.isnan(ours), nan)
    assert np.array_equal(ours[~nan].view(np.uint32), reference[~nan].view(np.uint32))
