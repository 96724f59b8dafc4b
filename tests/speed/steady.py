"""A replica that takes the same time for every completion: what a router adds shows beside it to a few hundredths of a millisecond, where
a model's own steps hide it.

    python tests/speed/steady.py

Prints its port and answers until it is ended: a head at once, an event and the end 4 ms later.
"""

import asyncio
import re
from typing import Final, cast

import uvloop

SECONDS: Final = 0.004
EVENT: Final = (
    b'data: {"id":"cmpl-0","object":"text_completion","created":0,"model":"fake",'
    b'"choices":[{"index":0,"text":"a","finish_reason":"length"}]}\n\n'
)
HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-store\r\ntransfer-encoding: chunked\r\n\r\n"
)
READY: Final = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nready"
_LENGTH: Final = re.compile(rb"\ncontent-length: *([0-9]+)", re.IGNORECASE)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


BODY: Final = chunk(EVENT) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Replica(asyncio.Protocol):
    """One connection, of one request after the other."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._held = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Answers a request that is whole: GET at once, as one of `/readyz`."""
        assert self._transport is not None
        self._held += data
        end = self._held.find(b"\r\n\r\n") + 4
        length = _LENGTH.search(self._held, 0, end)
        if end < 4 or len(self._held) < end + (int(length[1]) if length else 0):
            return
        is_check, self._held = self._held.startswith(b"GET"), b""
        if is_check:
            self._transport.write(READY)
        else:
            self._transport.write(HEAD)
            asyncio.get_running_loop().call_later(SECONDS, self._transport.write, BODY)


async def main() -> None:
    """Answers on a free port."""
    server = await asyncio.get_running_loop().create_server(Replica, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
