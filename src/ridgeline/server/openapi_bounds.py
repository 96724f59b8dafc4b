"""What the shapes of requests leave open and the server nonetheless holds: ranges, lengths, required fields, fields that are refused.

Owns how these become words of JSON Schema. Takes every number from its owner (`engine.admit`, the endpoints) and states none of its own.
"""

from collections.abc import Mapping
from typing import Any, Final

from ridgeline.core.params import BAD_WORD_CHARACTERS, BAD_WORDS
from ridgeline.engine import admit
from ridgeline.server import conversation, unbuilt, wire
from ridgeline.server.completions import MAX_PROMPTS
from ridgeline.server.fields import LENGTH_PENALTY

Schema = dict[str, Any]


def _range(bound: admit.Bound) -> dict[str, Schema]:
    low = "exclusiveMinimum" if bound.above else "minimum"
    return {"integer" if bound.whole else "number": {low: bound.low, "maximum": bound.high}}


_ID: Final[Schema] = {"type": "integer", "minimum": 0}
_STOP: Final[Schema] = {"minLength": 1, "maxLength": admit.STOP_CHARACTERS}
_IDS: Final[Schema] = {"type": "array", "minItems": 1, "items": _ID}
_WORDS: Final[Mapping[str, Mapping[str, Schema]]] = {
    **{name: _range(bound) for name, bound in admit.BOUNDS.items()},
    "max_completion_tokens": _range(admit.BOUNDS["max_tokens"]),
    "top_logprobs": _range(admit.BOUNDS["logprobs"]),
    "length_penalty": {"number": {"minimum": -LENGTH_PENALTY, "maximum": LENGTH_PENALTY}},
    "truncate_prompt_tokens": {"integer": {"minimum": -1, "not": {"const": 0}}},
    "stop": {"string": _STOP, "array": {"maxItems": admit.STOP_STRINGS, "items": {"type": "string", **_STOP}}},
    "stop_token_ids": {"array": {"maxItems": admit.STOP_IDS, "items": _ID}},
    "allowed_token_ids": {"array": {"minItems": 1, "maxItems": admit.ALLOWED_IDS, "items": _ID}},
    "bad_words": {
        "array": {"maxItems": BAD_WORDS, "items": {"type": "string", "minLength": 1, "maxLength": BAD_WORD_CHARACTERS}}
    },
    "logit_bias": {
        "object": {
            "maxProperties": admit.BIASES,
            "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,9})$"},
            "additionalProperties": {"type": "number", "minimum": admit.BIAS.low, "maximum": admit.BIAS.high},
        }
    },
    "messages": {"array": {"minItems": 1, "maxItems": conversation.MESSAGES}},
    "tools": {"array": {"maxItems": conversation.TOOLS}},
    "documents": {"array": {"maxItems": conversation.DOCUMENTS}},
    "tokens": {"array": {"items": _ID}},
}  # fmt: skip
"""Field → JSON type → words that are added to the branch of this type."""

_REPLACED: Final[Mapping[type, Mapping[str, Schema]]] = {
    wire.CompletionRequest: {
        "prompt": {
            "description": "A text, texts, token ids, or lists of token ids. Ids must be the model's.",
            "anyOf": [
                {"type": "string"},
                {"type": "array", "minItems": 1, "maxItems": MAX_PROMPTS, "items": {"type": "string"}},
                _IDS,
                {"type": "array", "minItems": 1, "maxItems": MAX_PROMPTS, "items": _IDS},
            ],
        }
    },
    wire.ChatCompletionRequest: {
        "tool_choice": {"enum": [None, "none", "auto"], "description": 'With tools only "none": calls are not parsed.', "default": None}
    },
    wire.ContentPart: {"type": {"const": "text"}},
    wire.ChatMessage: {"audio": {"type": "null"}, "function_call": {"type": "null"}},
}
_REQUIRED: Final[Mapping[type, tuple[str, ...]]] = {
    wire.CompletionRequest: ("prompt",),
    wire.ChatCompletionRequest: ("messages",),
    wire.DetokenizeRequest: ("tokens",),
    wire.ContentPart: ("type", "text"),
}
_EITHER: Final[Mapping[type, list[Schema]]] = {
    wire.ChatMessage: [
        {"properties": {"role": {"const": "assistant"}}},
        {"required": ["content"], "properties": {"content": {"type": ["string", "array"]}}},
    ]
}
"""Alternatives of which one must hold."""
_UNBUILT: Final[Mapping[type, unbuilt.Unbuilt]] = {
    wire.CompletionRequest: unbuilt.COMPLETION, wire.ChatCompletionRequest: unbuilt.CHAT, wire.TokenizeRequest: unbuilt.TOKENIZE
}  # fmt: skip
NARROWED: Final = (*_REQUIRED, wire.TokenizeRequest, wire.ChatMessage)


def narrow(shape: type, schema: Schema) -> None:
    """Writes into the schema of one of `NARROWED`, in place, what the server holds beyond its types."""
    properties: dict[str, Schema] = schema["properties"]
    for name, found in properties.items():
        for kind, words in _WORDS.get(name, {}).items():
            for branch in _branches(found):
                if branch.get("type") == kind:
                    branch.update(words)
    properties.update(_REPLACED.get(shape, {}))
    for name in _REQUIRED.get(shape, ()):
        properties[name] = _never_null(properties[name])
    if shape in _REQUIRED:
        schema["required"] = list(_REQUIRED[shape])
    if shape in _EITHER:
        schema["anyOf"] = _EITHER[shape]
    refused = _UNBUILT.get(shape)
    if refused is not None:
        properties.update((name, _refused(values)) for name, values in refused.fields.items())


def _branches(schema: Schema) -> list[Schema]:
    branches: list[Schema] = schema.get("anyOf", [schema])
    return branches


def _never_null(schema: Schema) -> Schema:
    branches = [branch for branch in _branches(schema) if branch != {"type": "null"}]
    rest = {name: value for name, value in schema.items() if name not in ("anyOf", "default")}
    return rest | {"anyOf": branches} if len(branches) > 1 else rest | branches[0]


def _refused(neutral: tuple[object, ...]) -> Schema:
    """A known field that is not built takes only values that ask for nothing."""
    return {"enum": [None, *neutral], "default": None, "description": "Not built: other values are refused."}
