"""`/openapi.json`: every route with its request, its answers and its errors, as OpenAPI 3.1.

Owns the form of the document, which the table of routes (`server.routes`) fills, and the JSON Schema of what the server checks beyond the
types of `server.wire` (ranges, lengths, required fields, unsupported fields). Every number comes from its owner (`engine.admit`, the
endpoints, the catalogue of `server.errors`). It loads nothing.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping
from functools import cache, partial
from http import HTTPStatus
from itertools import groupby
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ridgeline import __version__
from ridgeline.core.params import MAX_BAD_WORD_CHARACTERS, MAX_BAD_WORDS, Bound
from ridgeline.engine import admit
from ridgeline.engine.beams import MAX_LENGTH_PENALTY
from ridgeline.server import anthropic, chat_prompts, ggml_shapes, ollama_shapes, wire
from ridgeline.server.auth import KEY_HEADERS
from ridgeline.server.body import LENGTHS
from ridgeline.server.completions import MAX_PROMPTS
from ridgeline.server.errors import (
    CATALOGUE,
    AnthropicErrorBody,
    Dialect,
    ErrorBody,
    GgmlErrorBody,
    OllamaErrorBody,
    anthropic_type,
)
from ridgeline.server.fields import UNSUPPORTED
from ridgeline.server.notes import FOLDED_ROLES, IGNORED_FIELDS
from ridgeline.server.reasoning import BUDGETS
from ridgeline.server.responses_shapes import ResponsesRequest
from ridgeline.server.routes import DOCUMENTED, Row
from ridgeline.server.service import Service
from ridgeline.server.targets import NAMES as TARGETS
from ridgeline.text.chat_content import MAX_MESSAGES

Schema = dict[str, Any]

COMMON_ERRORS: Final = (400, 403, 408, 431, 500)
"""Statuses of every route: before it is found (HTTP, hosts, origins, headers), and when the server fails."""


def routes(service: Service) -> list[BaseRoute]:
    """The route of the document, made when it is first asked for: a start would wait for the schemas of all types."""
    encoded = cache(partial(_encoded, locked=service.config.needs_key))

    async def openapi(request: Request) -> Response:
        return Response(await asyncio.to_thread(encoded), media_type="application/json")

    return [Route("/openapi.json", openapi, methods=["GET"])]


def _encoded(*, locked: bool) -> bytes:
    return msgspec.json.encode(document(locked=locked))


def document(*, locked: bool) -> Schema:
    """The whole document. `locked`: an API key is needed."""
    paths: dict[str, Schema] = {}
    for (path, method), rows in groupby(DOCUMENTED, lambda row: (row.written_path, row.method)):
        paths.setdefault(path, {})[method.lower()] = _operation(tuple(rows), locked)
    components: Schema = {"schemas": _schemas(), "responses": _errors(paths)}
    if locked:
        components["securitySchemes"] = {
            "key": {"type": "http", "scheme": "bearer"},
            **{name.decode(): {"type": "apiKey", "in": "header", "name": name.decode()} for name in KEY_HEADERS},
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Ridgeline", "version": __version__, "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"}},
        "paths": paths,
        "components": components,
    }


_HEADERS: Final[Schema] = {
    IGNORED_FIELDS: {"description": "Fields of the request without effect", "schema": {"type": "string"}},
    FOLDED_ROLES: {"description": "Roles of messages told to the chat template in others", "schema": {"type": "string"}},
}


def _operation(rows: tuple[Row, ...], locked: bool) -> Schema:
    """An operation, of which there is a row in each of its dialects."""
    endpoint = rows[0]
    protected = locked and endpoint.access != "public"
    statuses = sorted({*COMMON_ERRORS, *endpoint.errors, *((401,) if protected else ())})
    dialects = "".join(sorted(row.dialect.capitalize() for row in rows))
    operation: Schema = {
        "operationId": re.sub(r"\W+", "_", f"{endpoint.method.lower()} {endpoint.written_path}").strip("_"),
        "summary": endpoint.summary,
        "security": [{"key": []}, *({name.decode(): []} for name in KEY_HEADERS)] if protected else [],
        "responses": {
            "200": {"description": "The answer", "content": _content(rows), **({"headers": _HEADERS} if endpoint.request else {})},
            **{str(status): {"$ref": f"#/components/responses/{dialects}{status}"} for status in statuses},
        },
    }
    names = re.findall(r"{(\w+)}", endpoint.written_path)
    parameters = [
        *({"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names),
        *({"name": row.header.decode(), "in": "header", "schema": {"type": "string"}} for row in rows if row.header is not None),
        *({"name": name, "in": "query", "schema": schema} for row in rows for name, schema in row.query.items()),
    ]
    if parameters:
        operation["parameters"] = parameters
    requests = [_reference(row.request) for row in rows if row.request is not None]
    if requests:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": _any_of(requests)}}}
    return operation


def _content(rows: tuple[Row, ...]) -> Schema:
    endpoint = rows[0]
    if isinstance(endpoint.response, str):
        return {media_type: {"schema": {"type": "string"}} for media_type in endpoint.response.split(", ")}
    content: Schema = {"application/json": {"schema": _any_of(_reference(each) for row in rows for each in _shapes(row.response))}}
    if endpoint.event is not None:
        if endpoint.dialect == "ollama":
            content["application/x-ndjson"] = {"schema": {"anyOf": [_reference(endpoint.event), _reference(OllamaErrorBody)]}}
        else:
            content["text/event-stream"] = {"schema": _event(endpoint)}
    return content


def _any_of(schemas: Iterable[Schema]) -> Schema:
    found = list(schemas)
    return {"anyOf": found} if len(found) > 1 else found[0]


def _event(row: Row) -> Schema:
    """One server-sent event, as OpenAPI 3.2 and tools describe it: its fields as an object."""
    content = {"anyOf": [*map(_reference, _shapes(row.event)), _reference(_ERRORS[row.dialect])]}
    data: Schema = {"type": "string", "contentMediaType": "application/json", "contentSchema": content}
    if row.dialect == "ggml":
        properties = {"type": "object", "properties": {"data": data}, "required": ["data"]}
        return {"description": "Events of an answer to stream: true; the last of a prompt has stop: true.", **properties}
    if row.dialect != "openai":
        last = "message_stop" if row.dialect == "anthropic" else "response.completed, response.incomplete or response.failed"
        return {
            "description": f"Events of an answer to stream: true, each with the name that its data has as type; the last is {last}.",
            "type": "object",
            "properties": {"event": {"type": "string"}, "data": data},
            "required": ["event", "data"],
        }
    data = {"anyOf": [{"const": "[DONE]"}, data]}
    return {
        "description": "Events of an answer to stream: true; the last is [DONE].",
        "type": "object",
        "properties": {"data": data},
        "required": ["data"],
    }


def _shapes(given: Any) -> tuple[Any, ...]:
    """The types of bodies of which one comes; none for None."""
    return given if isinstance(given, tuple) else () if given is None else (given,)


def _reference(shape: Any) -> Schema:
    return msgspec.json.schema_components([shape], ref_template="#/components/schemas/{name}")[0][0]


def _schemas() -> Schema:
    """Schemas of all structs of the table and of their fields; requests with what the server checks beyond their types."""
    requests = [row.request for row in DOCUMENTED if row.request is not None]
    responses = [shape for row in DOCUMENTED for shape in (*_shapes(row.response), *_shapes(row.event)) if not isinstance(shape, str)]
    _, schemas = msgspec.json.schema_components([*requests, *responses, *_ERRORS.values()], ref_template="#/components/schemas/{name}")
    for shape in _NARROWED:
        _narrow(shape, schemas[shape.__name__])
    error: Schema = schemas["ErrorDetail"]["properties"]
    error["code"]["enum"] = sorted(CATALOGUE)
    error["type"]["enum"] = sorted({kind for _, kind in CATALOGUE.values()})
    schemas["AnthropicErrorDetail"]["properties"]["type"]["enum"] = sorted({anthropic_type(status) for status, _ in CATALOGUE.values()})
    return dict(sorted(schemas.items()))


_ERRORS: Final[Mapping[Dialect, type]] = {
    "openai": ErrorBody, "anthropic": AnthropicErrorBody, "responses": ErrorBody, "ollama": OllamaErrorBody, "ggml": GgmlErrorBody
}  # fmt: skip


def _errors(paths: Mapping[str, Schema]) -> Schema:
    """The errors that operations refer to: those of a status, by the dialects of the operation."""
    operations = [operation for path in paths.values() for operation in path.values()]
    used = {answer["$ref"].rpartition("/")[2] for operation in operations for answer in operation["responses"].values() if "$ref" in answer}
    return {name: _error(int(name[-3:]), [each for each in _ERRORS if each.capitalize() in name]) for name in sorted(used)}


def _error(status: int, dialects: Iterable[Dialect]) -> Schema:
    codes = ", ".join(code for code, (code_status, _) in CATALOGUE.items() if code_status == status)
    response: Schema = {
        "description": f"{HTTPStatus(status).phrase}: {codes}",
        "content": {"application/json": {"schema": _any_of(_reference(_ERRORS[each]) for each in dialects)}},
    }
    if status in (429, 503):
        response["headers"] = {"Retry-After": {"description": "Seconds", "schema": {"type": "integer", "minimum": 1}}}
    return response


# ── beyond the types ────────────────────────────────────────────────────────────────────────────────────────────────


def _range(bound: Bound) -> dict[str, Schema]:
    low = "exclusiveMinimum" if bound.above else "minimum"
    return {"integer" if bound.whole else "number": {low: bound.low, "maximum": bound.high}}


_ID: Final[Schema] = {"type": "integer", "minimum": 0}
_STOP: Final[Schema] = {"maxLength": admit.MAX_STOP_CHARACTERS}
_LENGTH: Final[Schema] = {"integer": {"minimum": -1, "maximum": admit.BOUNDS["max_tokens"].high}}
_IDS: Final[Schema] = {"type": "array", "minItems": 1, "items": _ID}
_KEYWORDS: Final[Mapping[str, Mapping[str, Schema]]] = {
    **{name: _range(bound) for name, bound in admit.BOUNDS.items()},
    **{name: _range(admit.TARGET_BOUND) for name in TARGETS},
    **dict.fromkeys((*LENGTHS, *BUDGETS), _LENGTH),
    "max_output_tokens": {"integer": {"minimum": 1, "maximum": admit.BOUNDS["max_tokens"].high}},
    "top_logprobs": _range(admit.BOUNDS["logprobs"]),
    "length_penalty": {"number": {"minimum": -MAX_LENGTH_PENALTY, "maximum": MAX_LENGTH_PENALTY}},
    "truncate_prompt_tokens": {"integer": {"minimum": -1, "not": {"const": 0}}},
    "stop": {"string": _STOP, "array": {"maxItems": admit.MAX_STOP_STRINGS, "items": {"type": "string", **_STOP}}},
    "stop_sequences": {"array": {"maxItems": admit.MAX_STOP_STRINGS, "items": {"type": "string", **_STOP}}},
    "stop_token_ids": {"array": {"maxItems": admit.MAX_STOP_IDS, "items": _ID}},
    "allowed_token_ids": {"array": {"minItems": 1, "maxItems": admit.MAX_ALLOWED_IDS, "items": _ID}},
    "bad_words": {
        "array": {"maxItems": MAX_BAD_WORDS, "items": {"type": "string", "minLength": 1, "maxLength": MAX_BAD_WORD_CHARACTERS}}
    },
    "logit_bias": {
        "object": {
            "maxProperties": admit.MAX_LOGIT_BIASES,
            "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,9})$"},
            "additionalProperties": {"type": "number", "minimum": admit.LOGIT_BIAS_BOUND.low, "maximum": admit.LOGIT_BIAS_BOUND.high},
        }
    },
    "messages": {"array": {"minItems": 1, "maxItems": MAX_MESSAGES}},
    "tools": {"array": {"maxItems": chat_prompts.MAX_TOOLS}},
    "documents": {"array": {"maxItems": chat_prompts.MAX_DOCUMENTS}},
    "tokens": {"array": {"items": _ID}},
}  # fmt: skip
"""Field → JSON type → JSON Schema keywords that are added to the branch of this type."""

_REPLACED: Final[Mapping[type, Mapping[str, Schema]]] = {
    wire.CompletionRequest: {
        "prompt": {
            "description": "A text, texts, token ids, or lists of token ids. Ids must be the model's.",
            "anyOf": [
                {"type": "string"},
                _IDS,
                {"type": "array", "minItems": 1, "maxItems": MAX_PROMPTS, "items": {"anyOf": [{"type": "string"}, _IDS]}},
            ],
        }
    },
    wire.ChatCompletionRequest: {
        "tool_choice": {
            "anyOf": [{"enum": [None, "none", "auto", "required"]}, {"type": "object", "required": ["type", "function"]}],
            "default": None,
        }
    },
    wire.ContentPart: {"type": {"const": "text"}},
    wire.ChatMessage: {"audio": {"type": "null"}, "function_call": {"type": "null"}},
}
_REQUIRED: Final[Mapping[type, tuple[str, ...]]] = {
    wire.CompletionRequest: ("prompt",),
    wire.ChatCompletionRequest: ("messages",),
    wire.DetokenizeRequest: ("tokens",),
    anthropic.MessagesRequest: ("messages", "max_tokens"),
    anthropic.CountTokensRequest: ("messages",),
    ResponsesRequest: ("input",),
    wire.ContentPart: ("type", "text"),
    ollama_shapes.ChatRequest: ("model",),
    ollama_shapes.GenerateRequest: ("model",),
    ollama_shapes.EmbedRequest: ("model", "input"),
    ollama_shapes.EmbeddingsRequest: ("model",),
    ggml_shapes.GgmlCompletionRequest: ("prompt",),
}
_ANY_OF: Final[Mapping[type, list[Schema]]] = {
    wire.ChatMessage: [
        {"properties": {"role": {"const": "assistant"}}},
        {"required": ["content"], "properties": {"content": {"type": ["string", "array"]}}},
    ]
}
"""Alternatives of which one must hold."""
_NARROWED: Final = (*_REQUIRED, wire.TokenizeRequest, wire.ChatMessage, ollama_shapes.Options, ggml_shapes.InfillRequest)


def _narrow(shape: type, schema: Schema) -> None:
    """Writes into the schema of one of `_NARROWED`, in place, what the server checks beyond its types."""
    properties: dict[str, Schema] = schema["properties"]
    for name, found in properties.items():
        for kind, keywords in _KEYWORDS.get(name, {}).items():
            for branch in _branches(found):
                if branch.get("type") == kind:
                    branch.update(keywords)
    properties.update(_REPLACED.get(shape, {}))
    for name in _REQUIRED.get(shape, ()):
        properties[name] = _without_null(properties[name])
    if shape in _REQUIRED:
        schema["required"] = list(_REQUIRED[shape])
    if shape in _ANY_OF:
        schema["anyOf"] = _ANY_OF[shape]
    properties.update((name, _unsupported(values)) for name, values in UNSUPPORTED.get(shape, {}).items() if "." not in name)


def _branches(schema: Schema) -> list[Schema]:
    branches: list[Schema] = schema.get("anyOf", [schema])
    return branches


def _without_null(schema: Schema) -> Schema:
    branches = [branch for branch in _branches(schema) if branch != {"type": "null"}]
    rest = {name: value for name, value in schema.items() if name not in ("anyOf", "default")}
    return rest | {"anyOf": branches} if len(branches) > 1 else rest | branches[0]


def _unsupported(neutral: tuple[object, ...]) -> Schema:
    """A known field that is not supported takes only values that ask for nothing."""
    return {"enum": [None, *neutral], "default": None, "description": "Not supported: other values are rejected."}
