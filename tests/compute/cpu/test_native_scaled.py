"""Small floats under scales, e4m3 of checkpoints and NVFP4: packed they give the file's bytes back, and products of the weights in fp32."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np
import pytest
from calls import linear_floats
from rounding import assert_same_bits

from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.packing import PackedWeight, pack, pack_experts, pack_grouped, packable
from ridgeline.compute.quant.formats import dequantise
from ridgeline.compute.quant.scaled import Nvfp4Weight, ScaledWeight

pytestmark = pytest.mark.skipif(not ext.isa_levels(), reason=f"native extension not built: {ext.lost()}")
LEVELS = ext.isa_levels() or ("none",)
CASES: Final = {
    "blocks": (41, 300, (128, 128)),
    "whole blocks": (272, 1408, (128, 128)),
    "rows": (70, 701, (1, 701)),
    "a tensor": (33, 5, (33, 5)),
    "nvfp4": (41, 320, None),
    "nvfp4, long": (100, 1408, None),
    "nvfp4, divided": (41, 336, True),
    "nvfp4, multiplied": (100, 1424, False),
}
COUNTS = (0, *range(1, 9), 13, 24, 25, 26, 64, 126, 127)


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


def scaled(n: int, k: int, block: tuple[int, int], seed: int) -> ScaledWeight:
    """Every code but NaN, scales of any size that kernels take, and less than nothing."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 254, (n, k), np.uint8)
    codes[codes == 127] = 254
    scales = rng.standard_normal((-(-n // block[0]), -(-k // block[1]))) * 10.0 ** rng.choice([0, -3, -30, -44], (1, -(-k // block[1])))
    return ScaledWeight(codes, scales.astype(np.float32), block)


def small(n: int, k: int, divides: bool) -> Nvfp4Weight:
    """Every code and every scale that kernels take."""
    rng = np.random.default_rng(n)
    codes, scales = rng.integers(0, 256, (n, k // 2), np.uint8), rng.integers(0, 127, (n, k // 16), np.uint8)
    return Nvfp4Weight(codes, scales, np.float32(1234.567 if divides else 0.000567), divides)


def weight_of(name: str, pool: ThreadPoolExecutor) -> tuple[np.ndarray, np.ndarray, PackedWeight]:
    """fp32 [N, K], rows as packing takes them, and packed."""
    n, k, block = CASES[name]
    if block is None:
        rows = np.random.default_rng(n).integers(0, 256, (n, k // 64 * 36), np.uint8)
        return dequantise("NVFP4", rows), rows, pack("NVFP4", rows, (n, k), pool)
    stored = scaled(n, k, block, n) if isinstance(block, tuple) else small(n, k, block)
    return stored.dense(), stored.records(slice(0, n)), pack_grouped(stored, pool)


@pytest.mark.parametrize("name", CASES)
def test_round_trip_and_rows(name: str, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ridgeline.compute.cpu.packing.CHUNK_BYTES", 9000)
    dense, rows, weight = weight_of(name, pool)
    assert np.array_equal(weight.unpack(), rows)
    ids = np.array([0, len(dense) - 1, len(dense) // 2])
    for level in LEVELS:
        monkeypatch.setattr(ext, "isa", lambda level=level: level)
        assert_same_bits(weight.rows(ids), dense[ids])
    assert weight.nbytes <= -(-len(dense) // 16) * 16 * rows.shape[1]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", CASES)
def test_products_are_those_of_fp32(name: str, level: str, pool: ThreadPoolExecutor) -> None:
    """Any number of tokens and any cut of the outputs."""
    dense, _, weight = weight_of(name, pool)
    n, k = dense.shape
    wide = pack("F32", dense.view(np.uint8), dense.shape, pool)
    x = np.random.default_rng(2).standard_normal((127, k)).astype(np.float32)
    expected = linear_floats(x, wide, level=level)
    for m in COUNTS if n < 200 else (1, 2, 7, 30, 127):
        assert_same_bits(linear_floats(x[:m], weight, level=level), expected[:m])
    for first, last in ((1, 2), (1, weight.blocks), (0, 0)):
        for m in (1, 3, 30):
            out = np.full((m, n), 7.0, np.float32)
            linear_floats(x[:m], weight, level=level, out=out, blocks=range(first, last))
            assert_same_bits(out[:, 16 * first : 16 * last], expected[:m, 16 * first : 16 * last])
            out[:, 16 * first : 16 * last] = 7.0
            assert (out == 7.0).all()


@pytest.mark.parametrize("level", LEVELS)
def test_quotients_are_rounded_as_divisions_are(level: str, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every scale over many numbers."""
    scales = np.tile(np.arange(127, dtype=np.uint8), (16, 1))
    codes = np.full((16, 127 * 8), 0x22, np.uint8)
    monkeypatch.setattr(ext, "isa", lambda: level)
    for factor in np.exp(8 * np.random.default_rng(1).standard_normal(200)).astype(np.float32):
        stored = Nvfp4Weight(codes, scales, factor, True)
        assert_same_bits(pack_grouped(stored, pool).rows(np.array([3])), stored.rows(np.array([3])))


def test_what_is_not_finite_stays(pool: ThreadPoolExecutor) -> None:
    """The product of a row with a NaN is NaN; scales that are not finite spoil what they scale."""
    stored = scaled(40, 300, (1, 128), 3)
    stored.scales[5, 2], stored.scales[6, 0], stored.codes[18, 140], stored.codes[19, 0] = np.inf, np.nan, 127, 255
    packed = pack_grouped(stored, pool)
    x = np.abs(np.random.default_rng(0).standard_normal((30, 300))).astype(np.float32)
    wide = pack("F32", stored.dense().view(np.uint8), (40, 300), pool)
    for level in LEVELS:
        expected = linear_floats(x, wide, level=level)
        assert np.isnan(expected[:, [6, 18, 19]]).all() and np.isfinite(np.delete(expected, [5, 6, 18, 19], 1)).all()
        for m in (1, 5, 30):
            assert np.array_equal(linear_floats(x[:m], packed, level=level), expected[:m], equal_nan=True)


def test_what_cannot_be_packed(pool: ThreadPoolExecutor) -> None:
    """Scales that would overflow on their way leave a matrix in fp32."""
    assert packable("FP8", (3, 5), 5) and not packable("FP8", (3, 5)) and not packable("NVFP4", (16, 96))
    stored = scaled(40, 256, (128, 128), 4)
    assert stored.kind == "FP8"
    stored.scales[0, 1] = 256.0
    assert stored.kind == "F32"
    experts = pack_experts([stored, scaled(40, 256, (128, 128), 5)], pool)
    assert experts.kind == "F32" and np.array_equal(experts.part(0).unpack().view(np.float32), stored.dense())
