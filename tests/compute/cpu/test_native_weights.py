"""What the native runner keeps as fp32 because no kernel multiplies it as stored is told by name."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from ridgeline.compute.cpu.packing import PackedWeight
from ridgeline.compute.cpu.weights import widened


def test_only_matrices_that_were_stored_otherwise_are_told() -> None:
    def packed(kind: str) -> PackedWeight:
        return PackedWeight(kind, (1, 32), np.zeros(64, np.uint8))

    kinds = {"ordered": "GPTQ4", "plain": "F32", "coded": "Q8_0", "vector": "BF16"}
    facts: Any = SimpleNamespace(tensors={name: SimpleNamespace(kind=kind) for name, kind in kinds.items()})
    weights = {"ordered": packed("F32"), "plain": packed("F32"), "coded": packed("Q8_0"), "vector": np.ones(4, np.float32)}
    assert widened(facts, weights) == ["ordered"]
