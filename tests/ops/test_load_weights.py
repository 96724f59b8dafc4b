"""Weights from mapped files: fp32 while they fit, codes beyond, the same numbers from both."""

from pathlib import Path

import gguf
import numpy as np

from ridgeline.compute.load.weights import dense_bytes, load_weights, map_weights
from ridgeline.compute.quant.weight import CodedWeight, DenseWeight
from ridgeline.facts.gguf import read_header
from ridgeline.facts.model import ModelFacts


def facts_of(path: Path) -> ModelFacts:
    header = read_header(path)
    numbers = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "tokens", "context", "window"), 1)
    return ModelFacts(
        architecture="any",
        name="any",
        eps=0.0,
        layer_kinds=("full",),
        rope={},
        tied=True,
        fingerprint=b"",
        attn_scale=1.0,
        tensors=header.tensors,
        **numbers,
    )


def write(path: Path) -> np.ndarray:
    rng = np.random.default_rng(3)
    matrix = gguf.quantize(rng.normal(size=(40, 64)).astype(np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer = gguf.GGUFWriter(path, "any")
    writer.add_tensor("m", matrix, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("v", rng.normal(size=64).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return gguf.dequantize(matrix, gguf.GGMLQuantizationType.Q8_0)


def test_dense_and_coded_are_the_same(tmp_path: Path) -> None:
    expected = write(tmp_path / "m.gguf")
    facts = facts_of(tmp_path / "m.gguf")
    stages: list[float] = []
    rich = load_weights(facts, 1 << 30, 2, lambda stage, fraction: stages.append(fraction))
    poor = load_weights(facts, dense_bytes(facts), 1, lambda stage, fraction: None)
    assert isinstance(rich["m"], DenseWeight) and isinstance(poor["m"], CodedWeight)
    assert isinstance(poor["v"], DenseWeight)
    assert np.array_equal(rich["m"].dense(), expected) and np.array_equal(poor["m"].dense(), expected)
    assert stages[-1] == 1.0 and stages == sorted(stages)


def test_maps_are_read_only(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf")
    assert not map_weights(facts_of(tmp_path / "m.gguf"))["m"].codes.flags.writeable
