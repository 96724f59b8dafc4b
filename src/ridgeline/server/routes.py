"""The table of routes: what each one is, who may use it, in whose words it answers, what it may cost. Nothing is answered without a row.

Authentication, the queue, bounds of bodies, the texts of 404 and 405, errors of every layer and the OpenAPI document read it. Handlers live
one file per family; `check` holds them against the table when the application is built. Where one path serves two dialects it has a row for
each, which a header or a field of the body tells apart.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal

from starlette.routing import BaseRoute, compile_path
from starlette.types import Scope

from ridgeline.server import anthropic, ggml_shapes, ollama_shapes, replies, vector_shapes, vllm_shapes, wire
from ridgeline.server import responses_shapes as shapes
from ridgeline.server.blocks import BlockChanges
from ridgeline.server.errors import Dialect
from ridgeline.server.explain_shapes import Explanation
from ridgeline.server.live_shapes import Live
from ridgeline.server.page import FILES
from ridgeline.server.routers import BLOCKS_PATH
from ridgeline.server.transport import BODY_LIMIT_KEY

Access = Literal["public", "client", "admin"]

ANTHROPIC_VERSION: Final = b"anthropic-version"
"""Header that clients of Anthropic's API send with every request."""

MAX_BODY_BYTES: Final = 1 << 20
MAX_PAGE: Final = 1_000
MAX_ITEMS: Final = 100
ITEM_PAGE: Final[Mapping[str, Mapping[str, Any]]] = {
    "limit": {"type": "integer", "minimum": 1, "maximum": MAX_ITEMS}, "after": {"type": "string"}, "order": {"enum": ["asc", "desc"]},
}  # fmt: skip
"""Parameters of OpenAI's lists of items."""
EVENTS: Final[Mapping[str, Mapping[str, Any]]] = {"stream": {"type": "boolean"}, "starting_after": {"type": "integer", "minimum": 0}}
"""Parameters of OpenAI's stored answers."""
PAGE: Final[Mapping[str, Mapping[str, Any]]] = {
    "limit": {"type": "integer", "minimum": 1, "maximum": MAX_PAGE}, "after_id": {"type": "string"}, "before_id": {"type": "string"}
}  # fmt: skip
"""Parameters of Anthropic's lists."""
TEXTS: Final[Mapping[str, Any]] = {"max_body_bytes": 4 << 20, "is_queued": True}
"""Bounds of rows that take texts and generate none."""
TOKENIZE: Final = "Token ids of a text or a conversation"
NEEDS_MODEL, BODY, GENERATES = (503,), (404, 413, 503), (404, 413, 429, 503, 504)


@dataclass(frozen=True, slots=True)
class Row:
    """One operation.

    path            as the router matches it
    access          public: open when a key is set, and then matched by literal pairs of method and path; admin: for keys with scope=admin,
                    and the rows of the Unix socket
    summary         of the document; "" keeps the route out of it, and out of the texts of errors
    response        type of the 200's JSON body, or several of which one comes, or media types of text
    errors          statuses beside those of every route
    request         type of the request's JSON body
    event           type of a stream's events, with `stream: true`; None: nothing is streamed
    header          name of the header that picks this row among those of its path
    body_field      name of the body's field that does
    query           parameter of the query → JSON Schema
    max_body_bytes  bytes of a request's body
    is_queued       a request takes a place in the queue: in a full one it is rejected before its body is read
    """

    method: str
    path: str
    summary: str
    response: Any
    errors: tuple[int, ...] = ()
    request: type | None = None
    event: Any = None
    access: Access = "client"
    dialect: Dialect = "openai"
    header: bytes | None = None
    body_field: str | None = None
    query: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    max_body_bytes: int = MAX_BODY_BYTES
    is_queued: bool = False

    @property
    def written_path(self) -> str:
        """The path as documents write it."""
        return self.path.replace(":path}", "}")


def _models(summary: str, rest: str, openai: type, of_anthropic: type, errors: tuple[int, ...], **more: Any) -> tuple[Row, Row]:
    """A path of `/v1/models`, which both dialects have."""
    path = f"/v1/models{rest}"
    return (
        Row("GET", path, summary, openai, errors),
        Row("GET", path, summary, of_anthropic, errors, dialect="anthropic", header=ANTHROPIC_VERSION, **more),
    )


def _ollama(method: str, path: str, summary: str, response: Any, errors: tuple[int, ...] = (404, 503), **more: Any) -> Row:
    return Row(method, f"/api/{path}", summary, response, errors, dialect="ollama", **more)


_OLLAMA: Final = (
    *(_ollama(
        "POST", path, "Vectors of texts, as Ollama gives them", response, GENERATES, request=request, is_queued=True
    ) for path, response, request in (
        ("embed", ollama_shapes.Vectors, ollama_shapes.EmbedRequest), ("embeddings", ollama_shapes.Vector, ollama_shapes.EmbeddingsRequest)
    )),
    _ollama(
        "POST", "chat", "Ollama's chat", ollama_shapes.ChatAnswer, GENERATES,
        request=ollama_shapes.ChatRequest, event=ollama_shapes.ChatAnswer, is_queued=True,
    ),
    _ollama(
        "POST", "generate", "Ollama's completion", ollama_shapes.GenerateAnswer, GENERATES,
        request=ollama_shapes.GenerateRequest, event=ollama_shapes.GenerateAnswer, is_queued=True,
    ),
    _ollama("GET", "tags", "The models, as Ollama lists its own", ollama_shapes.Tags, NEEDS_MODEL),
    _ollama("GET", "ps", "The models that are loaded, as Ollama lists its own", ollama_shapes.Running, NEEDS_MODEL),
    _ollama("POST", "show", "What is known of the model", ollama_shapes.Shown, BODY, request=ollama_shapes.ModelRequest),
    _ollama("GET", "version", "The version of Ollama's API that is spoken here", replies.Version, ()),
    _ollama(
        "POST", "pull", "Fetches a model into the library of this machine", ollama_shapes.Progress, (413, 429),
        request=ollama_shapes.ModelRequest, event=ollama_shapes.Progress, access="admin",
    ),
    _ollama(
        "DELETE", "delete", "Removes a model from the library, or an alias", "text/plain", BODY,
        request=ollama_shapes.ModelRequest, access="admin",
    ),
    _ollama(
        "POST", "copy", "Gives the model an alias until the server ends", "text/plain", BODY,
        request=ollama_shapes.CopyRequest, access="admin",
    ),
)  # fmt: skip


def _ggml(method: str, path: str, summary: str, response: Any, errors: tuple[int, ...] = NEEDS_MODEL, **more: Any) -> Row:
    return Row(method, path, summary, response, errors, dialect="ggml", **more)


_COMPLETION: Final = (ggml_shapes.GgmlCompletion, list[ggml_shapes.GgmlCompletion], dict[str, Any], list[dict[str, Any]])
_CHUNK: Final = (ggml_shapes.Chunk, ggml_shapes.GgmlCompletion, dict[str, Any])
"""Shape of a chunk; with `response_fields` an answer has only those."""
_GGML: Final = (
    *(_ggml(
        "POST", path, "Completion, as llama-server has it", _COMPLETION, GENERATES,
        request=ggml_shapes.GgmlCompletionRequest, event=_CHUNK, is_queued=True,
    ) for path in ("/completion", "/completions")),
    _ggml(
        "POST", "/infill", "The text between two", _COMPLETION, GENERATES,
        request=ggml_shapes.InfillRequest, event=_CHUNK, is_queued=True,
    ),
    _ggml("GET", "/props", "Context, template and defaults of the model", ggml_shapes.Props),
    _ggml("GET", "/slots", "Rows of the engine, and which of them are busy", list[ggml_shapes.Slot], query=ggml_shapes.SLOTS),
    _ggml("POST", "/apply-template", "The prompt of a chat, as text", ggml_shapes.Prompt, BODY, request=wire.ChatCompletionRequest),
    *(_ggml(
        "POST", path, "Vectors of texts, as llama-server gives them", list[ggml_shapes.GgmlEmbedding], GENERATES,
        request=ggml_shapes.GgmlEmbeddingRequest, is_queued=True,
    ) for path in ("/embedding", "/embeddings")),
)  # fmt: skip

RERANK_PATHS: Final = ("/rerank", "/reranking", "/v1/rerank", "/v1/reranking", "/v2/rerank")
_RANKED: Final = (vector_shapes.RerankResponse, list[vector_shapes.RankedByTei])

ROWS: Final = (
    Row("GET", "/", "The page; for programs other than browsers a text", "text/html, text/plain", access="public"),
    *(
        Row("GET", path, "The dashboard" if path == "/dashboard" else "", kind.partition(";")[0], access="public")
        for path, (_, kind) in FILES.items() if path != "/"
    ),
    Row("GET", "/livez", "Liveness of the process", "text/plain", access="public"),
    Row("GET", "/startupz", "Start: 200 once the model has been loaded and checked", replies.Startup, NEEDS_MODEL, access="public"),
    Row("GET", "/readyz", "Readiness: 200 if a request would be accepted now", "text/plain", NEEDS_MODEL, access="public"),
    Row("GET", "/health", "The same as /readyz, as JSON", replies.Health, NEEDS_MODEL, access="public"),
    Row("GET", "/ping", "The same as /readyz", "text/plain", NEEDS_MODEL, access="public"),
    Row("GET", "/load", "Number of requests that have not ended", vllm_shapes.Load),
    Row("GET", "/is_sleeping", "False: the engine does not sleep", vllm_shapes.Sleeping),
    Row("GET", "/server_info", "What the engine is made of, and its settings", vllm_shapes.ServerInfo, NEEDS_MODEL, access="admin"),
    Row("GET", "/tokenizer_info", "The tokenizer, and the chat template", vllm_shapes.TokenizerInfo, NEEDS_MODEL),
    Row("GET", "/version", "The server's version", replies.Version, access="public"),
    Row("GET", "/metrics", "Metrics in Prometheus' text format", "text/plain", NEEDS_MODEL),
    Row("GET", "/live", "Load, speed, verdict: what the server does now", Live, NEEDS_MODEL),
    Row("GET", "/openapi.json", "The OpenAPI document", dict[str, Any]),
    *_models("The models, as a list", "", replies.ModelList, anthropic.ModelPage, NEEDS_MODEL, query=PAGE),
    *_models("A model, by its name", "/{name:path}", replies.ModelCard, anthropic.ModelInfo, (404, 503)),
    Row(
        "POST", "/v1/completions", "Text completion",
        replies.Completion, GENERATES, wire.CompletionRequest, replies.CompletionChunk, is_queued=True,
    ),
    *(Row(
        "POST", path, "Chat completion",
        replies.ChatCompletion, GENERATES, wire.ChatCompletionRequest, replies.ChatCompletionChunk, is_queued=True,
    ) for path in ("/v1/chat/completions", "/chat/completions")),
    Row("POST", "/v1/chat/completions/render", "Ids of a chat's prompt", vllm_shapes.RenderedChat, BODY, wire.ChatCompletionRequest),
    Row("GET", "/models", "The models, as a list", replies.ModelList, NEEDS_MODEL),
    Row("POST", "/models/load", "Loads one of several models", replies.ModelStatus, BODY, wire.ModelName, access="admin"),
    Row("POST", "/models/unload", "Unloads one of several models", replies.ModelStatus, BODY, wire.ModelName, access="admin"),
    Row(
        "POST", "/v1/messages", "Anthropic's message",
        anthropic.Message, GENERATES, anthropic.MessagesRequest, anthropic.Event, dialect="anthropic", is_queued=True,
    ),
    Row(
        "POST", "/v1/messages/count_tokens", "Number of tokens of a message's prompt",
        anthropic.TokenCount, BODY, anthropic.CountTokensRequest, dialect="anthropic",
    ),
    Row(
        "POST", "/v1/responses", "Answer with items, which can be stored and continued",
        shapes.ResponseObject, GENERATES, shapes.ResponsesRequest, shapes.Event, dialect="responses", is_queued=True,
    ),
    Row(
        "POST", "/v1/responses/input_tokens", "Number of tokens of a response's prompt",
        shapes.InputTokens, BODY, shapes.ResponsesRequest, dialect="responses",
    ),
    Row(
        "GET", "/v1/responses/{id}", "A stored answer, or its events",
        shapes.ResponseObject, (404,), event=shapes.Event, dialect="responses", query=EVENTS,
    ),
    Row("DELETE", "/v1/responses/{id}", "Deletes a stored answer", shapes.Deleted, (404,), dialect="responses"),
    Row("POST", "/v1/responses/{id}/cancel", "Stops an answer in the background", shapes.ResponseObject, (404,), dialect="responses"),
    Row(
        "GET", "/v1/responses/{id}/input_items", "Items of the conversation before a stored answer",
        shapes.ItemPage, (404,), dialect="responses", query=ITEM_PAGE,
    ),
    Row("POST", "/v1/embeddings", "Vectors of texts", vector_shapes.EmbeddingList, GENERATES, wire.EmbeddingRequest, **TEXTS),
    Row("POST", "/pooling", "Vectors of texts, as vLLM gives them", vector_shapes.PooledList, GENERATES, wire.EmbeddingRequest, **TEXTS),
    *(
        Row("POST", path, "Likeness of texts, from -1 to 1", vector_shapes.ScoreList, GENERATES, wire.ScoreRequest, **TEXTS)
        for path in ("/score", "/v1/score")
    ),
    *(
        Row("POST", path, "Documents, the likest to a query first", _RANKED, GENERATES, wire.RerankRequest, **TEXTS)
        for path in RERANK_PATHS
    ),
    Row("POST", "/v1/load_lora_adapter", "Loads an adapter", "text/plain", BODY, wire.LoadLoraRequest, access="admin"),
    Row("POST", "/v1/unload_lora_adapter", "Forgets an adapter", "text/plain", BODY, wire.UnloadLoraRequest, access="admin"),
    Row("GET", "/lora-adapters", "Adapters, as llama.cpp lists them", list[replies.LoraAdapter], NEEDS_MODEL),
    Row("POST", "/tokenize", TOKENIZE, replies.TokenizeResponse, BODY, wire.TokenizeRequest),
    Row("POST", "/tokenize", TOKENIZE, replies.LlamaTokens, BODY, wire.LlamaTokenizeRequest, body_field="content"),
    Row("POST", "/detokenize", "Text of token ids", replies.DetokenizeResponse, BODY, wire.DetokenizeRequest),
    Row("GET", BLOCKS_PATH, "", BlockChanges, NEEDS_MODEL, access="public"),
    Row("GET", "/v1/requests/{id}/explain", "Where the time of a request went", Explanation, (404, 503)),
    *_OLLAMA,
    *_GGML,
)  # fmt: skip

DOCUMENTED: Final = tuple(row for row in ROWS if row.summary)
PUBLIC: Final = frozenset((row.method, row.path) for row in ROWS if row.access == "public")
"""Routes that stay open when a key is set: literal pairs, nothing is matched by prefix."""
ADMIN: Final = frozenset(row.path for row in ROWS if row.access == "admin")
"""Paths for keys with scope=admin, whatever the method. The endpoints themselves are closed, so that no spelling leads around it."""


def _methods() -> Mapping[str, tuple[str, ...]]:
    found: dict[str, dict[str, None]] = {}
    for row in DOCUMENTED:
        found.setdefault(row.written_path, {})[row.method] = None
    return MappingProxyType({path: tuple(methods) for path, methods in found.items()})


METHODS: Final = _methods()
"""Path, as documents write it, → its methods; without files of the page."""


def _by_path() -> Mapping[str, tuple[Row, ...]]:
    """Path → its rows, those that a header or a field picks first."""
    rows = sorted(ROWS, key=lambda row: row.header is None and row.body_field is None)
    return MappingProxyType({path: tuple(row for row in rows if row.path == path) for path in {row.path for row in rows}})


_ROWS: Final = _by_path()
_PATTERNS: Final = tuple((compile_path(path)[0], path) for path in sorted(_ROWS) if "{" in path)


def rows_of(path: str) -> tuple[Row, ...]:
    """The rows of a request's path, of all methods; none where there is nothing at this path."""
    return _ROWS.get(path) or next((_ROWS[template] for pattern, template in _PATTERNS if pattern.match(path)), ())


def find_row(scope: Scope, fields: Collection[str] = ()) -> Row | None:
    """The row of a request: that of its method, path, and the header, or one of the body's `fields`, that tells dialects apart."""
    for row in rows_of(scope["path"]):
        if row.method == scope["method"] and _is_picked(row, scope) and (row.body_field is None or row.body_field in fields):
            return row
    return None


def dialect_of(scope: Scope) -> Dialect:
    """The dialect in which a request is answered, whatever its method; where there is nothing, its header tells."""
    rows = rows_of(scope["path"])
    if not rows:
        if scope["path"].startswith("/api/"):
            return "ollama"
        return "anthropic" if _has(scope, ANTHROPIC_VERSION) else "openai"
    return next((row.dialect for row in rows if _is_picked(row, scope)), "openai")


def _is_picked(row: Row, scope: Scope) -> bool:
    return row.header is None or _has(scope, row.header)


def _has(scope: Scope, header: bytes) -> bool:
    return any(name == header for name, _ in scope["headers"])


def body_limit(scope: Scope) -> int:
    """Bytes that the body of a request may have."""
    row = find_row(scope)
    return MAX_BODY_BYTES if row is None else row.max_body_bytes


def note_limits(scope: Scope, row: Row) -> None:
    """Leaves the row's bounds where `transport.read_body` looks for them."""
    scope[BODY_LIMIT_KEY] = row.max_body_bytes


def check(routes: Iterable[BaseRoute], table: Collection[Row] = ROWS) -> None:
    """Raises LookupError for a route without a row of the table, and for a row without a route."""
    built = {(method, str(getattr(route, "path", route))) for route in routes for method in getattr(route, "methods", None) or ("any",)}
    built -= {("HEAD", path) for method, path in built if method == "GET"}  # it comes with every GET
    rows = {(row.method, row.path) for row in table}
    _complain("routes without a row in server/routes.py", built - rows)
    _complain("rows of server/routes.py without a route", rows - built)


def _complain(problem: str, pairs: Collection[tuple[str, str]]) -> None:
    if pairs:
        raise LookupError(f"{problem}: {', '.join(sorted(f'{method} {path}' for method, path in pairs))}")
