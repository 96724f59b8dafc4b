"""What is written otherwise for the grammar library, or refused by name, since it would get it wrong: each with answers that show it."""

from typing import Any

import pytest
from byte_grammars import takes

from ridgeline.compute.decoding.grammar import GrammarCompiler
from ridgeline.core.params import StructuredOutputs
from ridgeline.errors import RequestError
from ridgeline.text.structured import StructuredOutputCompiler

DRAFT_7, DRAFT_4 = "http://json-schema.org/draft-07/schema#", "http://json-schema.org/draft-04/schema#"
NAMED = {"type": "object", "properties": {"a": {"type": "integer"}}}
KINDS = [{"type": "object", "properties": {"kind": {"const": each}}, "required": ["kind"]} for each in "ab"]


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (NAMED, ['{"a":1}', '{"b":"x"}', '{"b\\n":"x"}'], ['{"\\u0061":"x"}', '{"a":"x"}', '{"a":1,"a":2}', '{"b":1,"\\u0061":"x"}']),
        ({"patternProperties": {"^a": {"type": "integer"}}}, ['{"ab":1}', '{"b":"x"}'], ['{"\\u0061b":"x"}', '{"ab":"x"}']),
        ({"enum": ["b\x01", "a"]}, ['"a"', '"b\\u0001"'], ['"b"', '"\\u0061"']),
        ({"type": "string", "pattern": "^b\\x01$"}, ['"b\\u0001"'], ['"b"']),
        ({**NAMED, "additionalProperties": False, "required": ["a"], "title": "\x01"}, ['{"a":1}'], ['{"\\u0061":1}']),
        ({"type": "string", "format": "date"}, ['"2024-02-29"', '"2000-02-29"'], ['"2023-02-29"', '"1900-02-29"', '"2024-04-31"']),
        ({"format": "time"}, ['"23:59:59Z"', '"01:02:03.5+23:59"', "1"], ['"23:59:60Z"', '"24:00:00Z"', '"01:02:03"', '"1:02:03Z"']),
        ({"format": "date-time", "pattern": "^2"}, ['"2024-02-29T00:00:00Z"'], ['"1924-02-29T00:00:00Z"', '"2023-02-29T00:00:00Z"']),
        ({"format": "email"}, [f'"{"a" * 64}@x.org"'], [f'"{"a" * 65}@x.org"', '"a@@x.org"']),
        ({"format": "duration"}, ['"P1Y2M3DT4H5M6S"', '"PT123456789S"', '"P2W"'], ['"P1234567890D"', '"P"', '"PT"', '"1D"']),
        ({"items": {"properties": {"at": {"format": "date"}}}}, ['[{"at":"2024-02-29"}]'], ['[{"at":"2023-02-29"}]']),
        ({"type": "array", "maxItems": 1.0, "uniqueItems": False}, ["[1]"], ["[1,1]"]),
        ({"type": "object", "minProperties": 1}, ['{"a":1}'], ["{}"]),
        ({"minProperties": 2, "required": ["a"]}, ['{"a":1,"b":1}'], ['{"a":1}', '{"a":1,"a":1}']),
        ({"oneOf": KINDS}, ['{"kind":"a"}', '{"kind":"b"}'], ['{"kind":"c"}', "{}"]),
        (True, ["1", "{}", "null"], ["", "x"]),
        ({"x-guidance": {"lenient": True}, "type": "integer"}, ["1"], ['"x"']),
    ],
    ids=str,
)
def test_valid_answers_and_no_others(
    compiler: StructuredOutputCompiler, matching: GrammarCompiler, schema: Any, good: list[str], bad: list[str]
) -> None:
    grammar = compiler.compile(StructuredOutputs(json=schema))
    assert [text for text in good if not takes(matching, grammar, text)] == []
    assert [text for text in bad if takes(matching, grammar, text)] == []


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        (False, "false"),
        ({"minProperties": 2}, "minProperties"),
        ({"anyOf": [{"x": {"minProperties": 2}}]}, "minProperties"),
        ({**NAMED, "enum": [{"a": 1, "b": "\x01"}]}, "additionalProperties"),
        ({"properties": {"a": {"pattern": "\\x01"}}}, "additionalProperties"),
        ({"extends": {"type": "string"}}, "extends"),
        ({"$schema": DRAFT_7, "dependentRequired": {"a": ["b"]}}, "dependentRequired is no keyword of draft-07"),
        ({"$schema": DRAFT_4, "properties": {"a": {"const": 1}}}, "const is no keyword of draft-04"),
        ({"oneOf": [{"minimum": 1}, {"maximum": 2}]}, "oneOf"),
        ({"type": "string", "format": "iri"}, "iri"),
        ({"x-guidance": {"lenient": True}, "uniqueItems": True}, "uniqueItems"),
        ({"maximum": 9.7e26}, "maximum"),
        ({"$ref": "http://example.org/x"}, "http://example.org/x"),
    ],
    ids=str,
)
def test_refused_by_name(compiler: StructuredOutputCompiler, schema: Any, named: str) -> None:
    with pytest.raises(RequestError, match=named) as caught:
        compiler.compile(StructuredOutputs(json=schema), "response_format")
    assert caught.value.param == "response_format"


def test_names_of_properties_and_data_are_no_keywords(compiler: StructuredOutputCompiler, matching: GrammarCompiler) -> None:
    named = {"properties": {"minProperties": {"type": "integer"}, "format": {"const": {"extends": 1}}}, "default": {"disallow": 1}}
    grammar = compiler.compile(StructuredOutputs(json=named))
    assert takes(matching, grammar, '{"minProperties":2,"format":{"extends":1}}') and not takes(matching, grammar, '{"minProperties":"x"}')


def test_schemas_of_structural_tags_are_followed_alike(compiler: StructuredOutputCompiler, matching: GrammarCompiler) -> None:
    def tag(schema: Any) -> StructuredOutputs:
        return StructuredOutputs(structural_tag={"structures": [{"begin": "<f>", "schema": schema, "end": "</f>"}], "triggers": ["<f"]})

    grammar = compiler.compile(tag({**NAMED, "required": ["a"]}))
    assert takes(matching, grammar, 'so: <f>{"a": 1}</f>') and not takes(matching, grammar, "<f>{}</f>")
    assert not takes(matching, grammar, '<f>{"a":' + " " * 20 + "1}</f>") and not takes(matching, grammar, '<f>{"a": 1, "\\u0061": ""}</f>')
    with pytest.raises(RequestError, match=r'keywords that cannot be followed: \["uniqueItems"\]$'):
        compiler.compile(tag({"uniqueItems": True}))
