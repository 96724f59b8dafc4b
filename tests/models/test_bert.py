"""BERT against transformers: tokens, hidden states, each kind of pooling, both formats and both runners; and the real MiniLM."""

import json
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest

from ridgeline import LLM, SamplingParams
from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.packing import SPLIT, pack_weights, packed_as
from ridgeline.errors import ModelFormatError, RequestError
from ridgeline.facts.headers.read import read_model_facts

LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS), "hello", "world", "##ing", "##ed",
         ",", ".", "!", "'", "é", "你", "好", "1", "##2", "3"]  # fmt: skip
TEXTS = ["Hello, world!", "helloing HELLOed wörld", "a b c 12 3", "don't 你好 é", "x", "zzz " * 20]
CONTEXT = 96
MULTIPLIED = {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down"}


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory):
    """Transformers' model of random weights, and its directory with a tokenizer.json."""
    import torch
    import transformers

    directory = tmp_path_factory.mktemp("bert")
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=96,
        max_position_embeddings=CONTEXT, attn_implementation="eager",
    )  # fmt: skip
    model, noise = transformers.BertModel(config).eval(), torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, value in model.named_parameters():
            spread = 0.3 if value.ndim == 1 or "embeddings" in name else 1.6 * value.shape[-1] ** -0.5
            value.copy_(torch.randn(value.shape, generator=noise) * spread + (1 if name.endswith("LayerNorm.weight") else 0))
    model.save_pretrained(directory)
    (directory / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    transformers.BertTokenizerFast(str(directory / "vocab.txt")).save_pretrained(directory)
    (directory / "vocab.txt").unlink(missing_ok=True)
    return model, transformers.AutoTokenizer.from_pretrained(directory), directory


def describe(directory: Path, to: Path, **modes: bool) -> Path:
    """A copy with a description as sentence-transformers writes it."""
    if to != directory:
        shutil.copytree(directory, to, dirs_exist_ok=True)
    kinds = ["Transformer", "Pooling", "Normalize"]
    modules = [
        {"idx": number, "name": str(number), "path": f"{number}_{kind}" if number else "", "type": f"sentence_transformers.models.{kind}"}
        for number, kind in enumerate(kinds)
    ]
    (to / "modules.json").write_text(json.dumps(modules))
    (to / "1_Pooling").mkdir(exist_ok=True)
    (to / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 64, **modes}))
    return to


def expected(model, ids: list[int], kind: str) -> np.ndarray:
    import torch

    with torch.no_grad():
        hidden = model(torch.tensor([ids])).last_hidden_state[0].numpy().astype(np.float64)
    found = {"mean": hidden.mean(0), "cls": hidden[0], "last": hidden[-1]}[kind]
    return found / np.linalg.norm(found)


def check(path: Path, model, tokenizer, kind: str, **settings: object) -> None:
    with LLM(path, **settings) as llm:
        for text, found in zip(TEXTS, llm.embed(TEXTS), strict=True):
            assert list(found.prompt_token_ids) == tokenizer(text).input_ids, text
            assert float(expected(model, tokenizer(text).input_ids, kind) @ found.outputs.embedding) > 0.99999


@pytest.mark.parametrize("kind", ["mean", "cls", "last"])
@pytest.mark.parametrize("runner", ["native", "numpy"])
def test_equals_transformers(bert, tmp_path: Path, kind: str, runner: str) -> None:
    model, tokenizer, directory = bert
    key = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token", "last": "pooling_mode_lasttoken"}[kind]
    check(describe(directory, tmp_path, **{key: True, "pooling_mode_max_tokens": False}), model, tokenizer, kind, runner=runner)


def test_matrices_in_two_halves(bert, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine with AMX: vectors are as near, and know nothing of the texts beside them."""
    model, tokenizer, directory = bert
    monkeypatch.setattr(ext, "splits", lambda: True)
    split = packed_as(pack_weights(read_model_facts(directory), 1, lambda stage, done: None), SPLIT)
    assert {name.split(".", 2)[-1] for name in split} == {f"{name}.weight" for name in MULTIPLIED} and len(split) == 3 * len(MULTIPLIED)
    check(directory, model, tokenizer, "mean")
    with LLM(directory, max_num_batched_tokens=CONTEXT, max_num_seqs=3) as llm:
        assert [each.outputs for each in llm.embed(TEXTS * 3)] == [llm.embed(text)[0].outputs for text in TEXTS] * 3
    monkeypatch.setattr(ext, "splits", lambda: False)
    assert not packed_as(pack_weights(read_model_facts(directory), 1, lambda stage, done: None), SPLIT)


def test_a_vocabulary_without_a_tokenizer_json(bert, tmp_path: Path) -> None:
    model, tokenizer, directory = bert
    for name in ("config.json", "model.safetensors"):
        shutil.copy(directory / name, tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    check(tmp_path, model, tokenizer, "mean")


@pytest.mark.parametrize(("number", "kind"), [(1, "mean"), (2, "cls")])
def test_gguf_files(bert, tmp_path: Path, number: int, kind: str) -> None:
    model, tokenizer, _ = bert
    check(write_gguf(tmp_path / "bert.gguf", model, number), model, tokenizer, kind)


def write_gguf(path: Path, model, pooling: int) -> Path:
    """As llama.cpp's converter lays it out."""
    config, writer = model.config, gguf.GGUFWriter(path, "bert")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_eps(config.layer_norm_eps)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType(pooling))
    writer.add_token_type_count(2)
    writer.add_tokenizer_model("bert")
    control = {"[PAD]": 3, "[UNK]": 2, "[CLS]": 3, "[SEP]": 3, "[MASK]": 3}
    writer.add_token_list([each if each in control else each[2:] if each.startswith("##") else f"\u2581{each}" for each in WORDS])
    writer.add_token_types([control.get(each, 1) for each in WORDS])
    writer.add_bos_token_id(WORDS.index("[CLS]"))
    writer.add_sep_token_id(WORDS.index("[SEP]"))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, config.num_hidden_layers)
    for name, value in model.named_parameters():
        if not name.startswith("pooler"):
            stem, _, suffix = name.rpartition(".")
            writer.add_tensor(f"{names.get_name(stem)}.{suffix}", value.detach().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_whole_texts_share_steps_and_nothing_is_generated(bert) -> None:
    directory = bert[2]
    with LLM(directory, max_num_batched_tokens=CONTEXT, max_num_seqs=3) as llm:
        texts = TEXTS * 5
        many = llm.embed(texts)
        assert [each.outputs for each in many] == [llm.embed(text)[0].outputs for text in TEXTS] * 5
        with pytest.raises(RequestError, match="embed"):
            llm.generate("hello", SamplingParams(max_tokens=1))
        with pytest.raises(RequestError, match=f"{CONTEXT}"):
            llm.embed("a " * CONTEXT)
        assert len(llm.embed("a " * CONTEXT, truncate_prompt_tokens=-1)[0].prompt_token_ids) == CONTEXT
        assert llm.check() == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: describe(path, path, pooling_mode_max_tokens=True), "max"),
        (lambda path: describe(path, path, pooling_mode_mean_tokens=True, pooling_mode_cls_token=True), "mean"),
        (lambda path: (path / "modules.json").write_text('[{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}]'), "Dense"),
        (lambda path: (path / "modules.json").write_text('[{"type": "x.Pooling", "path": "../../etc"}]'), "1_Pooling"),
        (lambda path: (path / "modules.json").write_text("{}"), "array"),
    ],
)
def test_descriptions_that_are_not_followed_are_refused(bert, tmp_path: Path, change, message: str) -> None:
    shutil.copytree(bert[2], tmp_path, dirs_exist_ok=True)
    change(tmp_path)
    with pytest.raises(ModelFormatError, match=message):
        LLM(tmp_path)


def test_minilm_equals_transformers(minilm_directory: Path) -> None:
    import transformers

    model, tokenizer = (each.from_pretrained(minilm_directory) for each in (transformers.AutoModel, transformers.AutoTokenizer))
    texts = ["The weather is lovely today.", "It's so sunny outside!", "He drove to work.", "Ünïcödé déjà vu 你好 🦊 don't", "a " * 150]
    with LLM(minilm_directory) as llm:
        for text, found in zip(texts, llm.embed(texts), strict=True):
            assert list(found.prompt_token_ids) == tokenizer(text).input_ids
            assert float(expected(model.eval(), tokenizer(text).input_ids, "mean") @ found.outputs.embedding) > 0.9999
        near, far = llm.score(texts[0], texts[1:3])
        assert near.outputs.score > 0.6 > 0.3 > far.outputs.score
