"""A small HTTP/1.1 client for measurements: what arrives is handed on with the moment at which it arrived, and nothing is retried unseen.

Owns connections, which stay open for the next request, and the limits of what a server may send. Knows nothing of models.
"""

import asyncio
import re
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import httptools
import msgspec

from ridgeline.errors import ConfigError

HEAD_BYTES: Final = 64 << 10
"""Of all headers of an answer."""
READ_BYTES: Final = 64 << 10
"""Read at once."""
BODY_BYTES: Final = 64 << 20
"""Of one answer."""
CONNECT_SECONDS: Final = 30.0
VERSION: Final = re.compile(r"/v\d+$")


class HttpError(Exception):
    """An exchange that failed. `kind` is a stable word or two by which failures are counted."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Target:
    """The address of a server: host and port of its URL, the path before its API, and the API's version (`/v1`, with OpenVINO `/v3`)."""

    host: str
    port: int
    root: str
    version: str
    secure: bool

    @classmethod
    def of(cls, url: str) -> "Target":
        """`http://host:port`, with or without a path, a trailing slash or a version. Raises ConfigError."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if not host or parts.scheme not in ("http", "https") or not url.isascii() or not url.isprintable() or " " in url:
            raise ConfigError(f"{url[:80]!r} is no address of a server; write http://HOST:PORT")
        secure, path = parts.scheme == "https", parts.path.rstrip("/")
        found = VERSION.search(path)
        return cls(host, port or (443 if secure else 80), path[: found.start()] if found else path, found[0] if found else "/v1", secure)


@dataclass(slots=True)
class Answer:
    """One answer as it arrives.

    receive  given each piece of the body and the moment (`time.perf_counter`) at which the socket had it; None: the body is kept
    """

    receive: Callable[[bytes, float], None] | None = None
    status: int = 0
    body: bytearray = field(default_factory=bytearray)
    size: int = 0


class _Connection(asyncio.BufferedProtocol):
    """One connection with one exchange at a time. `fresh` until an answer has come over it: a server may close it in between."""

    # A protocol that is given bytes costs three times as much: the loop makes room for 256 kB whenever it reads.

    def __init__(self) -> None:
        self.fresh = True
        self.open = False
        self._transport: Any = None
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._answer = Answer()
        self._done: asyncio.Future[None] | None = None
        self._parser: Any = None
        self._head = 0
        self._sized = False
        self._now = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.open = transport, True

    def exchange(self, request: bytes, answer: Answer) -> "asyncio.Future[None]":
        """Sends a request; the future is done when the whole answer has come, or failed with HttpError."""
        self._answer, self._head, self._sized = answer, 0, False
        self._parser = httptools.HttpResponseParser(self)
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._done

    def get_buffer(self, sizehint: int) -> memoryview:
        """The buffer for the next bytes."""
        return self._buffer

    def buffer_updated(self, count: int) -> None:
        """So many bytes have come."""
        self._now = time.perf_counter()
        if self._done is None or self._done.done():
            return self.close()  # Nobody asked for more.
        self._head += count if not self._answer.status else 0
        try:
            if self._head > HEAD_BYTES:
                raise HttpError("no HTTP", f"the headers of an answer have more than {HEAD_BYTES} bytes")
            self._parser.feed_data(self._buffer[:count])
        except httptools.HttpParserError as error:
            cause = error.__context__  # What a callback raises comes wrapped.
            self._fail(cause if isinstance(cause, HttpError) else HttpError("no HTTP", f"the answer is no HTTP/1.1: {error}"))
        except HttpError as error:
            self._fail(error)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._sized = self._sized or name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        self._answer.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        answer = self._answer
        answer.size += len(body)
        if answer.size > BODY_BYTES:
            raise HttpError("too long", f"an answer has more than {BODY_BYTES >> 20} MB")
        if answer.receive is None or answer.status != 200:
            answer.body += body
        else:
            answer.receive(body, self._now)

    def on_message_complete(self) -> None:
        self.fresh = False
        self.open = self.open and self._parser.should_keep_alive()
        if self._done is not None and not self._done.done():
            self._done.set_result(None)
        if not self.open:
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.open = False
        if self._done is None or self._done.done():
            return
        if self._answer.status and not self._sized and error is None:
            self._done.set_result(None)  # An answer without a length ends with its connection.
        else:
            self._fail(
                HttpError("disconnected", f"the server closed the connection before the answer had ended{f': {error}' if error else ''}")
            )

    def _fail(self, error: HttpError) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)
        self.close()

    def close(self) -> None:
        """Closes the socket; an exchange in progress fails."""
        self.open = False
        self._transport.abort()


class Http:
    """Exchanges with one server. Connections are kept and used again; there are as many as exchanges at once."""

    def __init__(self, target: Target, key: str | None = None) -> None:
        self._target = target
        self.version = target.version
        self._idle: list[_Connection] = []
        self._tls = ssl.create_default_context() if target.secure else None
        name = f"[{target.host}]" if ":" in target.host else target.host
        bearer = f"Authorization: Bearer {key}\r\n" if key else ""
        if not bearer.isascii() or bearer.count("\n") > 1:
            raise ConfigError("--api-key holds characters that no header may have")
        self._headers = f"Host: {name}:{target.port}\r\nAccept: */*\r\nUser-Agent: ridgeline-bench\r\n{bearer}"

    async def get(self, path: str, seconds: float = 30.0) -> Any:
        """The JSON at a path. Raises HttpError."""
        return _json(await self._whole(self._request("GET", path, b""), seconds), path)

    async def post(self, path: str, body: object, seconds: float = 30.0) -> Any:
        """The JSON that answers a JSON body. Raises HttpError."""
        return _json(await self._whole(self._request("POST", path, msgspec.json.encode(body)), seconds), path)

    async def stream(self, path: str, body: bytes, receive: Callable[[bytes, float], None]) -> Answer:
        """Posts a body of JSON; `receive` is given each piece of a 200's body. Raises HttpError."""
        return await self._send(self._request("POST", path, body), Answer(receive))

    def close(self) -> None:
        """Closes idle connections."""
        while self._idle:
            self._idle.pop().close()

    def _request(self, method: str, path: str, body: bytes) -> bytes:
        head = f"{method} {self._target.root}{path} HTTP/1.1\r\n{self._headers}"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if method == "POST" else ""
        return head.encode() + b"\r\n" + body

    async def _whole(self, request: bytes, seconds: float) -> Answer:
        try:
            async with asyncio.timeout(seconds):
                return await self._send(request, Answer())
        except TimeoutError:
            raise HttpError("timeout", f"no answer after {seconds:g} s") from None

    async def _send(self, request: bytes, answer: Answer) -> Answer:
        while True:
            connection = await self._connection()
            used = not connection.fresh
            try:
                await connection.exchange(request, answer)
            except HttpError as error:
                if used and error.kind == "disconnected" and not answer.status:
                    continue  # It was closed while it was idle: nobody has read the request. The clock goes on.
                raise
            except asyncio.CancelledError:
                connection.close()
                raise
            if connection.open:
                self._idle.append(connection)
            return answer

    async def _connection(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.open:
                return connection
        target = self._target
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, made = await asyncio.get_running_loop().create_connection(_Connection, target.host, target.port, ssl=self._tls)
        except (OSError, TimeoutError) as error:
            raise HttpError("no connection", f"{target.host}:{target.port} cannot be reached: {error or 'no answer'}") from None
        return made


def _json(answer: Answer, path: str) -> Any:
    if answer.status != 200:
        raise HttpError(f"HTTP {answer.status}", f"{path} answers {answer.status}: {message_of(bytes(answer.body))}")
    try:
        return msgspec.json.decode(answer.body)
    except msgspec.DecodeError:
        raise HttpError("no JSON", f"{path} answers without JSON: {message_of(bytes(answer.body))}") from None


def message_of(body: bytes) -> str:
    """The words of a body about an error, at most 200 characters: OpenAI's shape, or its text."""
    try:
        found = msgspec.json.decode(body)
    except msgspec.DecodeError:
        found = None
    for key in ("error", "message", "detail"):
        if isinstance(found, dict) and key in found:
            found = found[key]
    text = found if isinstance(found, str) else body.decode(errors="replace")
    return " ".join(text.split())[:200]
