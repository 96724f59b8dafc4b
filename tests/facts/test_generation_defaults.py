"""Sampling defaults of a model, from generation_config.json and from GGUF files: honoured, bounded, absent."""

import json
from pathlib import Path

import pytest
from gguf_files import model_file, value

from ridgeline.errors import ModelFormatError
from ridgeline.facts.headers.generation import read_generation


def test_generation_defaults(tmp_path: Path) -> None:
    assert read_generation(tmp_path).sampling == {} and not read_generation(tmp_path).eos_ids
    path = tmp_path / "generation_config.json"
    keys = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0, "repetition_penalty": 1.05, "max_new_tokens": 99}
    path.write_text(json.dumps({**keys, "eos_token_id": [2, 7], "do_sample": True, "num_beams": 4, "transformers_version": "5"}))
    found = read_generation(tmp_path)
    assert found.eos_ids == {2, 7}
    assert found.sampling == {
        "temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0, "repetition_penalty": 1.05, "max_tokens": 99
    }  # fmt: skip
    path.write_text('{"eos_token_id": 3, "temperature": null}')
    assert read_generation(tmp_path).eos_ids == {3} and read_generation(tmp_path).sampling == {}


BAD_GENERATION = {
    "eos_token_id is -1": {"eos_token_id": -1},
    "eos_token_id is 'x'": {"eos_token_id": "x"},
    "eos_token_id is .True": {"eos_token_id": [True]},
    "at most 256 ids": {"eos_token_id": list(range(257))},
    "temperature is '1', a number": {"temperature": "1"},
    "temperature is 11, outside 0.0 … 10.0": {"temperature": 11},
    "top_k is 1.5, an integer": {"top_k": 1.5},
    "top_p is 0, outside": {"top_p": 0},
    "max_new_tokens is 0, outside 1": {"max_new_tokens": 0},
    "repetition_penalty is True, a number": {"repetition_penalty": True},
}


@pytest.mark.parametrize("words", BAD_GENERATION)
def test_generation_defaults_are_bounded(words: str, tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(BAD_GENERATION[words]))
    with pytest.raises(ModelFormatError, match=words):
        read_generation(tmp_path)


def test_generation_defaults_of_gguf_files(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(model_file().build())
    assert read_generation(path).sampling == {} and read_generation(path).eos_ids == frozenset()
    keys = {"temp": value("f32", 0.5), "top_k": value("i32", 40), "penalty_repeat": value("f32", 1.25), "mirostat": value("i32", 2)}
    path.write_bytes(model_file({f"general.sampling.{key}": raw for key, raw in keys.items()}).build())
    assert read_generation(path).sampling == {"temperature": 0.5, "top_k": 40, "repetition_penalty": 1.25}
    path.write_bytes(model_file({"general.sampling.temp": value("f32", float("nan"))}).build())
    with pytest.raises(ModelFormatError, match=r"general.sampling: temperature is nan, outside 0.0 … 10.0"):
        read_generation(path)
