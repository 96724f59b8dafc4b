"""Ways to ask for a structured output: grammars, errors that name what cannot be done, limits."""

from typing import Any

import pytest

from ridgeline.core.params import StructuredOutputs
from ridgeline.errors import RequestError
from ridgeline.text import structured
from ridgeline.text.structured import StructuredOutputCompiler


def nested(depth: int) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": nested(depth - 1)}} if depth else {"type": "string"}


GOOD: list[dict[str, Any]] = [
    {"json": {"type": "object", "properties": {"a": {"type": "string"}}}},
    {"json": '{"type": "integer"}'},
    {"json": True},
    {"json": nested(20)},
    {"json": {"$defs": {"n": {"properties": {"next": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"}},
    {"json_object": True},
    {"regex": "[a-z]+@[a-z]+"},
    {"choice": ["yes", 'a "quote"\n', "ß"]},
    {"grammar": 'start: "a" /b+/'},
    {"grammar": 'root ::= "a" [0-9]+ root | "b"'},
    {"structural_tag": {"structures": [{"begin": "<f=a>", "schema": {"type": "object"}, "end": "</f>"}], "triggers": ["<f="]}},
]
BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "exactly one"),
    ({"json_object": True, "regex": "a"}, "exactly one"),
    ({"json": {"not": {"type": "string"}}}, "not"),
    ({"json": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
    ({"json": {"if": {}, "then": {}}}, "if"),
    ({"json": {"$ref": "http://example.org/schema"}}, "http://example.org/schema"),
    ({"json": '{"type":'}, "no JSON"),
    ({"json": "[1]"}, "an object"),
    ({"json": nested(40)}, "64 deep"),
    ({"json": {"enum": ["x" * 300_000]}}, "at most"),
    ({"regex": "(?=a)b"}, "look-around"),
    ({"regex": "a["}, "regex"),
    ({"choice": []}, "1 to"),
    ({"choice": ["a", ""]}, "none of them empty"),
    ({"grammar": "start: unknown_rule"}, "unknown_rule"),
    ({"grammar": 'root ::= "a'}, "GBNF"),
    ({"structural_tag": {"structures": [], "triggers": []}}, "structures"),
    ({"structural_tag": {"structures": [{"begin": "<a>", "end": ""}], "triggers": ["<b"]}}, "trigger"),
]


@pytest.mark.parametrize("asked", GOOD, ids=str)
def test_good_ones_compile_to_one_grammar_each(compiler: StructuredOutputCompiler, asked: dict[str, Any]) -> None:
    first, again = (compiler.compile(StructuredOutputs(**asked)) for _ in range(2))
    assert first is again and len(first.digest) == 32


@pytest.mark.parametrize(("asked", "named"), BAD, ids=lambda value: str(value)[:40])
def test_bad_ones_name_what_is_wrong(compiler: StructuredOutputCompiler, asked: dict[str, Any], named: str) -> None:
    with pytest.raises(RequestError) as caught:
        compiler.compile(StructuredOutputs(**asked), "response_format")
    assert named in str(caught.value) and caught.value.param == "response_format"
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


def test_space_between_tokens_is_bounded(compiler: StructuredOutputCompiler) -> None:
    text = compiler.compile(StructuredOutputs(json={"type": "object"})).text
    assert "{0,16}" in text and "lenient" in text
    assert "\\\\t" in compiler.compile(StructuredOutputs(json_object=True, whitespace_pattern="\\t")).text


def test_a_compiler_that_takes_too_long_or_dies_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = StructuredOutputCompiler()
    compiler.compile(StructuredOutputs(regex="a"))
    process = compiler._process
    assert process is not None
    process._process.kill()
    with pytest.raises(RequestError, match="simplify"):
        compiler.compile(StructuredOutputs(regex="b"))
    compiler.compile(StructuredOutputs(regex="c"))
    monkeypatch.setattr(structured, "COMPILE_SECONDS", 0.0)
    monkeypatch.setattr("ridgeline.text.sandbox_process.MIN_CPU_SECONDS", 0.0)
    with pytest.raises(RequestError, match="to compile"):
        compiler.compile(StructuredOutputs(json={"properties": {f"k{number}": {"type": "string"} for number in range(3_000)}}))
    monkeypatch.undo()
    compiler.compile(StructuredOutputs(regex="d"))
    compiler.close()
    compiler.close()
