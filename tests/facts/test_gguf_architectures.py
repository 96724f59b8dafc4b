"""GGUF headers of each architecture: what the keys and the small tensors say is honoured, what contradicts itself is refused by name."""

import re
import struct
from math import isclose, sqrt
from pathlib import Path

import pytest
from gguf_files import File, model_file, value

from ridgeline.errors import ModelFormatError
from ridgeline.facts.headers.fields import MAX_EXPERTS
from ridgeline.facts.headers.read import read_model_facts
from ridgeline.facts.headers.rope import attention_scale, longrope_scale
from ridgeline.facts.model import ModelFacts, StateLayers
from ridgeline.models.table import RUNNABLE

Changes = dict[str, bytes | None]
Shapes = dict[str, tuple[int, ...] | None]


def write(path: Path, architecture: str, changes: Changes | None = None, tensors: Shapes | None = None) -> File:
    """A two-layer file of zeros; keys without the architecture's prefix."""
    named = {
        key if "." in key and key.split(".")[0] in ("general", "tokenizer") else f"{architecture}.{key}": raw
        for key, raw in (changes or {}).items()
    }
    file = model_file(named, tensors, architecture)
    path.write_bytes(file.build())
    return file


def facts(tmp_path: Path, architecture: str, changes: Changes | None = None, tensors: Shapes | None = None) -> ModelFacts:
    write(tmp_path / "model.gguf", architecture, changes, tensors)
    return read_model_facts(tmp_path / "model.gguf")


@pytest.mark.parametrize("architecture", RUNNABLE)
def test_every_architecture_has_a_smallest_file(architecture: str, tmp_path: Path) -> None:
    found = facts(tmp_path, architecture)
    assert found.architecture == architecture and found.tied and found.layers == 2
    assert found.attn_scale == 16**-0.5
    views = {tensor.transform for tensor in found.tensors.values()}
    assert views == ({"", "interleaved"} if RUNNABLE[architecture].interleaved else {""})


def test_recurrent_layers(tmp_path: Path) -> None:
    """Heads of values and widths of a value are told from each other by the file's numbers, and go together."""
    found = facts(tmp_path, "qwen3next")
    assert found.layer_kinds == ("none", "full") and found.state == StateLayers(1, 2 * 8 * 16, 3 * 48, 1, 8, 2, 16, 4)
    for changes, words in (
        ({"ssm.time_step_rank": value("u32", 3)}, "inner_size is 32, a multiple of the 3 value heads"),
        ({"ssm.group_count": None}, "ssm.group_count is missing"),
        ({"ssm.time_step_rank": value("u32", 4), "ssm.group_count": value("u32", 3)}, "4 value heads .* not a multiple of 3 key heads"),
        ({"ssm.conv_kernel": value("u32", 3)}, "ssm_conv1d.weight' has shape"),
    ):
        with pytest.raises(ModelFormatError, match=words):
            facts(tmp_path, "qwen3next", changes)
    lost = dict.fromkeys(("blk.0.attn_qkv.weight", "blk.0.attn_gate.weight"))
    with pytest.raises(ModelFormatError, match=r"attn_qkv\.weight' of shape .* is missing"):
        facts(tmp_path, "qwen3next", tensors=lost)
    older = facts(tmp_path, "qwen3next", tensors=lost | {"blk.0.ssm_in.weight": (80, 32)})
    assert "blk.0.ssm_in.weight" in older.tensors and older.state == found.state
    both = {"blk.1.ssm_norm.weight": (16,), **{f"blk.1.attn_{each}.weight": None for each in "qkv"}}
    with pytest.raises(ModelFormatError, match="all layers of this qwen3next model are recurrent"):
        facts(tmp_path, "qwen3next", tensors=both)


def test_windows(tmp_path: Path) -> None:
    window = {"attention.sliding_window": value("u32", 8)}
    for architecture in ("llama", "mistral", "phi3"):
        found = facts(tmp_path, architecture, window)
        assert (found.layer_kinds, found.window) == (("window",) * 2, 8)
        assert facts(tmp_path, architecture, {"attention.sliding_window": value("u32", 0)}).layer_kinds == ("full", "full")
        assert facts(tmp_path, architecture, {"attention.sliding_window": None}).window == 0
    assert facts(tmp_path, "qwen2", window).layer_kinds == ("full", "full")
    listed = window | {"attention.sliding_window_pattern": value("arr", ("bool", [0, 1]))}
    assert facts(tmp_path, "qwen2", listed).layer_kinds == facts(tmp_path, "llama", listed).layer_kinds == ("full", "window")
    assert facts(tmp_path, "gemma2", {"attention.sliding_window": None}).window == 4096
    assert facts(tmp_path, "gemma2", window).layer_kinds == ("window", "full")


def test_softcaps(tmp_path: Path) -> None:
    found = facts(tmp_path, "gemma2")
    assert (found.attn_softcap, found.final_softcap) == (50.0, 30.0)
    found = facts(tmp_path, "gemma2", {"attn_logit_softcapping": value("f32", 0.0), "final_logit_softcapping": value("f32", 7.5)})
    assert (found.attn_softcap, found.final_softcap) == (0.0, 7.5)
    assert facts(tmp_path, "llama").final_softcap == facts(tmp_path, "gemma3").attn_softcap == 0.0


def test_scores_of_the_largest_gemmas_are_scaled_by_the_width(tmp_path: Path) -> None:
    for architecture, layers in (("gemma2", 46), ("gemma3", 62)):
        shapes: Shapes = {}
        for i in range(2, layers):
            shapes |= {f"blk.{i}.{name}.weight": shape for name, shape in layer_shapes(architecture).items()}
        keys = {"attention.key_length": value("u32", 8), "attention.value_length": value("u32", 8)}
        shapes |= {f"blk.{i}.{name}.weight": shape for i in range(2) for name, shape in layer_shapes(architecture).items()}
        found = facts(tmp_path, architecture, {"block_count": value("u32", layers), **keys}, shapes)
        assert found.head_dim == 8 and found.attn_scale == (32 // 2) ** -0.5


def layer_shapes(architecture: str) -> dict[str, tuple[int, ...]]:
    sizes = {"hidden": 32, "queries": 16, "keys": 8, "head": 8, "ffn": 64}
    return {name: tuple(sizes[each] for each in dims) for name, *dims in RUNNABLE[architecture].tensors}


def test_biases_are_in_all_layers_or_in_none(tmp_path: Path) -> None:
    both: Shapes = {f"blk.{i}.attn_q.bias": (32,) for i in range(2)}
    assert facts(tmp_path, "llama", None, both).tensors["blk.1.attn_q.bias"].transform == "interleaved"
    with pytest.raises(ModelFormatError, match=r"'blk.1.attn_q.bias' of shape \(32,\) is missing"):
        facts(tmp_path, "llama", None, {"blk.0.attn_q.bias": (32,)})
    with pytest.raises(ModelFormatError, match=r"2 tensors, 'blk.0.attn_q.bias' among them, are not part of a supported mistral"):
        facts(tmp_path, "mistral", None, both)
    with pytest.raises(ModelFormatError, match=r"'blk.0.attn_k.bias' of shape \(16,\) is missing"):
        facts(tmp_path, "qwen2", None, {"blk.0.attn_k.bias": None})


def test_fused_tensors_are_cut(tmp_path: Path) -> None:
    found = facts(tmp_path, "phi3").tensors
    first = found["blk.0.attn_q.weight"]
    places = [(found[f"blk.0.attn_{part}.weight"].offset - first.offset, found[f"blk.0.attn_{part}.weight"].bytes) for part in "qkv"]
    assert places == [(0, 4096), (4096, 2048), (6144, 2048)]
    assert found["blk.1.ffn_up.weight"].offset - found["blk.1.ffn_gate.weight"].offset == 64 * 32 * 4
    with pytest.raises(ModelFormatError, match=r"'blk.0.attn_qkv.weight' has shape \(63, 32\), the header says \(64, 32\)"):
        facts(tmp_path, "phi3", None, {"blk.0.attn_qkv.weight": (63, 32)})
    with pytest.raises(ModelFormatError, match="appears twice"):
        facts(tmp_path, "phi3", None, {"blk.0.attn_q.weight": (32, 32)})
    bias = facts(tmp_path, "gpt2").tensors["blk.1.attn_v.bias"]
    assert (bias.shape, bias.bytes, bias.transform) == ((16,), 64, "")


def test_yarn(tmp_path: Path) -> None:
    keys = {
        "rope.scaling.type": value("str", "yarn"),
        "rope.scaling.factor": value("f32", 4.0),
        "rope.scaling.original_context_length": value("u32", 128),
    }
    found = facts(tmp_path, "qwen2", keys)
    assert found.context == 512 and isclose(found.rope["full"].scale, 1.1386294361)
    assert found.rope["full"].divisors[0] == 1.0 and found.rope["full"].divisors[-1] == 4.0
    with pytest.raises(ModelFormatError, match=r"yarn_ext_factor is 0.5, which is not supported"):
        facts(tmp_path, "qwen2", {**keys, "rope.scaling.yarn_ext_factor": value("f32", 0.5)})


def with_factors(path: Path, file: File, name: str, factors: list[float]) -> None:
    """Writes the file with these numbers in the tensor."""
    offset = next(offset for each, _, _, offset in file.tensors if each == name)
    data = bytearray(file.data)
    data[offset : offset + 4 * len(factors)] = struct.pack(f"<{len(factors)}f", *factors)
    file.data = bytes(data)
    path.write_bytes(file.build())


def test_llama_3_carries_its_divisors(tmp_path: Path) -> None:
    path, name = tmp_path / "model.gguf", "rope_freqs.weight"
    with_factors(path, write(path, "llama", None, {name: (8,)}), name, [1.0, 1.0, 2.0, 3.0, 8.0, 8.0, 8.0, 8.0])
    found = read_model_facts(path)
    assert found.rope["full"].divisors == (1.0, 1.0, 2.0, 3.0, 8.0, 8.0, 8.0, 8.0) and name not in found.tensors
    for wrong in ([0.0] * 8, [float("nan")] * 8, [float("inf")] * 8, [1.0] * 7 + [-1.0]):
        with_factors(path, write(path, "llama", None, {name: (8,)}), name, wrong)
        with pytest.raises(ModelFormatError, match="factors within"):
            read_model_facts(path)
    with pytest.raises(ModelFormatError, match=r"'rope_freqs.weight' is F32 \(7,\), F32 \(8,\) was expected"):
        facts(tmp_path, "llama", None, {name: (7,)})
    with pytest.raises(ModelFormatError, match=r"1 tensors, 'rope_freqs.weight' among them"):
        facts(tmp_path, "gemma3", None, {name: (8,)})


def test_long_and_short_factors(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    names: Shapes = {f"rope_factors_{kind}.weight": (8,) for kind in ("long", "short")}
    keys = {"rope.scaling.original_context_length": value("u32", 64), "rope.scaling.attn_factor": value("f32", 1.25)}
    file = write(path, "phi3", keys, names)
    with_factors(path, file, "rope_factors_long.weight", [4.0] * 8)
    with_factors(path, file, "rope_factors_short.weight", [1.5] * 8)
    found = read_model_facts(path)
    assert found.rope["full"].divisors == (1.5,) * 8 and found.rope["window"].scale == 1.25
    assert found.long_rope is not None and found.long_rope[0] == 64 and found.long_rope[1].divisors == (4.0,) * 8
    file = write(path, "phi3", keys, {"rope_factors_short.weight": (8,)})
    with_factors(path, file, "rope_factors_short.weight", [1.5] * 8)
    with pytest.raises(ModelFormatError, match="longrope has 0 factors"):
        read_model_facts(path)


def test_linear_scaling_of_full_layers(tmp_path: Path) -> None:
    scaled = {"rope.scaling.type": value("str", "linear"), "rope.scaling.factor": value("f32", 8.0)}
    found = facts(tmp_path, "gemma3", scaled)
    assert found.rope["full"].divisors == (8.0,) * 8 and found.rope["window"].divisors == ()
    assert facts(tmp_path, "llama", scaled).rope["window"].divisors == (8.0,) * 8


def test_part_of_a_head_turns(tmp_path: Path) -> None:
    part = {"rope.dimension_count": value("u32", 12)}
    assert facts(tmp_path, "phi3", part).rope["full"].dim == 12
    with pytest.raises(ModelFormatError, match=r"llama.rope.dimension_count is 12, but heads have length 16; 16 was expected"):
        facts(tmp_path, "llama", part)


def test_learned_positions(tmp_path: Path) -> None:
    found = facts(tmp_path, "gpt2")
    assert found.rope == {} and found.tensors["position_embd.weight"].shape == (128, 32)
    assert {"output_norm.bias", "blk.0.attn_norm.bias", "blk.1.ffn_down.bias"} <= found.tensors.keys()
    with pytest.raises(ModelFormatError, match=r"'position_embd.weight' has shape \(127, 32\), the header says \(128, 32\)"):
        facts(tmp_path, "gpt2", None, {"position_embd.weight": (127, 32)})


def test_scale_of_yarn_is_that_of_the_paper() -> None:
    assert attention_scale(1.0) == longrope_scale(0.5, 4096) == 1.0
    assert isclose(longrope_scale(32.0, 4096), sqrt(1 + 5 / 12))


def test_layers_that_only_predict_further_tokens_are_left_out(tmp_path: Path) -> None:
    """GLM-4.5 has one behind the last; the file counts it among its layers."""
    plain = facts(tmp_path, "glm4moe")
    behind: Shapes = {"blk.2.nextn.eh_proj.weight": (32, 64), "blk.2.attn_norm.weight": (32,)}
    keys: Changes = {"block_count": value("u32", 3), "nextn_predict_layers": value("u32", 1)}
    found = facts(tmp_path, "glm4moe", keys, behind)
    assert found.layers == 2 and found.tensors.keys() == plain.tensors.keys() and found.stored == plain.stored
    with pytest.raises(ModelFormatError, match=r"blk.2.attn_q.weight"):
        facts(tmp_path, "glm4moe", {"block_count": value("u32", 3)}, behind)


def test_routing_that_a_file_states(tmp_path: Path) -> None:
    said: Changes = {
        "expert_gating_func": value("u32", 2), "expert_weights_scale": value("f32", 2.5), "expert_weights_norm": value("bool", False),
        "expert_group_count": value("u32", 2), "expert_group_used_count": value("u32", 1),
    }  # fmt: skip
    found = facts(tmp_path, "qwen3moe", said).experts
    assert found is not None and (found.routed, found.active, found.layers) == (4, 2, 1)
    assert (found.scores, found.scale, found.normalise, found.groups, found.groups_kept) == ("sigmoid", 2.5, False, 2, 1)
    plain = facts(tmp_path, "qwen3moe").experts
    assert plain is not None and (plain.scores, plain.scale, plain.normalise, plain.groups) == ("softmax", 1.0, True, 1)
    for key, raw in (("expert_gating_func", 9), ("expert_group_used_count", 3), ("expert_used_count", 5)):
        with pytest.raises(ModelFormatError, match=key):
            facts(tmp_path, "qwen3moe", said | {key: value("u32", raw)})


@pytest.mark.parametrize(
    ("architecture", "said", "words"),
    [
        ("qwen3moe", {"expert_group_count": 3}, "4 experts do not form 3 groups"),
        ("qwen3moe", {"expert_group_count": 4}, "takes 2 experts, but 1 of 4 groups are kept, with 1 experts"),
        ("dots1", {"expert_gating_func": 3}, "gating 3, .* with a bias"),
        ("glm4moe", {"expert_gating_func": 3}, "gating 3, .* with a bias"),
        ("qwen3moe", {"expert_count": 1_025}, r"expert_count is 1025, outside 0 … 1024"),
    ],
)
def test_numbers_of_routing_that_do_not_go_together(tmp_path: Path, architecture: str, said: dict[str, int], words: str) -> None:
    with pytest.raises(ModelFormatError, match=words):
        facts(tmp_path, architecture, {key: value("u32", raw) for key, raw in said.items()})


def test_as_many_experts_as_the_kernels_choose_from() -> None:
    (most,) = re.findall(r"kMostExperts = (\d+)", (Path(__file__).parents[2] / "csrc/runtime/experts.h").read_text())
    assert int(most) == MAX_EXPERTS
