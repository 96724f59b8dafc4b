"""Qwen3-Next's files: names of parts of a recurrent layer, older GGUF files, fp8, the layer that predicts, what is refused by name.

What all architectures are held to is in `test_architectures.py`, drafts of that layer in `tests/compute/runtime/test_draft_heads.py`.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import convert
import numpy as np
import pytest
import torch
from checkpoints import VOCAB, Checkpoint, Recipe, logits_of, make_model
from heads import add_predictor
from native import NativeDriver
from safetensors.torch import load_file, save_file
from tiny import Driver, dense, log_softmax
from transformers.models.qwen3_next import modeling_qwen3_next

from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.packing import pack_weights
from ridgeline.compute.load.check import check_weights
from ridgeline.compute.load.weights import map_weights
from ridgeline.errors import ConfigError, ModelFormatError
from ridgeline.facts.headers.predictor import find_predictor, read_predictor
from ridgeline.facts.headers.read import describe_files, read_model_facts
from ridgeline.facts.model import StateLayers

PROMPT = np.random.default_rng(4).integers(3, VOCAB, 24).tolist()
STATE = StateLayers(3, 4 * 32 * 32, 3 * (2 * 2 * 32 + 4 * 32), 2, 32, 4, 32, 4)
BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic", "fmt": "e4m3"}
FLOATS = ("embed_tokens", "lm_head", "conv1d", "in_proj_ba", "mlp.gate.", "shared_expert_gate", "mtp.fc")
"""Parts of the names of matrices that published fp8 checkpoints keep as floats."""


def close(ours: np.ndarray, theirs: np.ndarray) -> bool:
    return float(np.abs(log_softmax(ours) - log_softmax(theirs)).max()) < 1e-4


@pytest.mark.parametrize("form", ["safetensors", "F32"])
def test_layers_and_their_states(stored, form: str) -> None:
    facts = read_model_facts(stored("qwen3next", form))
    assert facts.layer_kinds == ("none", "none", "none", "full") and facts.kv_layers == 1
    assert facts.state == STATE and facts.state.channels == 256 and facts.state_bytes == 3 * 4 * (4096 + 768)
    assert facts.rope["full"].dim == 4
    assert describe_files(stored("qwen3next", form)).state == STATE


def test_parts_of_a_recurrent_layer(checkpoint, stored) -> None:
    """Straight from transformers' module, whichever file they come from."""
    layer = checkpoint("qwen3next").model.model.layers[1]
    own, wanted = layer.linear_attn, {"attn_norm.weight": layer.input_layernorm.weight + 1}
    wanted |= {"post_attention_norm.weight": layer.post_attention_layernorm.weight + 1, "ssm_norm.weight": own.norm.weight}
    wanted |= {"ssm_a.weight": -own.A_log.exp(), "ssm_dt.bias": own.dt_bias, "ssm_conv1d.weight": own.conv1d.weight[:, 0]}
    wanted |= {"ssm_ba.weight": own.in_proj_ba.weight, "ssm_out.weight": own.out_proj.weight}
    for form in ("safetensors", "F32"):
        found = map_weights(read_model_facts(stored("qwen3next", form)))
        for name, values in wanted.items():
            given = found[f"blk.1.{name}"].dense()
            assert given.shape == tuple(values.shape) and np.allclose(given, values.detach().numpy(), rtol=1e-6, atol=0), (form, name)


def test_a_long_prompt(checkpoint, stored, monkeypatch: pytest.MonkeyPatch) -> None:
    """By transformers' rule token after token: its chunks of 64 are further from the same in double precision than either of both."""
    made, facts = checkpoint("qwen3next"), read_model_facts(stored("qwen3next", "safetensors"))
    ids = np.random.default_rng(6).integers(0, VOCAB, 200).tolist()
    monkeypatch.setattr(modeling_qwen3_next, "torch_chunk_gated_delta_rule", modeling_qwen3_next.torch_recurrent_gated_delta_rule)
    assert close(Driver(facts, dense(facts)).feed(0, ids, 67), logits_of(made.model, ids))


def test_older_files_have_one_matrix(checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, later = checkpoint("qwen3next"), convert._recurrent

    def whole(config: Any, key: str, values: np.ndarray) -> list[tuple[str, np.ndarray]]:
        return [(key, values)] if key.endswith("in_proj_qkvz.weight") else later(config, key, values)

    monkeypatch.setattr(convert, "_recurrent", whole)
    facts = read_model_facts(convert.write_gguf(tmp_path / "older.gguf", made.model, "qwen3next", "F32"))
    assert "blk.0.ssm_in.weight" in facts.tensors and "blk.0.attn_gate.weight" not in facts.tensors
    ids = made.prompts()[0]
    assert close(Driver(facts, dense(facts)).step((0, ids)), made.logits(ids))


def store_in_fp8(directory: Path, model: Any, width: int) -> None:
    """Matrices of a checkpoint in blocks of fp8; the model, whose experts have this width, gets the weights that result."""
    tensors = load_file(directory / "model.safetensors")
    for key in [key for key, value in tensors.items() if value.dim() == 2 and not any(part in key for part in FLOATS)]:
        codes, scales, values = in_blocks(tensors[key])
        tensors |= {key: codes, f"{key}_scale_inv": scales}
        if not key.startswith("mtp."):
            put(model, key.removesuffix(".weight"), values, width)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"quantization_config": BLOCKS}))


def in_blocks(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(codes, scales of blocks, what they stand for). DeepSeek-AI 2024, section 3.3."""
    rows, columns = (-(-size // 128) for size in values.shape)
    scales = torch.empty(rows, columns)
    codes, made = torch.empty(values.shape, dtype=torch.float8_e4m3fn), torch.empty(values.shape)
    for row in range(rows):
        for column in range(columns):
            place = slice(128 * row, 128 * row + 128), slice(128 * column, 128 * column + 128)
            scales[row, column] = values[place].abs().max() / 448
            codes[place] = (values[place] / scales[row, column]).to(torch.float8_e4m3fn)
            made[place] = codes[place].float() * scales[row, column]
    return codes, scales, made


def put(model: Any, module: str, values: torch.Tensor, width: int) -> None:
    """A matrix, or that of one expert of `width` in transformers' fused tensors."""
    with torch.no_grad():
        if ".experts." not in module:
            model.get_submodule(module).weight.copy_(values)
            return
        stem, number, which = module.rsplit(".", 2)
        own = model.get_submodule(stem)
        whole = own.down_proj[int(number)] if which == "down_proj" else own.gate_up_proj[int(number)]
        rows = {"down_proj": slice(None), "gate_proj": slice(width), "up_proj": slice(width, None)}[which]
        whole[rows].copy_(values)


def test_fp8_in_blocks(tmp_path: Path) -> None:
    """Key heads of 176 rows, so that blocks of scales end inside them; the layer that predicts too, but for what joins its inputs."""
    settings = {"hidden_size": 256, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 160}
    heads = {"linear_num_key_heads": 2, "linear_key_head_dim": 24, "linear_num_value_heads": 4, "linear_value_head_dim": 32}
    sizes = {**settings, **heads, "shared_expert_intermediate_size": 64, "head_dim": 32, "num_hidden_layers": 4}
    recipe = Recipe("Qwen3NextConfig", sizes)
    made, path = make_model(recipe), tmp_path / "fp8"
    made.save_pretrained(tmp_path / "plain")
    add_predictor(Checkpoint("fp8", recipe, made, tmp_path / "plain"), path)
    store_in_fp8(path, made, settings["moe_intermediate_size"])
    facts = read_model_facts(path)
    assert check_weights(facts, 1) == ()
    kinds = {name: facts.tensors[f"blk.0.{name}.weight"].kind for name in ("ssm_in", "ssm_out", "ssm_ba", "ssm_conv1d", "ffn_up_exps")}
    assert kinds == {"ssm_in": "FP8", "ssm_out": "FP8", "ssm_ba": "F32", "ssm_conv1d": "F32", "ffn_up_exps": "FP8"}
    drafting = read_predictor(path, facts).facts.tensors
    kinds = {name: drafting[f"blk.0.{name}.weight"].kind for name in ("eh_proj", "attn_q", "ffn_gate_exps")}
    assert kinds == {"eh_proj": "F32", "attn_q": "FP8", "ffn_gate_exps": "FP8"}
    theirs = logits_of(made, PROMPT)
    assert close(Driver(facts, map_weights(facts)).step((0, PROMPT)), theirs)
    if ext.lost() is None:
        weights = pack_weights(facts, 1, lambda stage, fraction: None)
        assert close(NativeDriver(facts, weights, kv_dtype="f32", tokens=64).step((0, PROMPT)), theirs)  # type: ignore[arg-type]


@pytest.mark.skipif(ext.lost() is not None, reason="the native extension is not built")
@pytest.mark.parametrize("name", ["qwen3next", "qwen3next-others"])
def test_selected_positions_alone_have_the_bits_of_all(checkpoint, name: str) -> None:
    """Behind the last layer's attention, and with a recurrence there."""
    facts = read_model_facts(checkpoint(name).directory)
    driver = NativeDriver(facts, pack_weights(facts, 1, lambda stage, fraction: None), threads=2, kv_dtype="f32", tokens=64)  # type: ignore[arg-type]
    for chunk in (PROMPT, [5], [6, 7, 8]):
        whole = driver.step((0, chunk), (1, chunk[:1])).copy()
        last = len(chunk) - 1
        assert np.array_equal(driver.step((2, chunk), (3, chunk[:1]), select=[last, last + 1]), whole[-2:])


@pytest.mark.parametrize("form", ["safetensors", "F32"])
def test_the_layer_that_predicts(checkpoint, stored, tmp_path: Path, form: str) -> None:
    path = tmp_path / ("model" if form == "safetensors" else "model.gguf")
    add_predictor(checkpoint("qwen3next"), path, None if form == "safetensors" else "qwen3next")
    target, plain = read_model_facts(path), read_model_facts(stored("qwen3next", form))
    assert target.tensors.keys() == plain.tensors.keys()
    assert target.stored == plain.stored == describe_files(path).stored
    found = read_predictor(path, target).facts
    assert (found.layers, found.layer_kinds, found.state) == (1, ("full",), None)
    names = {name.removeprefix("blk.0.") for name in found.tensors}
    assert {"enorm.weight", "hnorm.weight", "eh_proj.weight", "next_norm.weight", "attn_q.weight", "ffn_up_exps.weight"} < names
    assert found.tensors["blk.0.attn_q.weight"].shape == (2 * 4 * 16, 64)


def test_further_layers_that_predict_are_left_out(checkpoint, tmp_path: Path) -> None:
    add_predictor(checkpoint("qwen3next"), tmp_path / "model")
    first = find_predictor(tmp_path / "model", read_model_facts(tmp_path / "model"))
    tensors = load_file(tmp_path / "model/model.safetensors")
    more = {name.replace("layers.0.", "layers.1."): value.clone() for name, value in tensors.items() if name.startswith("mtp.layers.0.")}
    save_file(tensors | more, tmp_path / "model/model.safetensors", metadata={"format": "pt"})
    found = find_predictor(tmp_path / "model", read_model_facts(tmp_path / "model"))
    assert first is not None and found is not None and found.facts.tensors.keys() == first.facts.tensors.keys()


def test_a_checkpoint_without_such_a_layer(checkpoint) -> None:
    directory = checkpoint("qwen3next").directory
    facts = read_model_facts(directory)
    assert find_predictor(directory, facts) is None
    with pytest.raises(ConfigError, match=r"mtp\.fc\.weight is not in the files"):
        read_predictor(directory, facts)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"linear_num_key_heads": 3}, "4 value heads of recurrent layers are not a multiple of 3 key heads"),
        ({"layer_types": ["linear_attention"] * 4}, "all layers are recurrent"),
        ({"use_sliding_window": True}, "use_sliding_window is True, which is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"linear_conv_kernel_dim": 5}, "'model.layers.0.linear_attn.conv1d.weight' has shape"),
        ({"layer_types": ["full_attention"] * 4}, "attn_q.weight.* is missing|not part of a supported qwen3next"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(checkpoint, tmp_path: Path, changes: dict[str, object], words: str) -> None:
    shutil.copytree(checkpoint("qwen3next").directory, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.gguf"))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(ModelFormatError, match=words):
        read_model_facts(tmp_path)


def test_logarithms_of_zero_are_no_damage(checkpoint, tmp_path: Path) -> None:
    """A decay of one is stored as 0."""
    shutil.copytree(checkpoint("qwen3next").directory, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.gguf"))
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.0.linear_attn.A_log"].zero_()
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    facts = read_model_facts(tmp_path)
    assert check_weights(facts, 1) == ()
    assert (map_weights(facts)["blk.0.ssm_a.weight"].dense() == -1).all()
    plain = {name: replace(tensor, transform="") for name, tensor in facts.tensors.items()}
    assert check_weights(replace(facts, tensors=plain), 1) != ()
