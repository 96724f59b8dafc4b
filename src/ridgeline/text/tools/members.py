"""Grammars of arguments that are members of a literal, as Python's keywords or Gemma's objects write them, in the order of their schema."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ridgeline.text.json_schema import Unsupported
from ridgeline.text.tools.lark import Lark, quoted
from ridgeline.text.tools.tags import NOTES, led
from ridgeline.text.tools.values import types_of

_KEY: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$.-]*")
_OBJECT: Final = frozenset({"properties", "required", "additionalProperties"})
_SINGLE: Final = r"/'([^'\\\n]|\\[^\n])*'/"
"""A text in Python's other quotes."""
_ORDER: Final = ("string", "integer", "number", "boolean", "null", "array", "object")
MAX_DEPTH: Final = 16


@dataclass(frozen=True, slots=True)
class _Style:
    """Style in which a literal is written.

    equals  between a name of an argument and its value     colon   the same within a value
    comma   between members                                 true, false, nothing: words for them
    quote   the mark around texts; empty: they are JSON's   keyed   names within a value are texts
    ordered members stand in the order of their names, not of the schema
    """

    equals: str
    colon: str
    comma: str
    true: Sequence[str]
    false: Sequence[str]
    nothing: Sequence[str]
    quote: str
    keyed: bool
    ordered: bool


_STYLES: Final = {
    "bare": _Style(":", ":", '","', ("true",), ("false",), ("null", "None"), '<|"|>', keyed=False, ordered=True),
    "keywords": _Style("=", ": ", '"," " "?', ("True", "true"), ("False", "false"), ("None", "null"), "", keyed=True, ordered=False),
}


def members(lark: Lark, schema: Mapping[str, Any], style: str) -> str:
    """Arguments of a schema, without what stands around them. Raises Unsupported."""
    literal = _Literal(lark, _STYLES[style], schema)
    return literal.members(schema, _STYLES[style].equals, keyed=False, depth=0)


class _Literal:
    """Values of one schema."""

    def __init__(self, lark: Lark, style: _Style, root: Mapping[str, Any]) -> None:
        self._lark, self._style, self._root = lark, style, root
        self._references: dict[str, str] = {}
        self._anything: str | None = None

    def members(self, schema: Mapping[str, Any], equals: str, *, keyed: bool, depth: int) -> str:
        """Members of an object, of which the optional ones may be left out."""
        _refuse(schema, _OBJECT, "an object")
        properties = schema.get("properties")
        if not isinstance(properties, Mapping):
            key = self._lark.json({"type": "string"}) if keyed else self._lark.rule("/[A-Za-z_][A-Za-z0-9_]{0,63}/")
            member = self._lark.rule(f"{key} {quoted(equals)} {self._any()}")
            return f"({member} ({self._style.comma} {member})*)?"
        if schema.get("additionalProperties") not in (False, None):
            raise Unsupported("additionalProperties cannot be followed in this model's form of calls")
        required = schema.get("required")
        lark, first, behind = self._lark, "", ""
        names = sorted(properties, key=str.lower) if self._style.ordered else [*properties]
        for name in reversed(names):
            if not keyed and not _KEY.fullmatch(name):
                raise Unsupported(f"the name {name!r:.40} of an argument cannot be written in this model's form of calls")
            member = lark.rule(f"{quoted(quoted(name) if keyed else name)} {quoted(equals)} {self.value(properties[name], depth + 1)}")
            whole, next_ = lark.rule(f"{member} {behind}"), lark.rule(f"{self._style.comma} {member}")
            if isinstance(required, list) and name in required:
                first, behind = whole, lark.rule(f"{next_} {behind}")
            else:
                other = first.removesuffix("?")
                first = f"{lark.rule(f'{whole} | {other}')}{first[len(other) :]}" if first else f"{whole}?"
                behind = lark.rule(f"{next_}? {behind}")
        return first

    def value(self, schema: Any, depth: int) -> str:
        """A value of a schema."""
        if depth > MAX_DEPTH:
            raise Unsupported(f"values nested more than {MAX_DEPTH} deep cannot be followed in this model's form of calls")
        if schema is True or schema == {}:
            return self._any()
        if not isinstance(schema, Mapping):
            raise Unsupported("a schema of a value is an object")
        if isinstance(schema.get("$ref"), str):
            return self._reference(schema["$ref"])
        for word in ("anyOf", "oneOf"):
            if isinstance(schema.get(word), list):
                _refuse(schema, frozenset({word}), word)
                return self._either([self.value(each, depth + 1) for each in schema[word]])
        if "enum" in schema or "const" in schema:
            choices = schema["enum"] if "enum" in schema else [schema["const"]]
            return self._either([self._constant(each) for each in choices])
        types = types_of(schema)
        if not types:
            _refuse(schema, frozenset(), "a value without a type")
            return self._any()
        return self._either([self._typed(schema, each, depth) for each in _ORDER if each in types])

    def _typed(self, schema: Mapping[str, Any], kind: str, depth: int) -> str:
        lark, style = self._lark, self._style
        if kind == "object":
            inner = self.members(schema, style.colon, keyed=style.keyed, depth=depth)
            return f'"{{" {inner} "}}"'
        if kind == "array":
            _refuse(schema, frozenset({"items"}), "a list")
            item = self.value(schema.get("items", True), depth + 1)
            return f'"[" ({item} ({style.comma} {item})*)? "]"'
        if kind in ("boolean", "null"):
            words = style.nothing if kind == "null" else (*style.true, *style.false)
            return self._either([quoted(word) for word in words])
        if kind == "string" and style.quote:
            _refuse(schema, frozenset(), "a text")
            return f"{lark.text(style.quote)} {lark.until(style.quote)}"
        made = lark.json({**schema, "type": kind})
        return self._either([made, lark.rule(_SINGLE)]) if kind == "string" and schema.keys() <= NOTES else made

    def _constant(self, value: Any) -> str:
        style = self._style
        if isinstance(value, bool) or value is None:
            return quoted((style.nothing if value is None else style.true if value else style.false)[0])
        if isinstance(value, str) and style.quote:
            if style.quote in value:
                raise Unsupported("a choice has this model's mark for quotes, and cannot be written")
            return f"{self._lark.text(style.quote)} {quoted(value)} {self._lark.text(style.quote)}"
        if isinstance(value, (str, int, float)):
            return quoted(quoted(value) if isinstance(value, str) else f"{value}")
        raise Unsupported("a choice that is an object or a list cannot be followed in this model's form of calls")

    def _any(self) -> str:
        """Any value."""
        if self._anything is None:
            self._anything = self._lark.recursive(self._set_anything)
        return self._anything

    def _set_anything(self, name: str) -> str:
        self._anything = name
        return " | ".join(self._typed({}, kind, 0) for kind in _ORDER if kind != "integer")

    def _either(self, bodies: Sequence[str]) -> str:
        return bodies[0] if len(bodies) == 1 else self._lark.rule(" | ".join(bodies))

    def _reference(self, reference: str) -> str:
        """A value of the schema to which a reference into the tool's own leads."""
        found = led(self._root, reference)
        if not reference.startswith("#/") or found is None:
            raise Unsupported(f"the reference {reference!r:.60} leads nowhere")

        def make(name: str) -> str:
            self._references[reference] = name
            return self.value(found, 0)

        return self._references.get(reference) or self._lark.recursive(make)


def _refuse(schema: Mapping[str, Any], known: frozenset[str], of: str) -> None:
    """Raises Unsupported for keywords that are not followed."""
    unknown = sorted(schema.keys() - known - NOTES)
    if unknown:
        raise Unsupported(f"keywords of {of} that cannot be followed in this model's form of calls: {', '.join(unknown)}")
