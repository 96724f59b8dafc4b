"""Weights from mapped files: fp32 while they fit, codes beyond, the same numbers from both."""

import tracemalloc
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from ridgeline.compute.load.weights import dense_bytes, load_weights, map_weights
from ridgeline.compute.quant.weight import CodedWeight, DenseWeight
from ridgeline.facts.files.gguf import read_header
from ridgeline.facts.model import ModelFacts, TensorFacts


def facts_of(path: Path) -> ModelFacts:
    return replace(facts_of_none(), tensors=read_header(path).tensors)


def facts_of_none() -> ModelFacts:
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
        tensors={},
        **numbers,
    )


def write(path: Path, shape: tuple[int, ...] = (40, 64)) -> np.ndarray:
    rng = np.random.default_rng(3)
    matrix = gguf.quantize(rng.normal(size=shape).astype(np.float32), gguf.GGMLQuantizationType.Q8_0)
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


def test_one_matrix_per_expert(tmp_path: Path) -> None:
    """A tensor of rank 3 is its experts, as fp32 and as codes."""
    expected = write(tmp_path / "m.gguf", (5, 40, 64))
    facts = facts_of(tmp_path / "m.gguf")
    assert facts.tensors["m"].shape == expected.shape == (5, 40, 64)
    for memory, kind in ((1 << 30, DenseWeight), (0, CodedWeight)):
        loaded = load_weights(facts, memory, 2, lambda stage, fraction: None)["m"]
        assert isinstance(loaded, kind) and loaded.shape == expected.shape
        assert np.array_equal(loaded.dense(), expected)
        assert np.array_equal(loaded.part(3).rows(np.array([39, 0])), expected[3, [39, 0]])


def test_maps_are_read_only(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf")
    assert not map_weights(facts_of(tmp_path / "m.gguf"))["m"].codes.flags.writeable


@pytest.mark.parametrize("memory", [1 << 40, 0], ids=["fp32", "codes"])
def test_weights_seen_through_a_view_are_in_memory_once(memory: int, tmp_path: Path) -> None:
    """Every matrix of GPT-2's checkpoints is stored transposed: gathered a piece at a time, never whole beside the result."""
    width = 256
    path = tmp_path / "model.safetensors"
    stored = np.random.default_rng(1).normal(size=(width, 64 * width)).astype(np.float32)
    path.write_bytes(stored.tobytes())
    parts = {str(i): slice(16 * width * i, 16 * width * (i + 1)) for i in range(4)}
    tensors = {
        name: TensorFacts(name, "F32", (16 * width, width), path, 4 * part.start, 16 * width * width * 4, "transposed", 4 * 64 * width)
        for name, part in parts.items()
    }
    tracemalloc.start()
    loaded = load_weights(replace(facts_of_none(), tensors=tensors), memory, 1, lambda stage, fraction: None)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert all(np.array_equal(loaded[name].dense(), stored[:, part].T) for name, part in parts.items())
    assert peak < 1.8 * stored.nbytes
