"""Model facts from headers: what files leave out is supplied, what they say otherwise is honoured or refused, never ignored."""

from pathlib import Path

import pytest
from gguf_files import File, model_file, value

from ridgeline.errors import ModelFormatError
from ridgeline.facts.headers.read import read_model_facts
from ridgeline.facts.model import ModelFacts

Changes = dict[str, bytes | None]
Shapes = dict[str, tuple[int, ...] | None]


def facts(tmp_path: Path, changes: Changes | None = None, tensors: Shapes | None = None) -> ModelFacts:
    path = tmp_path / "model.gguf"
    path.write_bytes(model_file(changes, tensors).build())
    return read_model_facts(path)


def test_what_the_file_leaves_out(tmp_path: Path) -> None:
    found = facts(tmp_path)
    assert found.layer_kinds == ("window", "window")
    assert found.rope["window"].base == 10_000.0
    assert (found.tied, found.vocab, found.tokens, found.window) == (True, 4, 3, 8)
    assert not facts(tmp_path, tensors={"output.weight": (4, 32)}).tied


def test_what_the_file_says_otherwise(tmp_path: Path) -> None:
    found = facts(tmp_path, {"gemma3.rope.freq_base_swa": value("f32", 500.0), "gemma3.rope.freq_base": value("f32", 2_000.0)})
    assert {kind: rope.base for kind, rope in found.rope.items()} == {"full": 2_000.0, "window": 500.0}
    pattern = "gemma3.attention.sliding_window_pattern"
    assert facts(tmp_path, {pattern: value("u32", 2)}).layer_kinds == ("window", "full")
    assert facts(tmp_path, {pattern: value("arr", ("bool", [0, 1]))}).layer_kinds == ("full", "window")
    assert facts(tmp_path, {pattern: value("arr", ("i32", [1, 0]))}).layer_kinds == ("window", "full")
    everywhere = facts(tmp_path, {pattern: value("u32", 1), "gemma3.attention.sliding_window": None})
    assert (everywhere.layer_kinds, everywhere.window) == (("full", "full"), 0)


REFUSED: dict[str, tuple[Changes, Shapes]] = {
    "architecture 'falcon' is not supported; supported: .*gemma2, gemma3, ": ({"general.architecture": value("str", "falcon")}, {}),
    "general.architecture is missing": ({"general.architecture": None}, {}),
    "gemma3.block_count is missing": ({"gemma3.block_count": None}, {}),
    "gemma3.block_count is 0": ({"gemma3.block_count": value("u32", 0)}, {}),
    "gemma3.block_count is '2', an integer was expected": ({"gemma3.block_count": value("str", "2")}, {}),
    "'blk.2.attn_norm.weight' of shape .32,. is missing": ({"gemma3.block_count": value("u32", 3)}, {}),
    "13 tensors, 'blk.1.attn_k.weight' among them": ({"gemma3.block_count": value("u32", 1)}, {}),
    "1 tensors, 'blk.0.attn_q.bias' among them": ({}, {"blk.0.attn_q.bias": (32,)}),
    "'blk.0.ffn_up.weight' has shape .64, 31., the header says .64, 32.": ({}, {"blk.0.ffn_up.weight": (64, 31)}),
    "'output.weight' has shape": ({}, {"output.weight": (3, 32)}),
    "'output_norm.weight' of shape": ({}, {"output_norm.weight": None}),
    "'token_embd.weight' is missing": ({}, {"token_embd.weight": None}),
    "'token_embd.weight' has shape .4, 31.": ({}, {"token_embd.weight": (4, 31)}),
    "'token_embd.weight' has shape .128,.": ({}, {"token_embd.weight": (128,)}),
    "3 query heads are not a multiple of 2 KV": (
        {"gemma3.attention.head_count": value("u32", 3), "gemma3.attention.head_count_kv": value("u32", 2)},
        {},
    ),
    "gemma3.attention.head_count_kv is 3": ({"gemma3.attention.head_count_kv": value("u32", 3)}, {}),
    "gemma3.attention.value_length is 8": ({"gemma3.attention.value_length": value("u32", 8)}, {}),
    "gemma3.rope.dimension_count is 18": ({"gemma3.rope.dimension_count": value("u32", 18)}, {}),
    "gemma3.rope.dimension_count is 7": ({"gemma3.rope.dimension_count": value("u32", 7)}, {}),
    "heads have length 15": ({f"gemma3.attention.{kind}_length": value("u32", 15) for kind in ("key", "value")}, {}),
    "gemma3.rope.freq_base is nan": ({"gemma3.rope.freq_base": value("f32", float("nan"))}, {}),
    "layer_norm_rms_epsilon is inf": ({"gemma3.attention.layer_norm_rms_epsilon": value("f32", float("inf"))}, {}),
    "gemma3.rope.scaling.type is 'dynamic'": ({"gemma3.rope.scaling.type": value("str", "dynamic")}, {}),
    "gemma3.rope.scaling.factor is -1.0": ({"gemma3.rope.scaling.factor": value("f32", -1.0)}, {}),
    "gemma3.expert_count is 8": ({"gemma3.expert_count": value("u32", 8)}, {}),
    "gemma3.logit_scale is 2.0": ({"gemma3.logit_scale": value("f32", 2.0)}, {}),
    "gemma3.final_logit_softcapping is -1.0": ({"gemma3.final_logit_softcapping": value("f32", -1.0)}, {}),
    "sliding_window_pattern has 3 entries": ({"gemma3.attention.sliding_window_pattern": value("arr", ("bool", [1, 1, 0]))}, {}),
    "sliding_window_pattern has 2 entries, 2 were expected, each": (
        {"gemma3.attention.sliding_window_pattern": value("arr", ("i32", [1, 2]))},
        {},
    ),
    "sliding_window_pattern is 0": ({"gemma3.attention.sliding_window_pattern": value("u32", 0)}, {}),
    "gemma3.attention.sliding_window is missing": ({"gemma3.attention.sliding_window": None}, {}),
    "has 0 tokens": ({"tokenizer.ggml.tokens": value("arr", ("str", []))}, {}),
    "has 5 tokens, 1 … 4": ({"tokenizer.ggml.tokens": value("arr", ("str", list("abcde")))}, {}),
    "tokenizer.ggml.tokens is not an array of strings": ({"tokenizer.ggml.tokens": value("arr", ("i32", [1]))}, {}),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_contradicts_itself_is_refused(tmp_path: Path, words: str) -> None:
    changes, tensors = REFUSED[words]
    with pytest.raises(ModelFormatError, match=words):
        facts(tmp_path, changes, tensors)


def test_the_fingerprint_is_of_header_and_weights(tmp_path: Path) -> None:
    first = facts(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    assert facts(tmp_path / "elsewhere").fingerprint == first.fingerprint
    assert facts(tmp_path, {"gemma3.rope.freq_base": value("f32", 10_001.0)}).fingerprint != first.fingerprint
    whole = bytearray(model_file().build())
    for tensor in ("token_embd.weight", "blk.1.ffn_down.weight"):
        changed = bytearray(whole)
        changed[first.tensors[tensor].offset + first.tensors[tensor].bytes - 1] ^= 1
        (tmp_path / "changed.gguf").write_bytes(changed)
        assert read_model_facts(tmp_path / "changed.gguf").fingerprint != first.fingerprint


def test_messages_stay_short(tmp_path: Path) -> None:
    """Whatever a file puts into the strings that a refusal quotes."""
    long = value("str", "x" * 100_000)
    path = tmp_path / "twice.gguf"
    path.write_bytes(File(pairs=[("x" * 60_000, long)] * 2).build())
    for changes in ({"general.architecture": long}, {"gemma3.rope.scaling.type": long}):
        with pytest.raises(ModelFormatError) as refused:
            facts(tmp_path, changes)
        assert len(str(refused.value)) < 1_000
    with pytest.raises(ModelFormatError) as refused:
        read_model_facts(path)
    assert len(str(refused.value)) < 1_000
