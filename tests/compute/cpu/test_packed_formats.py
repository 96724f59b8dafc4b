"""Grouped integers packed: records come back, and products are exact integers for every group, at every ISA level."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from calls import linear_codes, quantise

from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.packing import pack_grouped, packable
from ridgeline.compute.ops import quantised
from ridgeline.compute.quant.bits import Groups
from ridgeline.compute.quant.grouped import GroupedWeight, packed

pytestmark = pytest.mark.skipif(not ext.isa_levels(), reason=f"native extension not built: {ext.lost()}")
LEVELS = ext.isa_levels() or ("none",)
CASES = [(bits, size) for bits in (4, 8) for size in (32, 64, 96, 128, 768)]
K = 768


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


def weight_of(bits: int, size: int, n: int, seed: int) -> GroupedWeight:
    """Every code and zero, scales of many magnitudes."""
    rng = np.random.default_rng(seed)
    codes, zeros = rng.integers(0, 1 << bits, (n, K), np.uint8), rng.integers(0, 1 << bits, (n, K // size), np.uint8)
    scales = (rng.standard_normal(zeros.shape) * 10.0 ** rng.integers(-5, 2, zeros.shape)).astype(np.float32)
    return GroupedWeight((n, K), bits, size, packed(codes, bits), scales, zeros)


def integers(stored: GroupedWeight, span: int) -> Groups:
    """The weight as kernels see it: zeros belong to the integers, a group's scale stands once for every span of it."""
    codes = stored.integers(slice(None)).astype(np.int16) - stored.zeros.repeat(stored.size, axis=1)
    return Groups(codes, stored.scales.astype(np.float32).repeat(stored.size // span, axis=1))


def assert_same_bits(ours: np.ndarray, reference: np.ndarray) -> None:
    assert ours.shape == reference.shape
    nan = np.isnan(reference)
    assert np.array_equal(np.isnan(ours), nan)
    assert np.array_equal(ours[~nan].view(np.uint32), reference[~nan].view(np.uint32))


def activations(m: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((m, K)).astype(np.float32)


@pytest.mark.parametrize(("bits", "size"), CASES)
def test_records_come_back(bits: int, size: int, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ridgeline.compute.cpu.packing.CHUNK_BYTES", 20000)
    for n in (1, 16, 75):
        stored = weight_of(bits, size, n, n)
        weight, ids = pack_grouped(stored, pool), np.array([n - 1, 0, n // 2])
        assert np.array_equal(weight.unpack(), stored.records(slice(None)))
        assert_same_bits(weight.rows(ids), stored.rows(ids))
        assert weight.nbytes <= (n + 15) // 16 * 16 * K * (bits + 1.3) / 8


@pytest.mark.parametrize(("bits", "size"), CASES)
@pytest.mark.parametrize(("m", "n"), [(0, 16), (1, 37), (3, 16), (5, 20), (17, 33)])
def test_product_is_the_references(bits: int, size: int, m: int, n: int, pool: ThreadPoolExecutor) -> None:
    stored = weight_of(bits, size, n, m)
    weight = pack_grouped(stored, pool)
    x = quantise(activations(m, n), group=weight.span)
    reference = quantised.linear_codes(*x, integers(stored, weight.span))
    for level in LEVELS:
        assert_same_bits(linear_codes(x, weight, level=level), reference)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("bits", "size"), [(4, 32), (4, 128), (8, 32), (8, 128)])
def test_tokens_and_slices_change_no_bit(bits: int, size: int, level: str, pool: ThreadPoolExecutor) -> None:
    weight = pack_grouped(weight_of(bits, size, 41, 1), pool)
    x = quantise(activations(40, 2), group=weight.span)
    whole = linear_codes(x, weight, level=level)
    for m in (*range(1, 14), 23, 24, 25):
        assert_same_bits(linear_codes((x[0][:m], x[1][:m], x[2][:m]), weight, level=level), whole[:m])
    out = np.full((40, 41), 7.0, np.float32)
    linear_codes(x, weight, level=level, out=out, blocks=range(1, 2))
    assert_same_bits(out[:, 16:32], whole[:, 16:32])
    assert (np.delete(out, slice(16, 32), 1) == 7.0).all()


@pytest.mark.parametrize(("bits", "size"), CASES)
def test_limits(bits: int, size: int, pool: ThreadPoolExecutor) -> None:
    """Codes, zeros and activations as far apart as they get; scales that are no numbers."""
    n, top = 6, (1 << bits) - 1
    codes = np.repeat(np.array([[0], [top], [0], [top], [0], [top]], np.uint8), K, axis=1)
    zeros = np.repeat(np.array([[top], [0], [0], [top], [top], [0]], np.uint8), K // size, axis=1)
    scales = np.ones(zeros.shape, np.float16)
    scales[4, 0], scales[5, -1] = np.nan, np.inf
    stored = GroupedWeight((n, K), bits, size, packed(codes, bits), scales, zeros)
    place, weight = np.arange(K), pack_grouped(stored, pool)
    for negative in (place < 0, place >= 0, place % 2 == 0, place % 32 < 16):
        x = quantise(np.repeat(np.where(negative, -127, 127)[None].astype(np.float32), 6, axis=0), group=weight.span)
        reference = quantised.linear_codes(*x, integers(stored, weight.span))
        assert np.isnan(reference[:, 4]).all() and not np.isfinite(reference[:, 5]).any()
        for level in LEVELS:
            for m in (1, 6):
                assert_same_bits(linear_codes((x[0][:m], x[1][:m], x[2][:m]), weight, level=level), reference[:m])


def test_what_cannot_be_packed(pool: ThreadPoolExecutor) -> None:
    assert weight_of(4, 32, 1, 0).kind == "INT4" and weight_of(8, 32, 1, 0).kind == "INT8"
    assert packable("INT4", (1, 96), 96) and not packable("INT4", (1, 96), 0) and not packable("INT8", (1, 96), 64)
    assert not packable("INT8", (1, 48), 48)
    odd = GroupedWeight((1, 48), 8, 48, np.zeros((1, 48), np.uint8), np.ones((1, 1), np.float32), np.zeros((1, 1), np.uint8))
    with pytest.raises(ValueError, match="groups of 48"):
        pack_grouped(odd, pool)
