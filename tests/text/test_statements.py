"""A checkpoint directory on itself: base or instruct, ends that its files state, added tokens, a head that should be the embedding."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_llama import TURN_END, write_chat_llama
from safetensors.numpy import load_file, save_file

from ridgeline.compute.load.check import check_weights
from ridgeline.errors import Finding
from ridgeline.facts.headers.read import read_model_facts
from ridgeline.text.files import read_files
from ridgeline.text.statements import ModelKind, Statements, model_kind
from ridgeline.text.tokenizer_check import check_vocabulary


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_chat_llama(tmp_path / "tiny", context=256)


def changed(file: Path, change: Callable[[Any], object]) -> None:
    values = json.loads(file.read_text())
    change(values)
    file.write_text(json.dumps(values))


def checked(path: Path) -> tuple[ModelKind, tuple[Finding, ...]]:
    files = read_files(path.name, path, chat_template=None, generation_config="auto")
    template = files.load_template()
    with contextlib.closing(template) if template is not None else contextlib.nullcontext():
        return files.check(template)


def test_a_sound_directory_passes_in_silence(directory: Path) -> None:
    kind, findings = checked(directory)
    assert (kind, findings) == (ModelKind("instruct", "it has a chat template"), ())
    assert check_weights(read_model_facts(directory), threads=1) == ()


ENDS = {
    "ordinary text": (40, "generation_config.json ends answers at id 40, which is the ordinary text"),
    "outside": (9_999, "generation_config.json ends answers at id 9999, which is no token: ids are 0 to 404"),
}


@pytest.mark.parametrize("fault", ENDS)
def test_ends_that_no_answer_should_have(directory: Path, fault: str) -> None:
    token, said = ENDS[fault]
    changed(directory / "generation_config.json", lambda values: values.update(eos_token_id=[token]))
    assert any(said in each.cause for each in checked(directory)[1])


def test_an_end_that_is_no_token(directory: Path) -> None:
    changed(directory / "tokenizer_config.json", lambda values: values.update(eos_token="<|im_end|>"))
    assert [each.cause for each in checked(directory)[1]] == [
        "tokenizer_config.json ends answers at a name that is no token: ids are 0 to 404"
    ]


def test_an_end_that_begins_turns(directory: Path) -> None:
    header = 402
    for file in ("generation_config.json", "config.json"):
        changed(directory / file, lambda values: values.update(eos_token_id=header))
    changed(directory / "tokenizer_config.json", lambda values: values.update(eos_token="<|start_header_id|>"))
    causes = [each.cause for each in checked(directory)[1]]
    assert len(causes) == 3 and all("ends answers at '<|start_header_id|>', but turns" in cause and TURN_END in cause for cause in causes)


def test_an_added_token_that_gets_another_id(directory: Path) -> None:
    changed(directory / "tokenizer.json", lambda values: values["added_tokens"][1].update(id=3))
    causes = [each.cause for each in checked(directory)[1]]
    assert any("tokenizer.json adds '<|end_of_text|>' as id 3, but it is id" in cause for cause in causes), causes


def test_a_vocabulary_of_another_model(directory: Path) -> None:
    tokenizer = read_files("m", directory, chat_template=None, generation_config="auto").tokenizer
    assert not check_vocabulary(tokenizer, 448) and not check_vocabulary(tokenizer, 404)
    for inputs in (200, 32_000):
        (finding,) = check_vocabulary(tokenizer, inputs)
        assert "names 405 ids" in finding.cause and str(inputs) in finding.cause


@pytest.mark.parametrize("same", [True, False])
def test_a_head_beside_an_embedding_that_is_the_head(directory: Path, same: bool) -> None:
    tensors = load_file(directory / "model.safetensors")
    embedding = tensors["model.embed_tokens.weight"]
    save_file({**tensors, "lm_head.weight": embedding + np.float32(0 if same else 0.01)}, directory / "model.safetensors")
    findings = check_weights(read_model_facts(directory), threads=1)
    assert [each.cause for each in findings] == ([] if same else [
        "tensor 'output.weight' is not the embedding, to which config.json ties it, and is used as the head (1 parts differ)"
    ])  # fmt: skip


NAMES = {
    "instruct": "SmolLM2-135M-Instruct gemma-3-270m-it Llama-2-7b-chat-hf DeepSeek-R1-Distill-Qwen-32B Qwen3-4B-Thinking-2507 gpt-oss-20b",
    "base": "Qwen3-0.6B-Base gemma-3-1b-pt granite-3.3-2b-base llama-base-v2",
    "silent": "Llama-3.2-1B Qwen3-0.6B SmolLM2-135M mistral-7b-v0.3 bitnet-2b pretty-8-bit capital-7b database-llm",
}


@pytest.mark.parametrize("said", NAMES)
def test_a_name_that_says_how_a_model_was_trained(said: str) -> None:
    for name in NAMES[said].split():
        kind = model_kind(Statements((name,), {}), None)
        assert kind.kind == ("instruct" if said == "instruct" else "base")
        assert (repr(name) in kind.reason) == (said != "silent"), (name, kind)


def test_ends_decide_where_the_name_is_silent(directory: Path) -> None:
    """Base models of some families have the template of their chat models; their generation config ends texts alone."""
    changed(directory / "generation_config.json", lambda values: values.update(eos_token_id=401))
    kind, _ = checked(directory)
    assert kind == ModelKind("base", "its generation_config.json does not end answers where its chat template ends turns")
    assert checked(write_chat_llama(directory.parent / "plain", template=None))[0].kind == "base"
