"""JSON Schemas as llguidance follows them: what it would get wrong is written otherwise, or refused by name.

Owns the differences between a schema and its grammar. `tests/text/test_json_schema_suite.py` holds the library and this file against the
JSON-Schema-Test-Suite; docs/json-schema.md has the result.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final


class Unsupported(Exception):
    """A grammar that cannot be followed; the text says why."""


_DAY: Final = r"(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8])"
_LEAP_YEAR: Final = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE: Final = rf"(?:[0-9]{{4}}-(?:{_DAY})|{_LEAP_YEAR}-02-29)"
_TIME: Final = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
FORMATS: Final[Mapping[str, str]] = {"date": f"^{_DATE}$", "time": f"^{_TIME}$", "date-time": f"^{_DATE}[Tt]{_TIME}$"}
"""Formats whose own grammar in the library knows neither leap years nor when seconds are 60. Here they never are."""
ENDS: Final[Mapping[str, str]] = {"email": "^[^@]{1,64}@.{1,255}$", "duration": "^P(?:T?[0-9]{1,9}[YMWDHS])+$"}
"""Formats to which the library knows no end: what bounds them beside its grammar. RFC 5321 has the lengths of addresses."""
COUNTS: Final = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
MAPS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
"""Keywords with a schema for each name."""
VALUES: Final = ("const", "enum", "default", "examples", "example", "required", "x-guidance")
"""Keywords with data, in which no name is a keyword."""
REMOVED: Final = ("disallow", "divisibleBy", "extends")
"""Keywords of draft 3, which the library takes for names that mean nothing."""
DRAFTS: Final = ("draft-04", "draft-06", "draft-07", "2019-09", "2020-12")
SINCE: Final[Mapping[str, str]] = {
    **dict.fromkeys(("const", "contains", "propertyNames"), "draft-06"),
    **dict.fromkeys(("if", "then", "else"), "draft-07"),
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "unevaluatedItems", "unevaluatedProperties", "$anchor"), "2019-09"),
    **dict.fromkeys(("prefixItems", "$dynamicRef", "$dynamicAnchor"), "2020-12"),
}
"""Keyword → the first draft that has it. Where `$schema` names an earlier one, the library ignores the keyword."""
CONTROL: Final = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")
"""Characters that JSON writes as \\u00XX only."""
CONTROL_PATTERN: Final = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]|\\[xuUcav0-9]")
"""Regular expressions that may name one of them."""


def prepared(schema: Any, whitespace: str) -> Any:
    """A schema as the library follows it without a fault: another spelling of the same, with the library's options. Raises Unsupported."""
    if not isinstance(schema, (dict, bool)):
        raise Unsupported("a JSON Schema is an object; send one")
    if schema is False:
        raise Unsupported("the schema false has no value; send another one")
    written = any(_names_control(each) for each in _schemas(schema))
    for each in _schemas(schema):
        _check(each, _draft(schema), written)
    options = {"whitespace_pattern": whitespace, "lenient": False}
    if not written:  # a key with an escape would pass for another one: "\u0061" is "a" to whoever parses it
        options["json_allowed_escapes"] = 'nrbtf\\"'
    return {**({} if schema is True else _rewritten(schema)), "x-guidance": options}


def _schemas(value: Any) -> Iterator[dict[str, Any]]:
    """The schema and all inside it, those of unknown keywords too: a reference may lead there."""
    if isinstance(value, list):
        for each in value:
            yield from _schemas(each)
    elif isinstance(value, dict):
        yield value
        for word, inner in value.items():
            if word in MAPS and isinstance(inner, dict):
                yield from _schemas([*inner.values()])
            elif word not in VALUES:
                yield from _schemas(inner)


def _draft(schema: Any) -> str:
    named = schema.get("$schema") if isinstance(schema, dict) else None
    return next((each for each in DRAFTS if isinstance(named, str) and each in named), DRAFTS[-1])


def _check(schema: dict[str, Any], draft: str, written: bool) -> None:
    """Raises Unsupported for what the library would follow wrongly. written: control characters are written as \\u00XX."""
    for word in schema:
        if word in REMOVED:
            raise Unsupported(f"{word} is a keyword of JSON Schema's draft 3, which cannot be followed; use a later one")
        if word in SINCE and DRAFTS.index(draft) < DRAFTS.index(SINCE[word]):
            raise Unsupported(f"{word} is no keyword of {draft}, which $schema names; leave $schema out")
    is_open = schema.get("additionalProperties", True) is not False
    named, patterns = schema.get("properties"), schema.get("patternProperties")
    if written and is_open and (named or patterns):
        raise Unsupported("properties with control characters in values or patterns need additionalProperties: false; add it")
    fewest, required = schema.get("minProperties"), schema.get("required")
    certain = len({*map(str, required)}) if isinstance(required, list) else 0
    if isinstance(fewest, (int, float)) and fewest > certain + 1 and (is_open or patterns):
        raise Unsupported(
            f"minProperties {fewest} cannot be followed where names are free, as the same may come twice; "
            "require the names, or set additionalProperties: false"
        )


def _names_control(schema: dict[str, Any]) -> bool:
    """True if values or patterns of a schema may have characters that JSON writes as \\u00XX."""
    patterns = [schema.get("pattern"), *(schema["patternProperties"] if isinstance(schema.get("patternProperties"), dict) else ())]
    if any(isinstance(each, str) and CONTROL_PATTERN.search(each) for each in patterns):
        return True
    return any(CONTROL.search(each) for each in _texts([schema.get("const"), schema.get("enum")]))


def _texts(value: Any) -> Iterator[str]:
    """Texts in data, names of objects among them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for each in [*value, *value.values()] if isinstance(value, dict) else value:
            yield from _texts(each)


def _rewritten(schema: Any) -> Any:
    """The same schema: counts as integers, `uniqueItems: false` left out, formats of `FORMATS` as patterns."""
    if isinstance(schema, list):
        return [_rewritten(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made: dict[str, Any] = {}
    for word, value in schema.items():
        if word in MAPS and isinstance(value, dict):
            made[word] = {name: _rewritten(each) for name, each in value.items()}
        elif word in COUNTS and isinstance(value, float) and value.is_integer():
            made[word] = int(value)
        elif word not in VALUES:
            made[word] = _rewritten(value)
        else:
            made[word] = value
    if made.get("uniqueItems") is False:
        del made["uniqueItems"]
    named = made.get("format")
    pattern = FORMATS.get(named) or ENDS.get(named) if isinstance(named, str) else None
    if pattern is not None and isinstance(made.get("allOf", []), list):
        made["allOf"] = [*made.get("allOf", []), {"pattern": pattern}]
        if named in FORMATS:
            del made["format"]
    return made
