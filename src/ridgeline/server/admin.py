"""The admin's requests, over the Unix socket alone: status, drain, knobs. Each change is a line of the log: who, what, old and new.

Owns their table of routes, the second gate (a key with scope=admin, where the file of keys has one) and the audit.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from ridgeline import __version__
from ridgeline.config.env import cache_directory
from ridgeline.errors import ConfigError, ModelFormatError, ModelNotFoundError, RidgelineError
from ridgeline.observe.logs import with_fields
from ridgeline.observe.starts import usual_seconds
from ridgeline.server import admin_shapes as shapes
from ridgeline.server import routes, wire
from ridgeline.server.admin_listener import PEER_KEY, AdminListener
from ridgeline.server.body import parse
from ridgeline.server.chaos import Chaos, Clients
from ridgeline.server.errors import ApiError, as_api_error
from ridgeline.server.explain import EXPLAIN_QUERY, PREFIX_QUERY, explain_many, explain_prefixes
from ridgeline.server.explain_shapes import Explained, PrefixReport
from ridgeline.server.knob_watch import KEPT_SECONDS, Watches
from ridgeline.server.knobs import Value, knob_values, set_knob
from ridgeline.server.profile import Profiler
from ridgeline.server.routes import Row
from ridgeline.server.service import Service
from ridgeline.server.several.listing import renew
from ridgeline.server.several.resident import Resident
from ridgeline.server.several.roster import Roster
from ridgeline.server.swap import CheckFit, Swapper, Watch
from ridgeline.server.transport import Disconnected, json_response, read_body

audit_log = logging.getLogger("ridgeline.audit")
MAX_DRAIN_SECONDS: Final = 86_400.0

ADMIN_ROWS: Final = (
    Row("GET", "/status", "What the server does now", shapes.Status, access="admin"),
    Row("GET", "/cost", "What tenants and the last requests cost", shapes.Cost, access="admin"),
    Row("POST", "/drain", "Ends the server behind its open requests", shapes.Draining, (), shapes.DrainRequest, access="admin"),
    Row("GET", "/knobs", "Settings that can change now, with their values", dict[str, Value], access="admin"),
    Row("POST", "/knobs", "Changes a setting", shapes.KnobChange, (), shapes.KnobRequest, access="admin"),
    Row("POST", "/swap", "Puts another model in the place of this one", shapes.SwapReport, (503,), shapes.SwapRequest, access="admin"),
    Row("GET", "/explain", "Where the time of requests went", Explained, (404, 503), access="admin", query=EXPLAIN_QUERY),
    Row("GET", "/prefix", "Why prompts missed the prefix cache", PrefixReport, (503,), access="admin", query=PREFIX_QUERY),
    Row("GET", "/models", "Which models are loaded, and what they take", list[shapes.ModelState], access="admin"),
    Row("POST", "/load", "Loads one of several models", shapes.ModelState, (503,), wire.ModelName, access="admin"),
    Row("POST", "/unload", "Unloads one of several models behind its requests", shapes.ModelState, (), wire.ModelName, access="admin"),
    Row("POST", "/profile", "Profiles both loops, or traces steps", shapes.Profiled, (503,), shapes.ProfileRequest, access="admin"),
    Row("POST", "/chaos", "Injects a fault (--allow-chaos)", shapes.ChaosReport, (), shapes.ChaosRequest, access="admin"),
)

Drain = Callable[[str, float | None], float]
"""Begins the end of the server: a reason, seconds for open requests (None: the setting's). Returns the seconds."""


def audit(request: Request, action: str, **fields: object) -> None:
    """Writes the line of a change."""
    audit_log.info("admin", extra=with_fields(action=action, by=request.scope.get(PEER_KEY, "?"), **fields))


class Admin:
    """The admin's side of a server, from `start` to `close`."""

    def __init__(self, listening: socket.socket, served: Service | Roster, drain: Drain, clients: Clients, check_fit: CheckFit) -> None:
        roster = None if isinstance(served, Service) else served
        services = [served] if isinstance(served, Service) else [each.service for each in served.residents.values()]
        self._watches = [Watches(each) for each in services]
        self._swappers: list[Swapper] = []
        apps = dict[str, ASGIApp]()
        for service, watches in zip(services, self._watches, strict=True):
            on_swapped = None if roster is None else partial(renew, roster.residents[service.name])
            swapper = Swapper(service, check_fit, on_swapped)
            self._swappers.append(swapper)
            apps[service.name] = build_admin(service, drain, watches, Chaos(service, clients), swapper, roster)
        self._listener = AdminListener(listening, next(iter(apps.values())) if len(apps) == 1 else _ByModel(apps))
        self._looking: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Returns at once."""
        self._listener.start()
        self._looking = [asyncio.create_task(each.look()) for each in self._watches]

    def close(self) -> None:
        """Hears nothing more; watches end, and what they watch stays."""
        self._listener.close()
        for watches, swapper in zip(self._watches, self._swappers, strict=True):
            watches.cancel()
            swapper.cancel()
        for task in self._looking:
            task.cancel()


class _ByModel:
    """Passes a request on to the application of the model of `?model=`, else of the first."""

    def __init__(self, apps: Mapping[str, ASGIApp]) -> None:
        self._apps = apps

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        names = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("model", ())
        app = self._apps.get(names[0] if names else next(iter(self._apps)))
        if app is None:
            known = ", ".join(map(repr, self._apps))
            error = ApiError("model_not_found", f"there is no model of that name here; this server has {known}", param="model")
            await error.response()(scope, receive, send)
            return
        await app(scope, receive, send)


def build_admin(
    service: Service, drain: Drain, watches: Watches, chaos: Chaos, swapper: Swapper, roster: Roster | None = None
) -> ASGIApp:  # fmt: skip
    """The application behind the socket. Raises LookupError for a route that the table does not have."""
    built = _routes(service, drain, chaos) + _watched_routes(service, watches, swapper) + _model_routes(roster)
    routes.check(built, ADMIN_ROWS)
    return AdminGate(Router(built, redirect_slashes=False), service)


def _routes(service: Service, drain: Drain, chaos: Chaos) -> list[BaseRoute]:
    profiler = Profiler(service)

    async def status(request: Request) -> Response:
        return json_response(describe(service))

    async def cost(request: Request) -> Response:
        return json_response(describe_cost(service))

    async def start_drain(request: Request) -> Response:
        asked = parse(shapes.DrainRequest, await read_body(request) or b"{}")
        seconds = asked.timeout_seconds
        if seconds is not None and not 0 <= seconds <= MAX_DRAIN_SECONDS:
            message = f"timeout_seconds is {seconds}, outside 0 … {MAX_DRAIN_SECONDS:g}"
            raise ApiError("invalid_value", message, param="timeout_seconds")
        open_requests = service.deployment.open_requests
        audit(request, "drain", open_requests=open_requests, timeout_seconds=seconds)
        return json_response(shapes.Draining(open_requests, drain("admin", seconds)))

    async def inject(request: Request) -> Response:
        asked = parse(shapes.ChaosRequest, await read_body(request))
        audit(request, "chaos", fault=asked.fault, fault_seconds=asked.seconds)
        report = await chaos.inject(asked.fault, asked.seconds, request.headers.get("authorization"))
        audit(request, "chaos ended", **msgspec.to_builtins(report))
        return json_response(report)

    async def profile(request: Request) -> Response:
        asked = parse(shapes.ProfileRequest, await read_body(request) or b"{}")
        audit(request, "profile", profile_seconds=asked.seconds, steps=asked.steps)
        return json_response(await profiler.report(asked))

    async def explain(request: Request) -> Response:
        return json_response(await explain_many(service, request.query_params))

    async def prefix(request: Request) -> Response:
        return json_response(await explain_prefixes(service, request.query_params))

    return [
        Route("/explain", explain, methods=["GET"]),
        Route("/prefix", prefix, methods=["GET"]),
        Route("/profile", profile, methods=["POST"]),
        Route("/chaos", inject, methods=["POST"]),
        Route("/status", status, methods=["GET"]),
        Route("/cost", cost, methods=["GET"]),
        Route("/drain", start_drain, methods=["POST"]),
    ]


def _watch_seconds(seconds: float) -> float:
    """The seconds for which a change is watched. Raises ApiError."""
    if not 0 <= seconds <= KEPT_SECONDS:
        raise ApiError("invalid_value", f"watch_seconds is {seconds}, outside 0 … {KEPT_SECONDS:g}", param="watch_seconds")
    return seconds


def _watched_routes(service: Service, watches: Watches, swapper: Swapper) -> list[BaseRoute]:
    """Routes of changes that are taken back where they cost goodput."""

    async def get_knobs(request: Request) -> Response:
        return json_response(knob_values(service))

    async def change_knob(request: Request) -> Response:
        asked = parse(shapes.KnobRequest, await read_body(request))
        name, seconds = asked.name.replace("-", "_"), _watch_seconds(asked.watch_seconds)
        old, new = set_knob(service, name, asked.value)
        audit(request, "set", knob=name, old=old, new=new, watch_seconds=seconds)
        if seconds:
            watches.begin(partial(audit, request), name, old, new, seconds)
        return json_response(shapes.KnobChange(name, old, new))

    async def swap(request: Request) -> Response:
        asked = parse(shapes.SwapRequest, await read_body(request))
        if asked.drain_seconds is not None and not 0 <= asked.drain_seconds <= MAX_DRAIN_SECONDS:
            raise ApiError("invalid_value", f"drain_seconds is outside 0 … {MAX_DRAIN_SECONDS:g}", param="drain_seconds")
        seconds = _watch_seconds(asked.watch_seconds)
        audit(request, "swap", old=service.deployment.engine_config.model, new=asked.model, watch_seconds=seconds)
        watch = Watch(seconds, watches, partial(audit, request)) if seconds else None
        try:
            report = await swapper.swap(asked.model, asked.drain_seconds, watch)
        except RidgelineError as error:
            service.metrics.swaps["failed"] += 1
            audit(request, "swap failed", new=asked.model, reason=str(error))
            raise
        audit(request, "swap ended", **msgspec.to_builtins(report))
        return json_response(report)

    return [
        Route("/knobs", get_knobs, methods=["GET"]),
        Route("/knobs", change_knob, methods=["POST"]),
        Route("/swap", swap, methods=["POST"]),
    ]


def _model_routes(roster: Roster | None) -> list[BaseRoute]:
    def state(resident: Resident) -> shapes.ModelState:
        totals, now = resident.totals, time.monotonic()
        return shapes.ModelState(
            resident.name, resident.phase.value, round(now - resident.last_used, 3), resident.keep_alive, resident.users, resident.waiting,
            resident.measured, resident.engine_bytes, totals.loads, totals.unloads, round(totals.load_seconds, 3),
        )  # fmt: skip

    async def models(request: Request) -> Response:
        return json_response([] if roster is None else [state(each) for each in roster.residents.values()])

    async def change(request: Request) -> Response:
        asked = parse(wire.ModelName, await read_body(request))
        if roster is None:
            raise ConfigError("this server has one model, which stays; start it with --keep-alive, or with several models")
        resident, action = roster.find(asked.model), request.url.path[1:]
        audit(request, action, model=resident.name)
        if action == "unload":
            await roster.unload(resident)
        else:
            async with roster.using(resident):
                pass
        return json_response(state(resident))

    return [
        Route("/models", models, methods=["GET"]),
        Route("/load", change, methods=["POST"]),
        Route("/unload", change, methods=["POST"]),
    ]


def describe(service: Service) -> shapes.Status:
    """The status of the server."""
    deployment, client, metrics = service.deployment, service.deployment.client, service.current_metrics()
    runner = deployment.model.engine.info.runner if deployment.has_started else None
    found = deployment.model.findings if deployment.has_started else ()
    return shapes.Status(
        version=__version__,
        pid=os.getpid(),
        model=service.name,
        not_ready=None if deployment.is_ready else deployment.not_ready_reason(),
        startup=deployment.startup.snapshot(),
        start_seconds={name: round(seconds, 3) for name, seconds in deployment.startup.phases.items()},
        usual_start_seconds=usual_seconds(cache_directory(), service.name),
        engine_pid=None if client is None else client.pid,
        engine_starts=0 if client is None else client.starts,
        engine_failures=0 if client is None else client.failures,
        last_failure=None if client is None else client.last_failure,
        open_requests=deployment.open_requests,
        running=metrics.running,
        waiting=metrics.waiting,
        knobs=knob_values(service),
        draining=deployment.is_draining,
        kept_model=None if service.deployments.kept is None else service.deployments.kept.engine_config.model,
        runner=runner,
        fingerprint=deployment.model.fingerprint if deployment.has_started else None,
        is_exact=runner != "cuda" or deployment.engine_config.batch_invariant,
        immediate_ends=metrics.ends.immediate,
        runaway_answers=metrics.ends.runaway,
        findings=tuple(str(each) for each in found if each.severity != "note"),
    )


def describe_cost(service: Service) -> shapes.Cost:
    """Costs of tenants and requests, and the rest."""
    service.current_metrics()
    spending, now, threads = service.live.spending, time.monotonic(), _threads(service)
    joules = spending.joules or {}

    def spent(seconds: float, joules: float | None) -> shapes.Amount:
        return shapes.Amount(seconds, seconds * threads * 1e3, spending.dollars(seconds), joules)

    owned = sum(each.seconds for each in spending.by_tenant.values())
    tenants = {
        label: shapes.TenantCost(spent(each.seconds, spending.tenant_joules(label)), each.kv_token_seconds, each.requests)
        for label, each in sorted(spending.by_tenant.items())
    }
    requests = [
        shapes.RequestCost(each.request_id, each.tenant, each.prompt_tokens, each.completion_tokens, spent(each.seconds, each.joules),
                           each.kv_token_seconds)
        for each in spending.recent
    ]  # fmt: skip
    other = None if spending.joules is None else max(0.0, joules["allocated"] * (1 - owned / max(owned, spending.allocated, 1e-9)))
    return shapes.Cost(
        service.name,
        threads,
        spending.price,
        spent(now - spending.began, sum(joules.values()) if joules else None),
        tenants,
        spent(max(0.0, spending.allocated - owned), other),
        spent(spending.idle(now), joules.get("idle")),
        requests,
    )


def _threads(service: Service) -> int:
    """Threads of a step."""
    found = {each.name: each.value for each in service.model.engine.decisions}.get("threads", 1)
    return found if isinstance(found, int) else 1


class AdminGate:
    """Asks for an admin's key where the file of keys has one, applies the bounds of the row, and turns exceptions into answers."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        began, status = time.monotonic(), 0

        async def noting(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            self._check_key(scope)
            row = next((row for row in ADMIN_ROWS if (row.method, row.path) == (scope["method"], scope["path"])), None)
            if row is not None:
                routes.note_limits(scope, row)
            await self._app(scope, receive, noting)
        except Disconnected:
            pass
        except Exception as error:
            answer = _answer(error, scope)
            if not status:
                await answer.response()(scope, receive, noting)
        seconds, path = time.monotonic() - began, scope["path"][:100]
        fields = with_fields(by=scope.get(PEER_KEY), method=scope["method"], path=path, status=status, seconds=seconds)
        audit_log.log(logging.DEBUG if status == 200 else logging.INFO, "admin request", extra=fields)

    def _check_key(self, scope: Scope) -> None:
        """Raises ApiError where the request needs the key of an admin and has none."""
        if not self._service.keys.has_admins:
            return
        given = [value.decode("latin-1") for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, key = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        caller = self._service.keys.find(key.strip()) if scheme.lower() == "bearer" else None
        if caller is None or not caller.is_admin:
            raise ApiError("invalid_api_key", "a key with scope=admin is needed here; give its file with --key-file")


def _answer(error: Exception, scope: Scope) -> ApiError:
    if isinstance(error, (ConfigError, ModelFormatError, ModelNotFoundError)):
        return ApiError("invalid_value", str(error))
    if isinstance(error, HTTPException):
        table = ", ".join(f"{row.method} {row.path}" for row in ADMIN_ROWS)
        code = "method_not_allowed" if error.status_code == 405 else "not_found"
        return ApiError(code, f"{scope['method']} {scope['path'][:100]!r} is nothing here. This socket has: {table}")
    return as_api_error(error)
