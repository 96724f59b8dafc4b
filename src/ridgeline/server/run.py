"""The server's run on a socket, until a signal: binds first, loads while `/livez` answers already, drains at the end.

Owns the order of start and stop, the listening socket and the signals. Never exits the process.
"""

import asyncio
import errno
import gc
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil
from typing import Final

import uvicorn

from ridgeline.config.env import state_directory
from ridgeline.errors import ConfigError
from ridgeline.server.app import build_app
from ridgeline.server.auth import check_exposure
from ridgeline.server.running import announced
from ridgeline.server.service import Model, Service
from ridgeline.server.tls import Certificate
from ridgeline.server.transport import HttpProtocol

log = logging.getLogger("ridgeline.server")

MIN_SHUTDOWN_SECONDS: Final = 2
"""Least time for the last bytes of answers."""
BACKLOG: Final = 2048


def run(service: Service, on_ready: Callable[[Model, str], None]) -> None:
    """Serves until SIGINT or SIGTERM. `on_ready` gets the model and the URL. Raises a RidgelineError where it cannot start."""
    check_exposure(service.config)
    certificate = Certificate(service.config)
    with (
        _listening_socket(service.config.host, service.config.port) as listener,
        announced(state_directory(), url=_url(listener, certificate), model=service.name),
    ):
        config = uvicorn.Config(
            build_app(service), http=HttpProtocol, ws="none", lifespan="off", log_config=None, access_log=False, server_header=False,
            proxy_headers=False, timeout_graceful_shutdown=MIN_SHUTDOWN_SECONDS,
        )
        config.load()
        config.ssl = certificate.context
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_serve(service, _Server(config), listener, certificate, on_ready))


class _Server(uvicorn.Server):
    """Uvicorn without its own signal handlers, which would end the process with the signal after a clean stop."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _serve(
    service: Service, server: uvicorn.Server, listener: socket.socket, certificate: Certificate, on_ready: Callable[[Model, str], None]
) -> None:
    async def load() -> None:
        model = await service.start()
        gc.collect()
        gc.freeze()  # what has been loaded stays: a collection that walked over a vocabulary would hold up every stream
        on_ready(model, _url(listener, certificate))
        await service.wait_failed()

    stopping = _stop_on_signals(service, server)
    _reload_on_signal(service, certificate)
    serving, loading = asyncio.create_task(server.serve([listener])), asyncio.create_task(load())
    try:
        await asyncio.wait({serving, loading}, return_when=asyncio.FIRST_COMPLETED)
        if loading.done() and not stopping:  # no signal came, so this is a failure to report
            loading.result()
        await serving
    finally:
        server.should_exit = True
        for task in (loading, *stopping):
            task.cancel()
        await service.stop()
        await asyncio.gather(serving, loading, *stopping, return_exceptions=True)


def _stop_on_signals(service: Service, server: uvicorn.Server) -> set["asyncio.Task[None]"]:
    """The first signal lets accepted requests end, while new ones are rejected and `/readyz` answers 503; the second does not wait.

    Returns the shutdowns under way: empty until a signal has come.
    """
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()

    async def end(seconds: float) -> None:
        deadline = loop.time() + seconds
        if not await service.drain(seconds):
            await service.stop()
        server.config.timeout_graceful_shutdown = max(MIN_SHUTDOWN_SECONDS, ceil(deadline - loop.time()))
        server.should_exit = True

    def stop() -> None:
        tasks.add(loop.create_task(end(0.0 if tasks else service.config.shutdown_timeout)))

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    return tasks


def _reload_on_signal(service: Service, certificate: Certificate) -> None:
    """SIGHUP reads keys and certificate again, where there are files of them. Open connections and requests stay."""

    def reload() -> None:
        try:
            keys = service.keys.reload()
            certificate.reload()
        except ConfigError as error:
            log.error("SIGHUP: %s; what was read before stays", error)
        else:
            log.warning("SIGHUP: %d keys%s are read again", keys, "" if certificate.context is None else " and the certificate")

    if service.config.api_key_file is not None or certificate.context is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)


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
