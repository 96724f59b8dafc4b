"""Products with fp32 matrices in two halves of bf16: by AMX where a machine has it, and by vectors, with the bits of their definition."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from calls import linear_floats
from rounding import assert_same_bits, rounded_to_odd_sum

from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.packing import SPLIT, PackedWeight, pack, packable

pytestmark = pytest.mark.skipif(not ext.isa_levels(), reason=f"native extension not built: {ext.lost()}")
LEVELS = ext.isa_levels() or ("none",)
GROUP = 32
LEAST = np.finfo(np.float32).tiny


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


def packed(values: np.ndarray, pool: ThreadPoolExecutor) -> PackedWeight:
    return pack("F32", values.view(np.uint8), values.shape, pool, form=SPLIT)


def spread(seed: int, rows: int, columns: int) -> np.ndarray:
    """Normal numbers of many sizes, some of whose halves or products are below the normal ones."""
    rng, sizes = np.random.default_rng(seed), 10.0 ** np.array([0, 0, 0, -2, -10, -19, -37, -40])
    return (rng.standard_normal((rows, columns)) * rng.choice(sizes, (rows, columns))).astype(np.float32)


def rounded(x: np.ndarray) -> np.ndarray:
    """The nearest bf16, ties to even; zero of what is below the normal numbers."""
    bits = normal(x).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)


def normal(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < LEAST, np.float32(0), x)


def halves(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    high = rounded(x)
    return high, rounded(x - high)


def defined(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The product as csrc/linear/split.cpp defines it."""
    (x_high, x_low), (w_high, w_low) = halves(x), halves(weight)
    acc = np.zeros((len(x), len(weight)), np.float32)
    for first in range(0, x.shape[1], GROUP):
        for a, b in ((x_low, w_high), (x_high, w_high), (x_high, w_low)):
            sums = np.zeros((2, *acc.shape), np.float32)
            for column in range(first, first + GROUP):
                product = a[:, column, None].astype(np.float64) * b[:, column].astype(np.float64)
                side = column % 2
                sums[side] = normal(rounded_to_odd_sum(product, sums[side].astype(np.float64)).astype(np.float32))
            acc = normal(acc + normal(sums[0] + sums[1]))
    return acc


@pytest.mark.parametrize(("n", "k"), [(1, 32), (16, 64), (41, 160)])
def test_product_is_as_defined(n: int, k: int, pool: ThreadPoolExecutor) -> None:
    values, x = spread(n, n, k), spread(k, 35, k)
    reference, weight = defined(x, values), packed(values, pool)
    for level in LEVELS:
        assert_same_bits(linear_floats(x, weight, level=level), reference)


def test_a_product_is_near_the_exact_one(pool: ThreadPoolExecutor) -> None:
    rng = np.random.default_rng(0)
    values, x = rng.standard_normal((64, 1536)).astype(np.float32), rng.standard_normal((20, 1536)).astype(np.float32)
    exact = x.astype(np.float64) @ values.T.astype(np.float64)
    found = linear_floats(x, packed(values, pool))
    assert np.linalg.norm(found - exact) < 2**-17 * np.linalg.norm(exact)


@pytest.mark.parametrize("level", [level for level in LEVELS if level != "scalar"])
def test_tokens_and_slices_change_no_bit(level: str, pool: ThreadPoolExecutor) -> None:
    """Any number of tokens and any cut of the outputs; what is not asked for stays."""
    n, k = 57, 96
    weight, x = packed(spread(1, n, k), pool), spread(2, 300, k)
    whole = linear_floats(x, weight, level=level)
    for m in (0, 1, 2, 15, 16, 17, 31, 32, 33, 48, 64, 69, 255, 256, 257):
        assert_same_bits(linear_floats(x[:m], weight, level=level), whole[:m])
    assert_same_bits(linear_floats(x[77:99], weight, level=level), whole[77:99])
    cuts = ((range(1, 2), slice(16, 32)), (range(1, 4), slice(16, 57)), (range(3, 4), slice(48, 57)), (range(0), slice(0, 0)))
    for blocks, columns in cuts:
        for m in (3, 16, 70):
            out = np.full((m, n), 7.0, np.float32)
            linear_floats(x[:m], weight, level=level, out=out, blocks=blocks)
            assert_same_bits(out[:, columns], whole[:m, columns])
            out[:, columns] = 7.0
            assert (out == 7.0).all()


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_not_finite_stays_so(level: str, pool: ThreadPoolExecutor) -> None:
    values, x = np.ones((20, 64), np.float32), np.ones((9, 64), np.float32)
    values[3, 7], values[18, 0] = np.array([0x7FFFFFFF], np.uint32).view(np.float32)[0], -np.inf
    x[2, 39], x[5, 1], x[6, 0] = np.inf, -np.nan, np.finfo(np.float32).max
    out = linear_floats(x, packed(values, pool), level=level)
    assert not np.isfinite(out[[2, 5, 6]]).any() and not np.isfinite(out[:, [3, 18]]).any()
    assert np.isfinite(np.delete(np.delete(out, [2, 5, 6], 0), [3, 18], 1)).all()


def test_rows_come_back_as_their_halves(pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ridgeline.compute.cpu.packing.CHUNK_BYTES", 5000)
    values = spread(3, 41, 96)
    weight, (high, low) = packed(values, pool), halves(values)
    assert np.array_equal(weight.unpack().view(np.float32), high + low)
    assert np.array_equal(weight.rows(np.array([40, 0, 17])), (high + low)[[40, 0, 17]])
    large = np.abs(values) > 1e-30
    assert (np.abs(high + low - values)[large] <= 2**-17 * np.abs(values)[large]).all()


def test_what_cannot_be_split() -> None:
    assert packable("F32", (16, 8192), form=SPLIT)
    for kind, shape in (("F32", (16, 8224)), ("F32", (16, 40)), ("BF16", (16, 64)), ("F32", (2, 16, 64))):
        assert not packable(kind, shape, form=SPLIT)
