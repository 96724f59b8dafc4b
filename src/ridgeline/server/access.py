"""One log line per request, and its id: the outermost layer of the application.

Owns what a line says: never a prompt, an answer, a key or a query string. It is written once, when the answer has ended, so that streams
pay nothing for it.
"""

import logging
import random
import re
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ridgeline.observe.logs import with_fields
from ridgeline.server.connection import PAUSED_KEY, REJECTED_KEY
from ridgeline.server.errors import ApiError
from ridgeline.server.routes import dialect_of
from ridgeline.server.transport import BODY_SEND_KEY

log = logging.getLogger("ridgeline.access")

REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._:-]{1,64}")
"""Ids that a client may give its request; anything else is replaced, never echoed."""
PROBES: Final = frozenset({"/livez", "/startupz", "/readyz", "/health", "/ping", "/metrics", "/live"})
"""Paths that are asked every few seconds: answered as they should be, they are lines of level debug."""
MAX_PATH: Final = 128
"""Characters of a path in a line."""
CLIENT_DISCONNECTED: Final = "client_disconnected"
DISCONNECTED_STATUS: Final = 499
"""Status, as nginx writes it, where a client went before its answer began."""
ACCESS_KEY: Final = "ridgeline.access"
TRACE_KEY: Final = "ridgeline.trace"
"""Id of the request's trace, where it has one."""
_ids: Final = random.Random(secrets.randbits(128))
"""Ids are no secrets, and a system call less per request."""


class Usage(Protocol):
    """The cost of an answer so far. `first_token_at` is `time.monotonic`'s; None before there is one. `continued`: engines that went on
    with it after one had ended; `request_ids`: of the engine's requests."""

    prompt_tokens: int
    cached_tokens: int
    continued: int
    first_token_at: float | None
    request_ids: tuple[str, ...]

    @property
    def completion_tokens(self) -> int: ...

    @property
    def finish_reasons(self) -> list[str]: ...


class Access:
    """Facts about one request. `ended`: 0.0 where its line is written as its answer ends."""

    def __init__(self, request_id: bytes) -> None:
        self.request_id = request_id
        self.began, self.ended = time.monotonic(), 0.0
        self.status: int | None = None
        self.error: str | None = None
        self.usage: Usage | None = None
        self.tenant = ""
        self.model = ""
        """The model that it went to, where there are several."""


def note_error(scope: Scope, code: str) -> None:
    """The request's answer is an error, or ends with one."""
    if access := scope.get(ACCESS_KEY):
        access.error = code


def note_tenant(scope: Scope, tenant: str) -> None:
    """The request is one of that tenant."""
    if access := scope.get(ACCESS_KEY):
        access.tenant = tenant


def note_model(scope: Scope, name: str) -> None:
    """The request goes to that one of several models."""
    if access := scope.get(ACCESS_KEY):
        access.model = name


def note_usage(scope: Scope, usage: Usage) -> None:
    """The request generates; `usage` counts while it does."""
    if access := scope.get(ACCESS_KEY):
        access.usage = usage


def id_of(given: bytes) -> bytes:
    """The id of a request: what its client has given, b"" for nothing, where it is harmless, else a new one."""
    return given if given and REQUEST_ID.fullmatch(given) else b"%032x" % _ids.getrandbits(128)


OnEnd = Callable[[Access, str, Sequence[tuple[float, float]]], None]
"""Called with a request, the id in its answer's header, and the times in which its client did not read."""


class AccessLog:
    """Writes the line of each request, and gives its answer an `X-Request-Id`: the client's, where it sent a harmless one, or a new one."""

    def __init__(self, app: ASGIApp, on_end: OnEnd) -> None:
        """`on_end` is called at the end of each request that is no probe."""
        self._app = app
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        scope[ACCESS_KEY] = access = Access(request_id := id_of(given))
        scope[BODY_SEND_KEY] = send

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                access.status = message["status"]
                ids = [(b"x-request-id", request_id)]
                if dialect_of(scope) == "anthropic":
                    ids.append((b"request-id", request_id))
                message["headers"] = [*message["headers"], *ids]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            rejected: ApiError | None = scope.get(REJECTED_KEY)
            if rejected is not None:
                access.status, access.error = access.status or rejected.status, rejected.code
            if scope["path"] not in PROBES:
                self._on_end(access, request_id.decode(), scope.get(PAUSED_KEY, ()))
            write_line(scope, access)


def write_line(scope: Scope, access: Access) -> None:
    """Writes the line of a request whose answer has ended."""
    path, status = scope["path"], access.status or DISCONNECTED_STATUS
    level = logging.DEBUG if path in PROBES and status < 400 else logging.INFO
    if not log.isEnabledFor(level):
        return
    client = scope["client"][0] if scope.get("client") else None
    log.log(level, "request", extra=with_fields(
        id=access.request_id.decode(), client=client, method=scope["method"], path=path[:MAX_PATH], status=status, error=access.error,
        **_generation(access), total_seconds=(access.ended or time.monotonic()) - access.began, trace_id=scope.get(TRACE_KEY),
    ))  # fmt: skip


def _generation(access: Access) -> dict[str, Any]:
    """Fields of a request that generates."""
    usage = access.usage
    if usage is None:
        return {}
    first = usage.first_token_at
    return {
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "continued": usage.continued or None,
        "ttft_seconds": None if first is None else first - access.began,
        "finish": ",".join(usage.finish_reasons) or ("abort" if access.error in (None, CLIENT_DISCONNECTED) else "error"),
    }
