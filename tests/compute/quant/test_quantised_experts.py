"""Checkpoints whose experts are quantised one by one, as published ones are: the same answers as transformers with those weights."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import VOCAB, Recipe, logits_of, make_model
from native import NativeDriver
from quantised import SCHEMES, quantise, tensors_of
from safetensors.torch import load_file, save_file
from tiny import Driver, log_softmax

from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.packing import PackedWeight, pack_weights, widened
from ridgeline.compute.load.check import check_weights
from ridgeline.compute.load.weights import load_weights
from ridgeline.compute.quant.weight import StackedWeight
from ridgeline.errors import ModelFormatError
from ridgeline.facts.headers.read import describe_files, read_model_facts

RECIPE = Recipe(
    "Qwen3MoeConfig",
    {"hidden_size": 128, "num_hidden_layers": 2, "head_dim": 32, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64},
)
PROMPT = np.random.default_rng(4).integers(3, VOCAB, 24).tolist()
KINDS = {
    "gptq-4-64-asymmetric-v1": "INT4",
    "awq-4-32": "INT4",
    "int8-w8a16-asymmetric": "INT8",
    "packed-4-32-asymmetric": "INT4",
    "fp8": "FP8",
}
"""Scheme → what the native runner multiplies with."""


def write(directory: Path, name: str) -> Any:
    """The model of transformers with the weights that the files stand for."""
    made = make_model(RECIPE)
    made.save_pretrained(directory)
    tensors = load_file(directory / "model.safetensors")
    for seed, key in enumerate(key for key in list(tensors) if ".experts." in key):
        module, values = key.removesuffix(".weight"), tensors.pop(key)
        if name == "fp8":
            scale = torch.full((1, 1), 0.01 + 0.001 * (seed % 3))
            codes = values.div(scale).to(torch.float8_e4m3fn)
            parts, dense = {"weight": codes, "weight_scale_inv": scale}, codes.float() * scale
        else:
            matrix = quantise(values.numpy(), SCHEMES[name], seed)
            parts = {last: torch.from_numpy(np.ascontiguousarray(part)) for last, part in tensors_of(matrix, SCHEMES[name]).items()}
            parts = {
                last: part.to(getattr(torch, SCHEMES[name].scales)) if last in ("scales", "weight_scale") else part
                for last, part in parts.items()
            }
            dense = torch.from_numpy(matrix.dense())
        tensors |= {f"{module}.{last}": part for last, part in parts.items()}
        put(made, module, dense)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = fp8 if name == "fp8" else SCHEMES[name].config()
    (directory / "config.json").write_text(json.dumps(config))
    return made


def put(model: Any, module: str, dense: torch.Tensor) -> None:
    """The matrix of one expert in transformers' fused tensors."""
    *_, layer, _, _, expert, which = module.split(".")
    own, rows = model.model.layers[int(layer)].mlp.experts, slice(64) if which == "gate_proj" else slice(64, 128)
    with torch.no_grad():
        (own.down_proj[int(expert)] if which == "down_proj" else own.gate_up_proj[int(expert)][rows]).copy_(dense)


def routed(weights: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    return ((name, weight) for name, weight in weights.items() if "_exps" in name)


@pytest.mark.parametrize("name", ["gptq-4-32-act-order", *KINDS])
def test_experts_equal_transformers(name: str, tmp_path: Path) -> None:
    made = write(tmp_path, name)
    facts = read_model_facts(tmp_path)
    assert check_weights(facts, 1) == ()
    theirs = log_softmax(logits_of(made, PROMPT))
    rich, poor = (load_weights(facts, memory, 2, lambda stage, fraction: None) for memory in (1 << 40, 0))
    assert all(isinstance(weight, StackedWeight) and weight.nbytes < rich[key].nbytes / 2 for key, weight in routed(poor))
    logits = Driver(facts, poor).step((0, PROMPT))
    assert np.array_equal(logits, Driver(facts, rich).step((0, PROMPT)))
    assert np.abs(log_softmax(logits) - theirs).max() < 1e-4
    planned = describe_files(tmp_path)
    assert planned.stored["experts"] == sum(tensor.bytes for key, tensor in facts.tensors.items() if "_exps" in key)


@pytest.mark.skipif(ext.lost() is not None, reason="the native extension is not built")
@pytest.mark.parametrize("name", ["gptq-4-32-act-order", *KINDS])
def test_the_native_runner_multiplies_codes(name: str, tmp_path: Path) -> None:
    """An order for each expert is nothing that a list could express: such matrices become fp32, and the server says so."""
    made = write(tmp_path, name)
    facts = read_model_facts(tmp_path)
    packed = pack_weights(facts, 2, lambda stage, fraction: None)
    found = {weight.kind for _, weight in routed(packed) if isinstance(weight, PackedWeight)}
    assert found == {KINDS.get(name, "F32")} and bool(widened(facts, packed)) == (name not in KINDS)
    for stated in (facts, describe_files(tmp_path)):
        assert stated.packed["experts"] == sum(weight.nbytes for _, weight in routed(packed))
    for key, weight in routed(packed):
        if name in KINDS:
            parts = load_weights(facts, 0, 1, lambda stage, fraction: None)[key].parts  # type: ignore[attr-defined]
            assert np.array_equal(weight.unpack(), np.concatenate([part.records(slice(0, None)) for part in parts]))
    driver = NativeDriver(facts, packed, kv_dtype="f32", tokens=64)  # type: ignore[arg-type]
    assert np.abs(log_softmax(driver.step((0, PROMPT))) - log_softmax(logits_of(made, PROMPT))).max() < 0.2
    driver.runner.close()


@pytest.mark.parametrize(
    ("key", "words"), [("experts.2.up_proj", "missing for expert 2"), ("experts.3.up_proj", r"shape \(3, 64, 128\), the header says")]
)
def test_experts_that_are_missing(key: str, words: str, tmp_path: Path) -> None:
    make_model(RECIPE).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors[f"model.layers.1.mlp.{key}.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelFormatError, match=words):
        read_model_facts(tmp_path)
