"""Bytes passed on between connections, one of its own upstream for each: the floor under any router in this language.

    python tests/speed/relay.py UPSTREAM_PORT

Prints its port and relays until it is ended.
"""

import asyncio
import sys
from typing import cast

import uvloop


class End(asyncio.Protocol):
    """One side of a relayed connection; `other` is the other side. A client's connects to the server."""

    def __init__(self, upstream: int = 0, other: "End | None" = None) -> None:
        self.transport: asyncio.Transport | None = None
        self._other = other
        self._upstream = upstream
        self._connecting: asyncio.Task[object] | None = None
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """What the client has sent meanwhile is passed on."""
        self.transport = cast(asyncio.Transport, transport)
        if self._other is None:
            other = self._other = End(other=self)
            loop = asyncio.get_running_loop()
            self._connecting = loop.create_task(loop.create_connection(lambda: other, "127.0.0.1", self._upstream))
        for each in self._other._early:
            self.transport.write(each)

    def data_received(self, data: bytes) -> None:
        """Passes on what comes."""
        other = self._other and self._other.transport
        if other is None:
            self._early.append(data)
        else:
            other.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the other side too."""
        if self._other is not None and self._other.transport is not None:
            self._other.transport.close()


async def main(upstream: int) -> None:
    """Relays from a free port."""
    server = await asyncio.get_running_loop().create_server(lambda: End(upstream), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
