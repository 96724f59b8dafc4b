"""Uvicorn on a listening socket, with limits on connections; shared by the server and the router.

Owns the listening socket and how uvicorn is set up. When it ends is the caller's.
"""

import asyncio
import errno
import socket
from asyncio.base_events import Server as AsyncioServer
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, cast

import uvicorn
from starlette.types import ASGIApp

from ridgeline.errors import ConfigError
from ridgeline.server.connection import HttpConnection
from ridgeline.server.listener import Connections, Listener
from ridgeline.server.tls import Certificate

BACKLOG: Final = 2048
Connect = Callable[..., HttpConnection]
MIN_SHUTDOWN_SECONDS: Final = 2
"""Least time for the last bytes of answers."""


class HttpServer(uvicorn.Server):
    """Uvicorn with limits on connections, and without its own signal handlers, which would end the process with the signal after a clean
    stop."""

    def __init__(self, app: ASGIApp, certificate: Certificate, connections: Connections, connect: Connect = HttpConnection) -> None:
        """`connect`: makes the protocol of a connection, from what `HttpConnection` takes."""
        config = uvicorn.Config(
            app, http=HttpConnection, ws="none", lifespan="off", log_config=None, access_log=False, server_header=False,
            proxy_headers=False, timeout_graceful_shutdown=MIN_SHUTDOWN_SECONDS,
        )  # fmt: skip
        config.load()
        config.ssl = certificate.context
        super().__init__(config)
        self._connections = connections
        self._connect = connect

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens on the sockets."""
        await self.lifespan.startup()
        connect = partial(self._connect, self.config, self.server_state, self.lifespan.state, self._connections)
        listeners = [Listener(each, self._connections, connect, self.config.ssl) for each in sockets or ()]
        for each in listeners:
            each.start()
        self.servers = cast(list[AsyncioServer], listeners)
        self.started = True

    def open_connections(self) -> list[HttpConnection]:
        """Connections of clients."""
        return [cast(HttpConnection, each) for each in self.server_state.connections]

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextmanager
def listening_socket(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that listens there. Raises ConfigError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        listener = socket.create_server(found[0][4][:2], family=found[0][0], backlog=BACKLOG)
    except OSError as error:
        fix = {"--port": "0"} if error.errno == errno.EADDRINUSE else {"--host": "127.0.0.1", "--port": "0"}
        raise ConfigError(f"cannot listen on {host} port {port}: {error.strerror}; choose another with --host or --port", fix=fix) from None
    with listener:
        yield listener


def url_of(listener: socket.socket, certificate: Certificate) -> str:
    """The URL of what listens there."""
    host, port = listener.getsockname()[:2]
    return f"{'http' if certificate.context is None else 'https'}://{f'[{host}]' if ':' in host else host}:{port}"


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed (it is not on Windows), else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
