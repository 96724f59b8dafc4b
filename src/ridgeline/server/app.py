"""The ASGI application: access log, pages of other origins, error handling, access check, queue, router.

Owns the order of these layers, and what is said where there is no endpoint. Endpoints live one file per family; the service that they share
is passed in. `server.run` runs it.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ridgeline.server import (
    adapters,
    blocks,
    chat,
    completions,
    embeddings,
    explain,
    ggml,
    live,
    messages,
    models,
    ollama,
    ollama_embed,
    ollama_models,
    openapi,
    page,
    responses,
    routes,
    status,
    vllm,
)  # fmt: skip
from ridgeline.server.access import CLIENT_DISCONNECTED, DISCONNECTED_STATUS, PROBES, Access, AccessLog, OnEnd, note_error, note_tenant
from ridgeline.server.auth import CLOSE_HEADERS, AccessGuard
from ridgeline.server.brown_out import HEADER
from ridgeline.server.callers import AdminOnly, current_caller
from ridgeline.server.connection import CROWDED_KEY
from ridgeline.server.errors import ApiError, as_api_error
from ridgeline.server.origins import CrossOrigin, parse_origins
from ridgeline.server.routers import RelayGate, is_continued
from ridgeline.server.service import Service
from ridgeline.server.several import everywhere
from ridgeline.server.several.gate import ModelGate
from ridgeline.server.several.resident import Resident
from ridgeline.server.several.roster import Roster
from ridgeline.server.targets import NO_TARGETS
from ridgeline.server.traces import TraceLayer
from ridgeline.server.transport import Disconnected

Endpoint = Callable[[Request], Awaitable[Response]]

MAX_PATH: Final = 100
"""Characters of a path that are compared with those there are."""


def build_app(service: Service) -> ASGIApp:
    """The whole application over `service`, which may still be loading. Raises LookupError for a route that the table does not have."""
    logged = _guarded(_endpoints(service, live.Judge(service)), service, partial(_http_ended, service))
    return logged if service.tracer is None else TraceLayer(logged, service.tracer, service.ledger)


def build_models_app(roster: Roster) -> ASGIApp:
    """The whole application over several models: each has its endpoints, queue and metrics, and what all share stands in front."""
    apps, judges = dict[Resident, ASGIApp](), dict[Resident, live.Judge]()
    for resident in roster.residents.values():
        service = resident.service
        judges[resident] = live.Judge(service)
        app = _endpoints(service, judges[resident])
        apps[resident] = app if service.tracer is None else TraceLayer(app, service.tracer, service.ledger)
    shared = everywhere.routes(roster, judges)

    def ended(access: Access, name: str, paused: Sequence[tuple[float, float]]) -> None:
        _http_ended(roster.residents.get(access.model, roster.first).service, access, name, paused)

    return _guarded(ModelGate(roster, apps, shared), roster.first.service, ended)


def _guarded(app: ASGIApp, service: Service, on_end: OnEnd) -> ASGIApp:
    """The layers around endpoints, with the keys and settings of `service`."""
    origins = parse_origins(service.config.allowed_origins)
    relay = RelayGate(app, service.router_key, routes.body_limit)
    app = ErrorHandler(AccessGuard(relay, service.config.host, service.keys, origins))
    return AccessLog(CrossOrigin(app, origins) if origins else app, on_end)


def _endpoints(service: Service, judge: live.Judge) -> ASGIApp:
    """All routes of one model behind its queue."""
    built = [
        *page.routes(), *status.routes(service, judge), *live.routes(service, judge), *openapi.routes(service),
        *models.routes(service), *completions.routes(service), *chat.routes(service),
        *messages.routes(service), *responses.routes(service), *embeddings.routes(service), *explain.routes(service),
        *ollama.routes(service), *ollama_embed.routes(service), *ollama_models.routes(service),
        *ggml.routes(service), *vllm.routes(service), *adapters.routes(service), *blocks.routes(service),
    ]  # fmt: skip
    routes.check(built)
    for route in built:
        if isinstance(route, Route) and route.path in routes.ADMIN:
            route.app = AdminOnly(route.app)
    queued = {row.path for row in routes.ROWS if row.is_queued} - routes.ADMIN
    endpoints = {each.path: each.endpoint for each in built if isinstance(each, Route) and each.path in queued}
    return QueueGate(Router(built, redirect_slashes=False), endpoints, service)


def _http_ended(service: Service, access: Access, name: str, paused: Sequence[tuple[float, float]]) -> None:
    """Notes that the answer to a request that is no probe has been written."""
    service.metrics.http_ended(access.status or DISCONNECTED_STATUS, access.error, access.tenant)
    if access.usage is not None:
        service.ledger.answered(access.usage.request_ids, name, access.began, paused, access.usage.first_token_at)


class QueueGate:
    """Applies the limits of the request's row. What would have to wait in a full queue is rejected before its body is read: that costs
    little, however many come at once. What is queued has a path that is matched as it is: its endpoint is called past the router."""

    def __init__(self, app: ASGIApp, endpoints: Mapping[str, Endpoint], service: Service) -> None:
        self._app = app
        self._endpoints = endpoints
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._service.deployments.pinned():  # for the checks too: the next request of a connection begins in the context of the last
            await self._admit(scope, receive, send)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        row = routes.find_row(scope)
        if row is not None:
            routes.note_limits(scope, row)
            note_tenant(scope, current_caller().tenant)
            if row.is_queued and self._service.is_ready and not is_continued():
                self._service.check_capacity(1, NO_TARGETS)  # the body's come first, and are judged when it is read
                quota = current_caller().quota
                if quota is not None:
                    quota.take_request(time.monotonic())
                    send = _with_headers(send, lambda: quota.headers(time.monotonic()))
                brown_out = self._service.brown_out
                if brown_out is not None and (measures := brown_out.measures(current_caller())):
                    send = _with_headers(send, lambda: {HEADER: measures})
        if row is None or not row.is_queued:
            await self._app(scope, receive, send)
        else:
            response = await self._endpoints[row.path](Request(scope, receive, send))
            await response(scope, receive, send)


def _with_headers(send: Send, headers: Callable[[], Mapping[str, str]]) -> Send:
    """`send`, with further headers of the answer, asked for when it begins."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *((name.encode(), value.encode()) for name, value in headers().items())]
        await send(message)

    return send_with_headers


class ErrorHandler:
    """Turns exceptions of the layers below into answers of the catalogue, unless an answer has started."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self  # The router raises instead of answering in plain text where it finds an "app".
        has_started = False

        async def send_and_note(message: Message) -> None:
            nonlocal has_started
            has_started = has_started or message["type"] == "http.response.start"
            await send(message)

        try:
            _check_room(scope)
            _strip_slash(scope)
            await self._app(scope, receive, send_and_note)
        except Disconnected:
            note_error(scope, CLIENT_DISCONNECTED)
        except Exception as error:
            answer = _routing_error(error, scope) if isinstance(error, HTTPException) else as_api_error(error)
            note_error(scope, answer.code)
            if not has_started:
                await answer.response(routes.dialect_of(scope))(scope, receive, send)


def _routing_error(error: HTTPException, scope: Scope) -> ApiError:
    path: str = scope["path"]
    if error.status_code == 405:
        allowed = ", ".join(dict.fromkeys(row.method for row in routes.rows_of(path)))
        return ApiError("method_not_allowed", f"{scope['method']} is not possible here; {allowed} is", headers=error.headers)
    if path.startswith(("/v1/files", "/v1/batches")):
        return ApiError("not_found", "files are not kept here; `ridgeline batch IN.jsonl OUT.jsonl --model MODEL` answers one")
    nearest = _nearest(path, list(routes.METHODS))
    advice = f"; the nearest path is {' or '.join(routes.METHODS[nearest])} {nearest}" if nearest else ""
    table = ", ".join(f"{' '.join(methods)} {path}" for path, methods in routes.METHODS.items())
    return ApiError("not_found", f"there is nothing at this path{advice}. This server has: {table}")


def _check_room(scope: Scope) -> None:
    """Raises ApiError on a connection that is one too many, unless it only asks how the server is."""
    if CROWDED_KEY in scope and scope["path"] not in PROBES:
        message = "too many connections are open; close some of yours, or try again"
        # Connections end when clients like: no pace of theirs is known, and the one that asks again costs little.
        raise ApiError("too_many_connections", message, headers={**CLOSE_HEADERS, "Retry-After": "1"})


def _strip_slash(scope: Scope) -> None:
    """`/v1/models/` means `/v1/models`, for every layer below alike. Public routes have one spelling: theirs."""
    path: str = scope["path"]
    if path.startswith("/v1/") and path.endswith("/"):
        scope["path"] = path[:-1]


def _nearest(path: str, paths: list[str]) -> str | None:
    """The path that a client may have meant; None where none resembles it."""
    known = [each.partition("{")[0] for each in paths]
    close = get_close_matches(path[:MAX_PATH].lower(), known, 1, 0.6)
    if close:
        return paths[known.index(close[0])]
    return max((each for each, plain in zip(paths, known, strict=True) if len(plain) > 1 and path.endswith(plain)), key=len, default=None)
