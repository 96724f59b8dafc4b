"""A small HTTP/1.1 client for measurements: data is delivered with its time of arrival, and requests that were received are never retried.

Owns connections, which are kept alive, and size limits of responses.
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

MAX_HEADER_BYTES: Final = 64 << 10
"""Limit of the headers of a response."""
READ_BYTES: Final = 64 << 10
"""Size of the read buffer."""
MAX_BODY_BYTES: Final = 64 << 20
"""Limit of a response body."""
CONNECT_SECONDS: Final = 30.0
VERSION_PATTERN: Final = re.compile(r"/v\d+$")


class HttpError(Exception):
    """A failed exchange. `kind` is a short stable name by which failures are counted."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The address of a server: host and port of its URL, the path before its API, and the API's version (`/v1`, with OpenVINO `/v3`)."""

    host: str
    port: int
    root: str
    version: str
    secure: bool

    @classmethod
    def parse(cls, url: str) -> "ServerAddress":
        """`http://host:port`, with or without a path, a trailing slash or a version. Raises ConfigError."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if not host or parts.scheme not in ("http", "https") or not url.isascii() or not url.isprintable() or " " in url:
            raise ConfigError(f"{url[:80]!r} is not the address of a server; write http://HOST:PORT")
        secure, path = parts.scheme == "https", parts.path.rstrip("/")
        found = VERSION_PATTERN.search(path)
        return cls(host, port or (443 if secure else 80), path[: found.start()] if found else path, found[0] if found else "/v1", secure)


@dataclass(slots=True)
class HttpResponse:
    """A response as it arrives.

    receive  called with each piece of the body and its time of arrival (`time.perf_counter`); None: the body is kept
    """

    receive: Callable[[bytes, float], None] | None = None
    status: int = 0
    body: bytearray = field(default_factory=bytearray)
    size: int = 0


class _Connection(asyncio.BufferedProtocol):
    """One connection with one exchange at a time. `is_new` before its first response: an idle connection may be closed by the server."""

    # asyncio.Protocol costs three times as much: the loop allocates 256 kB per read.

    def __init__(self) -> None:
        self.is_new = True
        self.is_open = False
        self._transport: Any = None
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._response = HttpResponse()
        self._future: asyncio.Future[None] | None = None
        self._parser: Any = None
        self._header_bytes = 0
        self._has_length = False
        self._now = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.is_open = transport, True

    def exchange(self, request: bytes, response: HttpResponse) -> "asyncio.Future[None]":
        """Sends a request; the future is done when the response is complete, or fails with HttpError."""
        self._response, self._header_bytes, self._has_length = response, 0, False
        self._parser = httptools.HttpResponseParser(self)
        self._future = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._future

    def get_buffer(self, sizehint: int) -> memoryview:
        """The buffer for the next bytes."""
        return self._buffer

    def buffer_updated(self, count: int) -> None:
        """Parses `count` received bytes."""
        self._now = time.perf_counter()
        if self._future is None or self._future.done():
            return self.close()  # data without a request
        self._header_bytes += count if not self._response.status else 0
        try:
            if self._header_bytes > MAX_HEADER_BYTES:
                raise HttpError("no HTTP", f"the headers of an answer have more than {MAX_HEADER_BYTES} bytes")
            self._parser.feed_data(self._buffer[:count])
        except httptools.HttpParserError as error:
            cause = error.__context__  # exceptions of callbacks come wrapped
            self._fail(cause if isinstance(cause, HttpError) else HttpError("no HTTP", f"the answer is no HTTP/1.1: {error}"))
        except HttpError as error:
            self._fail(error)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._has_length = self._has_length or name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        self._response.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        response = self._response
        response.size += len(body)
        if response.size > MAX_BODY_BYTES:
            raise HttpError("too long", f"an answer has more than {MAX_BODY_BYTES >> 20} MB")
        if response.receive is None or response.status != 200:
            response.body += body
        else:
            response.receive(body, self._now)

    def on_message_complete(self) -> None:
        self.is_new = False
        self.is_open = self.is_open and self._parser.should_keep_alive()
        if self._future is not None and not self._future.done():
            self._future.set_result(None)
        if not self.is_open:
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if self._future is None or self._future.done():
            return
        if self._response.status and not self._has_length and error is None:
            self._future.set_result(None)  # a response without a length ends with its connection
        else:
            self._fail(
                HttpError("disconnected", f"the server closed the connection before the answer had ended{f': {error}' if error else ''}")
            )

    def _fail(self, error: HttpError) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_exception(error)
        self.close()

    def close(self) -> None:
        """Closes the socket; an exchange in progress fails."""
        self.is_open = False
        self._transport.abort()


class HttpClient:
    """HTTP client of one server with a pool of connections, one per concurrent exchange."""

    def __init__(self, target: ServerAddress, key: str | None = None) -> None:
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
        return _parse_json(await self._fetch(self._request("GET", path, b""), seconds), path)

    async def get_text(self, path: str, seconds: float = 30.0) -> str:
        """The text at a path. Raises HttpError."""
        response = await self._fetch(self._request("GET", path, b""), seconds)
        if response.status != 200:
            raise HttpError(f"HTTP {response.status}", f"{path} answers {response.status}")
        return response.body.decode(errors="replace")

    async def post(self, path: str, body: object, seconds: float = 30.0) -> Any:
        """Posts a JSON body and returns the JSON of the response. Raises HttpError."""
        return _parse_json(await self._fetch(self._request("POST", path, msgspec.json.encode(body)), seconds), path)

    async def stream(self, path: str, body: bytes, receive: Callable[[bytes, float], None]) -> HttpResponse:
        """Posts a JSON body; `receive` is called with each piece of the body of a 200. Raises HttpError."""
        return await self._send(self._request("POST", path, body), HttpResponse(receive))

    def close(self) -> None:
        """Closes idle connections."""
        while self._idle:
            self._idle.pop().close()

    def _request(self, method: str, path: str, body: bytes) -> bytes:
        head = f"{method} {self._target.root}{path} HTTP/1.1\r\n{self._headers}"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if method == "POST" else ""
        return head.encode() + b"\r\n" + body

    async def _fetch(self, request: bytes, seconds: float) -> HttpResponse:
        try:
            async with asyncio.timeout(seconds):
                return await self._send(request, HttpResponse())
        except TimeoutError:
            raise HttpError("timeout", f"no answer after {seconds:g} s") from None

    async def _send(self, request: bytes, response: HttpResponse) -> HttpResponse:
        while True:
            connection = await self._connection()
            was_reused = not connection.is_new
            try:
                await connection.exchange(request, response)
            except HttpError as error:
                if was_reused and error.kind == "disconnected" and not response.status:
                    continue  # closed while idle: the server has not read the request; the clock keeps running
                raise
            except asyncio.CancelledError:
                connection.close()
                raise
            if connection.is_open:
                self._idle.append(connection)
            return response

    async def _connection(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        target = self._target
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, connection = await asyncio.get_running_loop().create_connection(_Connection, target.host, target.port, ssl=self._tls)
        except (OSError, TimeoutError) as error:
            raise HttpError("no connection", f"{target.host}:{target.port} cannot be reached: {error or 'no response'}") from None
        return connection


def _parse_json(response: HttpResponse, path: str) -> Any:
    if response.status != 200:
        raise HttpError(f"HTTP {response.status}", f"{path} answers {response.status}: {error_text(bytes(response.body))}")
    try:
        return msgspec.json.decode(response.body)
    except msgspec.DecodeError:
        raise HttpError("no JSON", f"{path} answers without JSON: {error_text(bytes(response.body))}") from None


def error_text(body: bytes) -> str:
    """The message of an error body, at most 200 characters: OpenAI's format, or its text."""
    try:
        found = msgspec.json.decode(body)
    except msgspec.DecodeError:
        found = None
    for key in ("error", "message", "detail"):
        if isinstance(found, dict) and key in found:
            found = found[key]
    text = found if isinstance(found, str) else body.decode(errors="replace")
    return " ".join(text.split())[:200]
