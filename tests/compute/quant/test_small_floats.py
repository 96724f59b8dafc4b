"""NVFP4, MXFP4, fp8 of compressed-tensors, NVFP4 and fp8 of ModelOpt: weights are the libraries' formulas', logits those of transformers.

What has scales of activations, made ahead, is read by its weights alone."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import VOCAB, Recipe, logits_of, make_model
from native import NativeDriver
from safetensors.torch import load_file, save_file
from small_floats import CONFIGS, WRITERS, compressed_config, modelopt_config, modelopt_weights, nvfp4_weights, write_small_floats
from tiny import Driver, log_softmax
from typer.testing import CliRunner

from ridgeline.cli.main import make_app
from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.packing import PackedWeight, pack_weights, widened
from ridgeline.compute.load.check import check_weights
from ridgeline.compute.load.weights import load_weights, map_weights
from ridgeline.compute.quant.scaled import Nvfp4Weight
from ridgeline.compute.runtime.worker import build
from ridgeline.config.groups import EngineConfig
from ridgeline.errors import ModelFormatError
from ridgeline.facts.headers.quantisation import read_quantisation
from ridgeline.facts.headers.read import describe_files, read_model_facts

SIZES = {"hidden_size": 128, "num_hidden_layers": 2, "head_dim": 32}
RECIPES = {
    "dense": Recipe("LlamaConfig", {**SIZES, "intermediate_size": 192}),
    "experts": Recipe("Qwen3MoeConfig", {**SIZES, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}),
}
PROMPT = np.random.default_rng(4).integers(3, VOCAB, 24).tolist()
KINDS = {"nvfp4": "NVFP4", "mxfp4": "MXFP4", "modelopt nvfp4": "NVFP4", "modelopt fp8": "FP8", "static fp8": "FP8"}


def put(model: Any, module: str, dense: torch.Tensor) -> None:
    """A matrix, or that of one expert in transformers' fused tensors."""
    with torch.no_grad():
        if ".experts." not in module:
            model.get_submodule(module).weight.copy_(dense)
            return
        *_, layer, _, _, expert, which = module.split(".")
        own, rows = model.model.layers[int(layer)].mlp.experts, slice(64) if which == "gate_proj" else slice(64, 128)
        (own.down_proj[int(expert)] if which == "down_proj" else own.gate_up_proj[int(expert)][rows]).copy_(dense)


def write(directory: Path, model: str, name: str) -> Any:
    """The model of transformers with the weights that the files stand for."""
    made = make_model(RECIPES[model])
    write_small_floats(directory, made, name, put)
    return made


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("model", RECIPES)
def test_weights_and_logits(model: str, name: str, tmp_path: Path) -> None:
    made = write(tmp_path, model, name)
    facts = read_model_facts(tmp_path)
    assert check_weights(facts, 1) == ()
    assert bool(facts.activation_scales) == (name != "mxfp4")
    expected = dict(made.named_parameters())
    for i, (theirs, ours) in enumerate((("self_attn.q_proj", "attn_q"), ("self_attn.o_proj", "attn_output")) * 2):
        dense = map_weights(facts)[f"blk.{i // 2}.{ours}.weight"].dense()
        assert np.array_equal(dense, expected[f"model.layers.{i // 2}.{theirs}.weight"].detach().numpy())
    rich, poor = (load_weights(facts, memory, 2, lambda stage, fraction: None) for memory in (1 << 40, 0))
    logits = Driver(facts, poor).step((0, PROMPT))
    assert np.array_equal(logits, Driver(facts, rich).step((0, PROMPT)))
    assert np.abs(log_softmax(logits) - log_softmax(logits_of(made, PROMPT))).max() < 1e-4


@pytest.mark.skipif(ext.lost() is not None, reason="the native extension is not built")
@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("model", RECIPES)
def test_the_native_runner_keeps_their_bytes(model: str, name: str, tmp_path: Path) -> None:
    """Plans count what loading measures, but for what fills up a matrix's last rows: of these the router alone has such."""
    made = write(tmp_path, model, name)
    facts = read_model_facts(tmp_path)
    packed = pack_weights(facts, 2, lambda stage, fraction: None)
    matrices = {key: weight for key, weight in packed.items() if isinstance(weight, PackedWeight) and key.startswith("blk.")}
    assert {weight.kind for key, weight in matrices.items() if "_inp." not in key} == {KINDS[name]} and not widened(facts, packed)
    for stated in (facts, describe_files(tmp_path)):
        for of in ("attention", "experts") if model == "experts" else ("attention", "ffn"):
            parts = {"attention": "attn_", "experts": "_exps.", "ffn": "ffn_"}[of]
            mine = [weight.nbytes for key, weight in matrices.items() if parts in key and ("_exps." in key) == (of == "experts")]
            assert stated.packed[of] == sum(mine), of
    driver = NativeDriver(facts, packed, kv_dtype="f32", tokens=64)  # type: ignore[arg-type]
    ours, theirs = log_softmax(driver.step((0, PROMPT))), log_softmax(logits_of(made, PROMPT))
    assert np.abs(ours - theirs).max() < (0.2 if name == "mxfp4" else 1e-4)
    driver.runner.close()


def test_scales_of_activations_are_named(tmp_path: Path) -> None:
    """By the start, and by `config explain`."""
    write(tmp_path, "dense", "static fp8")
    limits = {"max_model_len": 64, "max_num_seqs": 1, "kv_cache_memory_bytes": 4 << 20, "runner": "numpy"}
    executor = build(EngineConfig(str(tmp_path), **limits), lambda stage, fraction: None)
    (decided,) = [each for each in executor.decisions if each.name == "activation_scales"]
    executor.close()
    assert (decided.value, decided.origin) == (14, "model") and "not used" in decided.reason
    told = CliRunner().invoke(make_app(), ["config", "explain", str(tmp_path)])
    assert told.exit_code == 0 and f"note: {decided.reason}" in told.output


@pytest.mark.parametrize("divides", [True, False])
def test_every_code_under_every_scale(divides: bool) -> None:
    """Signs of zeros apart, which no answer depends on."""
    codes = torch.arange(256, dtype=torch.uint8).repeat(254, 1)
    scales = torch.cat([torch.arange(127), torch.arange(128, 255)]).to(torch.uint8)[:, None].repeat(1, 32).view(torch.float8_e4m3fn)
    for seed in range(20):
        whole = torch.exp(8 * torch.randn(1, generator=torch.Generator().manual_seed(seed)))
        expected = (nvfp4_weights if divides else modelopt_weights)(codes, scales, whole).numpy()
        weight = Nvfp4Weight(codes.numpy(), scales.view(torch.uint8).numpy(), whole.numpy()[0], divides)
        assert np.array_equal(weight.dense(), expected)
        out = np.empty((9, 512), np.float32)
        assert weight.write(slice(4, 13), out) == 9 * 256 and np.array_equal(out, expected[4:13])


def test_the_file_beside_config_json(tmp_path: Path) -> None:
    """ModelOpt's older exports say how weights are stored in hf_quant_config.json alone."""
    write(tmp_path, "dense", "modelopt nvfp4")
    config = json.loads((tmp_path / "config.json").read_text())
    del config["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelFormatError):
        read_model_facts(tmp_path)
    stated = {"producer": {"name": "modelopt", "version": "0.29"}, "quantization": modelopt_config("NVFP4", group_size=16)}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(stated))
    facts = read_model_facts(tmp_path)
    assert facts.tensors["blk.0.attn_q.weight"].kind == "NVFP4" and facts.dtype == describe_files(tmp_path).dtype == "nvfp4"


REFUSED: dict[str, dict[str, Any]] = {
    "quant_algo is 'NVFP4_AWQ', which is not supported; 'FP8', 'NVFP4' is": {"quant_method": "modelopt"} | modelopt_config("NVFP4_AWQ"),
    "quant_algo is None": {"quant_method": "modelopt"},
    "group_size is 32": {"quant_method": "modelopt"} | modelopt_config("NVFP4", group_size=32),
    "num_bits of nvfp4-pack-quantized is 8": compressed_config("nvfp4-pack-quantized", 16, num_bits=8),
    "group_size of mxfp4-pack-quantized is 16": compressed_config("mxfp4-pack-quantized", 16),
    "symmetric of nvfp4-pack-quantized is False": compressed_config("nvfp4-pack-quantized", 16, symmetric=False),
    "format of floats is 'mxfp8-quantized'": compressed_config("mxfp8-quantized", 32),
}


@pytest.mark.parametrize("words", REFUSED)
def test_configs_are_refused_by_name(words: str) -> None:
    with pytest.raises(ModelFormatError, match=words):
        read_quantisation({"quantization_config": REFUSED[words]})


def read_all(path: Path) -> None:
    facts = read_model_facts(path)
    check_weights(facts, 1)
    map_weights(facts)


Q = "model.layers.0.self_attn.q_proj."
EIGHT = torch.zeros(128, 8).to(torch.float8_e4m3fn)
DAMAGED: dict[str, tuple[str, Callable[[dict[str, torch.Tensor]], object]]] = {
    "weight_scale_2' is missing": ("modelopt nvfp4", lambda t: t.pop(Q + "weight_scale_2")),
    "weight_global_scale is 0.0, a positive number": ("nvfp4", lambda t: t[Q + "weight_global_scale"].zero_()),
    " 1 scales that are not finite": ("nvfp4", lambda t: t[Q + "weight_scale"].view(torch.uint8)[3, 2].fill_(127)),
    "weight_scale' is F8_E4M3 of shape .128, 8., U8 of shape .128, 4.": ("mxfp4", lambda t: t.update({Q + "weight_scale": EIGHT})),
    "k_norm_scale' among them, are not part": ("modelopt fp8", lambda t: t.update({Q + "k_norm_scale": torch.ones(1)})),
}


@pytest.mark.parametrize("words", DAMAGED)
def test_damage_is_refused(words: str, tmp_path: Path) -> None:
    name, change = DAMAGED[words]
    write(tmp_path, "dense", name)
    tensors = load_file(tmp_path / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelFormatError, match=words):
        read_all(tmp_path)


def test_scales_that_no_kernel_takes_stay_floats(tmp_path: Path) -> None:
    """A scale below zero, and a factor without an inverse in fp32."""
    codes, scales = np.zeros((16, 16), np.uint8), np.full((16, 2), 0x38, np.uint8)
    assert Nvfp4Weight(codes, scales, np.float32(3), True).kind == "NVFP4"
    assert Nvfp4Weight(codes, scales, np.float32(1e30), True).kind == Nvfp4Weight(codes, scales | 0x80, np.float32(3), True).kind == "F32"


def test_kinds_and_configs_name_the_same() -> None:
    found = {name: read_quantisation({"quantization_config": config}) for name, config in CONFIGS.items()}
    assert {name: each.kind for name, each in found.items() if each is not None} == KINDS
