"""Ridgeline on Ray Serve: engines as replicas of one deployment, behind an ingress that keeps streams whole.

    pip install "ridgeline[ray]"
    export RAY_USAGE_STATS_ENABLED=0 RAY_AUTH_MODE=token RAY_AUTH_TOKEN="$(openssl rand -hex 32)"
    export RIDGELINE_RAY_MODEL=demo RIDGELINE_API_KEY_FILE=/etc/ridgeline/api-keys
    ray start --head --node-ip-address 10.0.0.1 --object-store-memory 100000000 --include-dashboard false
    cd deploy && serve run ray_serve:app

The ingress is an ASGI application: it asks for the key, reads the body, and calls the engines through a handle whose
`RequestRouter` asks the policy object that `ridgeline route` has. It keeps what a router keeps of a stream (`router.journal`), and goes on
at another replica when one dies. Settings are those of `ridgeline serve`, as variables where `serve run` runs.

Between ingress and engines Ray pickles numbers, texts, bytes, and tuples, lists and dicts of them: a request's head and body, an answer's
status, headers and bytes. At the start it pickles the classes of this file, settings and the key between ingress and engines; all the time
names of models and counts of tokens. Plans, results and blocks stay in the engines' own processes. `docs/guide/deploy.md` says what Ray's
ports do not protect.
"""

import asyncio
import os
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from http import HTTPStatus
from itertools import count
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.config import RequestRouterConfig
from ray.serve.handle import DeploymentHandle
from ray_routing import GOING, Going, PolicyRouter, scale
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from ridgeline.cli.fit import planned_bytes
from ridgeline.cli.serve import named_models
from ridgeline.config.sources import PREFIX, Settings, gather
from ridgeline.errors import ConfigError
from ridgeline.router.attempts import ELSEWHERE, OWN_LIMITS, REWRITTEN
from ridgeline.router.journal import Journal, stop_of
from ridgeline.router.prompts import Prompt, read_prompt
from ridgeline.server.access import AccessLog
from ridgeline.server.app import ErrorHandler, build_models_app
from ridgeline.server.auth import AccessGuard
from ridgeline.server.callers import current_caller
from ridgeline.server.errors import ApiError
from ridgeline.server.keys import ApiKeys
from ridgeline.server.routers import (
    BLOCKS_PATH,
    CONTINUE_HEADER,
    KEY_HEADER,
    LINES_HEADER,
    NAMES_HEADER,
    SHARED_HEADER,
    UNLOADED_HEADER,
)
from ridgeline.server.routes import body_limit
from ridgeline.server.several.everywhere import names_of_all, not_ready_reason
from ridgeline.server.several.roster import make_roster
from ridgeline.server.transport import BODY_LIMIT_KEY, read_body

OWN_PREFIX = f"{PREFIX}RAY_"
"""Beginning of the variables that are this file's."""
REPLICAS = int(os.environ.get("RIDGELINE_RAY_REPLICAS", "2"))
MOST_REPLICAS = int(os.environ.get("RIDGELINE_RAY_MAX_REPLICAS", "8"))
APPLICATION, ENGINES = "ridgeline", "Engine"
OWN_HEADERS = (b"host", b"content-length", b"transfer-encoding", KEY_HEADER, CONTINUE_HEADER, LINES_HEADER)
"""Headers that are between a client and the ingress, and those that only the ingress may send."""
TOLD_HEADERS = tuple(name.encode() for name in (NAMES_HEADER, UNLOADED_HEADER, SHARED_HEADER))
"""Headers of answers by which an engine tells a router what no client may know, beside that of prefixes."""
HOST = [(b"host", b"127.0.0.1")]
"""Engines are called through Ray alone, and answer to this name."""
PAUSE_SECONDS = 0.2
TRIES = 5
"""Replicas that a request is given to, one after the other."""


AUTOSCALING: dict[str, Any] = {
    "min_replicas": REPLICAS,
    "max_replicas": MOST_REPLICAS,
    "initial_replicas": REPLICAS,
    "policy": {"policy_function": scale},
    "metrics_interval_s": 2,
}


@serve.deployment(
    name=ENGINES,
    max_ongoing_requests=256,
    ray_actor_options={"num_cpus": 1},
    autoscaling_config=AUTOSCALING,
    request_router_config=RequestRouterConfig(request_router_class=PolicyRouter, request_routing_stats_period_s=2),
    graceful_shutdown_timeout_s=60,
    health_check_period_s=1,
)
class Engine:
    """A replica: the server's application over the engine processes of its models, without a port of its own."""

    async def __init__(self, models: dict[str, str], settings: Settings, key: bytes) -> None:
        self._roster = make_roster(models, settings.engine, settings.server, planned_bytes, lambda *_: None)
        self._services = [each.service for each in self._roster.residents.values()]
        for each in self._services:
            each.router_key = key
        self._app = build_models_app(self._roster)
        self._told = Counter[str]()
        await self._roster.start()

    async def __del__(self) -> None:
        """Called by Serve when the replica ends."""
        await self._roster.stop()

    def check_health(self) -> None:
        """Raises while no request would be taken."""
        if (reason := not_ready_reason(self._roster)) is not None:
            raise RuntimeError(reason)

    def record_routing_stats(self) -> dict[str, list[str]]:
        """Names of models and adapters, for the router."""
        names, unloaded = names_of_all(self._roster)
        return {"names": names, "unloaded": unloaded}

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Choices that wait for a row; generated tokens since the last call, and those of them that came within the objective."""
        found = [each.metrics for each in self._services]
        now = Counter(tokens=sum(each.useful_tokens for each in found), good=sum(each.good_tokens for each in found))
        told, self._told = now - self._told, now
        return {"waiting": sum(each.waiting for each in found), **{name: float(told[name]) for name in ("tokens", "good")}}

    async def answer(self, prompt: tuple[Any, ...], ticket: int, scope: dict[str, Any], body: bytes) -> AsyncIterator[Any]:
        """Status and headers, then the parts of the body. `prompt` and `ticket` are for the router. Raises where the answer breaks off."""
        said: asyncio.Queue[Any] = asyncio.Queue(64)
        requests = iter([{"type": "http.request", "body": body, "more_body": False}])
        has_ended = False

        async def receive() -> dict[str, Any]:
            return next(requests, None) or await asyncio.Future()

        async def send(message: Any) -> None:
            nonlocal has_ended
            is_start = message["type"] == "http.response.start"
            has_ended = not is_start and not message.get("more_body", False)
            await said.put((message["status"], [*map(tuple, message["headers"])]) if is_start else message.get("body", b""))

        async def run() -> None:
            await self._app(dict(scope), receive, send)
            await said.put(None)

        task = asyncio.create_task(run())
        try:
            while (part := await said.get()) is not None:
                yield part
            if not has_ended:
                raise RuntimeError("the engine ended in the middle of an answer")
        finally:
            task.cancel()


class Fleet:
    """The ingress' application over the engines. It stands behind the check of the key."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._engines: DeploymentHandle | None = None
        self._tickets = count()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == BLOCKS_PATH:  # with the key in front of it, an engine would tell
            raise ApiError("router_only", "engines tell nobody here which blocks they hold")
        if self._engines is None:
            self._engines = serve.get_deployment_handle(ENGINES, APPLICATION).options(method_name="answer", stream=True)
        scope[BODY_LIMIT_KEY] = body_limit(scope)
        body = b"" if scope["method"] in ("GET", "HEAD") else await read_body(Request(scope, receive))
        prompt = read_prompt(scope["path"], body, current_caller().tenant.encode())
        answer = asyncio.create_task(self._answer(scope, send, body, prompt))
        gone = asyncio.create_task(_disconnected(receive))
        await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        answer.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        if answer.done() and not answer.cancelled():
            answer.result()

    async def _answer(self, scope: Scope, send: Send, body: bytes, prompt: Prompt) -> None:
        """The answer of an engine; where it breaks off, the rest of it by another one."""
        going = _Answering(send, Journal(self._key, lines=True))
        tried, refused = set[int](), list[Any]()
        for _ in range(TRIES):
            going.journal.lose()
            before = len(tried)
            try:
                await self._from_one(scope, body, prompt, tried, going)
                return
            except _Elsewhere as elsewhere:
                refused = elsewhere.answer or refused
                everyone_refused = elsewhere.answer and len(tried) == before
                if everyone_refused or (going.has_begun and not going.journal.can_continue):
                    break
                if not elsewhere.answer:
                    await asyncio.sleep(PAUSE_SECONDS)
        if going.journal.is_whole:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        elif refused and not going.has_begun:
            (status, headers), *parts = refused
            await going.begin(status, headers)
            await going.pass_on(b"".join(parts))
            await going.end()
        else:
            raise ApiError("engine_unavailable", "no engine took this request to its end", headers={"Retry-After": "1"})

    async def _from_one(self, scope: Scope, body: bytes, prompt: Prompt, tried: set[int], going: "_Answering") -> None:
        """Passes on what an engine that was not tried yet answers. Raises _Elsewhere where it takes nothing now, or breaks off."""
        assert self._engines is not None
        ticket, request = next(self._tickets), Going(tried)
        GOING[ticket] = request
        parts = self._engines.remote(tuple(prompt), ticket, _plain(scope, going.journal), going.journal.body(body))
        try:
            status, headers = await anext(parts)
            if status in ELSEWHERE and not going.has_begun:
                said = [(status, headers), *[each async for each in parts]]
                if status == HTTPStatus.SERVICE_UNAVAILABLE or not any(code in b"".join(said[1:]) for code in OWN_LIMITS):
                    raise _Elsewhere(said)
                await going.begin(status, headers)
                await going.pass_on(b"".join(said[1:]))
            else:
                await going.begin(status, headers)
                async for part in parts:
                    if await going.pass_on(part):
                        request.share.first_byte()
        except (RayError, RuntimeError, StopAsyncIteration) as error:
            raise _Elsewhere([]) from error
        finally:
            request.end()
            del GOING[ticket]
        await going.end()


def _plain(scope: Scope, journal: Journal) -> dict[str, Any]:
    """The part of a scope that an engine needs, of values that any program can read."""
    found = {name: scope[name] for name in ("type", "http_version", "method", "scheme", "path", "raw_path", "query_string")}
    headers = [tuple(each) for each in scope["headers"] if each[0] not in OWN_HEADERS]
    client = scope.get("client")
    return found | {
        "asgi": dict(scope["asgi"]), "headers": [*headers, *HOST, *journal.headers], "root_path": "",
        "client": client and tuple(client), "server": None,
    }  # fmt: skip


class _Answering:
    """The answer that a client gets, of one engine after the other. has_begun: its status has been sent."""

    def __init__(self, send: Send, journal: Journal) -> None:
        self.journal = journal
        self.has_begun = False
        self._send = send
        self._is_stream = False

    async def begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Sends the head, once. Raises _Elsewhere for one that no stream goes on with."""
        self._is_stream = self.journal.follow(stop_of(headers))
        if self.has_begun:
            if not (status == HTTPStatus.OK and self._is_stream):
                raise _Elsewhere([])
            return
        self.has_begun = True
        told = [each for each in headers if each[0] not in REWRITTEN + TOLD_HEADERS]
        await self._send({"type": "http.response.start", "status": status, "headers": told})

    async def pass_on(self, part: bytes) -> bool:
        """Sends what of the engine's bytes is the client's; False if that is nothing."""
        passed = self.journal.take(part) if self._is_stream else part
        if passed:
            await self._send({"type": "http.response.body", "body": passed, "more_body": True})
        return bool(passed)

    async def end(self) -> None:
        """Ends the body."""
        await self._send({"type": "http.response.body", "body": self.journal.end(), "more_body": False})


class _Elsewhere(Exception):
    """An engine has not answered to the end. `answer`: what it said where it takes nothing now, head and body; else empty."""

    def __init__(self, answer: list[Any]) -> None:
        super().__init__()
        self.answer = answer


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def build(settings: Settings, key: bytes) -> Any:
    """The ingress' application. Without keys it answers to names of this machine alone, whatever Serve's proxy binds to."""
    keys = ApiKeys(None, settings.server.api_key_file)
    guard = AccessGuard(Fleet(key), "0.0.0.0" if keys.needed else "127.0.0.1", keys, frozenset())
    guarded = AccessLog(ErrorHandler(guard), lambda *_: None)

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await guarded(scope, receive, send)
        while scope["type"] == "lifespan":
            await send({"type": f"{(await receive())['type']}.complete"})

    return application


def app(arguments: dict[str, str]) -> Any:
    """The application for `serve run`, over models and settings of the environment."""
    return make_app(*os.environ.get(f"{OWN_PREFIX}MODEL", "demo").split(), variables=os.environ)


def make_app(*models: str, variables: Mapping[str, str], **scaling: Any) -> Any:
    """The application for `serve.run`.

    models     of each replica, as `ridgeline serve` takes them: those that fit are loaded at once, others when they are asked for, and a
               request goes to a replica that has its model loaded
    variables  with the settings of `ridgeline serve`, RIDGELINE_…
    scaling    fields of Serve's `autoscaling_config`, over those of `Engine`
    Raises ConfigError.
    """
    key = secrets.token_bytes(32)
    own = {name: text for name, text in variables.items() if name.startswith(PREFIX) and not name.startswith(OWN_PREFIX)}
    settings = replace(gather({}, own, model=models[0]), origins={}, notes=())
    if settings.server.api_key is not None:
        raise ConfigError("a key in RIDGELINE_API_KEY would lie in Ray's control plane; give RIDGELINE_API_KEY_FILE, on every node")
    engines = Engine.options(autoscaling_config={**AUTOSCALING, **scaling})

    def built() -> Any:  # Serve builds it where the ingress runs
        return build(settings, key)

    ingress = serve.deployment(
        serve.ingress(built)(type("Ingress", (_Ingress,), {})),
        name="Ingress",
        max_ongoing_requests=4096,
        ray_actor_options={"num_cpus": 0.1},
    )
    return ingress.bind(engines.bind(named_models(settings, models[1:]), settings, key))


class _Ingress:
    """Holds the engines, so that Serve starts them with it."""

    def __init__(self, engines: DeploymentHandle) -> None:
        self.engines = engines
