"""Both kinds of weight handle give the same tiles, bit for bit."""

import numpy as np
import pytest

from ridgeline.compute.quant import weight
from ridgeline.compute.quant.formats import FORMATS
from ridgeline.compute.quant.weight import CodedWeight, DenseWeight


def make(kind: str, rows: int, columns: int) -> CodedWeight:
    form = FORMATS[kind]
    size = rows * columns // form.block_elements * form.block_bytes
    data = np.random.default_rng(1).integers(0, 60, size, np.uint8)  # small exponents: finite scales
    return CodedWeight(kind, (rows, columns), data.reshape(rows, -1))


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q5_0", "Q4_K", "IQ4_XS"])
def test_tiles_are_the_same(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight, "TILE_BYTES", 4 * 256 * 5)
    stored = make(kind, 23, 256)
    dense = DenseWeight(stored.dense())
    assert stored.shape == dense.shape == (23, 256)
    ours, theirs = [(s, t.copy()) for s, t in stored.tiles()], list(dense.tiles())
    assert [s for s, _ in ours] == [s for s, _ in theirs] == [0, 5, 10, 15, 20]
    for (_, tile), (_, other) in zip(ours, theirs, strict=True):
        assert np.array_equal(tile.view(np.uint32), other.view(np.uint32))
    ids = np.array([22, 0, 7, 7])
    assert np.array_equal(stored.rows(ids), dense.rows(ids))


def test_tiles_are_bounded_and_codes_are_small() -> None:
    stored = make("Q8_0", 600, 32)
    assert all(tile.nbytes <= weight.TILE_BYTES for _, tile in stored.tiles())
    assert stored.nbytes * 3 < DenseWeight(stored.dense()).nbytes


def test_vector() -> None:
    values = np.arange(48, dtype=np.float32)
    assert np.array_equal(CodedWeight("F32", (48,), values.view(np.uint8)[None]).dense(), values)
