"""Endpoints of a server with several models about all of them: lists, readiness, metrics; and the admin's loads, unloads and aliases."""

import asyncio
import os
from collections.abc import Collection, Mapping
from math import ceil
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp

from ridgeline.config.groups import FAKE_PREFIX
from ridgeline.errors import RETRY_AFTER_SECONDS
from ridgeline.observe.prometheus import CONTENT_TYPE, MetricsCollector, process_collector, render
from ridgeline.observe.prometheus_live import LiveCollector
from ridgeline.observe.prometheus_models import MergedCollector, ModelsCollector
from ridgeline.server import fields, models, ollama_models, ollama_shapes, replies, vllm_shapes, wire
from ridgeline.server import routes as table
from ridgeline.server.body import parse
from ridgeline.server.callers import AdminOnly
from ridgeline.server.errors import ApiError
from ridgeline.server.live import Judge
from ridgeline.server.ollama_chat import plain_name
from ridgeline.server.routers import tell_names
from ridgeline.server.several import listing
from ridgeline.server.several.resident import Phase, Resident
from ridgeline.server.several.roster import Roster
from ridgeline.server.status import MAX_RETRY_SECONDS, names_of, startup_response, tenant_labels
from ridgeline.server.transport import json_response, read_body


def routes(roster: Roster, judges: Mapping[Resident, Judge]) -> Mapping[str, ASGIApp]:
    """Path, as in the table, → the application that answers it."""
    built = [*_lists(roster), *_health(roster, judges), *_ollama(roster), *_loads(roster)]
    for route in built:
        if isinstance(route, Route) and route.path in table.ADMIN:
            route.app = AdminOnly(route.app)
    app = Router(built, redirect_slashes=False)
    return {str(getattr(route, "path", "")): app for route in built}


def _lists(roster: Roster) -> list[BaseRoute]:
    async def all_models(request: Request) -> Response:
        if table.dialect_of(request.scope) == "anthropic":
            return json_response(models.page([listing.info(each) for each in roster.residents.values()], request.query_params))
        return json_response(replies.ModelList("list", [card for each in roster.residents.values() for card in listing.cards(each)]))

    async def one_model(request: Request) -> Response:
        name = request.path_params["name"]
        found = roster.find(name)
        if table.dialect_of(request.scope) == "anthropic":
            return json_response(listing.info(found))
        cards = listing.cards(found)
        return json_response(next((each for each in cards[1:] if each.parent == found.name and each.id == name), cards[0]))

    return [
        *(Route(path, all_models, methods=["GET"]) for path in ("/v1/models", "/models")),
        Route("/v1/models/{name:path}", one_model, methods=["GET"]),
    ]


def _health(roster: Roster, judges: Mapping[Resident, Judge]) -> list[BaseRoute]:
    async def readyz(request: Request) -> Response:
        """200 while a request for one of the models would be taken, if need be behind its load."""
        reason = not_ready_reason(roster)
        if reason is None:
            answer = json_response(replies.Health()) if request.url.path == "/health" else PlainTextResponse("ok\n")
            answer.headers.update(tell_names(*names_of_all(roster)))
            return answer
        waits = min(each.service.deployments.current.seconds_to_restart() for each in roster.residents.values())
        seconds = min(MAX_RETRY_SECONDS, max(RETRY_AFTER_SECONDS, ceil(waits)))
        raise ApiError("engine_unavailable", f"not ready: {reason}", headers={"Retry-After": str(seconds)})

    async def startupz(request: Request) -> Response:
        loading = next((each for each in roster.residents.values() if each.phase is Phase.LOADING), roster.first)
        return startup_response(loading.service.deployments.current.startup.snapshot(), has_started=roster.has_started)

    async def load(request: Request) -> Response:
        return json_response(vllm_shapes.Load(roster.open_requests))

    async def metrics(request: Request) -> Response:
        parts = {each.name: _collectors(each, judges[each]) for each in roster.residents.values()}
        totals = ModelsCollector({each.name: each.totals for each in roster.residents.values()})
        return Response(render([MergedCollector(parts), totals], {"": os.getpid()}), headers={"Content-Type": CONTENT_TYPE})

    return [
        *(Route(path, readyz, methods=["GET"]) for path in ("/readyz", "/health", "/ping")),
        Route("/startupz", startupz, methods=["GET"]),
        Route("/load", load, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
    ]


def names_of_all(roster: Roster) -> tuple[list[str], list[str]]:
    """Names that are answered to; those of them whose model is not loaded."""
    found = [(name, each) for each in roster.residents.values() for name in names_of(each.service)]
    return [name for name, _ in found], [name for name, each in found if each.phase is not Phase.LOADED]


def not_ready_reason(roster: Roster) -> str | None:
    """The reason why no model takes a request; None where one would, if need be behind its load."""
    first = roster.first.service.deployments.current
    if roster.is_draining:
        return "the server is shutting down"
    if roster.has_started:
        takes = (each.phase is not Phase.LOADED or each.service.deployments.current.is_ready for each in roster.residents.values())
        return None if any(takes) else first.not_ready_reason()
    return first.not_ready_reason()


def _collectors(resident: Resident, judge: Judge) -> list[Any]:
    """The metrics of a model; of one that is not loaded its counters, of one that never was none."""
    if resident.listing is None:
        return []
    service = resident.service
    labels: Collection[str] = tenant_labels(service)
    is_vllm = service.config.metrics_compat == "vllm"
    found: list[Any] = [MetricsCollector(service.current_metrics(), resident.name, resident.listing.kv, labels, is_vllm)]
    if resident.phase is Phase.LOADED:
        deployment = service.deployments.current
        found.append(LiveCollector(service.live, judge.verdict(), resident.name, labels, deployment.startup.phases))
        if deployment.client is not None and deployment.client.pid is not None:
            found.append(process_collector("ridgeline_engine", deployment.client.pid))
    return found


def _ollama(roster: Roster) -> list[BaseRoute]:
    async def tags(request: Request) -> Response:
        return json_response(ollama_shapes.Tags([one for each in roster.residents.values() for one in listing.listed(each)]))

    async def running(request: Request) -> Response:
        stay = roster.config.min_residence
        return json_response(ollama_shapes.Running([one for each in roster.loaded for one in await listing.running(each, stay)]))

    async def show(request: Request) -> Response:
        payload, notes = fields.OLLAMA_MODEL.read(await read_body(request))
        resident = roster.find(plain_name(payload.model or payload.name))
        if resident.listing is None:
            async with roster.using(resident):
                pass
        assert resident.listing is not None, "it has been loaded"
        answer = json_response(resident.listing.shown)
        answer.headers.update(notes.tell())
        return answer

    async def copy(request: Request) -> Response:
        payload, _ = fields.OLLAMA_COPY.read(await read_body(request))
        source, name = roster.find(plain_name(payload.source)), plain_name(payload.destination)
        if name in roster.residents and name != source.name:
            raise ApiError("invalid_value", "destination is the name of another model of this server", param="destination")
        for each in roster.residents.values():
            each.service.deployments.aliases.pop(name, None)
        ollama_models.add_alias(source.service, payload.destination)
        return PlainTextResponse()

    async def delete(request: Request) -> Response:
        payload, _ = fields.OLLAMA_MODEL.read(await read_body(request))
        name = plain_name(payload.model or payload.name)
        for each in roster.residents.values():
            if name in each.service.deployments.aliases:
                del each.service.deployments.aliases[name]
                return PlainTextResponse()
        await asyncio.to_thread(ollama_models.remove, name, [_path(each) for each in roster.residents.values()])
        return PlainTextResponse()

    return [
        Route("/api/tags", tags, methods=["GET"]),
        Route("/api/ps", running, methods=["GET"]),
        Route("/api/show", show, methods=["POST"]),
        ollama_models.pull_route(),
        Route("/api/copy", copy, methods=["POST"]),
        Route("/api/delete", delete, methods=["DELETE"]),
    ]


def _path(resident: Resident) -> Path | None:
    """Path of a model's file or directory: one that is loaded knows it, and one that was put away keeps it as its name."""
    deployment = resident.service.deployments.current
    if deployment.has_started:
        return deployment.model.path
    model = deployment.engine_config.model
    return None if model.startswith(FAKE_PREFIX) else Path(model)


def _loads(roster: Roster) -> list[BaseRoute]:
    async def load(request: Request) -> Response:
        resident = roster.find(parse(wire.ModelName, await read_body(request)).model)
        async with roster.using(resident):
            return json_response(resident.status())

    async def unload(request: Request) -> Response:
        resident = roster.find(parse(wire.ModelName, await read_body(request)).model)
        await roster.unload(resident)
        return json_response(resident.status())

    return [Route("/models/load", load, methods=["POST"]), Route("/models/unload", unload, methods=["POST"])]
