"""The server's run on a socket, until a signal: binds first, loads while `/livez` answers already, drains at the end.

Owns the order of start and stop, the listening socket and the signals, and the log lines about them. Never exits the process.
"""

import asyncio
import errno
import gc
import logging
import signal
import socket
import time
from asyncio.base_events import Server as AsyncioServer
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import ceil
from typing import Final, cast

import uvicorn

from ridgeline.errors import ConfigError
from ridgeline.observe.logs import with_fields
from ridgeline.observe.throughput import log_throughput
from ridgeline.server.app import build_app
from ridgeline.server.auth import check_exposure
from ridgeline.server.connection import HttpConnection
from ridgeline.server.listener import Connections, Listener, connection_limit
from ridgeline.server.service import Model, Service

log = logging.getLogger("ridgeline.server")

MIN_SHUTDOWN_SECONDS: Final = 2
"""Least time for the last bytes of answers."""
BACKLOG: Final = 2048


def run(service: Service, on_ready: Callable[[Model, str], None]) -> None:
    """Serves until SIGINT or SIGTERM. `on_ready` gets the model and the URL. Raises a RidgelineError where it cannot start."""
    settings = service.config
    check_exposure(settings.host, settings.api_key)
    with _listening_socket(settings.host, settings.port) as listener:
        limit = connection_limit(settings.max_connections)
        log.debug("listening", extra=with_fields(url=_url(listener), max_connections=limit))
        config = uvicorn.Config(
            build_app(service), http=HttpConnection, ws="none", lifespan="off", log_config=None, access_log=False, server_header=False,
            proxy_headers=False, timeout_graceful_shutdown=MIN_SHUTDOWN_SECONDS,
        )
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_serve(service, _Server(config, limit, settings.max_connections_per_client), listener, on_ready))


class _Server(uvicorn.Server):
    """Uvicorn with limits on connections, and without its own signal handlers, which would end the process with the signal after a clean
    stop."""

    def __init__(self, config: uvicorn.Config, limit: int, limit_per_client: int) -> None:
        super().__init__(config)
        self._limits = (limit, limit_per_client)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens on the sockets."""
        await self.lifespan.startup()

        table = Connections(*self._limits)
        connect = partial(HttpConnection, self.config, self.server_state, self.lifespan.state, table)
        listeners = [Listener(each, table, connect, self.config.ssl) for each in sockets or ()]
        for each in listeners:
            each.start()
        self.servers = cast(list[AsyncioServer], listeners)
        self.started = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _serve(service: Service, server: uvicorn.Server, listener: socket.socket, on_ready: Callable[[Model, str], None]) -> None:
    async def load() -> None:
        model = await service.start()
        gc.collect()
        gc.freeze()  # what has been loaded stays: a collection that walked over a vocabulary would hold up every stream
        on_ready(model, _url(listener))
        meter = asyncio.create_task(log_throughput(service.current_metrics, model.limits.kv.blocks))
        try:
            await service.wait_failed()
        finally:
            meter.cancel()

    shutdown = _Shutdown(service, server)
    serving, loading = asyncio.create_task(server.serve([listener])), asyncio.create_task(load())
    try:
        await asyncio.wait({serving, loading}, return_when=asyncio.FIRST_COMPLETED)
        if loading.done() and not shutdown.has_begun:  # no signal came, so this is a failure to report
            loading.result()
        await serving
    finally:
        server.should_exit = True
        loading.cancel()
        shutdown.cancel()
        await service.stop()
        await asyncio.gather(serving, loading, return_exceptions=True)
    shutdown.log_end()


class _Shutdown:
    """The end on a signal: the first lets accepted requests end, while new ones are rejected and `/readyz` answers 503; the second does not
    wait."""

    def __init__(self, service: Service, server: uvicorn.Server) -> None:
        self._service = service
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._began_at = 0.0
        self._reason = ""
        self._aborted = 0
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.add_signal_handler(number, self._begin, number.name)

    @property
    def has_begun(self) -> bool:
        """True once a signal has come."""
        return bool(self._tasks)

    def cancel(self) -> None:
        """Waits for nothing any longer."""
        for task in self._tasks:
            task.cancel()

    def log_end(self) -> None:
        """Says in the log how it ended."""
        seconds = time.monotonic() - self._began_at
        level = logging.WARNING if self._aborted else logging.INFO
        log.log(level, "shutdown ended", extra=with_fields(reason=self._reason, aborted_requests=self._aborted, seconds=seconds))

    def _begin(self, reason: str) -> None:
        patience = 0.0 if self._tasks else self._service.config.shutdown_timeout
        if not self._tasks:
            self._began_at, self._reason = time.monotonic(), reason
        fields = with_fields(reason=reason, open_requests=self._service.open_requests, timeout_seconds=patience)
        log.info("shutdown began" if not self._tasks else "shutdown no longer waits", extra=fields)
        self._tasks.add(self._loop.create_task(self._end(patience)))

    async def _end(self, seconds: float) -> None:
        deadline = self._loop.time() + seconds
        if not await self._service.drain(seconds):
            self._aborted += self._service.open_requests
            await self._service.stop()
        self._server.config.timeout_graceful_shutdown = max(MIN_SHUTDOWN_SECONDS, ceil(deadline - self._loop.time()))
        self._server.should_exit = True


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


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed (it is not on Windows), else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
