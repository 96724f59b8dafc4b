"""Weights of the native runner: what it keeps as fp32 since no kernel multiplies it as stored is told by name; experts are packed apart."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.memory import ALIGNMENT, Pieces
from ridgeline.compute.cpu.packing import PackedWeight, pack, packable, row_bytes, widened


def test_only_matrices_that_were_stored_otherwise_are_told() -> None:
    def packed(kind: str) -> PackedWeight:
        return PackedWeight(kind, (1, 32), np.zeros(64, np.uint8))

    kinds = {"ordered": "GPTQ4", "plain": "F32", "coded": "Q8_0", "vector": "BF16"}
    facts: Any = SimpleNamespace(tensors={name: SimpleNamespace(kind=kind) for name, kind in kinds.items()})
    weights = {"ordered": packed("F32"), "plain": packed("F32"), "coded": packed("Q8_0"), "vector": np.ones(4, np.float32)}
    assert widened(facts, weights) == ["ordered"]


@pytest.mark.skipif(not ext.isa_levels(), reason=f"native extension not built: {ext.lost()}")
@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_K"])
def test_every_expert_is_packed_like_a_matrix_by_itself(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each begins at a cache line, also where its rows do not fill the last block of 16; in chunks, in memory that is given."""
    monkeypatch.setattr("ridgeline.compute.cpu.packing.CHUNK_BYTES", 3000)
    experts, rows, columns = 3, 37, 256
    codes = np.random.default_rng(1).integers(0, 60, (experts * rows, row_bytes(kind, columns)), np.uint8)
    with ThreadPoolExecutor(2) as pool:
        assert packable(kind, (experts, rows, columns)) and not packable(kind, (1, experts, rows, columns))
        weight = pack(kind, codes, (experts, rows, columns), pool, Pieces().take)
        alone = [pack(kind, codes[each * rows : (each + 1) * rows], (rows, columns), pool) for each in range(experts)]
    assert weight.experts == experts and weight.blocks == 3 and np.array_equal(weight.unpack(), codes)
    assert weight.stride % ALIGNMENT == 0 and weight.nbytes == experts * weight.stride
    for number, matrix in enumerate(alone):
        part = weight.part(number)
        assert part.shape == matrix.shape and np.array_equal(part.data[: matrix.nbytes], matrix.data)
        assert part.matrix[:4] == matrix.matrix[:4] and part.matrix[4] == weight.matrix[4] + number * weight.stride
    assert weight.format == alone[0].format and weight.format.takes == ("f32" if kind == "F32" else "i8")
