"""The closed catalogue of error answers, and the one place that writes them.

Every 4xx and 5xx has the body `{"error": {"message", "type", "param", "code"}}`. Texts are written here or by `engine.admit`;
the text of an unexpected exception goes to the log with an id, and the client gets the id.
"""

import logging
import secrets
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

import msgspec
from starlette.responses import Response

from ridgeline.errors import EngineDeadError, OverloadedError, RequestError, RidgelineError

log = logging.getLogger("ridgeline.server")

INVALID, DENIED, MISSING, BUSY, FAILED = (
    "invalid_request_error",
    "authentication_error",
    "not_found_error",
    "overloaded_error",
    "server_error",
)
CATALOGUE: Final[Mapping[str, tuple[int, str]]] = MappingProxyType(
    {
        "invalid_json": (400, INVALID),
        "json_too_deep": (400, INVALID),
        "invalid_type": (400, INVALID),
        "invalid_value": (400, INVALID),
        "missing_field": (400, INVALID),
        "unsupported_parameter": (400, INVALID),
        "no_chat_template": (400, INVALID),
        "empty_prompt": (400, INVALID),
        "context_length_exceeded": (400, INVALID),
        "grammar_failed": (400, INVALID),
        "request_rejected": (400, INVALID),
        "previous_response_not_found": (400, INVALID),
        "invalid_http": (400, INVALID),
        "invalid_api_key": (401, DENIED),
        "host_not_allowed": (403, "permission_error"),
        "origin_not_allowed": (403, "permission_error"),
        "admin_only": (403, "permission_error"),
        "router_only": (403, "permission_error"),
        "not_found": (404, MISSING),
        "model_not_found": (404, MISSING),
        "method_not_allowed": (405, INVALID),
        "client_too_slow": (408, INVALID),
        "cannot_continue": (409, INVALID),
        "body_too_large": (413, INVALID),
        "headers_too_large": (431, INVALID),
        "overloaded": (429, BUSY),
        "rate_limit_exceeded": (429, "rate_limit_error"),
        "too_many_connections": (429, BUSY),
        "internal_error": (500, FAILED),
        "engine_failed": (500, FAILED),
        "engine_unavailable": (503, FAILED),
        "deadline_exceeded": (504, "timeout_error"),
    }
)
"""Code → HTTP status and OpenAI error type."""

TOO_LONG: Final = "prompt is too long: "
"""Beginning of the message by which Anthropic's clients know that they have to shorten a conversation."""
GGML_TOO_LONG: Final = "exceed_context_size_error"
"""Type by which llama-server's clients know the same."""


class ErrorDetail(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(msgspec.Struct, frozen=True):
    error: ErrorDetail


Dialect = Literal["openai", "anthropic", "responses", "ollama", "ggml"]


class AnthropicErrorDetail(msgspec.Struct, frozen=True, omit_defaults=True):
    type: str
    message: str
    details: dict[str, Any] | None = None
    """Fields by which a client's program can tell an error."""


class AnthropicErrorBody(msgspec.Struct, frozen=True, tag="error"):
    error: AnthropicErrorDetail


class OllamaErrorBody(msgspec.Struct, frozen=True):
    error: str


class GgmlErrorDetail(msgspec.Struct, frozen=True):
    """An error as llama-server tells it; `code` is the HTTP status."""

    code: int
    message: str
    type: str


class GgmlErrorBody(msgspec.Struct, frozen=True):
    error: GgmlErrorDetail


_ANTHROPIC_TYPES: Final[Mapping[int, str]] = MappingProxyType({
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error",
    500: "api_error", 503: "overloaded_error", 504: "timeout_error",
})  # fmt: skip


def anthropic_type(status: int) -> str:
    """The type that Anthropic's API gives errors of a status."""
    return _ANTHROPIC_TYPES.get(status, "invalid_request_error")


class ApiError(RidgelineError):
    """An answer of the catalogue. `headers` go with it (Retry-After, Allow, Connection …), and `details` where a dialect has them."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.type = CATALOGUE[code]
        self.code = code
        self.message = message
        self.param = param
        self.headers = dict(headers or {})
        self.details = details

    def body(self, dialect: Dialect = "openai") -> bytes:
        """The JSON that the client gets, as an answer's body or as an event of a stream."""
        if dialect == "anthropic":
            prefix = TOO_LONG if self.code == "context_length_exceeded" else ""
            detail = AnthropicErrorDetail(anthropic_type(self.status), prefix + self.message, self.details)
            return msgspec.json.encode(AnthropicErrorBody(detail))
        if dialect == "ggml":
            kind = GGML_TOO_LONG if self.code == "context_length_exceeded" else self.type
            return msgspec.json.encode(GgmlErrorBody(GgmlErrorDetail(self.status, self.message, kind)))
        if dialect == "ollama":
            return msgspec.json.encode(OllamaErrorBody(self.message))
        return msgspec.json.encode(ErrorBody(ErrorDetail(self.message, self.type, self.param, self.code)))

    def response(self, dialect: Dialect = "openai") -> Response:
        """The answer as ASGI."""
        return Response(self.body(dialect), self.status, self.headers, "application/json")


def as_api_error(error: Exception) -> ApiError:
    """The answer to any exception. An unexpected one is logged with its traceback under a random id."""
    match error:
        case ApiError():
            return error
        case RequestError():
            code = error.code if error.code in CATALOGUE else "invalid_value"
            return ApiError(code, error.message, param=error.param)
        case OverloadedError() | EngineDeadError():
            code = "overloaded" if isinstance(error, OverloadedError) else "engine_unavailable"
            return ApiError(code, str(error), headers={"Retry-After": str(error.retry_after_seconds)})
    incident = secrets.token_hex(6)
    log.error("incident %s", incident, exc_info=error)
    return ApiError("internal_error", f"the server failed; its log says why under incident {incident}")
