"""gpt-oss as it is published: experts of MXFP4, two tensors each, whose gate and up take turns. Against the converter of transformers."""

import copy
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoints import Checkpoint, logits_of
from safetensors.torch import load_file, save_file
from tiny import Driver, dense, log_softmax

from ridgeline.compute.load.check import check_weights
from ridgeline.compute.load.views import gather_rows
from ridgeline.compute.load.weights import each_weight, load_weights, map_weights
from ridgeline.compute.quant.bits import Bytes
from ridgeline.compute.quant.formats import Rows
from ridgeline.compute.quant.weight import CodedWeight, StackedWeight
from ridgeline.compute.runtime.worker import build
from ridgeline.config.groups import EngineConfig
from ridgeline.errors import ModelFormatError
from ridgeline.facts.headers.read import read_model_facts


@pytest.fixture(scope="module")
def packed(checkpoint, tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkpoint, Path]:
    """The tiny gpt-oss with experts of random MXFP4; its model has the values that transformers' converter finds in them."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    shared: Checkpoint = checkpoint("gpt_oss")
    made = replace(shared, model=copy.deepcopy(shared.model))
    directory = tmp_path_factory.mktemp("mxfp4")
    shutil.copytree(made.directory, directory, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.gguf", "*.safetensors*"))
    tensors = {name: tensor for path in made.directory.glob("*.safetensors") for name, tensor in load_file(path).items()}
    random, parameters = np.random.default_rng(3), dict(made.model.named_parameters())
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, inputs, outputs = tensors.pop(name).shape
        blocks = torch.from_numpy(random.integers(0, 256, (experts, outputs, inputs // 32, 16), np.uint8))
        scales = torch.from_numpy(random.integers(122, 126, (experts, outputs, inputs // 32), np.uint8))
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        with torch.no_grad():
            parameters[name].copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
    save_file(tensors, directory / "model.safetensors")
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (directory / "config.json").write_text(json.dumps(config))
    return made, directory


def test_numbers_are_the_converters(packed: tuple[Checkpoint, Path]) -> None:
    made, directory = packed
    facts = read_model_facts(directory)
    weights, parameters = load_weights(facts, 1 << 40, 1, lambda stage, fraction: None), dict(made.model.named_parameters())
    for layer in range(facts.layers):
        both = parameters[f"model.layers.{layer}.mlp.experts.gate_up_proj"].detach().numpy()
        down = parameters[f"model.layers.{layer}.mlp.experts.down_proj"].detach().numpy()
        for name, theirs in (("gate", both[..., ::2]), ("up", both[..., 1::2]), ("down", down)):
            assert np.array_equal(weights[f"blk.{layer}.ffn_{name}_exps.weight"].dense(), theirs.swapaxes(1, 2))
    stacked = map_weights(facts)["blk.0.ffn_up_exps.weight"]
    assert isinstance(stacked, StackedWeight)
    assert all(isinstance(part, CodedWeight) and part.kind == "MXFP4" for part in stacked.parts)


def test_experts_are_gathered_when_their_turn_comes(packed: tuple[Checkpoint, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A model's experts as codes beside the packed ones would not fit into memory."""
    gathered: list[int] = []

    def gather(rows: Rows, count: int, row_bytes: int) -> Bytes:
        gathered.append(count)
        return gather_rows(rows, count, row_bytes)

    monkeypatch.setattr("ridgeline.compute.load.weights.gather_rows", gather)
    facts = read_model_facts(packed[1])
    assert facts.experts is not None
    for name, _ in each_weight(facts):
        assert len(gathered) == (facts.experts.routed if "exps.weight" in name else 0) or "bias" in name
        gathered.clear()


def test_logits_are_transformers(packed: tuple[Checkpoint, Path]) -> None:
    made, directory = packed
    facts = read_model_facts(directory)
    ids = made.prompts()[0]
    ours, theirs = Driver(facts, dense(facts)).step((0, ids)), logits_of(made.model, ids)
    assert np.abs(log_softmax(ours) - log_softmax(theirs)).max() < 1e-4


def test_an_engine_starts(packed: tuple[Checkpoint, Path]) -> None:
    limits = {"max_model_len": 64, "max_num_seqs": 1, "kv_cache_memory_bytes": 4 << 20}
    executor = build(EngineConfig(str(packed[1]), **limits), lambda stage, fraction: None)
    try:
        assert [finding for finding in executor.info.findings if finding.check == "weights"] == []
    finally:
        executor.close()


def test_codes_that_are_lost_are_found(packed: tuple[Checkpoint, Path], tmp_path: Path) -> None:
    shutil.copytree(packed[1], tmp_path, dirs_exist_ok=True)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.1.mlp.experts.down_proj_blocks"].zero_()
    save_file(tensors, tmp_path / "model.safetensors")
    (finding,) = check_weights(read_model_facts(tmp_path), threads=1)
    assert finding.severity == "error" and "'blk.1.ffn_down_exps.weight' holds nothing but zeros" in finding.cause


@pytest.mark.parametrize(("change", "words"), [("lost", "gate_up_proj_scales.* is missing"), ("cut", "gate_up_proj_scales.* was expected")])
def test_incomplete_files_are_refused(packed: tuple[Checkpoint, Path], tmp_path: Path, change: str, words: str) -> None:
    shutil.copytree(packed[1], tmp_path, dirs_exist_ok=True)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.mlp.experts.gate_up_proj_scales"
    scales = tensors.pop(name)
    save_file(tensors if change == "lost" else {**tensors, name: scales[:, :-1].clone()}, tmp_path / "model.safetensors")
    with pytest.raises(ModelFormatError, match=words):
        read_model_facts(tmp_path)
