"""Structured output as clients ask for it: OpenAI's `response_format`, vLLM's `structured_outputs` and `guided_*`, SGLang's `regex` and
`ebnf`, llama.cpp's `grammar` and `json_schema`.

Owns the spellings. What each form means is `text.structured`'s.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from ridgeline.core.params import StructuredOutputs
from ridgeline.server import wire
from ridgeline.server.errors import ApiError
from ridgeline.text.structured import Asked

FORMS: Final[Mapping[str, str]] = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "json_schema": "json",
    "grammar": "grammar",
    "regex": "regex",
    "ebnf": "grammar",
}
"""Field → the field of `StructuredOutputs` that means the same."""
EMPTY: Final[tuple[object, ...]] = (None, "", [])
"""Values that ask for nothing: clients send them for what they leave open."""


def structured_outputs(payload: wire.GenerationRequest) -> Asked | None:
    """The structured output that a body asks for. Raises ApiError where it asks for two, or in a form that is none."""
    found = [*_asked(payload)]
    if len(found) > 1:
        raise ApiError("invalid_value", f"{found[0].field} and {found[1].field} both ask for a form; send one", param=found[1].field)
    if found and payload.use_beam_search:
        raise ApiError("invalid_value", f"{found[0].field} has no effect on a beam search; leave it out", param=found[0].field)
    return found[0] if found else None


def _asked(payload: wire.GenerationRequest) -> Iterator[Asked]:
    pattern = payload.guided_whitespace_pattern
    if payload.response_format is not None and payload.response_format.get("type") != "text":
        yield Asked(_response_format(payload.response_format), "response_format")
    if payload.structured_outputs is not None:
        try:
            yield Asked(msgspec.convert(payload.structured_outputs, StructuredOutputs), "structured_outputs")
        except msgspec.ValidationError as error:
            raise ApiError("invalid_type", f"structured_outputs: {error}", param="structured_outputs") from None
    for field, form in FORMS.items():
        value = getattr(payload, field)
        if value not in EMPTY:
            yield Asked(StructuredOutputs(**{form: value}, whitespace_pattern=pattern), field)


def _response_format(asked: Mapping[str, Any]) -> StructuredOutputs:
    kind = asked.get("type")
    if kind == "json_object":
        schema = asked.get("schema")  # llama.cpp's place for one
        if schema is None:
            return StructuredOutputs(json_object=True)
        if not isinstance(schema, Mapping):
            raise ApiError("invalid_type", "response_format.schema is a JSON Schema, an object", param="response_format")
        return StructuredOutputs(json=schema)
    if kind == "structural_tag":
        return StructuredOutputs(structural_tag=asked)
    if kind != "json_schema":
        kinds = "text, json_object, json_schema, structural_tag"
        raise ApiError("invalid_value", f"response_format has no type that is known; send one of {kinds}", param="response_format")
    named = asked.get("json_schema")
    schema = named.get("schema") if isinstance(named, Mapping) else None
    if not isinstance(schema, Mapping):
        raise ApiError("missing_field", "response_format needs json_schema.schema, an object", param="response_format")
    return StructuredOutputs(json=schema)
