"""HTTP/1.1 to replicas: connections that are kept, one exchange at a time on each, bodies passed on as they arrive.

Requests are written anew, with one Content-Length and without hop-by-hop headers, so that a replica never disagrees with the router about
where a request ends. While nobody reads an answer, its connection is not read.
"""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, cast
from urllib.parse import urlsplit

import httptools

from ridgeline.server.routers import CONTINUE_HEADER, KEY_HEADER, LINES_HEADER

CONNECT_SECONDS: Final = 2.0
PROBES: Final = {"TCP_KEEPIDLE": 2, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 3}
"""Seconds without a byte behind which the other system is asked whether it is there, between two such probes, and probes: a stream whose
network has gone ends 5 s later. Systems answer them, however busy the replica is."""
MOST_IDLE: Final = 64
"""Connections kept open per replica."""
HIGH_WATER: Final = 1 << 16
"""Bytes of an answer that wait here before its connection is read no further."""
MAX_HEAD_BYTES: Final = 64 * 1024
HOP_BY_HOP: Final = frozenset({
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te", b"trailer",
    b"transfer-encoding", b"upgrade", b"expect", b"host", b"content-length", KEY_HEADER, CONTINUE_HEADER,
    LINES_HEADER,
})  # fmt: skip
"""Headers that are between two neighbours, and those that are written anew: a client's own would speak with the router's key."""
FRAMING: Final = frozenset({b"content-length", b"transfer-encoding"})
"""Headers that say where a body ends; without one its end is that of the connection."""
_MOST_DIGITS: Final = 7
"""Digits of a chunk's size that are read here."""

Headers = list[tuple[bytes, bytes]]


class UpstreamError(Exception):
    """The replica could not be reached, or ended its answer early."""


class Connection(asyncio.Protocol):
    """One connection to a replica. An answer is waited for (`send`, `read`), or told of as it comes (`ask`, `take`).

    on_change  called when a part of the answer has come, and when the connection has ended
    on_chunks  called before it with chunks that are whole and plain, as they came, while no others wait; True: it has taken them
    has_head  the head of the answer is there: `status`, `headers`
    is_whole  its end has come
    is_lost   the connection has ended
    """

    def __init__(self) -> None:
        self._parser: Any = None
        self._transport: asyncio.Transport | None = None
        self._wake: asyncio.Future[None] | None = None
        self.on_change: Callable[[], None] = self.notify
        self.on_chunks: Callable[[bytes], bool] | None = None
        self._parts: list[bytes] = []
        self._waiting = 0
        self._head_bytes = 0
        self.has_head = self.is_whole = self.is_lost = False
        self._is_paused = self._is_bodyless = self._is_framed = self._is_kept = self._is_chunked = self._is_even = False
        self.status = 0
        self.headers: Headers = []
        self.was_used = False
        """An exchange went before: the replica may have closed it since."""

    # ── events of the transport and the parser ──────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._parser is None or self.is_whole:  # bytes that nobody asked for
            self.close()
            return
        if self._is_even:
            parts, at, self.is_whole = whole_chunks(data)
            if self.on_chunks is not None and at == len(data) and not self._parts and self.on_chunks(data):
                return
            self._parts += parts
            self._waiting += at
            data = data[at:]
            if data and self.is_whole:
                self.close()
        if data and not self.is_whole:
            had_head, self._is_even = self.has_head, False
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserError:
                self.close()
            if not self.has_head:
                self._head_bytes += len(data)
                if self._head_bytes > MAX_HEAD_BYTES:
                    self.close()
            elif not had_head:
                self._is_even = self._is_chunked and not self._parts and not self.is_whole and data.endswith(b"\r\n\r\n")
        if self._waiting > HIGH_WATER and not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()
        self.on_change()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self.on_change()

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in FRAMING:
            self._is_chunked = not self._is_framed and value.lower() == b"chunked"
            self._is_framed = True
        if not self.has_head and (name not in HOP_BY_HOP or name == b"content-length"):
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self.has_head:  # of an answer that nobody asked for
            self.close()
        elif (status := self._parser.get_status_code()) >= 200:
            self.has_head, self.status = True, status
            self.is_whole = self._is_bodyless
            self._is_kept = bool(self._parser.should_keep_alive())  # it says so here alone
        else:  # an interim answer
            self.headers.clear()

    def on_body(self, body: bytes) -> None:
        if self.is_whole:
            return
        self._parts.append(body)
        self._waiting += len(body)

    def on_message_complete(self) -> None:
        self.is_whole = self.has_head

    def notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _wait(self) -> None:
        self._wake = asyncio.get_running_loop().create_future()
        await self._wake

    # ── exchanges ───────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def is_usable(self) -> bool:
        """True if another request may be sent."""
        return not self.is_lost and self._transport is not None and not self._transport.is_closing()

    def ask(self, request: bytes, is_bodyless: bool = False) -> None:
        """Sends a whole request, where the connection `is_usable`. `is_bodyless`: of HEAD."""
        assert self._transport is not None
        self._transport.write(request)
        self._parser = httptools.HttpResponseParser(self)
        self.has_head = self.is_whole = self._is_framed = self._is_kept = self._is_chunked = self._is_even = False
        self._is_bodyless, self._head_bytes, self.headers = is_bodyless, 0, []

    async def send(self, request: bytes, is_bodyless: bool = False) -> int:
        """Sends a whole request; the status of its answer, whose `headers` are there then. Raises UpstreamError."""
        if not self.is_usable:
            raise UpstreamError
        self.ask(request, is_bodyless)
        return await self.head()

    async def head(self) -> int:
        """Waits for the head of an answer that has been asked for; its status. Raises UpstreamError."""
        self.on_change = self.notify
        while not self.has_head:
            if self.is_lost:
                raise UpstreamError
            await self._wait()
        return self.status

    async def read(self) -> bytes:
        """Reads what has arrived of the body, b"" at its end. Raises UpstreamError if the connection ends before."""
        self.on_change = self.notify
        while not self._parts:
            if self.has_ended:
                return b""
            await self._wait()
        return self.take()

    @property
    def has_ended(self) -> bool:
        """True if nothing more of the body will come. Raises UpstreamError if the connection has ended before the answer did."""
        if self.is_lost and not self.is_whole and self._is_framed:
            raise UpstreamError
        return self.is_whole or self.is_lost  # a body without a frame ends with the connection

    def take(self) -> bytes:
        """The bytes of the body that have come and were not taken; b"" for none."""
        if not self._parts:
            return b""
        data = b"".join(self._parts)
        self._parts.clear()
        self._waiting = 0
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()
        return data

    @property
    def can_be_kept(self) -> bool:
        """True if the answer has been read to its end, and the replica keeps the connection."""
        return self.is_whole and not self._parts and self._is_kept and not self._is_bodyless and self.is_usable

    def close(self) -> None:
        """Closes at once: a replica ends the request of a client that has gone."""
        if self._transport is not None:
            self._transport.abort()


def whole_chunks(data: bytes) -> tuple[list[bytes], int, bool]:
    """The chunks with which bytes begin, plain and whole ones; the bytes that they took; whether they end the body.

    What nearly all bytes of streams are, is read so without the parser, which has heard the head and stands between two chunks.
    """
    parts, at = list[bytes](), 0
    try:
        while (begin := data.find(b"\r\n", at, at + _MOST_DIGITS + 2) + 2) > 2 and (digits := data[at : begin - 2]).isalnum():
            end = begin + int(digits, 16)
            if not data.startswith(b"\r\n", end):
                break
            at = end + 2
            if begin == end:
                return parts, at, True
            parts.append(data[begin:end])
    except ValueError:  # no size
        pass
    return parts, at, False


class Upstream:
    """The address of a replica, and the connections to it that are open and idle."""

    def __init__(self, url: str) -> None:
        """`url`: http[s]://host[:port], which the caller has checked."""
        parts = urlsplit(url)
        self.url = url
        self.authority = parts.netloc.encode()
        self._host = parts.hostname or "127.0.0.1"
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._idle: deque[Connection] = deque()
        self._busy: set[Connection] = set()

    def idle(self) -> Connection | None:
        """A connection that is open and idle, if there is one; `release` ends its use."""
        while self._idle:
            if (found := self._idle.pop()).is_usable:
                found.was_used = True
                self._busy.add(found)
                return found
        return None

    async def connect(self, fresh: bool = False) -> Connection:
        """An idle connection, or, where there is none or `fresh` is asked for, a new one; `release` ends its use. Raises UpstreamError."""
        if not fresh and (found := self.idle()) is not None:
            return found
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                transport, connection = await loop.create_connection(Connection, self._host, self._port, ssl=self._tls)
        except (OSError, TimeoutError, ValueError) as error:  # a name that is none, too
            raise UpstreamError from error
        opened = transport.get_extra_info("socket")
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option in [(getattr(socket, name), value) for name, value in PROBES.items() if hasattr(socket, name)]:
            opened.setsockopt(socket.IPPROTO_TCP, *option)
        self._busy.add(connection)
        return connection

    def release(self, connection: Connection) -> None:
        """Keeps a connection whose exchange is over, or closes it."""
        self._busy.discard(connection)
        connection.on_change, connection.on_chunks = connection.notify, None
        if connection.can_be_kept and len(self._idle) < MOST_IDLE:
            self._idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """Closes all connections: answers under way break off."""
        while self._idle:
            self._idle.pop().close()
        for each in self._busy:
            each.close()

    def request(self, method: str, target: bytes, headers: Headers, body: bytes, more: Sequence[tuple[bytes, bytes]] = ()) -> bytes:
        """The bytes of a request with those of the headers that go beyond one neighbour, and `more` in the place of their like."""
        lines = b"".join([b"\r\n%b: %b" % each for each in more]) + passed_on(headers, [name for name, _ in more])
        line = method.encode() + b" " + target
        if not body and method not in ("POST", "PUT", "PATCH"):
            return b"%b HTTP/1.1\r\nhost: %b%b\r\n\r\n" % (line, self.authority, lines)
        return self.asked(line, lines, body)

    def asked(self, line: bytes, lines: bytes, body: bytes) -> bytes:
        """The same of a method and target, and of lines of headers, each behind a line's end. Sums take half of the time of a format
        that the processor has not met lately."""
        length = str(len(body)).encode()
        return line + b" HTTP/1.1\r\nhost: " + self.authority + lines + b"\r\ncontent-length: " + length + b"\r\n\r\n" + body


def passed_on(headers: Headers, written: Collection[bytes]) -> bytes:
    """The lines, each behind a line's end, of the headers that go beyond one neighbour; without those of the names `written`."""
    skipped = HOP_BY_HOP.union(written)
    if named := [value for name, value in headers if name == b"connection"]:
        skipped |= {part.strip().lower() for value in named for part in value.split(b",")}
    if b"origin" not in skipped and any(name == b"origin" for name, _ in headers):
        own = next((b"//" + value for name, value in headers if name == b"host"), b"")
        headers = [each for each in headers if not (each[0] == b"origin" and own and each[1].endswith(own))]
    return b"".join([b"\r\n%b: %b" % each for each in headers if each[0] not in skipped])
