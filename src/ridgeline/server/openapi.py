"""`/openapi.json`: every route with its request, its answers and its errors, as OpenAPI 3.1.

Owns the table of endpoints, and how what the server holds beyond the types of `server.wire` (ranges, lengths, required fields, fields that
are not built) becomes words of JSON Schema. Every number comes from its owner (`engine.admit`, the endpoints, the catalogue of
`server.errors`). It loads nothing, and no page shows it.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ridgeline import __version__
from ridgeline.core.params import MAX_BAD_WORD_CHARACTERS, MAX_BAD_WORDS, Bound
from ridgeline.engine import admit
from ridgeline.engine.beams import LENGTH_PENALTY
from ridgeline.server import body, chat, wire
from ridgeline.server.auth import PUBLIC
from ridgeline.server.completions import MAX_PROMPTS
from ridgeline.server.errors import CATALOGUE, ErrorBody
from ridgeline.server.service import Service

Schema = dict[str, Any]

ANYWHERE: Final = (400, 403, 408, 431, 500)
"""Before a route is found (HTTP, hosts, origins, headers), and when the server fails."""
NEEDS_MODEL, BODY, GENERATES = (503,), (404, 413, 503), (404, 413, 429, 503)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One operation.

    answer   type of the 200's JSON body, or a media type of text
    errors   statuses beside those of `ANYWHERE` and 401
    asks     type of the request's JSON body
    streams  type of a stream's events, for who asks with `stream: true`
    """

    method: str
    path: str
    summary: str
    answer: Any
    errors: tuple[int, ...] = ()
    asks: type | None = None
    streams: type | None = None


ENDPOINTS: Final = (
    Endpoint("GET", "/", "The page", "text/html"),
    Endpoint("GET", "/livez", "Whether the process is alive", "text/plain"),
    Endpoint("GET", "/readyz", "Whether a request would be taken now", "text/plain", NEEDS_MODEL),
    Endpoint("GET", "/health", "The same as /readyz", "text/plain", NEEDS_MODEL),
    Endpoint("GET", "/version", "The server's version", wire.Version),
    Endpoint("GET", "/metrics", "Figures, as Prometheus reads them", "text/plain", NEEDS_MODEL),
    Endpoint("GET", "/openapi.json", "This document", dict[str, Any]),
    Endpoint("GET", "/v1/models", "The model, as a list of one", wire.ModelList, NEEDS_MODEL),
    Endpoint("GET", "/v1/models/{name}", "The model, by its name", wire.ModelCard, (404, 503)),
    Endpoint("POST", "/v1/completions", "Text after a text", wire.Completion, GENERATES, wire.CompletionRequest, wire.Completion),
    Endpoint(
        "POST", "/v1/chat/completions", "The next message of a conversation",
        wire.ChatCompletion, GENERATES, wire.ChatCompletionRequest, wire.ChatCompletionChunk,
    ),
    Endpoint("POST", "/tokenize", "The ids of a text or a conversation", wire.TokenizeResponse, BODY, wire.TokenizeRequest),
    Endpoint("POST", "/detokenize", "The text of ids", wire.DetokenizeResponse, BODY, wire.DetokenizeRequest),
)  # fmt: skip


def routes(service: Service) -> list[BaseRoute]:
    """The route of the document, which is fixed at start."""
    encoded = msgspec.json.encode(document(locked=service.config.api_key is not None))

    async def openapi(request: Request) -> Response:
        return Response(encoded, media_type="application/json")

    return [Route("/openapi.json", openapi, methods=["GET"])]


def document(*, locked: bool) -> Schema:
    """The whole document. `locked`: whether an API key is needed."""
    paths: dict[str, Schema] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, locked)
    components: Schema = {"schemas": _schemas(), "responses": {f"Error{status}": _error(status) for status in _statuses()}}
    if locked:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Ridgeline", "version": __version__, "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"}},
        "paths": paths,
        "components": components,
    }


def _operation(endpoint: Endpoint, locked: bool) -> Schema:
    protected = locked and (endpoint.method, endpoint.path) not in PUBLIC
    statuses = sorted({*ANYWHERE, *endpoint.errors, *((401,) if protected else ())})
    operation: Schema = {
        "operationId": re.sub(r"\W+", "_", f"{endpoint.method.lower()} {endpoint.path}").strip("_"),
        "summary": endpoint.summary,
        "security": [{"key": []}] if protected else [],
        "responses": {
            "200": {"description": "The answer", "content": _content(endpoint)},
            **{str(status): {"$ref": f"#/components/responses/Error{status}"} for status in statuses},
        },
    }
    if "{name}" in endpoint.path:
        operation["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]
    if endpoint.asks is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": _reference(endpoint.asks)}}}
    return operation


def _content(endpoint: Endpoint) -> Schema:
    if isinstance(endpoint.answer, str):
        return {endpoint.answer: {"schema": {"type": "string"}}}
    content: Schema = {"application/json": {"schema": _reference(endpoint.answer)}}
    if endpoint.streams is not None:
        content["text/event-stream"] = {"schema": _event(endpoint.streams)}
    return content


def _event(shape: type) -> Schema:
    """One server-sent event, as OpenAPI 3.2 and tools describe it: its fields as an object."""
    content = {"anyOf": [_reference(shape), _reference(ErrorBody)]}
    data = {"anyOf": [{"const": "[DONE]"}, {"type": "string", "contentMediaType": "application/json", "contentSchema": content}]}
    return {
        "description": "Events of an answer to stream: true; the last is [DONE].",
        "type": "object",
        "properties": {"data": data},
        "required": ["data"],
    }


def _reference(shape: Any) -> Schema:
    return msgspec.json.schema_components([shape], ref_template="#/components/schemas/{name}")[0][0]


def _schemas() -> Schema:
    """All structs that the table names and those that these are made of; requests with what the server holds beyond their types."""
    asks = [endpoint.asks for endpoint in ENDPOINTS if endpoint.asks is not None]
    answers = [shape for endpoint in ENDPOINTS for shape in (endpoint.answer, endpoint.streams) if isinstance(shape, type)]
    _, schemas = msgspec.json.schema_components([*asks, *answers, ErrorBody], ref_template="#/components/schemas/{name}")
    for shape in _NARROWED:
        _narrow(shape, schemas[shape.__name__])
    error: Schema = schemas["ErrorDetail"]["properties"]
    error["code"]["enum"] = sorted(CATALOGUE)
    error["type"]["enum"] = sorted({kind for _, kind in CATALOGUE.values()})
    return dict(sorted(schemas.items()))


def _statuses() -> Collection[int]:
    return sorted({status for status, _ in CATALOGUE.values() if status != 405})


def _error(status: int) -> Schema:
    codes = ", ".join(code for code, (its, _) in CATALOGUE.items() if its == status)
    answer: Schema = {
        "description": f"{HTTPStatus(status).phrase}: {codes}",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorBody"}}},
    }
    if status in (429, 503):
        answer["headers"] = {"Retry-After": {"description": "Seconds", "schema": {"type": "integer", "minimum": 1}}}
    return answer


# ── beyond the types ────────────────────────────────────────────────────────────────────────────────────────────────


def _range(bound: Bound) -> dict[str, Schema]:
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
        "array": {"maxItems": MAX_BAD_WORDS, "items": {"type": "string", "minLength": 1, "maxLength": MAX_BAD_WORD_CHARACTERS}}
    },
    "logit_bias": {
        "object": {
            "maxProperties": admit.BIASES,
            "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,9})$"},
            "additionalProperties": {"type": "number", "minimum": admit.BIAS.low, "maximum": admit.BIAS.high},
        }
    },
    "messages": {"array": {"minItems": 1, "maxItems": chat.MESSAGES}},
    "tools": {"array": {"maxItems": chat.TOOLS}},
    "documents": {"array": {"maxItems": chat.DOCUMENTS}},
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
_UNBUILT: Final[Mapping[type, body.Unbuilt]] = {
    wire.CompletionRequest: body.COMPLETION, wire.ChatCompletionRequest: body.CHAT, wire.TokenizeRequest: body.TOKENIZE
}  # fmt: skip
_NARROWED: Final = (*_REQUIRED, wire.TokenizeRequest, wire.ChatMessage)


def _narrow(shape: type, schema: Schema) -> None:
    """Writes into the schema of one of `_NARROWED`, in place, what the server holds beyond its types."""
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
    unbuilt = _UNBUILT.get(shape)
    if unbuilt is not None:
        properties.update((name, _rejected(values)) for name, values in unbuilt.fields.items())


def _branches(schema: Schema) -> list[Schema]:
    branches: list[Schema] = schema.get("anyOf", [schema])
    return branches


def _never_null(schema: Schema) -> Schema:
    branches = [branch for branch in _branches(schema) if branch != {"type": "null"}]
    rest = {name: value for name, value in schema.items() if name not in ("anyOf", "default")}
    return rest | {"anyOf": branches} if len(branches) > 1 else rest | branches[0]


def _rejected(neutral: tuple[object, ...]) -> Schema:
    """A known field that is not built takes only values that ask for nothing."""
    return {"enum": [None, *neutral], "default": None, "description": "Not built: other values are refused."}
