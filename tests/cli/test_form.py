"""Flags for the form of an answer: what they read, their errors in one line, and an answer that follows one."""

import json
from pathlib import Path
from typing import Any

import pytest
from chat_llama import write_chat_llama

from ridgeline.cli.form import read_form
from ridgeline.cli.generate import generate
from ridgeline.core.params import StructuredOutputs
from ridgeline.errors import ConfigError, RequestError

SCHEMA = {"type": "object", "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["age"]}
NOTHING: dict[str, Any] = {"json_schema": None, "regex": None, "choice": None, "grammar": None}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "schema.json"
    made.write_text(json.dumps(SCHEMA))
    return made


def test_what_flags_ask_for(file: Path) -> None:
    assert read_form(**NOTHING) is None and read_form(**{**NOTHING, "choice": []}) is None
    text = json.dumps(SCHEMA)
    for given in (str(file), text):
        assert read_form(**{**NOTHING, "json_schema": given}) == StructuredOutputs(json=text)
    assert read_form(**{**NOTHING, "regex": "a+"}) == StructuredOutputs(regex="a+")
    assert read_form(**{**NOTHING, "choice": ["a", "b"]}) == StructuredOutputs(choice=("a", "b"))
    file.write_text('root ::= "a"')
    assert read_form(**{**NOTHING, "grammar": str(file)}) == StructuredOutputs(grammar='root ::= "a"')


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"regex": "a", "choice": ["b"]}, "--regex and --choice both"),
        ({"json_schema": "missing.json"}, "--json-schema: missing.json cannot be read"),
        ({"grammar": "."}, "--grammar: . cannot be read"),
        ({"json_schema": '{"a'}, "--json-schema: .* no JSON"),
        ({"json_schema": '{"uniqueItems": true}'}, "--json-schema: .*uniqueItems"),
        ({"regex": "(?=a)"}, "--regex: .*look-around"),
        ({"regex": ""}, "--regex: "),
        ({"choice": [""]}, "--choice: .*empty"),
    ],
)
def test_errors_are_one_line_and_name_the_flag(given: dict[str, Any], said: str) -> None:
    with pytest.raises((ConfigError, RequestError), match=said) as caught:
        read_form(**{**NOTHING, **given})
    assert "\n" not in str(caught.value)


def test_files_that_are_no_text(file: Path) -> None:
    file.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"not UTF-8 \(byte 0\)"):
        read_form(**{**NOTHING, "json_schema": str(file)})
    file.write_bytes(b" " * ((1 << 20) + 1))
    with pytest.raises(ConfigError, match="1048576 bytes"):
        read_form(**{**NOTHING, "grammar": str(file)})


def test_answers_follow_it(tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(write_chat_llama(tmp_path / "random"))
    generate(model, ["Her age: "], json_schema=str(file), as_json=True, temperature=1.5, seed=1, max_model_len=600)
    (choice,) = json.loads(capsys.readouterr().out)["choices"]
    assert choice["finish_reason"] == "stop" and 0 <= json.loads(choice["text"])["age"] <= 99
