"""HTTP/1.1 on a socket: uvicorn's parser, whose own refusals get the body that every other refusal has, and whose headers are bounded."""

import asyncio
from typing import Final, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ridgeline.server.errors import ApiError
from ridgeline.server.outgoing import Outgoing

HEAD_BYTES: Final = 32 * 1024
"""Bytes of a request line and headers that may arrive before they are complete."""


class Protocol(HttpToolsProtocol):
    """One connection."""

    _head_bytes = 0
    _in_head = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Every write of the connection goes through `Outgoing`."""
        super().connection_made(cast(asyncio.Transport, Outgoing(transport, self.loop)))

    def data_received(self, data: bytes) -> None:
        """Counts what has arrived since a head began; uvicorn's parser itself would take headers without end."""
        self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
            self._refuse(ApiError("headers_too_large", f"the headers have more than {HEAD_BYTES} bytes"))

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """What is not HTTP. `msg` is the parser's and stays out of the answer."""
        self._refuse(ApiError("invalid_http", "this is not an HTTP/1.1 request"))

    def _refuse(self, error: ApiError) -> None:
        if not (self.cycle is None or self.cycle.response_complete):
            self.transport.close()
            return
        body = error.body
        head = f"HTTP/1.1 {error.status} \r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(head.encode() + body)
        self.transport.close()
