"""`/openapi.json`: every route with its request, its answers and its refusals, as OpenAPI 3.1.

Owns the table of endpoints. Schemas come from the structs of `server.wire`, ranges from `server.openapi_bounds`, refusals from the
catalogue of `server.errors`: the document repeats no number and no name. It loads nothing, and no page shows it.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ridgeline import __version__
from ridgeline.server import wire
from ridgeline.server.auth import PUBLIC
from ridgeline.server.errors import CATALOGUE, ErrorBody
from ridgeline.server.openapi_bounds import NARROWED, Schema, narrow
from ridgeline.server.service import Service

ANYWHERE: Final = (400, 403, 408, 431, 500)
"""Before a route is found (HTTP, hosts, origins, headers), and when the server fails."""
NEEDS_MODEL, BODY, GENERATES = (503,), (404, 413, 503), (404, 413, 429, 503)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One operation.

    answer   type of the 200's JSON body, or a media type of text
    refuses  statuses beside those of `ANYWHERE` and 401
    asks     type of the request's JSON body
    streams  type of a stream's events, for who asks with `stream: true`
    """

    method: str
    path: str
    summary: str
    answer: Any
    refuses: tuple[int, ...] = ()
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
    body = msgspec.json.encode(document(locked=service.config.api_key is not None))

    async def openapi(request: Request) -> Response:
        return Response(body, media_type="application/json")

    return [Route("/openapi.json", openapi, methods=["GET"])]


def document(*, locked: bool) -> Schema:
    """The whole document. `locked`: whether an API key is needed."""
    paths: dict[str, Schema] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, locked)
    components: Schema = {"schemas": _schemas(), "responses": {f"Error{status}": _refusal(status) for status in _statuses()}}
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
    statuses = sorted({*ANYWHERE, *endpoint.refuses, *((401,) if protected else ())})
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
    body = {"anyOf": [_reference(shape), _reference(ErrorBody)]}
    data = {"anyOf": [{"const": "[DONE]"}, {"type": "string", "contentMediaType": "application/json", "contentSchema": body}]}
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
    for shape in NARROWED:
        narrow(shape, schemas[shape.__name__])
    error: Schema = schemas["ErrorDetail"]["properties"]
    error["code"]["enum"] = sorted(CATALOGUE)
    error["type"]["enum"] = sorted({kind for _, kind in CATALOGUE.values()})
    return dict(sorted(schemas.items()))


def _statuses() -> Collection[int]:
    return sorted({status for status, _ in CATALOGUE.values() if status != 405})


def _refusal(status: int) -> Schema:
    codes = ", ".join(code for code, (its, _) in CATALOGUE.items() if its == status)
    answer: Schema = {
        "description": f"{HTTPStatus(status).phrase}: {codes}",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorBody"}}},
    }
    if status in (429, 503):
        answer["headers"] = {"Retry-After": {"description": "Seconds", "schema": {"type": "integer", "minimum": 1}}}
    return answer
