"""Grammars of arguments that stand between tags of their own, in the order of their schema.

A text stands there as it is, up to the closing tag; anything else as JSON.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from ridgeline.text.json_schema import Unsupported
from ridgeline.text.tools.lark import Lark, quoted
from ridgeline.text.tools.values import types_of
from ridgeline.text.tools.written import PLACE

NOTES: Final = frozenset({
    "type", "title", "description", "default", "example", "examples", "deprecated", "nullable", "$defs", "definitions", "$schema", "$id",
    "$comment",
})  # fmt: skip
"""Keywords that ask nothing of a text."""
_TYPES: Final = '("number" | "boolean" | "object" | "array" | "null")'
"""Names of types of values that are no texts, which parsers do not read."""
MAX_ARGUMENTS: Final = 64
"""Arguments of a call whose names are free."""
MARKUP: Final = frozenset('<>"\n')


def tags(lark: Lark, schema: Mapping[str, Any], parameter: str, strict: bool) -> str:
    """Arguments of a schema as `parameter` writes each. Raises Unsupported.

    strict  what a schema asks of a text is refused where it cannot be followed, rather than left out
    """
    tag = _Tag(lark, parameter)
    properties = schema.get("properties")
    if strict and schema.get("additionalProperties") is not False:
        raise Unsupported("strict parameters need properties, and additionalProperties: false")
    if not isinstance(properties, Mapping):
        return f"{lark.rule(tag.free(lark.rule('/[A-Za-z0-9_.-]{1,64}/')))}{{0,{MAX_ARGUMENTS}}}"
    required = schema.get("required")
    shared = {word: schema[word] for word in ("$defs", "definitions") if word in schema}
    made = []
    for name, inner in properties.items():
        if not name or MARKUP & {*name}:
            raise Unsupported(f"the name {name!r:.40} of an argument cannot be written between tags")
        body = lark.rule(_argument(tag, {**inner, **shared} if isinstance(inner, Mapping) else inner, lark.text(name), strict))
        made.append(body if isinstance(required, list) and name in required else f"{body}?")
    return " ".join(made)


class _Tag:
    """Form in which one argument is written."""

    def __init__(self, lark: Lark, parameter: str) -> None:
        self.lark = lark
        self._before, _, behind = parameter.partition("‹value›")
        self._end, *places = PLACE.split(behind)
        self._space = lark.space() if places else ""
        self._mark = self._end.strip("\n")
        """Mark that no text has: where it ends."""

    def free(self, key: str, kind: str = "string") -> str:
        """A text, as it is."""
        return f"{self._head(key, kind)} {self.lark.until(self._mark)} {self._space}"

    def plain(self, key: str, value: str, kind: str) -> str:
        """A value that has no mark in it."""
        return f"{self._head(key, kind)} {value} {self.lark.text(self._end)} {self._space}"

    def _head(self, key: str, kind: str) -> str:
        is_text = kind == "string"
        places = {"key": key, "kind": quoted("true" if is_text else "false"), "type": quoted(kind) if is_text else _TYPES}
        parts = enumerate(PLACE.split(self._before))
        made = [self.lark.text(part) if at % 2 == 0 else places.get(part) or self.lark.space() for at, part in parts]
        return " ".join(filter(None, made))


def _argument(tag: _Tag, schema: Any, key: str, strict: bool) -> str:
    types = types_of(schema) or types_of(_referred(schema))
    if types and "string" not in types:
        words = ["True", "False"] if "boolean" in types else []
        words += ["None"] if "null" in types else []
        is_free = isinstance(schema, Mapping) and schema.keys() <= NOTES | {"items", "properties", "required", "additionalProperties"}
        values = [tag.lark.json(schema), *(map(quoted, words) if is_free else ())]
        return tag.plain(key, f"({' | '.join(values)})", min(types))
    named = schema if isinstance(schema, Mapping) else {}
    choices = named.get("enum", [named["const"]] if "const" in named else None)
    if isinstance(choices, list) and choices and all(_is_plain(each, types) for each in choices):
        return tag.plain(key, f"({' | '.join(tag.lark.text(each) for each in choices)})", "string")
    if strict and not all(word in NOTES or (word == "anyOf" and _are_types(named[word])) for word in named):
        raise Unsupported("pattern, format and length of a text, and a choice between texts and others, cannot be followed between tags")
    return tag.free(key)


def _referred(schema: Any) -> Any:
    """The schema to which a reference into the tool's own leads; None for anything else."""
    name = schema.get("$ref") if isinstance(schema, Mapping) else None
    return led(schema, name) if isinstance(name, str) else None


def led(root: Any, reference: str) -> Any:
    """The target of a reference into a schema; None: there is none."""
    found = root
    for part in reference.removeprefix("#/").split("/"):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _is_plain(choice: object, types: frozenset[str]) -> bool:
    """True if a choice is a text that is read as one."""
    if not isinstance(choice, str) or choice != choice.strip() or not choice or MARKUP & {*choice}:
        return False
    try:
        json.loads(choice)
    except ValueError:
        return True
    return types == {"string"}


def _are_types(schemas: Any) -> bool:
    return isinstance(schemas, list) and all(isinstance(each, Mapping) and each.keys() <= NOTES for each in schemas)
