"""Arguments as elements of XML, nested as deep as they are, with one mark in front of every tag: how they are read, and their grammar.

A text stands there as it is. Where no schema tells, elements called `item` are a list, others an object, and anything else is what its
text means.
"""

import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ridgeline.text.json_schema import Unsupported
from ridgeline.text.tools.forms import Calls, Parameters, Reading
from ridgeline.text.tools.lark import Lark
from ridgeline.text.tools.scan import Marks, Scanner
from ridgeline.text.tools.tags import MARKUP, MAX_ARGUMENTS, NOTES, led
from ridgeline.text.tools.values import from_text, quoted, types_of

MAX_DEPTH: Final = 16
_KEY: Final = r"[^<>\"\s/][^<>\"\s]{0,127}"
_EMPTY: Final = {"string": '""', "array": "[]", "object": "{}", "null": "null"}
_ORDER: Final = ("string", "integer", "number", "boolean", "null", "array", "object")
_KNOWN: Final[Mapping[str, frozenset[str]]] = {
    "string": frozenset(), "array": frozenset({"items"}), "object": frozenset({"properties", "required", "additionalProperties"}),
}  # fmt: skip
"""Keywords of a type that are followed; those of other types are JSON's."""


@dataclass(frozen=True)
class Elements:
    """A list of calls `<invoke name="…">`, up to `</tool_call>`. prefix: the mark in front of every tag."""

    prefix: str

    def read(self, scanner: Scanner, calls: Calls, parameters: Parameters) -> Reading:
        mark, count = re.escape(self.prefix), 0
        head = re.compile(rf'\s*{mark}(?:<invoke name="(?P<name>[\w.:/-]{{1,128}})">|</tool_call>)')
        while (found := (yield from scanner.take(head))) is not None and found["name"] is not None:
            count += 1
            calls.begin(found["name"])
            reader = _Reader(self.prefix, scanner, calls.add)
            if not (yield from reader.members(parameters.get(found["name"], {}), 0, (yield from reader.tag()))):
                break
            calls.end()
        return count > 0


class _Reader:
    """Reads elements, and gives the JSON that they mean as it comes. False: the text is none."""

    def __init__(self, prefix: str, scanner: Scanner, give: Callable[[str], None]) -> None:
        self._prefix, self._scanner, self._give = prefix, scanner, give
        self._mark = Marks([prefix])
        self._tag = re.compile(rf"\s*{re.escape(prefix)}<(?P<close>/)?(?P<name>{_KEY})>")

    def tag(self) -> Generator[None, None, re.Match[str] | None]:
        """The tag that begins here."""
        return self._scanner.take(self._tag)

    def members(self, schemas: Mapping[str, Any], depth: int, tag: re.Match[str] | None) -> Reading:
        """An object, from the tag of its first element on."""
        before = "{"
        while tag is not None and not tag["close"]:
            self._give(f"{before}{quoted(tag['name'])}: ")
            before = ", "
            if not (yield from self._value(tag["name"], schemas.get(tag["name"]), depth)):
                return False
            tag = yield from self.tag()
        self._give("{}" if before == "{" else "}")
        return tag is not None

    def _value(self, name: str, schema: Any, depth: int) -> Reading:
        """Value of an element, through the tag that closes it."""
        types = types_of(schema)
        if types == {"string"}:
            self._give('"')
            close = Marks([f"{self._prefix}</{name}>"])
            if (yield from self._scanner.through(close, lambda piece: self._give(quoted(piece)[1:-1]))) is None:
                return False
            self._give('"')
            return True
        held: list[str] = []
        if (yield from self._scanner.through(self._mark, held.append)) is None:
            return False
        self._scanner.at -= len(self._prefix)
        tag = yield from self.tag()
        if tag is None or depth > MAX_DEPTH:
            return False
        if tag["close"]:
            text = "".join(held)
            empty = next((_EMPTY[each] for each in _EMPTY if each in types), '""')
            self._give(from_text(text, types) if text else empty)
            return True
        if tag["name"] == "item" and ("array" in types or "object" not in types):
            return (yield from self._items(_of_type(schema, "array").get("items"), depth + 1, tag))
        properties = _of_type(schema, "object").get("properties")
        return (yield from self.members(properties if isinstance(properties, Mapping) else {}, depth + 1, tag))

    def _items(self, schema: Any, depth: int, tag: re.Match[str] | None) -> Reading:
        before = "["
        while tag is not None and not tag["close"]:
            self._give(before)
            before = ", "
            if not (yield from self._value("item", schema, depth)):
                return False
            tag = yield from self.tag()
        self._give("]")
        return tag is not None


def _of_type(schema: Any, kind: str) -> Mapping[str, Any]:
    """The schema, or the first of those that it chooses from, which allows a type; else nothing."""
    if not isinstance(schema, Mapping):
        return {}
    choices = schema.get("anyOf") or schema.get("oneOf")
    for each in [schema, *(choices if isinstance(choices, list) else [])]:
        if isinstance(each, Mapping) and "type" in each and kind in types_of(each):
            return each
    return {}


def elements(lark: Lark, schema: Mapping[str, Any], parameter: str, strict: bool) -> str:
    """Arguments of a schema as elements, in its order; `parameter` shows one. Raises Unsupported.

    strict  what a schema asks of a text is refused where it cannot be followed, rather than left out
    """
    return _Grammar(lark, parameter.partition("<‹key›>")[0], strict, schema).members(schema, 0)


class _Grammar:
    """Elements of one schema."""

    def __init__(self, lark: Lark, prefix: str, strict: bool, root: Mapping[str, Any]) -> None:
        self._lark, self._prefix, self._strict, self._root = lark, prefix, strict, root
        self._references: dict[tuple[str, str], str] = {}
        self._any: str | None = None

    def members(self, schema: Mapping[str, Any], depth: int) -> str:
        """Elements of an object, of which the optional ones may be left out."""
        properties, lark = schema.get("properties"), self._lark
        if self._strict and schema.get("additionalProperties") is not False:
            raise Unsupported("strict parameters need properties, and additionalProperties: false")
        if not isinstance(properties, Mapping):
            return f"{self._free()}{{0,{MAX_ARGUMENTS}}}"
        required = schema.get("required")
        made = []
        for name, inner in properties.items():
            if not name or MARKUP & {*name} or name[0] == "/" or " " in name:
                raise Unsupported(f"the name {name!r:.40} of an argument cannot be written as a tag")
            body = lark.rule(f"{lark.text(f'{self._prefix}<{name}>')} {self._value(inner, name, depth + 1)}")
            made.append(body if isinstance(required, list) and name in required else f"{body}?")
        return " ".join(made)

    def _value(self, schema: Any, name: str, depth: int) -> str:
        """A value and the tag that closes it."""
        end = self._lark.text(f"{self._prefix}</{name}>")
        if depth > MAX_DEPTH:
            raise Unsupported(f"values nested more than {MAX_DEPTH} deep cannot be followed in this model's form of calls")
        if not isinstance(schema, Mapping):
            return self._text(name)
        if isinstance(schema.get("$ref"), str):
            return self._reference(schema["$ref"], name)
        choices = schema.get("anyOf") or schema.get("oneOf")
        if isinstance(choices, list):
            return self._either([self._value(each, name, depth + 1) for each in choices])
        types = types_of(schema)
        if "enum" in schema or "const" in schema:
            values = schema["enum"] if "enum" in schema else [schema["const"]]
            return self._either([f"{self._constant(each)} {end}" for each in values])
        return self._either([self._typed(schema, each, name, depth) for each in _ORDER if each in types]) if types else self._text(name)

    def _typed(self, schema: Mapping[str, Any], kind: str, name: str, depth: int) -> str:
        lark, end = self._lark, self._lark.text(f"{self._prefix}</{name}>")
        known = _KNOWN.get(kind)
        if self._strict and known is not None and (unknown := sorted(schema.keys() - NOTES - known)):
            raise Unsupported(f"keywords that cannot be followed between tags: {', '.join(unknown)}")
        if kind == "string":
            return self._text(name)
        if kind == "array":
            item = lark.rule(f"{lark.text(f'{self._prefix}<item>')} {self._value(schema.get('items'), 'item', depth + 1)}")
            return f"{item}* {end}"
        if kind == "object" and not isinstance(schema.get("properties"), Mapping) and not lark.has(self._prefix):
            return self._text(name)
        if kind == "object":
            return f"{self.members(schema, depth)} {end}"
        return f"{lark.json({**schema, 'type': kind})} {end}"

    def _free(self) -> str:
        """An element of any name; of others within it only where the mark is no text."""
        lark = self._lark
        key, begin, end = lark.rule("/[A-Za-z0-9_.-]{1,64}/"), lark.text(f"{self._prefix}<"), f"{self._prefix}</"
        text = lark.until(end)
        if not lark.has(self._prefix):
            return lark.rule(f'{begin} {key} ">" {text} {key} ">"')
        if self._any is None:
            self._any = lark.recursive(lambda name: f'{begin} {key} ">" ({text} | {name}+ {lark.text(end)}) {key} ">"')
        return self._any

    def _text(self, name: str) -> str:
        return self._lark.until(f"{self._prefix}</{name}>")

    def _constant(self, value: Any) -> str:
        if isinstance(value, str) and value and not MARKUP & {*value}:
            return self._lark.text(value)
        if isinstance(value, (bool, int, float)) or value is None:
            return self._lark.json({"const": value})
        raise Unsupported(f"the choice {value!r:.40} cannot be written between tags")

    def _either(self, bodies: list[str]) -> str:
        return bodies[0] if len(bodies) == 1 else self._lark.rule(" | ".join(bodies))

    def _reference(self, reference: str, name: str) -> str:
        """A value of the schema to which a reference into the tool's own leads."""
        found = led(self._root, reference)
        if not reference.startswith("#/") or found is None:
            raise Unsupported(f"the reference {reference!r:.60} leads nowhere")

        def make(rule: str) -> str:
            self._references[reference, name] = rule
            return self._value(found, name, 0)

        return self._references.get((reference, name)) or self._lark.recursive(make)
