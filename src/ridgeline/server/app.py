"""The ASGI application, and its run on a socket until a signal: who may come in, which endpoint answers, that every failure has one shape.

Owns the order of the layers (request id, guard, router; endpoints live one file per family, the service they share is passed in) and the
order of going up and down: binds first, loads while `/livez` answers already, drains at the end. Never exits the process.
"""

import asyncio
import errno
import gc
import re
import secrets
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil
from typing import Final

import uvicorn
from starlette.exceptions import HTTPException
from starlette.routing import Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ridgeline.errors import ConfigError
from ridgeline.server import chat, completions, models, openapi, status
from ridgeline.server.auth import Guard, check_exposure
from ridgeline.server.errors import ApiError, as_api_error
from ridgeline.server.service import Model, Service
from ridgeline.server.transport import BODY, Disconnected, Protocol

REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._:-]{1,64}")
"""What a client may call its request; anything else is replaced, never echoed."""


def build_app(service: Service) -> ASGIApp:
    """The whole application over `service`, which may still be loading."""
    router = Router(
        [
            *status.routes(service), *openapi.routes(service),
            *models.routes(service), *completions.routes(service), *chat.routes(service),
        ],
        redirect_slashes=False,
    )  # fmt: skip
    return RequestId(Failures(Guard(router, service.config.host, service.config.api_key)))


class Failures:
    """Turns whatever is raised below into an answer of the catalogue, as long as none has begun."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self  # The router raises instead of answering in plain text where it finds an "app".
        began = False

        async def send_noting(message: Message) -> None:
            nonlocal began
            began = began or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, send_noting)
        except Disconnected:
            return
        except HTTPException as error:
            await _routing_error(error, scope).response()(scope, receive, send)
        except Exception as error:
            answer = as_api_error(error)
            if not began:
                await answer.response()(scope, receive, send)


def _routing_error(error: HTTPException, scope: Scope) -> ApiError:
    if error.status_code == 405:
        return ApiError("method_not_allowed", f"{scope['method']} is not allowed here", headers=error.headers)
    return ApiError("not_found", "there is nothing at this path")


class RequestId:
    """Gives every answer an `X-Request-Id`: the client's, where it sent a harmless one, or a new one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sent = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        request_id = sent if REQUEST_ID.fullmatch(sent) else secrets.token_hex(16).encode()
        scope[BODY] = send

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", request_id)]
            await send(message)

        await self._app(scope, receive, send_with_id)


FAREWELL_SECONDS: Final = 2
"""How long the last bytes of answers may take, at least."""
BACKLOG: Final = 2048


def run(service: Service, on_ready: Callable[[Model, str], None]) -> None:
    """Serves until SIGINT or SIGTERM. `on_ready` gets the model and the URL. Raises a RidgelineError where it cannot start."""
    check_exposure(service.config.host, service.config.api_key)
    with _bound(service.config.host, service.config.port) as listener:
        config = uvicorn.Config(
            build_app(service), http=Protocol, ws="none", lifespan="off", log_config=None, access_log=False, server_header=False,
            proxy_headers=False, timeout_graceful_shutdown=FAREWELL_SECONDS,
        )
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_serve(service, _Server(config), listener, on_ready))


class _Server(uvicorn.Server):
    """Uvicorn without its own signal handlers, which would end the process with the signal after a clean stop."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _serve(service: Service, server: uvicorn.Server, listener: socket.socket, on_ready: Callable[[Model, str], None]) -> None:
    async def work() -> None:
        model = await service.start()
        gc.collect()
        gc.freeze()  # what has been loaded stays: a collection that walked over a vocabulary would hold up every stream
        on_ready(model, _url(listener))
        await service.lost()

    stopping = _stop_on_signals(service, server)
    serving, working = asyncio.create_task(server.serve([listener])), asyncio.create_task(work())
    try:
        await asyncio.wait({serving, working}, return_when=asyncio.FIRST_COMPLETED)
        if not server.should_exit:  # Nobody asked for an end, so it is a failure that must be told.
            working.result()
        await serving
    finally:
        server.should_exit = True
        for task in (working, *stopping):
            task.cancel()
        await service.stop()
        await asyncio.gather(serving, working, *stopping, return_exceptions=True)


def _stop_on_signals(service: Service, server: uvicorn.Server) -> set["asyncio.Task[None]"]:
    """The first signal lets accepted requests end, while others are refused and `/readyz` says so; the second does not wait."""
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()

    async def end(seconds: float) -> None:
        until = loop.time() + seconds
        if not await service.drain(seconds):
            await service.stop()
        server.config.timeout_graceful_shutdown = max(FAREWELL_SECONDS, ceil(until - loop.time()))
        server.should_exit = True

    def stop() -> None:
        tasks.add(loop.create_task(end(0.0 if tasks else service.config.shutdown_timeout)))

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    return tasks


@contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
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
