"""The server's run on a socket, until a signal: binds first, loads while `/livez` answers already, drains at the end.

Owns the order of start and stop, and the listening socket. Never exits the process.
"""

import asyncio
import errno
import gc
import logging
import signal
import socket
from asyncio.base_events import Server as AsyncioServer
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, cast

import uvicorn

from ridgeline.config.env import state_directory
from ridgeline.errors import ConfigError
from ridgeline.observe.logs import with_fields
from ridgeline.observe.throughput import log_throughput
from ridgeline.server.admin import Admin
from ridgeline.server.admin_listener import admin_socket
from ridgeline.server.app import build_app
from ridgeline.server.auth import check_exposure
from ridgeline.server.chaos import Clients
from ridgeline.server.connection import HttpConnection
from ridgeline.server.listener import Connections, Listener, connection_limit
from ridgeline.server.loading import Model
from ridgeline.server.running import announced
from ridgeline.server.service import Service
from ridgeline.server.signals import MIN_SHUTDOWN_SECONDS, Shutdown, reload_on_signal
from ridgeline.server.swap import CheckFit
from ridgeline.server.tls import Certificate

log = logging.getLogger("ridgeline.server")

BACKLOG: Final = 2048


def run(service: Service, on_ready: Callable[[Model, str], None], check_fit: CheckFit) -> None:
    """Serves until SIGINT or SIGTERM. `on_ready` gets the model and the URL; `check_fit`: see `server.swap`.

    Raises a RidgelineError where it cannot start, KeyboardInterrupt where SIGINT comes while it loads.
    """
    settings = service.config
    check_exposure(settings)
    certificate = Certificate(settings)
    with (
        _listening_socket(settings.host, settings.port) as listener,
        admin_socket(settings.admin_socket) as admin,
        announced(state_directory(), url=_url(listener, certificate), model=service.name, admin=admin.getsockname() if admin else None),
    ):
        limit = connection_limit(settings.max_connections)
        log.debug("listening", extra=with_fields(url=_url(listener, certificate), max_connections=limit))
        config = uvicorn.Config(
            build_app(service), http=HttpConnection, ws="none", lifespan="off", log_config=None, access_log=False, server_header=False,
            proxy_headers=False, timeout_graceful_shutdown=MIN_SHUTDOWN_SECONDS,
        )
        config.load()
        config.ssl = certificate.context
        server = _Server(config, Connections(limit, settings.max_connections_per_client, settings.send_timeout))
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            if runner.run(_serve(service, server, listener, admin, certificate, on_ready, check_fit)):
                raise KeyboardInterrupt


class _Server(uvicorn.Server):
    """Uvicorn with limits on connections, and without its own signal handlers, which would end the process with the signal after a clean
    stop."""

    def __init__(self, config: uvicorn.Config, connections: Connections) -> None:
        super().__init__(config)
        self._connections = connections

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens on the sockets."""
        await self.lifespan.startup()
        connect = partial(HttpConnection, self.config, self.server_state, self.lifespan.state, self._connections)
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


async def _serve(
    service: Service, server: _Server, listener: socket.socket, admin_listener: socket.socket | None, certificate: Certificate,
    on_ready: Callable[[Model, str], None], check_fit: CheckFit,
) -> bool:
    """True if it was interrupted before it was ready."""
    is_ready = False

    async def load() -> None:
        model = await service.start()
        gc.collect()
        gc.freeze()  # what has been loaded stays: a collection that walked over a vocabulary would hold up every stream
        nonlocal is_ready
        is_ready = True
        on_ready(model, _url(listener, certificate))
        throughput = log_throughput(service.current_metrics, lambda: service.model.limits.kv.blocks)
        await asyncio.gather(service.deployments.wait_failed(), throughput)

    shutdown = Shutdown(service, server)
    shutdown.listen(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    if service.config.api_key_file is not None or certificate.context is not None:
        reload_on_signal(service, certificate)
    clients = Clients(server.open_connections, listener.getsockname()[:2], certificate.context is not None)
    admin = None if admin_listener is None else Admin(admin_listener, service, shutdown.begin, clients, check_fit)
    if admin is not None:
        admin.start()
    serving, loading = asyncio.create_task(server.serve([listener])), asyncio.create_task(load())
    try:
        await asyncio.wait({serving, loading}, return_when=asyncio.FIRST_COMPLETED)
        if loading.done() and not shutdown.has_begun:  # no signal came, so this is a failure to report
            loading.result()
        await serving
    finally:
        server.should_exit = True
        if admin is not None:
            admin.close()
        loading.cancel()
        shutdown.cancel()
        await service.stop()
        await asyncio.gather(serving, loading, return_exceptions=True)
    shutdown.log_end()
    return not is_ready and shutdown.reason == "SIGINT"


@contextmanager
def _listening_socket(host: str, port: int) -> Iterator[socket.socket]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        listener = socket.create_server(found[0][4][:2], family=found[0][0], backlog=BACKLOG)
    except OSError as error:
        fix = {"--port": "0"} if error.errno == errno.EADDRINUSE else {"--host": "127.0.0.1", "--port": "0"}
        raise ConfigError(f"cannot listen on {host} port {port}: {error.strerror}; choose another with --host or --port", fix=fix) from None
    with listener:
        yield listener


def _url(listener: socket.socket, certificate: Certificate) -> str:
    host, port = listener.getsockname()[:2]
    return f"{'http' if certificate.context is None else 'https'}://{f'[{host}]' if ':' in host else host}:{port}"


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed (it is not on Windows), else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
