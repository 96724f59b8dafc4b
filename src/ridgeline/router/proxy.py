"""The router's ASGI application: its own probes, and everything else from one of the replicas.

A request whose replica cannot be reached, or is not ready, goes to another one while nothing of an answer has been sent, within a budget of
retries. An answer that breaks off later ends with an error of the dialect. A client that goes ends its request at the replica.
"""

import time
from collections.abc import Callable
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from ridgeline.router.metrics import RouterMetrics
from ridgeline.router.prompts import RESPONSE_ID, read_prompt
from ridgeline.router.replicas import Replica, Replicas, Turn
from ridgeline.router.upstream import Connection, UpstreamError
from ridgeline.server.callers import current_caller
from ridgeline.server.errors import ApiError
from ridgeline.server.routes import dialect_of, find_row
from ridgeline.server.transport import (
    ANTHROPIC_EVENTS,
    BODY_LIMIT_KEY,
    OPENAI_EVENTS,
    RESPONSES_EVENTS,
    json_response,
    read_body,
    unless_disconnected,
)

MOST_BODY_BYTES: Final = 16 << 20
"""Bytes of a body of a path that this version of the table of routes has no bound for."""
RETRY_AFTER_SECONDS: Final = 1
BODYLESS: Final = ("GET", "HEAD", "DELETE", "OPTIONS")
ELSEWHERE: Final = (429, 503)
"""Statuses of a replica that takes nothing now, where another may."""
GRAMMARS: Final = {each.dialect: each for each in (OPENAI_EVENTS, ANTHROPIC_EVENTS, RESPONSES_EVENTS)}


class Elsewhere(Exception):
    """The replica does not answer this request, and nothing has been sent of an answer."""

    def __init__(self, answer: ApiError) -> None:
        super().__init__(answer.message)
        self.answer = answer


class Proxy:
    """The application over `replicas`."""

    def __init__(self, replicas: Replicas, metrics: RouterMetrics) -> None:
        self._replicas = replicas
        self._metrics = metrics
        self._own: dict[str, Callable[[], Response]] = {
            "/livez": lambda: PlainTextResponse("ok\n"),
            "/readyz": self._readyz,
            "/health": self._readyz,
            "/startupz": self._readyz,
            "/metrics": self._read_metrics,
            "/router": self._describe,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        own = self._own.get(scope["path"])
        if own is not None and scope["method"] in ("GET", "HEAD"):
            await own()(scope, receive, send)
        else:
            await self._pass_on(scope, receive, send)

    # ── its own routes ──────────────────────────────────────────────────────────────────────────────────────────────

    def _readyz(self) -> Response:
        """200 while some replica takes requests."""
        if self._replicas.ready():
            return PlainTextResponse("ok\n")
        raise _nobody(self._replicas)

    def _read_metrics(self) -> Response:
        return Response(self._metrics.exposition(self._replicas), headers={"Content-Type": self._metrics.content_type})

    def _describe(self) -> Response:
        now = time.monotonic()
        return json_response({"replicas": [
            {
                "url": each.upstream.url, "ready": each.is_ready, "why_not": each.why_not or None, "breaker_open": each.is_shut(now),
                "weight": each.load.weight, "canary": each.share or None, "stopped": each.is_stopped,
                "requests": each.load.requests, "waiting_tokens": each.load.waiting_tokens, "held_tokens": each.load.held_tokens,
            }
            for each in self._replicas.all
        ]})  # fmt: skip

    # ── everything else ─────────────────────────────────────────────────────────────────────────────────────────────

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        row = find_row(scope)
        scope[BODY_LIMIT_KEY] = row.max_body_bytes if row is not None else MOST_BODY_BYTES
        body = b"" if scope["method"] in BODYLESS else await read_body(Request(scope, receive))
        prompt = read_prompt(scope["path"], body, current_caller().tenant.encode())
        tried: set[int] = set()
        last: ApiError | None = None
        while (replica := self._replicas.choose(prompt, tried)) is not None:
            tried.add(replica.number)
            try:
                with replica.serving(prompt.tokens) as turn:
                    await unless_disconnected(receive, self._forward(scope, send, replica, body, turn))
                return
            except Elsewhere as error:
                last = error.answer
                if not self._replicas.may_retry():
                    break
                self._metrics.retries.inc()
        raise last or _nobody(self._replicas)

    async def _forward(self, scope: Scope, send: Send, replica: Replica, body: bytes, turn: Turn) -> None:
        """Sends the request to the replica and its answer to the client. Raises Elsewhere while nothing has been sent."""
        connection, status = await self._exchange(scope, replica, body)
        try:
            self._metrics.answers.labels(replica.upstream.url, f"{status // 100}xx").inc()
            if status in ELSEWHERE and len(self._replicas.ready()) > 1:
                raise Elsewhere(await _error_of(connection, status))
            if status < 500:
                replica.note_answer()
            else:
                replica.note_failure()
            await send({"type": "http.response.start", "status": status, "headers": connection.headers})
            await self._stream(scope, send, replica, connection, turn, status < 500)
        finally:
            replica.upstream.release(connection)

    async def _exchange(self, scope: Scope, replica: Replica, body: bytes) -> tuple[Connection, int]:
        """The connection with the beginning of the answer, and its status. A kept connection that the replica has just closed says nothing
        about the replica: a fresh one is tried."""
        target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        request = replica.upstream.request(scope["method"], target, scope["headers"], body)
        for fresh in (False, True):
            connection: Connection | None = None
            try:
                connection = await replica.upstream.connect(fresh)
                return connection, await connection.send(request, scope["method"] == "HEAD")
            except UpstreamError:
                if connection is not None:
                    connection.close()
            except BaseException:  # the client has gone
                if connection is not None:
                    connection.close()
                raise
        replica.note_silence()
        raise Elsewhere(ApiError("engine_unavailable", "the replica of this request cannot be reached", headers=_soon()))

    async def _stream(self, scope: Scope, send: Send, replica: Replica, connection: Connection, turn: Turn, is_good: bool) -> None:
        is_events = any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in connection.headers)
        is_first = True
        try:
            while data := await connection.read():
                if is_first:
                    is_first = False
                    self._metrics.first_byte.labels(replica.upstream.url).observe(turn.first_byte(is_good))
                    if scope["path"] == "/v1/responses" and (found := RESPONSE_ID.search(data[:4096])):
                        self._replicas.bind(found[1], replica)
                await send({"type": "http.response.body", "body": data, "more_body": True})
        except UpstreamError:
            replica.note_failure()
            self._metrics.broken.inc()
            failure = ApiError("engine_failed", "the replica of this request ended before its answer did")
            if is_events:
                grammar = GRAMMARS[dialect_of(scope)]
                end = grammar.error_start + failure.body(grammar.dialect) + b"\n\n" + grammar.end
                await send({"type": "http.response.body", "body": end, "more_body": False})
            raise failure from None
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _error_of(connection: Connection, status: int) -> ApiError:
    """The error that a replica answers, in the router's own words where it cannot be read."""
    body = b""
    try:
        while len(body) < 1 << 16 and (part := await connection.read()):
            body += part
        message = str(msgspec.json.decode(body)["error"]["message"])
    except (UpstreamError, msgspec.DecodeError, KeyError, TypeError):
        message = "the replica takes no requests now"
    retry = next((value.decode("latin-1") for name, value in connection.headers if name == b"retry-after"), str(RETRY_AFTER_SECONDS))
    return ApiError("overloaded" if status == 429 else "engine_unavailable", message, headers={"Retry-After": retry})


def _nobody(replicas: Replicas) -> ApiError:
    why = "; ".join(f"replica {each.number}: {each.why_not or 'tried'}" for each in replicas.all)
    return ApiError("engine_unavailable", f"no replica takes requests now ({why[:500]})", headers=_soon())


def _soon() -> dict[str, str]:
    return {"Retry-After": str(RETRY_AFTER_SECONDS)}
