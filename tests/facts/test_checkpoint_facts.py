"""Checkpoints of transformers and GGUF files of the same weights give the same facts, and the weights of transformers' modules."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tiny_checkpoints import LLAMA3, LONGROPE, MODELS, YARN, ends_of, layers_of, model, write_gguf
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ridgeline.compute.load.weights import load_weights, map_weights
from ridgeline.errors import ModelFormatError, ModelNotFoundError
from ridgeline.facts.headers.read import read_model_facts
from ridgeline.facts.headers.rope import select_rope
from ridgeline.facts.headers.tensors import split_tensor
from ridgeline.facts.model import ModelFacts, Rope, TensorFacts
from ridgeline.models.table import RUNNABLE


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every model as safetensors and as GGUF, made once."""
    home = tmp_path_factory.mktemp("models")
    for name in MODELS:
        made = model(name)
        made.save_pretrained(home / name)
        made.save_pretrained(home / f"{name}-sharded", max_shard_size="60KB")
        write_gguf(home / f"{name}.gguf", made)
    return home


def expected(name: str) -> dict[str, np.ndarray]:
    made = model(name)
    layers = {f"blk.{i}.{key}": value for i, layer in enumerate(layers_of(made)) for key, value in layer.items()}
    return ends_of(made) | layers


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_those_of_the_modules(name: str, home: Path) -> None:
    wanted = expected(name)
    for path in (home / name, home / f"{name}-sharded", home / f"{name}.gguf"):
        facts = read_model_facts(path)
        found = map_weights(facts)
        assert found.keys() == wanted.keys() == {tensor.name for tensor in facts.tensors.values()}
        for key, values in wanted.items():
            assert found[key].dense().shape == values.shape, key
            assert np.array_equal(found[key].dense(), values), (path.name, key)
    assert len(list((home / f"{name}-sharded").glob("*.safetensors"))) > 2


@pytest.mark.parametrize("name", MODELS)
def test_both_formats_give_the_same_facts(name: str, home: Path) -> None:
    ours, theirs = read_model_facts(home / name), read_model_facts(home / f"{name}.gguf")
    if name == "mistral":
        assert (ours.architecture, theirs.architecture) == ("mistral", "llama")
    else:
        assert ours.architecture == theirs.architecture == name.split("-")[0]
    same = replace(
        theirs, architecture=ours.architecture, name=ours.name, tensors=ours.tensors, fingerprint=ours.fingerprint, rope=ours.rope
    )
    long = None if ours.long_rope is None or theirs.long_rope is None else (ours.long_rope[0], theirs.long_rope[1])
    assert replace(same, long_rope=ours.long_rope, eps=ours.eps) == ours
    assert math.isclose(ours.eps, theirs.eps, rel_tol=1e-6)
    for kind in ours.rope:
        assert close(ours.rope[kind], theirs.rope[kind])
    if ours.long_rope is not None:
        assert long is not None and theirs.long_rope is not None and theirs.long_rope[0] == 64 and close(ours.long_rope[1], long[1])


def close(ours: Rope, theirs: Rope) -> bool:
    plain = (1.0,) * (ours.dim // 2)
    numbers = zip(ours.divisors or plain, theirs.divisors or plain, strict=True)
    same = (ours.base, ours.dim) == (theirs.base, theirs.dim) and math.isclose(ours.scale, theirs.scale, rel_tol=1e-6)
    return same and all(math.isclose(a, b, rel_tol=1e-6) for a, b in numbers)


def test_numbers_of_a_checkpoint(home: Path) -> None:
    facts = {name: read_model_facts(home / name) for name in MODELS}
    sizes = {(f.hidden, f.heads, f.head_dim, f.vocab, f.tokens) for f in facts.values()}
    assert sizes == {(64, 4, 16, 300, 300)}
    assert {name for name, f in facts.items() if f.tied} == {"llama-biased", "gemma2", "gemma3", "gpt2"}
    assert {name: f.window for name, f in facts.items() if f.window} == {"mistral": 16, "gemma2": 8, "gemma3": 8, "phi3": 32}
    assert facts["gemma3"].layer_kinds == ("window",) * 5 + ("full", "window")
    assert facts["gemma2"].layer_kinds == ("window", "full", "window")
    assert set(facts["mistral"].layer_kinds) == set(facts["phi3"].layer_kinds) == {"window"}
    assert (facts["gemma2"].attn_softcap, facts["gemma2"].final_softcap) == (50.0, 30.0)
    assert facts["gpt2"].rope == {} and facts["gpt2"].ffn == 256 and facts["gpt2"].kv_heads == 4
    assert facts["qwen2"].context == 512 and facts["qwen3"].name == "qwen3"
    assert len({f.fingerprint for f in facts.values()}) == len(facts)


ROPES: dict[str, tuple[str, dict[str, object]]] = {
    "plain": ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
    "llama3": ("llama", {"rope_parameters": LLAMA3}),
    "linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "yarn": ("qwen2", {"rope_parameters": YARN}),
    "yarn that extends": ("qwen2", {"rope_parameters": YARN | {"original_max_position_embeddings": 512}}),
    "yarn in all its keys": (
        "qwen2",
        {"rope_parameters": YARN | {"beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 1.5, "truncate": False}},
    ),
    "long": ("phi3", {}),
    "long, scale stated": ("phi3", {"rope_parameters": LONGROPE | {"attention_factor": 1.25}}),
}


@pytest.mark.parametrize("case", ROPES)
def test_rotations_are_those_of_transformers(case: str, tmp_path: Path) -> None:
    name, changes = ROPES[case]
    made = model(name, **changes)
    made.save_pretrained(tmp_path)
    facts = read_model_facts(tmp_path)
    rotary = made.model.rotary_emb
    assert np.allclose(frequencies(facts.rope["full"]), rotary.inv_freq.numpy(), rtol=1e-6)
    assert math.isclose(facts.rope["full"].scale, rotary.attention_scaling, rel_tol=1e-9)
    assert facts.context == (2048 if case == "yarn that extends" else 512)
    if name == "phi3":
        assert facts.long_rope is not None
        inverse, scale = ROPE_INIT_FUNCTIONS["longrope"](made.config, torch.device("cpu"), seq_len=65)
        assert facts.long_rope[0] == 64 and np.allclose(frequencies(facts.long_rope[1]), inverse.numpy(), rtol=1e-6)
        assert math.isclose(facts.long_rope[1].scale, scale, rel_tol=1e-9)


def frequencies(rope: Rope) -> np.ndarray:
    half = rope.dim // 2
    return rope.base ** (-np.arange(half) / half) / np.array(rope.divisors or 1.0)


def test_part_of_a_head_turns(tmp_path: Path) -> None:
    parameters = LONGROPE | {"short_factor": [1.0] * 6, "long_factor": [2.0] * 6, "partial_rotary_factor": 0.75}
    model("phi3", rope_parameters=parameters).save_pretrained(tmp_path)
    facts = read_model_facts(tmp_path)
    assert (facts.rope["full"].dim, facts.head_dim) == (12, 16)


def test_the_rotation_is_chosen_once(home: Path) -> None:
    facts = read_model_facts(home / "phi3")
    assert facts.long_rope is not None
    short, said = select_rope(facts, 64)
    assert short.rope == facts.rope and short.fingerprint == facts.fingerprint and said is not None and "short RoPE factors" in said
    long, said = select_rope(facts, 65)
    assert set(long.rope.values()) == {facts.long_rope[1]} and long.fingerprint != facts.fingerprint
    assert (
        said is not None and "long RoPE factors, because max_model_len 65 exceeds the 64 positions" in said and "--max-model-len 64" in said
    )
    assert short.long_rope is long.long_rope is None
    plain = read_model_facts(home / "llama")
    assert select_rope(plain, 10) == (plain, None)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["gpt2", "gemma3", "phi3", "llama-biased"])
def test_codes_and_fp32_are_the_same_bits(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    made = model(name).to(dtype)
    made.save_pretrained(tmp_path / "half")
    facts = read_model_facts(tmp_path / "half")
    assert same_bits(facts)
    wanted = made.float()
    layers = {f"blk.{i}.{key}": value for i, layer in enumerate(layers_of(wanted)) for key, value in layer.items()}
    for key, weight in map_weights(facts).items():
        assert np.array_equal(weight.dense(), (ends_of(wanted) | layers)[key]), key


@pytest.mark.parametrize("name", ["gpt2", "gemma2"])
def test_data_may_start_at_any_byte(name: str, home: Path, tmp_path: Path) -> None:
    """The format lets a header end anywhere; numbers are then not aligned in the map."""
    path = copy(home / name, tmp_path / "model") / "model.safetensors"
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    path.write_bytes((length + 1).to_bytes(8, "little") + whole[8 : 8 + length] + b" " + whole[8 + length :])
    facts = read_model_facts(path.parent)
    assert {tensor.offset % 2 for tensor in facts.tensors.values()} == {1} and same_bits(facts)
    weights = map_weights(facts)
    assert all(np.array_equal(weights[key].dense(), values) for key, values in expected(name).items())


@pytest.mark.parametrize("kind", ["F16", "Q8_0"])
@pytest.mark.parametrize("name", ["gpt2", "phi3", "llama-biased"])
def test_codes_and_fp32_of_quantised_files(name: str, kind: str, tmp_path: Path) -> None:
    assert same_bits(read_model_facts(write_gguf(tmp_path / "model.gguf", model(name), kind)))


def same_bits(facts: ModelFacts) -> bool:
    """Whether loading into much and into no memory gives the same tiles and rows, without a second copy of what is mapped."""
    rich, poor = (load_weights(facts, memory, 2, lambda stage, fraction: None) for memory in (1 << 40, 0))
    ids = np.array([3, 0, 3])
    for name, tensor in facts.tensors.items():
        assert rich[name].shape == poor[name].shape == tensor.shape
        if len(tensor.shape) > 1:
            assert poor[name].nbytes == tensor.bytes and rich[name].nbytes == 4 * math.prod(tensor.shape)
            assert np.array_equal(rich[name].rows(ids), poor[name].rows(ids))
            tiles = zip(rich[name].tiles(), poor[name].tiles(), strict=True)
            assert all(a == b and np.array_equal(x, y) for (a, x), (b, y) in tiles)
        assert np.array_equal(rich[name].dense(), poor[name].dense())
    return True


def config_of(path: Path, **changes: object) -> Path:
    """The checkpoint with other keys in its config.json; None takes a key out."""
    config = json.loads((path / "config.json").read_text()) | changes
    (path / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return path


def test_older_keys_say_the_same(home: Path, tmp_path: Path) -> None:
    """`rope_theta`, `rope_scaling` and `sliding_window_pattern`, as files before transformers 5 have them."""
    cases = {
        "llama": {"rope_theta": 1e4, "rope_scaling": LLAMA3},
        "qwen2": {"rope_theta": 1e4, "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}},
        "phi3": {"rope_theta": 1e4, "rope_scaling": LONGROPE | {"type": "su", "rope_type": None}},
        "gemma3": {
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            "sliding_window_pattern": 6,
            "layer_types": None,
        },
    }
    for name, keys in cases.items():
        scaling = {key: value for key, value in keys["rope_scaling"].items() if value is not None}  # type: ignore[attr-defined]
        older = copy(home / name, tmp_path / name)
        config_of(older, rope_parameters=None, **{**keys, "rope_scaling": scaling})
        ours, theirs = read_model_facts(older), read_model_facts(home / name)
        same = (ours.rope, ours.long_rope, ours.layer_kinds, ours.window, ours.context)
        assert same == (theirs.rope, theirs.long_rope, theirs.layer_kinds, theirs.window, theirs.context), name


def copy(source: Path, target: Path) -> Path:
    target.mkdir(parents=True)
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def test_a_config_that_leaves_out_what_the_library_knows(tmp_path: Path) -> None:
    """As Gemma 3 4B is published: heads, their length, epsilon and bases of RoPE are the library's; what sees pictures is ignored."""
    made = model("gemma3", num_attention_heads=8, num_key_value_heads=4, head_dim=256, num_hidden_layers=6, query_pre_attn_scalar=256)
    layer_types = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6, "sliding_window": 8, "vocab_size": 300}
    text = {"model_type": "gemma3_text", "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, **layer_types}
    config = {
        "model_type": "gemma3",
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": text,
        "vision_config": {"hidden_size": 8},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = {f"language_model.{name}": value.contiguous() for name, value in made.state_dict().items() if name != "lm_head.weight"}
    save_file({**tensors, "vision_tower.patch.weight": torch.zeros(3)}, tmp_path / "model.safetensors")
    facts = read_model_facts(tmp_path)
    assert (facts.architecture, facts.heads, facts.kv_heads, facts.head_dim, facts.tied) == ("gemma3", 8, 4, 256, True)
    assert facts.attn_scale == 1 / 16 and facts.context == 131_072 and facts.eps == 1e-6
    assert facts.rope == {"full": Rope(1e6, 256, (8.0,) * 128), "window": Rope(1e4, 256)}
    assert facts.layer_kinds == ("window",) * 5 + ("full",)
    found = map_weights(facts)["blk.5.attn_q_norm.weight"].dense()
    assert np.array_equal(found, layers_of(made)[5]["attn_q_norm.weight"])


BUFFERS = {
    "gpt2": {"h.0.attn.bias": torch.ones(1, 1, 4, 4), "h.2.attn.masked_bias": torch.tensor(-1e4)},
    "llama-biased": {"layers.1.self_attn.rotary_emb.inv_freq": torch.ones(8)},
}


@pytest.mark.parametrize("name", BUFFERS)
def test_names_without_a_root_and_buffers(name: str, home: Path, tmp_path: Path) -> None:
    """As GPT-2 and the first Llama checkpoints were published."""
    made = model(name)
    tensors = {key: value.contiguous() for key, value in made.base_model.state_dict().items()}
    (tmp_path / "config.json").write_bytes((home / name / "config.json").read_bytes())
    save_file({**tensors, **BUFFERS[name]}, tmp_path / "model.safetensors")
    weights = map_weights(read_model_facts(tmp_path))
    assert all(np.array_equal(weights[key].dense(), values) for key, values in expected(name).items())


def test_a_head_that_is_there_is_used(home: Path, tmp_path: Path) -> None:
    """Whatever config.json says of tying, as transformers does where the two differ."""
    changed = config_of(copy(home / "llama", tmp_path / "model"), tie_word_embeddings=True)
    assert not read_model_facts(changed).tied


REFUSED: dict[str, tuple[str, dict[str, object]]] = {
    "RoPE scaling 'dynamic' is not supported; supported: default, linear": (
        "llama",
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
    ),
    "low_freq_factor 4.0 must be less than high_freq_factor 4.0": ("llama", {"rope_parameters": LLAMA3 | {"low_freq_factor": 4.0}}),
    "factor of RoPE is 'x', a number": ("llama", {"rope_parameters": LLAMA3 | {"factor": "x"}}),
    "factor of RoPE is missing": ("llama", {"rope_parameters": {"rope_type": "linear"}}),
    "rope_parameters is 3, an object": ("llama", {"rope_parameters": 3}),
    "short_factor of RoPE must list 8 factors": ("phi3", {"rope_parameters": LONGROPE | {"short_factor": [1.0]}}),
    "long_factor of RoPE is 0, outside": ("phi3", {"rope_parameters": LONGROPE | {"long_factor": [0] * 8}}),
    "partial_rotary_factor 0.95 of heads of 16 is 15": ("qwen3", {"partial_rotary_factor": 0.95, "rope_theta": 1e4, "head_dim": 16}),
    "hidden_act is 'relu', which is not supported; 'silu' is": ("llama", {"hidden_act": "relu"}),
    "hidden_activation is 'gelu', which is not supported": ("gemma2", {"hidden_activation": "gelu"}),
    "activation_function is 'relu'": ("gpt2", {"activation_function": "relu"}),
    "scale_attn_by_inverse_layer_idx is True": ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
    "use_bidirectional_attention is True": ("gemma3", {"use_bidirectional_attention": True}),
    "attention_bias is True, which is not supported": ("gemma2", {"attention_bias": True}),
    "'blk.0.attn_q.bias' of shape .64,. is missing": ("llama", {"attention_bias": True}),
    "21 tensors, 'model.layers.0.mlp.down_proj.bias' among them": ("llama-biased", {"attention_bias": False, "mlp_bias": False}),
    "num_experts is 8; mixtures of experts are not supported": ("qwen3", {"num_experts": 8}),
    "quantised as 'bitsandbytes', which is not supported; gptq, awq": ("llama", {"quantization_config": {"quant_method": "bitsandbytes"}}),
    "model_type 'gemma' is not supported; supported: .*gemma2": ("gemma2", {"model_type": "gemma"}),
    "model_type 'mamba' is not known": ("llama", {"model_type": "mamba"}),
    "'token_embd.weight' is missing|has shape .300, 64., the header says .301, 64.": ("llama", {"vocab_size": 301}),
    "'blk.3.attn_norm.weight' of shape .64,. is missing": ("llama", {"num_hidden_layers": 4}),
    "9 tensors, 'model.layers.2.input_layernorm.weight' among them": ("llama", {"num_hidden_layers": 2}),
    "4 query heads are not a multiple of 3 KV heads": ("llama", {"num_key_value_heads": 3}),
    "heads have length 15": ("llama", {"head_dim": 15}),
    "rms_norm_eps is -1, outside": ("llama", {"rms_norm_eps": -1}),
    "list of layer types does not name the 7 layers": ("gemma3", {"layer_types": ["full_attention"]}),
    "does not set tie_word_embeddings": ("gemma2", {"tie_word_embeddings": False}),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_not_computed_is_refused_by_name(words: str, home: Path, tmp_path: Path) -> None:
    name, changes = REFUSED[words]
    if "rope_theta" in changes:
        changes = {"rope_parameters": None, **changes}
    changed = config_of(copy(home / name, tmp_path / "model"), **changes)
    with pytest.raises(ModelFormatError, match=words):
        read_model_facts(changed)


def test_code_in_a_config_is_never_followed(home: Path, tmp_path: Path) -> None:
    keys = {"auto_map": {"AutoModelForCausalLM": "evil--modeling.Evil"}, "trust_remote_code": True, "_attn_implementation": "evil/kernel"}
    facts = read_model_facts(config_of(copy(home / "llama", tmp_path / "model"), **keys))
    assert facts.rope == read_model_facts(home / "llama").rope
    with pytest.raises(ModelNotFoundError, match="there is no file"):
        read_model_facts(tmp_path)


@pytest.mark.parametrize(
    ("architecture", "stored", "shape", "parts"),
    [
        ("granitemoe", (0, 64, 32), (4, 32, 32), ("ffn_gate_exps.weight", "ffn_up_exps.weight")),
        ("ernie4_5_moe", (0, 64, 32), (64, 32), ("attn_q.weight",)),
        ("bert", (0, 32), (32,), ("token_types.weight",)),
    ],
)
def test_empty_tensors_are_refused(architecture: str, stored: tuple[int, ...], shape: tuple[int, ...], parts: tuple[str, ...]) -> None:
    names = tuple(f"blk.0.{part}" for part in parts)
    tensor = TensorFacts("layers.0.x.weight", "F32", stored, Path("model.safetensors"), 8, 0)
    with pytest.raises(ModelFormatError, match=r"has shape \(0, "):
        split_tensor(tensor, names, dict.fromkeys(names, shape), RUNNABLE[architecture].checkpoint)
