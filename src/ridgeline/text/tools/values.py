"""Values of arguments as models write them where they do not write JSON: plain texts in tags, literals as in Python.

Owns which JSON a text means. Arguments that come as JSON are never touched.
"""

import ast
import json
import re
from collections.abc import Mapping
from typing import Any, Final

MAX_LITERAL: Final = 64 << 10
_TYPES: Final[Mapping[type, frozenset[str]]] = {
    bool: frozenset({"boolean"}), int: frozenset({"integer", "number"}), float: frozenset({"number"}), str: frozenset({"string"}),
    list: frozenset({"array"}), dict: frozenset({"object"}), type(None): frozenset({"null"}),
}  # fmt: skip
_CONSTANTS: Final = {"None": "null", "True": "true", "False": "false", "null": "null", "true": "true", "false": "false"}
_TOKEN: Final = re.compile(
    r"""(?P<space>\s+)|(?P<quoted><\|"\|>.*?<\|"\|>)|(?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
    r"""|(?P<key>[A-Za-z_$][\w$.-]*)\s*(?:=|:)|(?P<word>[A-Za-z_][\w.]*)|(?P<number>[-+]?[0-9][0-9.eE+-]*)|(?P<mark>[\[\]{}:,])""",
    re.DOTALL,
)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|U(000[0-9a-fA-F]{5}|0010[0-9a-fA-F]{4})|(.))", re.DOTALL)


def quoted(text: str) -> str:
    """The text as a string of JSON."""
    return json.dumps(text, ensure_ascii=False)


def types_of(schema: object) -> frozenset[str]:
    """The types that a JSON Schema allows, as far as it says them outright; empty: any."""
    if not isinstance(schema, Mapping):
        return frozenset()
    found = schema.get("type")
    if isinstance(found, str):
        return frozenset({found})
    if isinstance(found, list):
        return frozenset(each for each in found if isinstance(each, str))
    choices = schema.get("anyOf") or schema.get("oneOf")
    parts = [types_of(each) for each in choices] if isinstance(choices, list) else []
    return frozenset().union(*parts) if all(parts) else frozenset()


def from_text(text: str, types: frozenset[str]) -> str:
    """The JSON that a plain text means: what it is as JSON where the types allow that, else a string."""
    value = text.strip()
    try:
        parsed = json.loads(value, parse_constant=_refuse)
        if not types or _TYPES[type(parsed)] & types or (parsed is None and "string" not in types):
            return value
    except (ValueError, RecursionError):
        pass
    if types and "string" not in types and len(value) <= MAX_LITERAL:
        try:
            return paired(json.dumps(ast.literal_eval(value), ensure_ascii=False, allow_nan=False))
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            pass
    return quoted(text)


def from_literal(text: str) -> str | None:
    """The JSON of a literal with Python's constants and quotes, or keys without quotes (`{a:1,b:<|"|>x<|"|>}`); None for what is none."""
    made: list[str] = []
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            return None
        at = found.end()
        kind, token = str(found.lastgroup), found[found.lastgroup or 0]
        if kind == "quoted":
            made.append(quoted(token[5:-5]))
        elif kind == "string":
            made.append(quoted(paired(_ESCAPE.sub(_unescaped, token[1:-1]))))
        elif kind == "key":
            made.append(f"{quoted(token)}: ")
        elif kind == "word":
            if token not in _CONSTANTS:
                return None
            made.append(_CONSTANTS[token])
        elif kind != "space":
            made.append({",": ", ", ":": ": "}.get(token, token))
    whole = "".join(made)
    try:
        json.loads(whole, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return whole


def _unescaped(found: re.Match[str]) -> str:
    return _ESCAPES.get(found[4], found[4]) if found[4] else chr(int(found[found.lastindex or 0], 16))


def paired(text: str) -> str:
    """The text with the letters that pairs of surrogates stand for; one without its other can be sent to nobody."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
