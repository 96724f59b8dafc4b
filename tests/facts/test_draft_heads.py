"""Heads that draft for another model: told from models of their own, and refused by name where they are not read or not this model's."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from heads import write_random
from safetensors.numpy import load_file, save_file
from tiny_checkpoints import model, write_gguf

from ridgeline.errors import ConfigError, ModelFormatError
from ridgeline.facts.headers.heads import read_heads
from ridgeline.facts.headers.predictor import read_predictor
from ridgeline.facts.headers.read import describe_model, read_model_facts
from ridgeline.facts.model import ModelFacts


@pytest.fixture(scope="module")
def target() -> ModelFacts:
    return replace(describe_model("llama-3-8b", None), layers=6, hidden=64, vocab=96, tokens=96)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"model_type": "mlp_speculator", "architectures": ["MLPSpeculatorPreTrainedModel"]}, "MLP speculator"),
        ({"model_type": "deepseek_mtp", "architectures": ["DeepSeekMTPModel"]}, "MTP"),
        ({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, None),
        ({"model_type": "qwen3", "architectures": None}, None),
    ],
)
def test_heads_are_refused_by_name(tmp_path: Path, target: ModelFacts, config: dict[str, Any], kind: str | None) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    if kind is None:
        assert read_heads(tmp_path, target) is None
        assert read_heads(tmp_path / "draft.gguf", target) is None
    else:
        with pytest.raises(ConfigError, match=f"has {kind} heads.*a small model") as caught:
            read_heads(tmp_path, target)
        assert caught.value.fix == {"--draft-model": None, "--speculative": "suffix"}


@pytest.mark.parametrize(("kind", "most", "tapped"), [("medusa", 3, ()), ("eagle", 0, ()), ("eagle3", 0, (2, 3, 3))])
def test_kinds_are_told_by_their_files(tmp_path: Path, target: ModelFacts, kind: str, most: int, tapped: tuple[int, ...]) -> None:
    found = read_heads(write_random(kind, tmp_path / "heads", target), target)
    assert found is not None and (found.kind, found.most, found.tapped) == (kind, most, tapped)
    assert found.attends == (kind != "medusa") and (found.offsets is not None) == (kind == "eagle3")


@pytest.mark.parametrize("kind", ["medusa", "eagle", "eagle3"])
def test_heads_of_another_model_are_refused(tmp_path: Path, target: ModelFacts, kind: str) -> None:
    heads = write_random(kind, tmp_path / "heads", target)
    with pytest.raises(ConfigError, match="trained with another model"):
        read_heads(heads, replace(target, hidden=128))


@pytest.mark.parametrize(
    ("kind", "lost"), [("medusa", "1.0.linear.bias"), ("eagle", "layers.0.self_attn.k_proj.weight"), ("eagle3", "norm.weight")]
)
def test_incomplete_heads_are_refused(tmp_path: Path, target: ModelFacts, kind: str, lost: str) -> None:
    heads = write_random(kind, tmp_path / "heads", target)
    tensors = load_file(heads / "model.safetensors")
    del tensors[lost]
    save_file(tensors, heads / "model.safetensors")
    with pytest.raises(ModelFormatError, match="missing"):
        read_heads(heads, target)
    save_file({**tensors, "layers.7.strange.weight": np.zeros((2, 2), np.float32)}, heads / "model.safetensors")
    with pytest.raises(ModelFormatError):
        read_heads(heads, target)


def test_a_checkpoint_without_such_a_layer_is_refused(tmp_path: Path, target: ModelFacts) -> None:
    file = write_gguf(tmp_path / "model.gguf", model("llama"))
    facts = read_model_facts(file)
    with pytest.raises(ConfigError, match=rf"blk.{facts.layers}.nextn.eh_proj.weight is not in the files"):
        read_predictor(file, facts)


@pytest.mark.parametrize(
    ("config", "tapped"),
    [
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, 5]}, (1, 2, 5)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 2, 4]}}, (1, 3, 5)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": []}, "target_hidden_size": 64}, (2, 3, 3)),
    ],
)
def test_eagle3_reads_the_layers_that_it_states(
    tmp_path: Path, target: ModelFacts, config: dict[str, Any], tapped: tuple[int, ...]
) -> None:
    found = read_heads(changed(write_random("eagle3", tmp_path / "heads", target), config), target)
    assert found is not None and found.tapped == tapped and not found.norm_before_residual


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"eagle_aux_hidden_state_layer_ids": [1, 2]}, "three of the target's 6 layers"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, 6]}, "three of the target's 6 layers"),
        ({"eagle_aux_hidden_state_layer_ids": "all"}, "is 'all', three"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 5]}}, "three of the target's 6 layers"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state"),
        ({"target_hidden_size": 128}, "128 numbers, the target's 64"),
    ],
)
def test_eagle3_of_other_layers_is_refused(tmp_path: Path, target: ModelFacts, config: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read_heads(changed(write_random("eagle3", tmp_path / "heads", target), config), target)


@pytest.mark.parametrize(
    ("config", "normed"),
    [
        ({"norm_before_residual": True}, True),
        ({"speculators_model_type": "eagle3"}, True),
        ({"speculators_model_type": "eagle3", "norm_before_residual": False}, False),
    ],
)
def test_the_residual_of_eagle3_is_what_it_states(tmp_path: Path, target: ModelFacts, config: dict[str, Any], normed: bool) -> None:
    found = read_heads(changed(write_random("eagle3", tmp_path / "heads", target), config), target)
    assert found is not None and found.norm_before_residual is normed


def changed(heads: Path, config: dict[str, Any]) -> Path:
    path = heads / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return heads
