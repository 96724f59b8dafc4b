"""Unsupported quantised checkpoints are rejected by name; damaged ones are rejected, never misread. Mutants of their headers."""

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import Recipe, make_model
from mutants import MOST_SECONDS, header_bytes, mutate
from quantised import SCHEMES, write_quantised

from ridgeline.compute.load.weights import map_weights
from ridgeline.errors import ModelFormatError, RidgelineError
from ridgeline.facts.headers.quantisation import read_quantisation
from ridgeline.facts.headers.read import read_model_facts

SIZES = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 1, "head_dim": 32}
GPTQ, AWQ, INT8, PACKED = "gptq-4-32-act-order", "awq-4-32", "int8-w8a16-asymmetric", "packed-4-32-asymmetric"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory a scheme, by its name."""
    home = tmp_path_factory.mktemp("quantised")
    for name in (GPTQ, AWQ, INT8, PACKED):
        write_quantised(home / name, make_model(Recipe("LlamaConfig", SIZES)), SCHEMES[name])
    return home


def config(name: str, **changes: Any) -> dict[str, Any]:
    """`quantization_config` of a scheme with other keys."""
    return {"quantization_config": SCHEMES[name].config() | changes}


def scheme(name: str, part: str = "", **changes: Any) -> dict[str, Any]:
    """The same where the group of compressed-tensors, or a part of it, has other keys."""
    group = SCHEMES[name].config()["config_groups"]["group_0"]
    return config(name, config_groups={"g": group | ({part: group[part] | changes} if part else changes)})


CONFIGS: dict[str, dict[str, Any]] = {
    "quantised as 'hqq', which is not supported; gptq, awq, compressed-tensors, fp8, mxfp4, modelopt are": {
        "quantization_config": {"quant_method": "hqq"},
    },
    "quantised as None": {"quantization_config": {}},
    "quantised as ..gptq..,": {"quantization_config": {"quant_method": ["gptq"]}},
    "quantization_config is 4, an object": {"quantization_config": 4},
    "gptq of 3 bits is not supported; 4 and 8 bits are": config(GPTQ, bits=3),
    "gptq of True bits": config(GPTQ, bits=True),
    "gptq of None bits": config(GPTQ, bits=None),
    "groups of 48 weights are not supported; multiples of 32 are": config(GPTQ, group_size=48),
    "groups of 0 weights": config(GPTQ, group_size=0),
    "groups of 2097152 weights": config(GPTQ, group_size=1 << 21),
    "groups of '128' weights": config(GPTQ, group_size="128"),
    "gptq: checkpoint_format is 'marlin', which is not supported; 'gptq', 'gptq_v2' is": config(GPTQ, checkpoint_format="marlin"),
    "gptq: is_marlin_format is True": config(GPTQ, is_marlin_format=True),
    "gptq: pack_dtype is 'int8'": config(GPTQ, pack_dtype="int8"),
    "gptq: dynamic gives modules different widths": config(GPTQ, dynamic={"+:.*down.*": {"bits": 8}}),
    "desc_act is 'yes', true or false": config(GPTQ, desc_act="yes"),
    "awq of 8 bits is not supported; 4 bits are": config(AWQ, bits=8),
    "awq: version is 'gemv', which is not supported; 'gemm' is": config(AWQ, version="GEMV"),
    "awq: zero_point is False": config(AWQ, zero_point=False),
    "transform_config is set": config(INT8, transform_config={"config_groups": {"R1": {}}}),
    "sparsity_config: format is 'sparse-24-bitmask'": config(INT8, sparsity_config={"format": "sparse-24-bitmask"}),
    "quantization_status is 'calibration'": config(INT8, quantization_status="calibration"),
    "config_groups is ..W8A8.": config(INT8, config_groups={"W8A8": ["Linear"]}),
    "config_groups is {}": config(INT8, config_groups={}),
    "2 schemes of weights in one model": config(
        PACKED,
        config_groups={
            str(bits): {"weights": SCHEMES[PACKED].config()["config_groups"]["group_0"]["weights"] | {"num_bits": bits}} for bits in (4, 8)
        },
    ),
    "format is 'float-quantized'": config(INT8, format="float-quantized"),
    "weights is None": scheme(INT8, weights=None),
    "format of floats is 'int-quantized'": scheme(INT8, "weights", type="float"),
    "strategy of weights is 'tensor'": scheme(INT8, "weights", strategy="tensor"),
    "compressed-tensors of 6 bits is not supported; 4 and 8 bits are": scheme(PACKED, "weights", num_bits=6),
    "compressed-tensors of 4 bits is not supported; 8 bits are": scheme(INT8, "weights", num_bits=4),
    "dynamic of input_activations is ..int., 4, False.": scheme(INT8, input_activations={"num_bits": 4, "type": "int", "dynamic": False}),
    "dynamic of input_activations is ..float., 8, True.": scheme(INT8, input_activations={"num_bits": 8, "type": "float", "dynamic": True}),
    "output_activations is": scheme(INT8, output_activations={"num_bits": 8}),
}


@pytest.mark.parametrize("words", CONFIGS)
def test_configs_are_refused_by_name(words: str) -> None:
    with pytest.raises(ModelFormatError, match=words) as raised:
        read_quantisation(CONFIGS[words])
    assert len(str(raised.value)) < 400


def test_keys_of_other_writers() -> None:
    """AutoAWQ's own names; a config of GPTQ from before formats had names; GPTQModel's for AWQ; earlier compressed-tensors."""
    older = config(INT8, quantization_status="frozen", sparsity_config={"format": "dense", "registry": None}, format="naive-quantized")
    assert read_quantisation(older) == read_quantisation(config(INT8))
    kept = read_quantisation({"quantization_config": {"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "version": "GEMM"}})
    assert kept is not None and (kept.bits, kept.group, kept.kind) == (4, 64, "AWQ4")
    kept = read_quantisation({"quantization_config": {"quant_method": "gptq", "bits": 8, "group_size": -1, "desc_act": True}})
    assert kept is not None and (kept.group, kept.zero_offset, kept.kind) == (0, 1, "GPTQ8")
    kept = read_quantisation(
        {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128, "checkpoint_format": "gemm", "zero_point": True}}
    )
    assert kept is not None and read_quantisation({}) is None


def change_tensors(source: Path, target: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    from safetensors.torch import load_file, save_file

    target.mkdir()
    tensors = load_file(source / "model.safetensors")
    change(tensors)
    save_file({key: value.contiguous() for key, value in tensors.items()}, target / "model.safetensors")
    (target / "config.json").write_bytes((source / "config.json").read_bytes())
    return target


Q = "model.layers.0.self_attn.q_proj."
FILES: dict[str, tuple[str, Callable[[dict[str, Any]], object]]] = {
    "q_proj.qzeros' is missing, I32 of shape .4, 16. was": (GPTQ, lambda t: t.pop(Q + "qzeros")),
    "q_proj.scales' is missing, F16 or BF16 or F32 of shape .4, 128.": (AWQ, lambda t: t.pop(Q + "scales")),
    "q_proj.weight_shape' is missing": (PACKED, lambda t: t.pop(Q + "weight_shape")),
    "q_proj.weight_scale' is missing": (INT8, lambda t: t.pop(Q + "weight_scale")),
    "q_proj.qzeros' is I32 of shape .4, 15., I32 of shape .4, 16.": (GPTQ, lambda t: t.update({Q + "qzeros": t[Q + "qzeros"][:, 1:]})),
    "q_proj.scales' is F16 of shape .3, 128.": (AWQ, lambda t: t.update({Q + "scales": t[Q + "scales"][1:]})),
    "q_proj.g_idx' is I32 of shape .127,.": (GPTQ, lambda t: t.update({Q + "g_idx": t[Q + "g_idx"][1:]})),
    "q_proj.g_idx' is F32": (GPTQ, lambda t: t.update({Q + "g_idx": t[Q + "g_idx"].float()})),
    "q_proj.weight_zero_point' is I32 of shape .16, 3.": (
        PACKED,
        lambda t: t.update({Q + "weight_zero_point": t[Q + "weight_zero_point"][:, 1:]}),
    ),
    "q_proj.weight' has shape .120, 128., the header says .128, 128.": (
        GPTQ,
        lambda t: t.update({Q + part: t[Q + part][:, : size * 15] for part, size in (("qweight", 8), ("qzeros", 1), ("scales", 8))}),
    ),
    "has 120 inputs, no whole number of groups of 32": (GPTQ, lambda t: t.update({Q + "qweight": t[Q + "qweight"][1:]})),
    "qweight' has shape .2048,., two dimensions": (GPTQ, lambda t: t.update({Q + "qweight": t[Q + "qweight"].reshape(-1)})),
    "q_proj.qweight' and model.layers.0.self_attn.q_proj.weight; remove one": (
        AWQ,
        lambda t: t.update({Q + "weight": t[Q + "scales"].clone()}),
    ),
    "tensors, 'model.layers.0.self_attn.q_proj.weight_scale' among them, are not part of a supported llama": (
        INT8,
        lambda t: t.update({Q + "weight": t[Q + "weight"].half()}),
    ),
    "q_proj.input_scale' among them, are not part of": (PACKED, lambda t: t.update({Q + "input_scale": t[Q + "weight_scale"].clone()})),
}


@pytest.mark.parametrize("words", FILES)
def test_files_that_do_not_fit_are_refused(words: str, home: Path, tmp_path: Path) -> None:
    name, change = FILES[words]
    changed = change_tensors(home / name, tmp_path / "changed", change)
    with pytest.raises(ModelFormatError, match=words):
        read_model_facts(changed)


def test_scales_of_activations_that_were_made_ahead_are_left_out(home: Path, tmp_path: Path) -> None:
    import torch

    own = {Q + "input_scale": torch.tensor([0.02]), Q + "input_zero_point": torch.tensor([3], dtype=torch.int8)}
    facts = read_model_facts(change_tensors(home / INT8, tmp_path / "changed", lambda t: t.update(own)))
    plain = read_model_facts(home / INT8)
    assert facts.activation_scales == 1 and facts.tensors.keys() == plain.tensors.keys()
    ours, theirs = (map_weights(each)["blk.0.attn_q.weight"] for each in (facts, plain))
    assert np.array_equal(ours.dense(), theirs.dense())
    assert read_quantisation(scheme(INT8, input_activations={"num_bits": 8, "dynamic": False})) == read_quantisation(config(INT8))


def test_quantised_files_without_their_config(home: Path, tmp_path: Path) -> None:
    changed = change_tensors(home / GPTQ, tmp_path / "changed", lambda tensors: None)
    stated = json.loads((changed / "config.json").read_text())
    del stated["quantization_config"]
    (changed / "config.json").write_text(json.dumps(stated))
    with pytest.raises(ModelFormatError, match=r"7 quantised matrices, '.*qweight' among them, but config.json has no quantization_config"):
        read_model_facts(changed)


DATA: dict[str, tuple[str, Callable[[dict[str, Any]], object]]] = {
    r"q_proj.g_idx does not give 4 groups 32 inputs each": (GPTQ, lambda t: t[Q + "g_idx"].fill_(0)),
    r"q_proj.g_idx does not give 4 groups": (GPTQ, lambda t: t[Q + "g_idx"][:1].fill_(-2)),
    r"q_proj.g_idx does not give": (GPTQ, lambda t: t[Q + "g_idx"][5:6].fill_(1 << 30)),
    r"weight_shape says \[128, 127\], the codes are \[128, 128\]": (PACKED, lambda t: t[Q + "weight_shape"][1:].fill_(127)),
    r"weight_zero_point holds zeros beyond 4 bits": (
        PACKED,
        lambda t: t.update({Q + "weight_zero_point": t[Q + "weight_scale"].clamp(8, 8).char()}),
    ),
}


@pytest.mark.parametrize("words", DATA)
def test_data_that_do_not_fit_are_refused_at_load(words: str, home: Path, tmp_path: Path) -> None:
    name, change = DATA[words]
    facts = read_model_facts(change_tensors(home / name, tmp_path / "changed", change))
    with pytest.raises(ModelFormatError, match=words):
        map_weights(facts)


def test_biases_of_zeros(home: Path, tmp_path: Path) -> None:
    """AutoGPTQ wrote them for every module; without a place in the architecture they may be nothing but zeros."""
    import torch

    plain = read_model_facts(home / GPTQ)
    zeros = {Q + "bias": torch.zeros(128, dtype=torch.float16)}
    facts = read_model_facts(change_tensors(home / GPTQ, tmp_path / "zeros", lambda t: t.update(zeros)))
    assert facts.tensors.keys() == plain.tensors.keys()
    for words, bias in (("and it is not zero", torch.eye(1, 128)[0].half()), (r"has shape \(127,\)", torch.zeros(127))):
        changed = change_tensors(home / GPTQ, tmp_path / str(len(bias)), lambda t, bias=bias: t.update({Q + "bias": bias}))
        with pytest.raises(ModelFormatError, match=words):
            read_model_facts(changed)


def test_an_order_that_was_never_set_is_none(home: Path, tmp_path: Path) -> None:
    facts = read_model_facts(change_tensors(home / GPTQ, tmp_path / "changed", lambda t: t[Q + "g_idx"].fill_(-1)))
    assert map_weights(facts)["blk.0.attn_q.weight"].order is None  # type: ignore[attr-defined]


def test_unpacked_zeros_of_packed_weights(home: Path, tmp_path: Path) -> None:
    """int8 [outputs, groups], as some writers leave them."""

    def unpack(tensors: dict[str, Any]) -> None:
        import torch

        scales, zeros = tensors[Q + "weight_scale"], tensors[Q + "weight_zero_point"].numpy().view(np.uint32)
        fields = [(zeros[n // 8] >> (4 * (n % 8))) & 15 for n in range(len(scales))]
        tensors[Q + "weight_zero_point"] = torch.from_numpy((np.stack(fields).astype(int) - 8).astype(np.int8))

    changed = change_tensors(home / PACKED, tmp_path / "changed", unpack)
    ours, theirs = (map_weights(read_model_facts(path))["blk.0.attn_q.weight"] for path in (changed, home / PACKED))
    assert np.array_equal(ours.dense(), theirs.dense())


def mutants(home: Path, tmp_path: Path, name: str, file: str, count: int) -> int:
    """Refusals among mutants of one file; what is not refused is loaded too. Never another exception, never slow."""
    path = tmp_path / name
    path.mkdir()
    for each in (home / name).iterdir():
        (path / each.name).write_bytes(each.read_bytes())
    whole, rng, slowest = (path / file).read_bytes(), random.Random(7), 0.0
    refusals: list[str] = []
    for _ in range(count):
        (path / file).write_bytes(mutate(rng, whole, header_bytes(whole) if file.endswith("s") else len(whole)))
        began = time.process_time()
        try:
            facts = read_model_facts(path)
            slowest = max(slowest, time.process_time() - began)
            for weight in map_weights(facts).values():
                weight.dense()
        except RidgelineError as error:
            refusals.append(str(error))
    assert slowest < MOST_SECONDS and all(20 < len(text) < 1_000 for text in refusals)
    return len(refusals)


@pytest.mark.parametrize("name", [GPTQ, AWQ, INT8, PACKED])
def test_mutants(name: str, home: Path, tmp_path: Path) -> None:
    assert 150 < mutants(home, tmp_path, name, "model.safetensors", 250) < 250


@pytest.mark.parametrize("name", [GPTQ, PACKED])
def test_mutants_of_the_config(name: str, home: Path, tmp_path: Path) -> None:
    assert 60 < mutants(home, tmp_path, name, "config.json", 150) < 150


@pytest.mark.night
@pytest.mark.parametrize("name", [GPTQ, AWQ, INT8, PACKED])
def test_many_mutants(name: str, home: Path, tmp_path: Path) -> None:
    assert mutants(home, tmp_path, name, "model.safetensors", 5_000) > 3_000
