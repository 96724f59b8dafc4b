"""Requests for structured outputs that are made to cost much: schemas, regular expressions, grammars, choices, structural tags."""

import json
import string
from collections.abc import Mapping
from typing import Any, Final

Schema = dict[str, Any]
TEXT: Final[Schema] = {"type": "string"}


def doubling(word: str, count: int) -> Schema:
    """Definitions of which each names the next one twice: 2^count of the last one."""
    inner = {f"d{at}": {word: [{"$ref": f"#/$defs/d{at + 1}"}, {"$ref": f"#/$defs/d{at + 1}"}]} for at in range(count)}
    return {"$defs": {**inner, f"d{count}": TEXT}, "$ref": "#/$defs/d0"}


def loop(word: str) -> Schema:
    return {"$defs": {"a": {word: [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}


def properties(count: int, of: Any = TEXT) -> Schema:
    return {"type": "object", "properties": {f"k{at}": of for at in range(count)}}


def pairs(depth: int) -> Schema:
    return {"type": "object", "properties": dict.fromkeys("xy", pairs(depth - 1))} if depth else TEXT


def rules(count: int, first: str, each: str) -> str:
    """A grammar of `start`, whose {} is all rules with bars between them, and rules, whose {} is their number."""
    return "\n".join([first.format(" | ".join(f"r{at}" for at in range(count))), *(f"r{at}: {each.format(at)}" for at in range(count))])


def chain(count: int, rule: str, name: str) -> str:
    """Rules of which each is made of the next one, {} in `rule`."""
    return "\n".join([f"start: {name}0", *(f"{name}{at}: {rule.format(f'{name}{at + 1}')}" for at in range(count)), f'{name}{count}: "a"'])


SCHEMAS: Final[Mapping[str, Any]] = {
    "reference to itself": {"$ref": "#"},
    "loop of references": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    **{f"loop of {word}": loop(word) for word in ("allOf", "anyOf", "oneOf")},
    **{f"doubled {word}": doubling(word, 40) for word in ("allOf", "anyOf", "oneOf", "prefixItems")},
    "products of anyOf": {"allOf": [{"anyOf": [properties(1) for _ in range(8)]} for _ in range(8)]},
    "wide anyOf": {"anyOf": [properties(20) for _ in range(200)]},
    "patterns at once": {"allOf": [{"type": "string", "pattern": f".{{0,{200 + at}}}a.{{{300 + at}}}b"} for at in range(10)]},
    "enum": {"enum": [f"value {at}" for at in range(12_000)]},
    "long enum": {"enum": ["x" * 2_000 + str(at) for at in range(100)]},
    "5000 properties": properties(5_000),
    "3000 properties of three types": properties(3_000, {"anyOf": [TEXT, {"type": "null"}, {"type": "integer"}]}),
    "4000 required": {**properties(4_000), "required": [f"k{at}" for at in range(4_000)], "additionalProperties": False},
    "patterns of names": {"patternProperties": {"^(a+)+$": TEXT, "^(b|bb)*c{500}$": {"type": "integer"}}},
    "items": {"type": "array", "items": pairs(4), "minItems": 10**9, "maxItems": 10**9},
    "length": {"type": "string", "minLength": 10**9},
    "multiple": {"type": "integer", "multipleOf": 99_999_989},
    "multiples": {"allOf": [{"type": "integer", "multipleOf": prime} for prime in (7, 11, 13, 17, 19, 23, 29)]},
    "range": {"type": "number", "minimum": 1.23456789012345e-7, "exclusiveMaximum": 9.87654321e200},
    "pairs of pairs": pairs(11),
    "deep lists": json.loads('{"items":' * 50 + "{}" + "}" * 50),
    "deeper lists": json.loads('{"items":' * 70 + "{}" + "}" * 70),
    "long name": {"type": "object", "properties": {"k" * 100_000: TEXT}},
    "long const": {"const": "é" * 40_000},
    "not of not": {"not": {"not": {}}},
    "remote": {"$ref": "http://169.254.169.254/latest/meta-data"},
    "file": {"$ref": "file:///etc/passwd"},
}
REGEXES: Final[Mapping[str, str]] = {
    "nested": "(a+)+b",
    "counts of counts": "((a{1,100}){1,100}){1,100}",
    "count": "a{100000}",
    "huge count": "a{1000000000}",
    "dots": "(.{0,500}x){0,500}",
    "states": "(" + "|".join(f".*{letter}.{{{at}}}" for at, letter in enumerate(string.ascii_lowercase, 100)) + ")",
    "letters": r"[\p{L}\p{N}]{1,5000}",
    "words": "(?i:" + "|".join(f"word{at}" for at in range(3_000)) + ")",
    "deep": "(" * 5_000 + "a" + ")" * 5_000,
    "stars of stars": "(" * 100 + "a" + ")*" * 100,
    "literal": "a" * 200_000,
    "stars": "a*" * 5_000,
    "options": "a?" * 5_000 + "a" * 5_000,
    "any options": ".?" * 3_000,
    "nothing": r"[^\s\S]",
}
GRAMMARS: Final[Mapping[str, str]] = {
    "ambiguous": 'start: start start start | start start | "a" | "b" | ',
    "nullable": 'start: a*\na: b*\nb: c*\nc: "x"?',
    "repeated": 'start: a{1000}\na: b{1000}\nb: c{1000}\nc: "x"',
    "counts": 'start: x{1000000000000000000}\nx: "a"',
    "doubled terminals": chain(40, "{0} {0}", "A"),
    "alternating terminals": chain(25, "({0} | {0} {0})", "A"),
    "doubled rules": chain(60, "{0} {0}", "a"),
    "intersections": "start: X\nX: " + " & ".join(f"/(.*a.{{{at}}}.*)/" for at in range(1, 40)),
    "complement": "start: X\nX: ~/(.*a.{100})/ & /(.*b.{200})/",
    "rules": rules(5_000, "start: {}", '"x" "{}"'),
    "lexemes": "start: (" + " | ".join(f"T{at}" for at in range(500)) + ")*\n" + "\n".join(
        f"T{at}: /.*{string.ascii_lowercase[at % 26]}.{{{at}}}/" for at in range(500)
    ),
    "schema inside": "start: %json " + json.dumps({"type": "integer", "multipleOf": 99_999_989}),
    "brackets": "start: " + "(" * 3_000 + '"a"' + ")" * 3_000,
    "GBNF that repeats": r'root ::= [^"\\\x7F\x00-\x1F]* root?',
    "GBNF": "root ::= " + " | ".join(f'"w{at}"' for at in range(15_000)),
    "deep GBNF": "root ::= " + "(" * 3_000 + '"a"' + ")" * 3_000,
    "import": "%import python.sys\nstart: sys",
    "any token": "start: <[0-200000]>*",
}  # fmt: skip
FORMS: Final[Mapping[str, dict[str, Any]]] = {
    "choices": {"choice": ["x" * 200 + str(at) for at in range(1_000)]},
    "too many choices": {"choice": [str(at) for at in range(100_000)]},
    "choices within others": {"choice": ["a" * at for at in range(1, 700)]},
    "space": {"json": {"type": "array"}, "whitespace_pattern": "( {0,999} ){0,999}"},
    "tags": {
        "structural_tag": {
            "structures": [{"begin": "a" * at + "<", "schema": {}, "end": "x"} for at in range(1, 200)],
            "triggers": ["a" * at for at in range(1, 200)],
        }
    },
    "a tag of nothing": {"structural_tag": {"structures": [{"begin": "", "schema": {}, "end": ""}], "triggers": [""]}},
}
BOMBS: Final[Mapping[str, dict[str, Any]]] = {
    **{f"schema: {name}": {"json": schema} for name, schema in SCHEMAS.items()},
    **{f"regex: {name}": {"regex": pattern} for name, pattern in REGEXES.items()},
    **{f"grammar: {name}": {"grammar": text} for name, text in GRAMMARS.items()},
    **{f"form: {name}": form for name, form in FORMS.items()},
}
"""Label → the field `structured_outputs` of a request."""
BY_DAY: Final = (
    "schema: reference to itself", "schema: doubled allOf", "schema: multiple", "schema: wide anyOf", "schema: patterns of names",
    "schema: length", "regex: counts of counts", "regex: states", "regex: nothing", "grammar: ambiguous", "grammar: repeated",
    "grammar: complement", "grammar: GBNF that repeats", "grammar: deep GBNF", "form: too many choices", "form: tags",
)  # fmt: skip
"""One of each kind."""
