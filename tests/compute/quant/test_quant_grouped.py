"""Grouped integers: their layout, their formula, and the same tiles as the fp32 matrix they stand for."""

import numpy as np
import pytest

from ridgeline.compute.quant import weight
from ridgeline.compute.quant.grouped import GroupedWeight, packed, unpacked
from ridgeline.compute.quant.weight import DenseWeight

ROWS, COLUMNS = 23, 256


def make(bits: int, size: int, act_order: bool = False, scale: type = np.float16) -> tuple[GroupedWeight, np.ndarray]:
    """A random weight, and the matrix that its definition gives, element by element in exact arithmetic."""
    rng = np.random.default_rng(bits * size)
    codes = rng.integers(0, 1 << bits, (ROWS, COLUMNS), np.uint8)
    scales = rng.normal(0, 1e-2, (ROWS, COLUMNS // size)).astype(scale)
    zeros = rng.integers(0, 1 << bits, scales.shape, np.uint8)
    order = rng.permutation(COLUMNS) if act_order else None
    dense = np.empty((ROWS, COLUMNS))
    for k in range(COLUMNS):
        inputs = k if order is None else order[k]
        dense[:, inputs] = (codes[:, k].astype(int) - zeros[:, k // size]) * scales[:, k // size].astype(np.float64)
    return GroupedWeight((ROWS, COLUMNS), bits, size, packed(codes, bits), scales, zeros, order), dense


CASES = [(4, 32, False), (4, 128, True), (4, COLUMNS, False), (8, 64, True), (8, COLUMNS, False)]


@pytest.mark.parametrize(("bits", "size", "act_order"), CASES)
def test_the_formula_is_exact(bits: int, size: int, act_order: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight, "TILE_BYTES", 4 * COLUMNS * 5)
    stored, wanted = make(bits, size, act_order)
    dense = stored.dense()
    assert dense.dtype == np.float32 and np.array_equal(dense.astype(np.float64), wanted)
    ours, theirs = [(start, tile.copy()) for start, tile in stored.tiles()], list(DenseWeight(dense).tiles())
    assert [start for start, _ in ours] == [start for start, _ in theirs] == [0, 5, 10, 15, 20]
    assert all(np.array_equal(a, b) for (_, a), (_, b) in zip(ours, theirs, strict=True))
    ids = np.array([22, 0, 7, 7])
    assert np.array_equal(stored.rows(ids), dense[ids]) and stored.rows(ids[:0]).shape == (0, COLUMNS)


def test_nibbles_stand_low_half_first() -> None:
    codes = np.array([[1, 2, 15, 0]], np.uint8)
    assert packed(codes, 4).tolist() == [[0x21, 0x0F]] and np.array_equal(unpacked(packed(codes, 4), 4), codes)
    assert np.array_equal(unpacked(packed(codes, 8), 8), codes)


def test_fp32_scales_round_once() -> None:
    stored, wanted = make(8, 64, scale=np.float32)
    assert np.array_equal(stored.dense(), wanted.astype(np.float32))


def test_bytes_kept() -> None:
    stored, _ = make(4, 128)
    assert stored.nbytes == ROWS * COLUMNS // 2 + ROWS * 2 * (2 + 1)


def test_a_scale_that_is_no_number_shows() -> None:
    stored, _ = make(4, 128)
    stored.scales[3, 1] = np.nan
    dense = stored.dense()
    assert np.isnan(dense[3, 128:]).all() and np.isfinite(np.delete(dense, 3, 0)).all() and np.isfinite(dense[3, :128]).all()


@pytest.mark.parametrize(("bits", "size", "act_order"), CASES)
def test_records_hold_everything_but_the_order(bits: int, size: int, act_order: bool) -> None:
    stored, _ = make(bits, size, act_order)
    records = stored.records(slice(2, 9))
    groups, codes = COLUMNS // size, COLUMNS * bits // 8
    assert records.shape == (7, stored.record_bytes) and records.flags.c_contiguous
    assert np.array_equal(records[:, :codes], stored.codes[2:9]) and np.array_equal(records[:, codes + 4 * groups :], stored.zeros[2:9])
    assert np.array_equal(records[:, codes : codes + 4 * groups].copy().view(np.float32), stored.scales[2:9])
