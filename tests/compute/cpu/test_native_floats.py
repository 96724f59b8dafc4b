"""Packed float weights give the file's bytes back, and products of one fused multiply-add after the other, whatever is computed beside."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from calls import linear_floats
from rounding import assert_same_bits, rounded_to_odd_sum

from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.packing import PackedWeight, pack, packable
from ridgeline.compute.quant.formats import dequantise

pytestmark = pytest.mark.skipif(not ext.isa_levels(), reason=f"native extension not built: {ext.lost()}")
LEVELS = ext.isa_levels() or ("none",)
KINDS = ("F32", "F16", "BF16")
SHAPES = [(1, 1), (16, 1), (17, 5), (40, 64), (33, 701)]


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


def rows_of(kind: str, values: np.ndarray) -> np.ndarray:
    """fp32 [N, K] as a file of this kind stores them (bf16 cut off): uint8 [N, bytes of a row]."""
    if kind == "BF16":
        return np.ascontiguousarray(values.view(np.uint16)[:, 1::2]).view(np.uint8)
    return values.astype(np.float32 if kind == "F32" else np.float16).view(np.uint8)


def weight_of(kind: str, n: int, k: int, seed: int, pool: ThreadPoolExecutor) -> tuple[np.ndarray, PackedWeight]:
    """Normal weights, subnormal ones among them: as fp32, and packed."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((n, k)) * 10.0 ** rng.choice([0, 0, 0, -2, -7, -40], (n, k))
    rows = rows_of(kind, values.astype(np.float32))
    return dequantise(kind, rows), pack(kind, rows, (n, k), pool)


def fused(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The product as it is defined: acc = round(weight·x + acc) for ascending inputs.

    Sums of two fp64 that were rounded to odd are right when rounded again to fp32 (Boldo and Melquiond, 2008).
    """
    acc = np.zeros((len(x), len(weight)), np.float32)
    for column in range(x.shape[1]):
        product = x[:, column, None].astype(np.float64) * weight[:, column].astype(np.float64)
        acc = rounded_to_odd_sum(product, acc.astype(np.float64)).astype(np.float32)
    return acc


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_any_bytes_come_back(kind: str, n: int, k: int, pool: ThreadPoolExecutor) -> None:
    rows = np.random.default_rng(k).integers(0, 256, (n, k * (4 if kind == "F32" else 2)), np.uint8)
    assert packable(kind, (n, k))
    weight = pack(kind, rows, (n, k), pool)
    assert np.array_equal(weight.unpack(), rows)
    ids = np.array([0, n - 1, n // 2])
    assert_same_bits(weight.rows(ids), dequantise(kind, rows)[ids])


def test_many_chunks(pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ridgeline.compute.cpu.packing.CHUNK_BYTES", 5000)
    rows = np.random.default_rng(0).integers(0, 256, (333, 132), np.uint8)
    rows.flags.writeable = False
    assert np.array_equal(pack("BF16", rows, (333, 66), pool).unpack(), rows)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_product_is_as_defined(kind: str, n: int, k: int, pool: ThreadPoolExecutor) -> None:
    weight, stored = weight_of(kind, n, k, n, pool)
    x = np.random.default_rng(k).standard_normal((8, k)).astype(np.float32)
    reference = fused(x, weight)
    for level in LEVELS:
        assert_same_bits(linear_floats(x, stored, level=level), reference)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_and_slices_change_no_bit(kind: str, level: str, pool: ThreadPoolExecutor) -> None:
    """Any number of tokens and any cut of the outputs; what is not asked for stays."""
    n, k = 41, 300
    _, weight = weight_of(kind, n, k, 1, pool)
    x = np.random.default_rng(2).standard_normal((131, k)).astype(np.float32)
    whole = linear_floats(x, weight, level=level)
    for m in (0, *range(1, 20), 23, 24, 25, 26, 27, 64, 69, 126, 127):
        assert_same_bits(linear_floats(x[:m], weight, level=level), whole[:m])
    for blocks, columns in ((range(1, 2), slice(16, 32)), (range(2, 3), slice(32, 41)), (range(0), slice(0, 0))):
        for m in (3, 9, 70):
            out = np.full((m, n), 7.0, np.float32)
            linear_floats(x[:m], weight, level=level, out=out, blocks=blocks)
            assert_same_bits(out[:, columns], whole[:m, columns])
            out[:, columns] = 7.0
            assert (out == 7.0).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_finite_stays(kind: str, level: str, pool: ThreadPoolExecutor) -> None:
    values = np.ones((20, 40), np.float32)
    values[3, 7], values[18, 0] = np.nan, -np.inf
    weight = pack(kind, rows_of(kind, values), (20, 40), pool)
    x = np.ones((9, 40), np.float32)
    x[2, 39], x[5, 1] = np.inf, np.nan
    out = linear_floats(x, weight, level=level)
    assert np.isnan(out[:, 3]).all() and np.isnan(out[5]).all()
    assert np.isneginf(out[[0, 1, 8], 18]).all() and np.isnan(out[2, 18]) and np.isposinf(out[2, 0])
    assert np.isfinite(np.delete(np.delete(out, [2, 5], 0), [3, 18], 1)).all()


def test_misuse_is_refused(pool: ThreadPoolExecutor) -> None:
    _, weight = weight_of("F32", 4, 6, 5, pool)
    with pytest.raises(ValueError, match="contiguous float32"):
        linear_floats(np.zeros((1, 6)), weight)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="do not fit"):
        linear_floats(np.zeros((1, 7), np.float32), weight)
