"""Bytes of one exchange: bounded bodies, JSON answers, server-sent events, disconnects.

Owns the grammar of an event stream, and the bytes between an application's write and the socket. They wait less than an iteration of the
event loop: a step has a token for every stream, so all events are made first and the system calls follow each other. Never looks into a
body, never talks to the engine. Disconnects are watched here, since middleware that wraps requests hides them.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from ridgeline.errors import EngineDeadError
from ridgeline.server.errors import ApiError, Dialect, as_api_error
from ridgeline.server.shortcut import BodyWriter, Shortcut

BODY_LIMIT_KEY: Final = "ridgeline.max_body_bytes"
"""Key in a scope of the bytes that its body may have, as the table of routes says."""
MAX_DISCARDED_BYTES: Final = 16 << 20
"""Bytes of a body that is too large that are read and discarded, so that the client sees the answer."""
FLUSH_BYTES: Final = 1 << 16
"""Bytes beyond which the buffer is flushed at once: the transport has to know of them, so that it can pause the writer."""
DONE: Final = b"data: [DONE]\n\n"
BODY_SEND_KEY: Final = "ridgeline.body"
"""Key in a scope of the server's own `send`, for bodies of streams: layers around an endpoint need nothing but the start of an answer."""
BODY_WRITER_KEY: Final = "ridgeline.body_writer"
"""Key in a scope of a `BodyWriter` of the answer; none where the server has none."""
GONE_KEY: Final = "ridgeline.gone"
"""Key in a scope of a future that is done when the client has gone; none where the server tells of that in no other way than `receive`."""
KEEP_ALIVE: Final = b""
"""Yielded by `events` for a sign of life, which clients skip."""
COMMENT: Final = b": keep-alive\n\n"

Result = TypeVar("Result")


class Disconnected(Exception):
    """The client has disconnected."""


async def read_body(request: Request) -> bytes:
    """The whole body. Raises ApiError beyond the bound of its route, Disconnected when the client goes or takes too long.

    A body that is too large is read on for a while and discarded: closing on a client that still sends would hide the answer from it.
    """
    limit: int = request.scope[BODY_LIMIT_KEY]
    declared = next((value for name, value in request.scope["headers"] if name == b"content-length"), b"0")
    if declared.isdigit() and int(declared[:20]) > MAX_DISCARDED_BYTES:
        raise _too_large(limit)
    body, received, more = bytearray(), 0, True
    while more and received <= MAX_DISCARDED_BYTES:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        part, more = message.get("body", b""), message.get("more_body", False)
        received += len(part)
        if received <= limit:
            body += part
    if received > limit:
        raise _too_large(limit)
    return bytes(body)


def replayed(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives a body that has been read, and then what comes behind it."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return messages.pop() if messages else await receive()

    return again


def client_of(request: Request) -> bytes:
    """The client's address, as `address_of` has it; b"" where there is none."""
    return address_of(request.client.host) if request.client else b""


def address_of(host: str) -> bytes:
    """Address by which connections and requests are counted: an IPv4 address, or the /64 of an IPv6 address, which is one client's."""
    if ":" not in host or host.startswith("::ffff:"):
        return host.encode()
    return socket.inet_pton(socket.AF_INET6, host.partition("%")[0])[:8]


def _too_large(limit: int) -> ApiError:
    return ApiError("body_too_large", f"the body has more than {limit} bytes", headers={"Connection": "close"})


def json_response(value: Any) -> Response:
    """200 with `value` as JSON."""
    return Response(msgspec.json.encode(value), media_type="application/json")


async def unless_disconnected(scope: Scope, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`; cancels it and raises Disconnected when the client goes first. `work` runs in the caller's task, at once."""
    gone: asyncio.Future[None] | None = scope.get(GONE_KEY)
    if gone is None:
        return await work
    task = asyncio.current_task()
    assert task is not None
    is_over = has_gone = False

    def end(_: "asyncio.Future[None]") -> None:
        nonlocal has_gone
        if not is_over:
            has_gone = True
            task.cancel()

    gone.add_done_callback(end)
    try:
        return await work
    except asyncio.CancelledError:
        if has_gone and not task.uncancel():
            raise Disconnected from None
        raise
    finally:
        is_over = True
        gone.remove_done_callback(end)


async def _in_own_task(work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`. Its wakes then go through no layer around the endpoint: each of a dozen would be resumed for every token."""
    return await asyncio.create_task(work)


@dataclass(frozen=True, slots=True)
class EventGrammar:
    """Text around the events of a dialect.

    start        before what the endpoint gives for an event
    error_start  before the body of an error
    idle         a whole event that clients skip
    end          after the last event
    stop         after an event
    media_type   of the whole
    """

    dialect: Dialect
    start: bytes
    error_start: bytes
    idle: bytes
    end: bytes
    stop: bytes = b"\n\n"
    media_type: str = "text/event-stream"


OPENAI_EVENTS: Final = EventGrammar("openai", b"data: ", b"data: ", COMMENT, DONE)
ANTHROPIC_EVENTS: Final = EventGrammar(
    "anthropic", b"event: ", b"event: error\ndata: ", b'event: ping\ndata: {"type":"ping"}\n\n', b""
)  # fmt: skip
"""The endpoint gives the name of an event, a newline, `data: ` and its JSON."""
RESPONSES_EVENTS: Final = EventGrammar("responses", b"event: ", b"event: error\ndata: ", COMMENT, b"")
"""Grammar of events like Anthropic's, with comments."""
OLLAMA_LINES: Final = EventGrammar("ollama", b"", b"", b" ", b"", b"\n", "application/x-ndjson")
"""One JSON object a line; a space before one is a sign of life that readers of JSON skip."""

GGML_EVENTS: Final = EventGrammar("ggml", b"data: ", b"data: ", COMMENT, b"")


def encode_event(event: msgspec.Struct) -> bytes:
    """An event whose tag is its name, as grammars with names take it."""
    return event_start(type(event)) + msgspec.json.encode(event)


def event_start(kind: type[msgspec.Struct]) -> bytes:
    """Text before the JSON of an event of this type."""
    return f"{kind.__struct_config__.tag}\ndata: ".encode()


class Marks(Protocol):
    """Marks that tell a router of a stream."""

    def mark(self, event: bytes) -> bytes: ...


class EventStream(Response):
    """Server-sent events, then the end that the grammar has for it. An error becomes an event of its own before the end, and is raised.

    `events` gives the payloads, for OpenAI's grammar JSON without newlines, or KEEP_ALIVE; `close` is called at the end, also when the
    client goes. While it does not read, `send` waits. `shortcut` has what else makes events of the answer. With `waits` the answer begins
    with its first event: an error before that is an answer of its own, with its status and headers.
    """

    def __init__(self, events: AsyncGenerator[bytes, None], close: Callable[[], None], grammar: EventGrammar = OPENAI_EVENTS) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}, media_type=grammar.media_type)
        del self.headers["content-length"]
        self._events = events
        self._close = close
        self._grammar = grammar
        self.relay: Marks | None = None
        self.shortcut: Shortcut | None = None
        self.waits = False

    @property
    def has_comments(self) -> bool:
        """True if a line can stand in front of an event, which readers skip."""
        return self._grammar.media_type == OPENAI_EVENTS.media_type

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with aclosing(self._events):
                await unless_disconnected(scope, _in_own_task(self._write(scope, send)))
        finally:
            if self.shortcut is not None:
                self.shortcut.close()
            self._close()

    def _framed(self, event: bytes) -> bytes:
        """The bytes of an event; b"" for one that the client has of another server."""
        data = self._grammar.start + event + self._grammar.stop
        return data if self.relay is None else self.relay.mark(data)

    async def _tell(self, event: bytes, send_body: Send) -> None:
        data = self._grammar.idle if event is KEEP_ALIVE else self._framed(event)
        if data:
            await send_body({"type": "http.response.body", "body": data, "more_body": True})
        else:
            await asyncio.sleep(0)  # thousands may be made again: other streams go on meanwhile

    async def _write(self, scope: Scope, send: Send) -> None:
        first = await anext(self._events) if self.waits else None
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        send_body: Send = scope.get(BODY_SEND_KEY, send)
        writer: BodyWriter | None = scope.get(BODY_WRITER_KEY)
        if self.shortcut is not None and writer is not None:
            self.shortcut.open(writer, self._framed)
        failure: ApiError | None = None
        grammar, relay = self._grammar, self.relay
        try:
            if first is not None:
                await self._tell(first, send_body)
            async for event in self._events:
                await self._tell(event, send_body)
        except Exception as error:
            if relay is not None and isinstance(error, EngineDeadError):
                raise  # a router goes on with it elsewhere: the stream breaks off, and the client is not told
            failure = as_api_error(error)
            data = grammar.error_start + failure.body(grammar.dialect) + grammar.stop
            await send_body({"type": "http.response.body", "body": data, "more_body": True})
        await send_body({"type": "http.response.body", "body": grammar.end, "more_body": False})
        if failure is not None:
            raise failure


# ── the socket ──────────────────────────────────────────────────────────────────────────────────────────────────────


class Writes:
    """Transports with bytes to write when the tasks that are ready to run have run: one callback of the event loop for all of them."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None  # asked for once: it costs a system call
        self._waiting: list[BufferedTransport] = []

    def add(self, transport: "BufferedTransport") -> None:
        """Adds a transport, which is flushed with all others at the end of this iteration of the event loop."""
        if not self._waiting:
            loop = self._loop = self._loop or asyncio.get_running_loop()
            loop.call_soon(self._flush)
        self._waiting.append(transport)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.flush()


class BufferedTransport:
    """A transport around another. It writes at the end of the event loop's iteration; all else is the other's."""

    def __init__(self, transport: asyncio.Transport, writes: Writes) -> None:
        self._transport = transport
        self._writes = writes
        self._parts: list[bytes] = []
        self._bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Buffers bytes until the tasks that are ready to run have run."""
        if not self._parts:
            self._writes.add(self)
        self._parts.append(data)
        self._bytes += len(data)
        if self._bytes >= FLUSH_BYTES:
            self.flush()

    def write_now(self, data: bytes) -> None:
        """Writes bytes at once, behind those that wait."""
        if self._parts:
            self.write(data)
            self.flush()
        elif not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Closes behind what has been written."""
        self.flush()
        self._transport.close()

    def flush(self) -> None:
        """Writes what waits."""
        parts, self._parts, self._bytes = self._parts, [], 0
        if parts and not self._transport.is_closing():
            self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))
