"""One connection: uvicorn's HTTP/1.1 parser with bounded heads, deadlines for the client, and the error bodies of every other answer.

Owns what happens to bytes that are no request, to clients that stop in the middle of one, and to those that do not read their answer. How
many connections there are, and which one has waited too long, is `server.listener`'s.
"""

import asyncio
import logging
import socket
import struct
import time
from contextlib import suppress
from typing import Any, Final, Protocol, cast

from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from ridgeline.observe.logs import with_fields
from ridgeline.server.errors import ApiError, Dialect
from ridgeline.server.routes import dialect_of
from ridgeline.server.transport import BODY_WRITER_KEY, GONE_KEY, BufferedTransport, Writes

log = logging.getLogger("ridgeline.access")

MAX_HEAD_BYTES: Final = 32 * 1024
"""Bytes of a request line and headers that may arrive before they are complete."""
HEAD_TIMEOUT_SECONDS: Final = 10.0
"""Time for a TLS handshake, and for a request line with its headers."""
IDLE_TIMEOUT_SECONDS: Final = 75.0
"""Time for which a connection stays open between two requests: more than the 60 s after which proxies close theirs."""
BODY_TIMEOUT_SECONDS: Final = 30.0
"""Time for a client to send its body, from the head on, or from the end of the answer before."""
FORGET_UNSENT: Final = struct.pack("ii", 1, 0)
"""SO_LINGER for no time: else the system offers the bytes that nobody reads for minutes to come."""
MAX_PIPELINED: Final = 16
"""Requests that may wait behind the one being answered before nothing more of the connection is read."""
PROBE_SECONDS: Final = (0.0, 0.1, 1.0)
"""Pauses before interim answers to a client that has closed its sending side; the last is repeated."""
REJECTED_KEY: Final = "ridgeline.rejected"
"""Key in a scope of the ApiError with which the connection itself answered the request."""
PAUSED_KEY: Final = "ridgeline.paused"
"""Key in a scope of the times, as (from, to) of `time.monotonic`, in which its client did not read; the first `MAX_PAUSES` of them."""
MAX_PAUSES: Final = 64
CROWDED_KEY: Final = "ridgeline.crowded"
"""Key in a scope: the connection is one too many, and only probes are answered on it."""


class ConnectionTable(Protocol):
    """All connections; knows whose turn it is to send on each.

    send_timeout  seconds for which a client that does not read may leave the buffers full; what it takes meanwhile gives it as much again
    writes        of all connections
    """

    send_timeout: float
    writes: Writes

    def await_client(self, connection: "HttpConnection", seconds: float) -> None:
        """Calls `time_out` unless `await_server` or `remove` is called within that time."""
        ...

    def await_server(self, connection: "HttpConnection") -> None:
        """The client may take its time from now on."""
        ...

    def remove(self, connection: "HttpConnection") -> None:
        """The connection is closed."""
        ...


class ChunkWriter:
    """Writes chunks of the body of an answer that has begun, without its task."""

    def __init__(self, flow: FlowControl, transport: BufferedTransport) -> None:
        self._flow = flow
        self._transport = transport

    @property
    def is_paused(self) -> bool:
        """True if the client does not read."""
        return self._flow.write_paused

    def write(self, data: bytes) -> None:
        """Writes a chunk of some bytes."""
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))


class HttpConnection(HttpToolsProtocol):
    """One accepted connection. `address` is what limits count by; `is_crowded`: one more than there should be."""

    def __init__(
        self, config: Config, state: ServerState, app_state: dict[str, Any], table: ConnectionTable,
        accepted: socket.socket, address: bytes, is_crowded: bool,
    ) -> None:  # fmt: skip
        super().__init__(config, state, app_state)
        self.address = address
        self._table = table
        self._accepted = accepted
        self._is_crowded = is_crowded
        self._is_dropped = False
        self._cycles: list[RequestResponseCycle] = []
        """Requests without a whole answer: uvicorn tells the last one alone of a client that has gone."""
        self._head_bytes = 0
        self._in_head = self._in_body = False
        self._paused_at = 0.0
        self._unsent = 0
        """Bytes that the client left when it was looked at last, while it leaves the buffers full."""

    # ── events of the transport ─────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Every write of the connection goes through `BufferedTransport`."""
        super().connection_made(cast(asyncio.Transport, BufferedTransport(transport, self._table.writes)))
        self._table.await_client(self, HEAD_TIMEOUT_SECONDS)
        if self._is_dropped:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._table.remove(self)
        for cycle in self._cycles:
            _leave(cycle)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Counts bytes since the start of a head; uvicorn's parser itself would take headers without end."""
        self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._reject(ApiError("headers_too_large", f"the headers have more than {MAX_HEAD_BYTES} bytes"))

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client has closed its sending side, or both: only a write tells. True: the connection stays open for the answer.

        A stream ends here: its client is as good as gone, and what it has not been sent costs the engine time.
        """
        if self._in_head or self._in_body:
            self._reject(ApiError("invalid_http", "the client stopped sending in the middle of its request"))
            return False
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.response_started:
            return False
        cycle.keep_alive = False
        if self.scheme == "https" or cycle.scope["http_version"] == "1.0":
            return False
        self._probe(0)
        return True

    def _probe(self, count: int) -> None:
        """Sends interim answers while there is no answer: the system of a client that has gone altogether ends the connection on them."""
        if self.transport.is_closing() or self._has_begun:
            return
        if count:
            self.transport.write(b"HTTP/1.1 102 Processing\r\n\r\n")
        self.loop.call_later(PROBE_SECONDS[min(count, len(PROBE_SECONDS) - 1)], self._probe, count + 1)

    # ── events of the parser ────────────────────────────────────────────────────────────────────────────────────────

    def on_message_begin(self) -> None:
        self._in_head = True
        if self._is_answered and not self.flow.write_paused:
            self._table.await_client(self, HEAD_TIMEOUT_SECONDS)
        super().on_message_begin()
        if self._is_crowded:
            cast(dict[str, Any], self.scope)[CROWDED_KEY] = True

    def on_headers_complete(self) -> None:
        self._in_head, self._in_body = False, True
        if self._is_answered and not self.flow.write_paused:
            self._table.await_client(self, BODY_TIMEOUT_SECONDS)
        cast(dict[str, Any], self.scope)[GONE_KEY] = self.loop.create_future()
        super().on_headers_complete()
        if len(self.pipeline) < MAX_PIPELINED:
            self.flow.resume_reading()  # uvicorn pauses at a second request, and then nobody hears that the client has gone
        self._cycles = [each for each in self._cycles if not each.response_complete] + [self.cycle]
        cast(dict[str, Any], self.scope)[BODY_WRITER_KEY] = ChunkWriter(self.flow, cast(BufferedTransport, self.transport))

    def on_message_complete(self) -> None:
        self._head_bytes, self._in_body = 0, False
        if not self.flow.write_paused:  # else another request gives it no more time to read the answers that it has
            if self._is_answered:
                self._table.await_client(self, IDLE_TIMEOUT_SECONDS)
            else:
                self._table.await_server(self)
        if len(self.pipeline) < MAX_PIPELINED:
            self.flow.resume_reading()  # it pauses in a long body too, and whoever has read that reads no more
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Begins the next request, without uvicorn's timer: the table has the deadlines. Also called by an answer that did not wait for its
        request's body."""
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        if (self._is_answered or (self._in_body and not self.pipeline)) and not self.flow.write_paused:
            self._await_more()

    # ── a client that does not read ─────────────────────────────────────────────────────────────────────────────────

    def pause_writing(self) -> None:
        """The buffers are full. Whoever writes waits from now on, and the client has its time to read."""
        super().pause_writing()
        self._unsent, self._paused_at = self.transport.get_write_buffer_size(), time.monotonic()
        self._table.await_client(self, self._table.send_timeout)

    def resume_writing(self) -> None:
        """The client has read most of it."""
        super().resume_writing()
        for cycle in self._cycles:
            if not cycle.response_complete:
                pauses = cast(dict[str, Any], cycle.scope).setdefault(PAUSED_KEY, [])
                if len(pauses) < MAX_PAUSES:
                    pauses.append((self._paused_at, time.monotonic()))
        if self._is_answered or self._in_head or self._in_body:
            self._await_more()
        else:
            self._table.await_server(self)

    def _await_more(self) -> None:
        seconds = HEAD_TIMEOUT_SECONDS if self._in_head else BODY_TIMEOUT_SECONDS if self._in_body else IDLE_TIMEOUT_SECONDS
        self._table.await_client(self, seconds)

    def _end_stall(self) -> None:
        """Closes the connection of a client that has read nothing in its time; its requests see that it is gone."""
        unsent = self.transport.get_write_buffer_size()
        if unsent < self._unsent:
            self._unsent = unsent
            self._table.await_client(self, self._table.send_timeout)
            return
        error = ApiError("client_too_slow", f"the client read nothing for {self._table.send_timeout:g} s")
        for cycle in self._cycles:
            if not cycle.response_complete:
                cast(dict[str, Any], cycle.scope)[REJECTED_KEY] = error
        text = "connection closed: its client does not read"
        log.info(text, extra=with_fields(client=self.client and self.client[0], unsent_bytes=unsent))
        with suppress(OSError):  # it is closed already, or the system has another form of it
            self._accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, FORGET_UNSENT)
        self.drop()

    @property
    def _has_begun(self) -> bool:
        """True if a part of the newest answer has been sent."""
        return self.cycle.response_started

    @property
    def _is_answered(self) -> bool:
        """True if no request waits for its answer."""
        return self.cycle is None or self.cycle.response_complete

    def send_400_response(self, msg: str) -> None:
        """The answer to what is not HTTP. `msg` is the parser's and stays out of the answer."""
        self._reject(ApiError("invalid_http", "this is not an HTTP/1.1 request, or its body is malformed"))

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def time_out(self) -> None:
        """The client did not send in time: 408 in the middle of a request, else the connection is closed. So it is if it did not read."""
        if self.flow is not None and self.flow.write_paused:
            self._end_stall()
        elif self._in_head:
            self._reject(ApiError("client_too_slow", f"the headers did not arrive within {HEAD_TIMEOUT_SECONDS:g} s"))
        elif self._in_body and not self._is_answered:
            self._reject(ApiError("client_too_slow", f"the body did not arrive within {BODY_TIMEOUT_SECONDS:g} s"))
        else:
            self.drop()

    def drop(self) -> None:
        """Closes the connection now, whatever has not been sent."""
        self._is_dropped = True
        if self.transport is not None:
            self.transport.abort()
        else:  # in the middle of a TLS handshake, which then fails
            with suppress(OSError):
                self._accepted.shutdown(socket.SHUT_RDWR)

    def _reject(self, error: ApiError) -> None:
        """Answers what came, where an answer can still be told from another's, and closes."""
        if self._in_body != self._is_answered:
            if self._in_body:
                cycle = self.cycle
                cast(dict[str, Any], cycle.scope)[REJECTED_KEY] = error
                _leave(cycle)
            else:
                log.info("request", extra=with_fields(client=self.client and self.client[0], status=error.status, error=error.code))
            if not (self._in_body and self.cycle.response_started):
                self.transport.write(_response(error, dialect_of(cast(dict[str, Any], self.cycle.scope)) if self._in_body else "openai"))
        self.transport.close()


def _leave(cycle: RequestResponseCycle) -> None:
    """The client of a request has gone."""
    cycle.disconnected = True
    cycle.message_event.set()
    gone = cast(dict[str, Any], cycle.scope)[GONE_KEY]
    if not gone.done():
        gone.set_result(None)


def _response(error: ApiError, dialect: Dialect) -> bytes:
    body = error.body(dialect)
    head = f"HTTP/1.1 {error.status} \r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    return head.encode() + body
