"""Routes for operators and load balancers: liveness, start, readiness, version, metrics."""

import os
from collections.abc import Collection
from math import ceil
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from ridgeline import __version__
from ridgeline.errors import RETRY_AFTER_SECONDS
from ridgeline.observe.prometheus import CONTENT_TYPE, exposition
from ridgeline.observe.prometheus_live import LiveCollector
from ridgeline.observe.requests import OTHER_TENANTS
from ridgeline.server import replies
from ridgeline.server.callers import current_caller
from ridgeline.server.errors import ApiError
from ridgeline.server.live import Judge
from ridgeline.server.routers import SHARED_HEADER, TAG_HEADER, tell_names
from ridgeline.server.service import Service
from ridgeline.server.transport import json_response

MAX_RETRY_SECONDS: Final = 60


def startup_response(startup: replies.Startup, *, has_started: bool) -> Response:
    """The answer of `/startupz`."""
    if has_started:
        return json_response(startup)
    error = ApiError("engine_unavailable", f"starting: {startup.stage} {startup.progress:.0%}")
    body = msgspec.json.decode(error.body()) | msgspec.to_builtins(startup)
    seconds = startup.eta_seconds or RETRY_AFTER_SECONDS
    return Response(
        msgspec.json.encode(body), error.status, {"Retry-After": str(min(MAX_RETRY_SECONDS, ceil(seconds)))}, "application/json"
    )


def tenant_labels(service: Service) -> Collection[str]:
    """Labels of tenants whose metrics the caller reads: a key of scope admin all, another its own; who shares one with others none."""
    caller, tenants = current_caller(), service.metrics.tenants
    if caller.is_admin:
        return tenants.by_label
    return {tenants.label(caller.tenant)} - {OTHER_TENANTS} if caller.owner else ()


def names_of(service: Service) -> list[str]:
    """Names of the model, of its aliases, and of the adapters that there are, the newest last."""
    adapters = (each.adapter.name for each in service.deployments.mine.adapters.known)
    return [service.name, *service.deployments.aliases, *adapters]


def routes(service: Service, judge: Judge) -> list[BaseRoute]:
    """The routes of this family."""

    async def livez(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def startupz(request: Request) -> Response:
        """200 from the end of the start on, whatever the engine does later. Until then the error of the catalogue, and how far it is."""
        return startup_response(service.deployment.startup.snapshot(), has_started=service.deployment.has_started)

    told = {SHARED_HEADER: "responses"} if service.shelf.is_shared else {}
    if service.shelf.is_open:
        told[TAG_HEADER] = service.shelf.tag

    async def readyz(request: Request) -> Response:
        """200 exactly when a request would be taken; also under vLLM's name `/health`."""
        if service.is_ready:
            answer = json_response(replies.Health()) if request.url.path == "/health" else PlainTextResponse("ok\n")
            answer.headers.update(told | tell_names(names_of(service)))
            return answer
        reason = f"not ready: {service.deployment.not_ready_reason()}"
        raise ApiError("engine_unavailable", reason, headers={"Retry-After": str(service.deployment.retry_after())})

    async def version(request: Request) -> Response:
        return json_response(replies.Version(__version__))

    async def metrics(request: Request) -> Response:
        model, found, labels = service.model, service.current_metrics(), tenant_labels(service)
        client, pids = service.deployment.client, {"": os.getpid()}
        if client is not None and client.pid is not None:
            pids["ridgeline_engine"] = client.pid
        live = LiveCollector(service.live, judge.verdict(), model.name, labels, service.deployment.startup.phases)
        body = exposition(found, model.name, model.limits.kv, labels, service.config.metrics_compat, pids, [live])
        return Response(body, headers={"Content-Type": CONTENT_TYPE})

    return [
        Route("/livez", livez, methods=["GET"]),
        Route("/startupz", startupz, methods=["GET"]),
        Route("/readyz", readyz, methods=["GET"]),
        Route("/health", readyz, methods=["GET"]),
        Route("/ping", readyz, methods=["GET"]),
        Route("/version", version, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
    ]
