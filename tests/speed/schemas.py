"""Schemas as applications send them, each with a value of it; and one of about ten thousand characters, new at each number."""

from typing import Any

from ridgeline import StructuredOutputs

TEXT = {"type": "string"}
ADDRESS = {
    "type": "object",
    "properties": {
        "street": TEXT,
        "city": TEXT,
        "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
        "country": {"enum": ["DE", "FR", "US"]},
    },
    "required": ["street", "city", "zip", "country"],
    "additionalProperties": False,
}
PERSON = {
    "type": "object",
    "properties": {
        "name": TEXT,
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "email": {"type": "string", "format": "email"},
        "address": {"$ref": "#/$defs/address"},
        "tags": {"type": "array", "items": TEXT, "maxItems": 4},
    },
    "required": ["name", "age", "email", "address", "tags"],
    "additionalProperties": False,
    "$defs": {"address": ADDRESS},
}
PLAIN = {
    **PERSON,
    "properties": {name: each for name, each in PERSON["properties"].items() if name != "email"},  # type: ignore[attr-defined]
    "required": ["name", "age", "address", "tags"],
}
REVIEW = {
    "type": "object",
    "properties": {
        "sentiment": {"enum": ["positive", "neutral", "negative"]},
        "score": {"type": "number", "minimum": 0, "maximum": 1},
        "reasons": {"type": "array", "items": {"type": "string", "maxLength": 60}, "minItems": 1, "maxItems": 3},
        "date": {"type": ["string", "null"], "format": "date"},
    },
    "required": ["sentiment", "score", "reasons", "date"],
    "additionalProperties": False,
}
ORDER = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"},
        "lines": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"article": {"type": "string", "maxLength": 30}, "count": {"type": "integer"}, "price": {"type": "number"}},
                "required": ["article", "count", "price"],
                "additionalProperties": False,
            },
            "minItems": 2,
            "maxItems": 4,
        },
        "paid": {"type": "boolean"},
    },
    "required": ["id", "lines", "paid"],
    "additionalProperties": False,
}
ANN = {
    "name": "Ann Bartholomew", "age": 37, "email": "ann.b@example.org",
    "address": {"street": "12 Long Lane", "city": "Oxford", "zip": "01234", "country": "DE"}, "tags": ["new", "paying customer"],
}  # fmt: skip
GOOD = {"sentiment": "positive", "score": 0.75, "reasons": ["It came the next day, well packed and in the right colour."], "date": None}
LAMPS = {
    "id": "ABC-0042",
    "lines": [{"article": "lamp, brass", "count": 2, "price": 39.5}, {"article": "bulb", "count": 6, "price": 2}],
    "paid": True,
}
STRING = r'"([^"\\\x00-\x1f]|\\["\\/bfnrt])*"'
WORDS = [f'"{word} {number}"' for word in ("yes", "no", "perhaps") for number in range(50)]
VALUES: list[tuple[str, StructuredOutputs, Any]] = [
    ("person", StructuredOutputs(json=PERSON), ANN),
    ("review", StructuredOutputs(json=REVIEW), GOOD),
    ("order", StructuredOutputs(json=ORDER), LAMPS),
    ("any object", StructuredOutputs(json_object=True), {"order": LAMPS, "by": ANN}),
    ("a text of JSON", StructuredOutputs(regex=STRING), "It came the next day, well packed and in the right colour."),
    ("a choice", StructuredOutputs(choice=WORDS), "perhaps 42"),
]


def endless(schema: dict[str, Any]) -> dict[str, Any]:
    """A list of values that nothing ends soon."""
    return {"type": "array", "items": {**schema, "$defs": {}}, "minItems": 1_000, "$defs": schema["$defs"]}


def large(number: int) -> dict[str, Any]:
    """Of about 10 kB, and unlike any other."""
    names = [f"field_{number}_{place}" for place in range(115)]
    short: dict[str, Any] = {"type": "string", "maxLength": 40, "description": "A short text."}
    kinds: list[dict[str, Any]] = [short, {"type": "integer", "minimum": 0}, {"enum": ["low", "high"]}, ADDRESS, *[{"type": "boolean"}] * 4]
    properties = {name: kinds[place % len(kinds)] for place, name in enumerate(names)}
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}
