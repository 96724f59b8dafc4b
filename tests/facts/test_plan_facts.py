"""Shapes from config.json and GGUF headers: parameters to the last one, KV heads, windows, mixtures; hostile files get typed errors."""

import json
from math import prod
from pathlib import Path
from random import Random

import pytest

from ridgeline.config.env import ModelStores
from ridgeline.errors import ModelFormatError, ModelNotFoundError
from ridgeline.facts.files.json_file import MAX_BYTES
from ridgeline.facts.files.safetensors import read_file
from ridgeline.facts.hardware.devices import DEVICES, known_device
from ridgeline.facts.headers.config_json import parse_config, read_config
from ridgeline.facts.headers.read import describe_model
from ridgeline.facts.model import CLASSES, ModelFacts
from ridgeline.models.table import KNOWN, known_names
from ridgeline.planning.formats import class_bytes

NOWHERE = Path("/nonexistent")
SMALL = {
    "num_hidden_layers": 3,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 100,
    "max_position_embeddings": 128,
}
MIXTURE = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "decoder_sparse_step": 2, "mlp_only_layers": [3]}
LATENT = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}


def shape(**values: object) -> ModelFacts:
    return parse_config(json.dumps({**SMALL, **values}), "small").facts


def described(model: str) -> ModelFacts:
    return describe_model(model, ModelStores(NOWHERE))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("llama-2-7b", 6_738_415_616),
        ("llama-3-8b", 8_030_261_248),
        ("llama-3-70b", 70_553_706_496),
        ("llama-3.1-405b", 405_853_388_800),
        ("mistral-7b", 7_241_732_096),
        ("mixtral-8x7b", 46_702_792_704),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("gpt-oss-20b", 20_914_757_184),
        ("gemma-2-9b", 9_241_705_984),
        ("gemma-3-270m", 268_098_176),
        ("phi-3-mini", 3_821_079_552),
        ("gpt2", 124_439_808),
        ("deepseek-v3", 671_026_419_200),
    ],
)
def test_parameters_of_known_models(name: str, parameters: int) -> None:
    """What transformers counts in the models themselves."""
    assert described(name).total_parameters == parameters


@pytest.mark.parametrize(
    ("values", "parameters"),
    [
        ({"model_type": "llama"}, 105_408),
        ({"model_type": "qwen2"}, 105_792),
        ({"model_type": "qwen3"}, 364_224),
        ({"model_type": "gemma"}, 651_968),
        ({"model_type": "gemma2", "num_hidden_layers": 4}, 867_648),
        ({"model_type": "gemma3_text", "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4}, 3_305_792),
        ({"model_type": "mixtral", "num_local_experts": 4}, 272_064),
        ({"model_type": "qwen3_moe", "num_hidden_layers": 4, "head_dim": 32, **MIXTURE}, 241_472),
        ({"model_type": "deepseek_v3", "num_hidden_layers": 4, "n_shared_experts": 1, "q_lora_rank": 24, **LATENT}, 328_440),
        ({"model_type": "deepseek_v2", "num_hidden_layers": 4, "n_shared_experts": 2, "q_lora_rank": None, **LATENT}, 365_184),
    ],
)
def test_parameters_of_small_models(values: dict[str, object], parameters: int) -> None:
    """Counted once by building each with transformers 5 on its meta device."""
    assert shape(**values).total_parameters == parameters


def test_active_parameters_of_a_mixture() -> None:
    assert described("mixtral-8x7b").active_parameters == pytest.approx(12.9e9, rel=0.002)
    assert described("qwen3-30b-a3b").active_parameters == pytest.approx(3.35e9, rel=0.002)
    dense = described("llama-3-8b")
    assert dense.active_parameters == dense.total_parameters


def test_kv_heads_and_never_query_heads() -> None:
    large = described("llama-3-70b")
    assert (large.heads, large.kv_heads, large.attention_kind, large.widths.cached) == (64, 8, "GQA", 2 * 8 * 128)
    assert described("llama-2-7b").attention_kind == "MHA"
    assert described("gemma-3-270m").attention_kind == "MQA"
    latent = described("deepseek-v3")
    assert (latent.attention_kind, latent.widths.cached) == ("MLA", 512 + 64)
    assert latent.widths.decode == 128 * (576 + 512) > latent.widths.prefill == 128 * (192 + 128)


@pytest.mark.parametrize(
    ("values", "kinds", "window"),
    [
        ({"model_type": "llama"}, "fff", 0),
        ({"model_type": "mistral", "sliding_window": 16}, "www", 16),
        ({"model_type": "mistral", "sliding_window": None}, "fff", 0),
        ({"model_type": "qwen2", "sliding_window": 16}, "fff", 0),
        ({"model_type": "qwen2", "sliding_window": 16, "use_sliding_window": True, "max_window_layers": 1}, "fww", 16),
        ({"model_type": "gemma2", "sliding_window": 16}, "wfw", 16),
        ({"model_type": "gemma3_text", "sliding_window": 16, "num_hidden_layers": 7}, "wwwwwfw", 16),
        ({"model_type": "gemma3_text", "sliding_window": 16, "sliding_window_pattern": 2}, "wfw", 16),
        ({"model_type": "llama", "sliding_window": 8, "layer_types": ["full_attention", "sliding_attention", "full_attention"]}, "fwf", 8),
    ],
)
def test_windows(values: dict[str, object], kinds: str, window: int) -> None:
    found = shape(**values)
    assert "".join(kind[0] for kind in found.layer_kinds) == kinds
    assert found.window == window


def test_text_part_of_a_model_with_eyes() -> None:
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    config = {"model_type": "gemma3", "torch_dtype": "bfloat16", "text_config": text, "vision_config": {}}
    found = parse_config(json.dumps(config), "eyes").facts
    assert found.total_parameters == described("gemma-3-4b").total_parameters


def compressed(kind: str, bits: int, **more: object) -> dict[str, object]:
    groups = {"g": {"weights": {"type": kind, "num_bits": bits}, **more}}
    return {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": groups}}


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ({"torch_dtype": "float16"}, "f16"),
        ({"dtype": "float32"}, "f32"),
        ({}, "bf16"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "awq"),
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 8}}, "gptq8"),
        ({"quantization_config": {"quant_method": "gptq", "bits": [4]}}, "bf16"),
        (compressed("int", 4), "w4a16"),
        (compressed("int", 8), "w8a16"),
        (compressed("int", 8, input_activations={"num_bits": 8}), "w8a8"),
        (compressed("float", 8, input_activations={"num_bits": 8}), "fp8"),
        (compressed("float", 8), "fp8"),
        ({"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": 4}}}}, "bf16"),
    ],
)
def test_stored_format(values: dict[str, object], dtype: str) -> None:
    assert shape(model_type="llama", **values).dtype == dtype


def test_code_in_a_config_is_never_followed(tmp_path: Path) -> None:
    (tmp_path / "modeling_evil.py").write_text("raise SystemExit('executed')")
    (tmp_path / "config.json").write_text(
        json.dumps({**SMALL, "model_type": "llama", "trust_remote_code": True, "auto_map": {"AutoConfig": "modeling_evil.Evil"}})
    )
    assert described(str(tmp_path)).layers == 3


GOOD = json.dumps({**SMALL, "model_type": "llama"})
GROUPED = json.dumps({**SMALL, **MIXTURE, "model_type": "dots1", "n_routed_experts": 8})
MIXED = json.dumps({**SMALL, "model_type": "qwen3_moe", "num_experts": 4})


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (GOOD.replace('"vocab_size": 100', '"vocab_size": 100, "vocab_size": 200'), "appears twice"),
        ("[]", "an object was expected"),
        ("{", "not JSON"),
        ("[" * 100_000, "nests too deeply"),
        (GOOD.replace("100", "NaN"), "NaN"),
        (GOOD.replace("100", "1" + "0" * 5_000), "without bounds"),
        (GOOD.replace("100", "1" + "0" * 400), "outside"),
        (GOOD.replace("100", '"100"'), "an integer was expected"),
        (GOOD.replace("100", "true"), "an integer was expected"),
        (GOOD.replace("100", "0"), "outside 1"),
        (GOOD.replace('"vocab_size": 100, ', ""), "vocab_size is missing"),
        (GOOD.replace('"llama"', '"t5"'), "known: .*deepseek"),
        (GOOD.replace('"llama"', '["llama"]'), "is not known"),
        (GOOD.replace('"num_key_value_heads": 2', '"num_key_value_heads": 3'), "not a multiple of 3"),
        (GOOD[:-1] + ', "layer_types": ["linear_attention", "full_attention", "full_attention"]}', "linear_attention"),
        (GOOD[:-1] + ', "layer_types": ["full_attention"]}', "does not name the 3"),
        (GOOD[:-1] + ', "tie_word_embeddings": 1}', "true or false"),
        (MIXED[:-1] + ', "num_experts_per_tok": 5}', "outside 1 … 4"),
        (MIXED[:-1] + ', "num_experts_per_tok": 2, "mlp_only_layers": 7}', "a list was expected"),
        (GROUPED[:-1] + ', "n_group": 3}', "config.json: 8 experts do not form 3 groups"),
        (GROUPED[:-1] + ', "n_group": 8}', "takes 2 experts, but 1 of 8 groups are kept"),
    ],
)
def test_bad_files_are_refused_with_their_cause(text: str, cause: str) -> None:
    with pytest.raises(ModelFormatError, match=cause):
        parse_config(text, "bad")


def test_files_that_are_no_config(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with pytest.raises(ModelNotFoundError, match="check the path"):
        read_config(path)
    path.write_bytes(b"\xff\xfe{}")
    with pytest.raises(ModelFormatError, match="UTF-8"):
        read_config(path)
    path.write_text(" " * (MAX_BYTES + 1))
    with pytest.raises(ModelFormatError, match="at most"):
        read_config(path)


def test_unknown_name_lists_what_would_work() -> None:
    with pytest.raises(ModelNotFoundError, match=r"demo.*llama-3-8b"):
        describe_model("no-such-model", ModelStores(NOWHERE))


@pytest.mark.parametrize("name", known_names())
def test_every_known_model_has_a_sensible_shape(name: str) -> None:
    found = described(name.upper())
    assert set(found.parameters) == set(CLASSES)
    assert len(found.layer_kinds) == found.layers
    assert class_bytes(found, "bf16") == {key: 2 * count for key, count in found.parameters.items()}


def test_gguf_and_config_agree(demo_file: Path) -> None:
    """The same model from its file's header and from a config.json."""
    stored, configured = described(str(demo_file)), described("gemma-3-270m")
    for field in (
        "layers",
        "hidden",
        "heads",
        "kv_heads",
        "head_dim",
        "ffn",
        "vocab",
        "layer_kinds",
        "window",
        "widths",
        "parameters",
    ):
        assert getattr(stored, field) == getattr(configured, field), field
    assert sum(class_bytes(stored, None).values()) < 0.5 * sum(class_bytes(configured, None).values())


def test_devices_are_plausible() -> None:
    assert known_device("RTX 4090") is known_device("rtx4090") is known_device("4090") is DEVICES["rtx-4090"]
    assert known_device("H100") is DEVICES["h100-sxm"] and known_device("abacus") is known_device("") is None
    for name, device in DEVICES.items():
        assert device.name == name
        assert 16e9 <= device.memory_bytes <= 1e12 and 1e11 <= device.bytes_per_second <= 1e13
        assert device.flops("f32") <= device.flops("f16") <= device.flops("fp8") and device.flops("f16") <= device.flops("int8")
        assert device.price is None or (0.1 < device.price.dollars_per_hour < 20 and device.price.seen[:2] == "20")
    assert DEVICES["a100-80gb"].flops("fp8") == DEVICES["a100-80gb"].flops("f16")


@pytest.mark.parametrize(("newer", "older", "bandwidth", "compute"), [("h100-sxm", "a100-80gb", 1.67, 3.17)])  # part 3, specifications
def test_ratios_of_generations(newer: str, older: str, bandwidth: float, compute: float) -> None:
    assert DEVICES[newer].bytes_per_second / DEVICES[older].bytes_per_second == pytest.approx(bandwidth, rel=0.02)
    assert DEVICES[newer].flops("f16") / DEVICES[older].flops("f16") == pytest.approx(compute, abs=0.005)
    assert DEVICES[newer].link_bytes_per_second / DEVICES[older].link_bytes_per_second == 1.5


def test_mutated_configs_give_shapes_or_typed_errors() -> None:
    """Two thousand damaged files: values of other types, absurd numbers, missing keys, cut and flipped bytes."""
    draw = Random(11)
    texts = [path.read_text() for path in sorted(KNOWN.glob("*.json"))]
    junk: list[object] = [None, True, -1, 0, 1, 7, 2**40, 10**30, 1.5, "x", "full_attention", [], [1], ["x"], {}, {"bits": 4}]
    for _ in range(2000):
        values = json.loads(draw.choice(texts))
        keys = [*values, "layer_types", "sliding_window", "n_shared_experts", "mlp_only_layers", "quantization_config", "text_config"]
        for key in draw.sample(keys, draw.randint(1, 3)):
            values[key] = draw.choice(junk)
        if draw.random() < 0.3:
            values.pop(draw.choice(list(values)))
        text = json.dumps(values)
        if draw.random() < 0.3:
            at = draw.randrange(len(text))
            text = text[:at] + draw.choice(["", "{", '"', "9" * 40, "\x00"]) + text[at + draw.randint(0, 3) :]
        try:
            found = parse_config(text, "mutant").facts
        except ModelFormatError:
            continue
        assert found.total_parameters >= found.active_parameters > 0


def safetensors(path: Path, tensors: dict[str, tuple[str, list[int]]], data_bytes: int | None = None, **changes: object) -> None:
    """Writes a file with these tensors of zeros; `changes` replaces whole entries."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (kind, dimensions) in tensors.items():
        size = prod(dimensions) * {"BF16": 2, "F32": 4, "I8": 1}[kind]
        entries[name] = {"dtype": kind, "shape": dimensions, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps({**entries, **changes}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(end if data_bytes is None else data_bytes))


def test_bytes_of_a_checkpoint_in_two_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**SMALL, "model_type": "llama", "tie_word_embeddings": True}))
    layer = {"self_attn.q_proj.weight": ("I8", [64, 64]), "mlp.up_proj.weight": ("BF16", [96, 64]), "input_layernorm.weight": ("F32", [64])}
    first = {
        "model.embed_tokens.weight": ("BF16", [100, 64]),
        "lm_head.weight": ("BF16", [100, 64]),
        "vision_tower.x.weight": ("F32", [64]),
    }
    safetensors(tmp_path / "model-00001-of-00002.safetensors", first)
    safetensors(tmp_path / "model-00002-of-00002.safetensors", {f"model.layers.0.{name}": value for name, value in layer.items()})
    found = described(str(tmp_path))
    assert found.stored == {"embedding": 12_800, "head": 0, "attention": 4096, "ffn": 12_288, "experts": 0, "norms": 256}
    assert sum(class_bytes(found, None).values()) == 29_440 != sum(class_bytes(found, "bf16").values())
    safetensors(tmp_path / "again.safetensors", {"lm_head.weight": ("BF16", [1])})
    with pytest.raises(ModelFormatError, match="is in again"):
        describe_model(str(tmp_path), ModelStores(NOWHERE))


def test_experts_of_a_checkpoint(tmp_path: Path) -> None:
    values = {**SMALL, "model_type": "qwen3_moe", "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8}
    (tmp_path / "config.json").write_text(json.dumps(values))
    names = ["mlp.experts.0.up_proj.weight", "mlp.gate.weight", "mlp.shared_experts.up_proj.weight", "self_attn.q_norm.weight"]
    safetensors(tmp_path / "model.safetensors", {f"model.layers.0.{name}": ("BF16", [2**i]) for i, name in enumerate(names)})
    stored = described(str(tmp_path)).stored
    assert (stored["experts"], stored["ffn"], stored["norms"]) == (2, 4 + 8, 16)


WHOLE = {"a": ("BF16", [4]), "b": ("F32", [2])}


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"a": {"dtype": "F4", "shape": [4], "data_offsets": [0, 8]}}, "F4"),
        ({"a": {"dtype": "BF16", "shape": [5], "data_offsets": [0, 8]}}, "takes 10 bytes"),
        ({"a": {"dtype": "BF16", "shape": [-4], "data_offsets": [0, 8]}}, "impossible"),
        ({"a": {"dtype": "BF16", "shape": [2**62], "data_offsets": [0, 8]}}, "impossible"),
        ({"a": {"dtype": "BF16", "shape": [True], "data_offsets": [0, 2]}}, "impossible"),
        ({"b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}, "overlap or gap"),
        ({"b": {"dtype": "F32", "shape": [2], "data_offsets": [12, 20]}}, "overlap or gap"),
        ({"a": 7}, "not supported"),
        ({"data_bytes": 20}, "the tensors end"),
        ({"data_bytes": 10}, "the tensors end"),
    ],
)
def test_damaged_safetensors(changes: dict[str, object], cause: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    safetensors(path, WHOLE, **changes)  # type: ignore[arg-type]
    with pytest.raises(ModelFormatError, match=cause):
        read_file(path)


@pytest.mark.parametrize(
    "raw", [b"", b"\xff" * 8, b"\x02" + bytes(7) + b"[]", b"\x02" + bytes(7) + b"{]", b"\x10" + bytes(7) + b'{"a":1,"a":1}   ']
)
def test_no_safetensors(raw: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(raw)
    with pytest.raises(ModelFormatError):
        read_file(path)
