"""Ridgeline on Ray Serve: engines as replicas of one deployment, behind an ingress that keeps streams whole.

    pip install "ridgeline[ray]"
    export RAY_USAGE_STATS_ENABLED=0 RAY_AUTH_MODE=token RAY_AUTH_TOKEN="$(openssl rand -hex 32)"
    export RIDGELINE_RAY_MODEL=demo RIDGELINE_RAY_API_KEY_FILE=/etc/ridgeline/api-keys
    ray start --head --node-ip-address 10.0.0.1 --object-store-memory 100000000 --include-dashboard false
    cd deploy && serve run ray_serve:app

The ingress is an ASGI application: it asks for the key, reads the body, and calls the engines through a handle whose
`RequestRouter` asks the policy object that `ridgeline route` has. It keeps what a router keeps of a stream (`router.journal`), and goes on
at another replica when one dies. What Ray pickles is a request's bytes, an answer's bytes and the classes of this file; plans, results and
blocks stay in the engine's own processes. `docs/guide/deploy.md` says what Ray's ports do not protect.
"""

import asyncio
import os
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from itertools import count
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.config import AutoscalingContext, RequestRouterConfig
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from ridgeline.cli.fit import planned_bytes
from ridgeline.cli.serve import named_models
from ridgeline.config.groups import EngineConfig, ServerConfig
from ridgeline.config.sources import Settings
from ridgeline.core.routing import ROUTING, ReplicaLoad
from ridgeline.router.chooser import Chooser, LoadShare
from ridgeline.router.journal import Journal
from ridgeline.router.prompts import Prompt, read_prompt
from ridgeline.server.access import AccessLog
from ridgeline.server.app import ErrorHandler, build_models_app
from ridgeline.server.auth import AccessGuard
from ridgeline.server.callers import current_caller
from ridgeline.server.errors import ApiError
from ridgeline.server.keys import ApiKeys
from ridgeline.server.routes import body_limit
from ridgeline.server.several.everywhere import names_of_all, not_ready_reason
from ridgeline.server.several.roster import make_roster
from ridgeline.server.transport import BODY_LIMIT_KEY, read_body

MODELS = os.environ.get("RIDGELINE_RAY_MODEL", "demo").split()
"""Models of each replica, as `ridgeline serve` takes them: those that fit are loaded at once, others when they are asked for, and a request
goes to a replica that has its model loaded."""
KEY_FILE = os.environ.get("RIDGELINE_RAY_API_KEY_FILE")
SERVER = ServerConfig(api_key_file=KEY_FILE, goodput=os.environ.get("RIDGELINE_RAY_GOODPUT", ServerConfig().goodput))
REPLICAS = int(os.environ.get("RIDGELINE_RAY_REPLICAS", "2"))
MOST_REPLICAS = int(os.environ.get("RIDGELINE_RAY_MAX_REPLICAS", "8"))
APPLICATION, ENGINES = "ridgeline", "Engine"
OWN_HEADERS = (b"host", b"content-length", b"transfer-encoding", b"x-ridgeline-router", b"x-ridgeline-continue")
"""Headers that are between a client and the ingress, and those that only the ingress may send."""
HOST_NAME = "127.0.0.1" if KEY_FILE is None else "0.0.0.0"
"""Without keys the ingress answers to names of this machine alone, whatever Serve's proxy binds to."""
HOST = [(b"host", b"127.0.0.1")]
"""Engines are called through Ray alone, and answer to this name."""
REQUESTS_PER_REPLICA = 16
LATE_SHARE = 0.1
"""Share of generated tokens outside the objective (`RIDGELINE_RAY_GOODPUT`) from which on a replica more is wanted."""
PAUSE_SECONDS = 0.2
TRIES = 5
"""Replicas that a request is given to, one after the other."""


class PolicyRouter(RequestRouter):
    """Serve's request router around the choice of `ridgeline route`. `policy` is a name of `core.routing`."""

    def initialize_state(self, policy: str = "cache-aware") -> None:
        self._chooser = Chooser(ROUTING[policy])
        self._loads: dict[ReplicaID, ReplicaLoad] = {}
        self._numbers = count()
        self._cached: dict[str, int] = {}
        self._shares: dict[str, LoadShare] = {}

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> Sequence[list[RunningReplica]]:
        """The replica of the policy, then the others: Serve asks the next one where one is full."""
        if not candidate_replicas:
            return []
        for each in candidate_replicas:
            load = self._loads.setdefault(each.replica_id, ReplicaLoad(next(self._numbers)))
            load.names, load.unloaded = (frozenset(each.routing_stats.get(told, ())) for told in ("names", "unloaded"))
        if pending_request is None:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True
        loads, request = [self._loads[each.replica_id] for each in candidate_replicas], pending_request.metadata.internal_request_id
        number, self._cached[request] = self._chooser.choose(loads, pending_request.args[0])
        return [[each] for each in sorted(candidate_replicas, key=lambda each: self._loads[each.replica_id].number != number)]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Counts a request that a replica has taken."""
        (prompt, share, *_), request = pending_request.args, pending_request.metadata.internal_request_id
        self._shares[request] = share
        share.begin(self._loads[replica_id], prompt.tokens, self._cached.pop(request, 0))

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Uncounts it."""
        if (share := self._shares.pop(internal_request_id, None)) is not None:
            share.end()

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Forgets a replica and its cache."""
        super().on_replica_actor_died(replica_id)
        if (load := self._loads.pop(replica_id, None)) is not None:
            self._chooser.forget(load.number)


def scale(context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
    """(replicas that are wanted, nothing to remember): as many as requests, running or queued, need; one more than there are where much
    comes too late, while there is somebody to take a part of it."""
    told = context.aggregated_metrics or {}
    good, all_tokens, waiting = (sum(told.get(name, {}).values()) for name in ("good", "tokens", "waiting"))
    wanted = max(context.total_num_requests, waiting) / REQUESTS_PER_REPLICA
    is_late = all_tokens > 0 and good < (1 - LATE_SHARE) * all_tokens
    if is_late and context.total_num_requests > context.current_num_replicas:
        wanted = max(wanted, context.current_num_replicas + 1)
    return wanted, {}


@serve.deployment(
    name=ENGINES,
    max_ongoing_requests=256,
    ray_actor_options={"num_cpus": 1},
    autoscaling_config={
        "min_replicas": REPLICAS,
        "max_replicas": MOST_REPLICAS,
        "initial_replicas": REPLICAS,
        "policy": {"policy_function": scale},
        "metrics_interval_s": 2,
    },
    request_router_config=RequestRouterConfig(request_router_class=PolicyRouter, request_routing_stats_period_s=2),
    graceful_shutdown_timeout_s=60,
    health_check_period_s=1,
)
class Engine:
    """A replica: the server's application over the engine processes of its models, without a port of its own."""

    async def __init__(self, models: dict[str, str], key: bytes) -> None:
        self._roster = make_roster(models, EngineConfig(next(iter(models.values()))), SERVER, planned_bytes, lambda *_: None)
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

    async def answer(self, prompt: Prompt, share: LoadShare, scope: dict[str, Any], body: bytes) -> AsyncIterator[Any]:
        """Status and headers, then the parts of the body. `prompt` and `share` are for the router. Raises where the answer breaks off."""
        said: asyncio.Queue[Any] = asyncio.Queue(64)
        requests = iter([{"type": "http.request", "body": body, "more_body": False}])
        has_ended = False

        async def receive() -> dict[str, Any]:
            return next(requests, None) or await asyncio.Future()

        async def send(message: Any) -> None:
            nonlocal has_ended
            is_start = message["type"] == "http.response.start"
            has_ended = not is_start and not message.get("more_body", False)
            await said.put((message["status"], list(message["headers"])) if is_start else message.get("body", b""))

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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
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
        journal, begun = Journal(self._key), False
        for _ in range(TRIES):
            journal.lose()
            try:
                begun = await self._from_one(scope, send, body, prompt, journal, begun)
                return
            except _BrokenOff as broken:
                begun = begun or broken.begun
                if begun and not journal.can_continue:
                    break
                await asyncio.sleep(PAUSE_SECONDS)
        if journal.is_whole:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        raise ApiError("engine_unavailable", "no engine took this request to its end", headers={"Retry-After": "1"})

    async def _from_one(self, scope: Scope, send: Send, body: bytes, prompt: Prompt, journal: Journal, begun: bool) -> bool:
        plain = {name: scope[name] for name in ("type", "asgi", "http_version", "method", "scheme", "path", "raw_path", "query_string")}
        headers = [(name, value) for name, value in scope["headers"] if name not in OWN_HEADERS]
        plain |= {"headers": [*headers, *HOST, *journal.headers], "root_path": "", "client": scope.get("client"), "server": None}
        assert self._engines is not None
        is_stream, share = True, LoadShare()
        try:
            async for part in self._engines.remote(prompt, share, plain, journal.body(body)):
                if isinstance(part, tuple):
                    status, told = part
                    is_stream = any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in told)
                    if begun and not (status == 200 and is_stream):
                        raise _BrokenOff(begun)
                    if not begun:
                        begun = True
                        await send({"type": "http.response.start", "status": status, "headers": told})
                elif passed := journal.take(part) if is_stream else part:
                    share.first_byte()
                    await send({"type": "http.response.body", "body": passed, "more_body": True})
        except (RayError, RuntimeError) as error:
            raise _BrokenOff(begun) from error
        finally:
            share.end()  # Serve does not tell of those whose replica has died
        await send({"type": "http.response.body", "body": journal.end(), "more_body": False})
        return begun


class _BrokenOff(Exception):
    """The replica of an answer has ended. `begun`: its status has been sent."""

    def __init__(self, begun: bool) -> None:
        super().__init__()
        self.begun = begun


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def build(key: bytes) -> Any:
    """The ingress' application."""
    keys = ApiKeys(None, KEY_FILE)
    guarded = AccessLog(ErrorHandler(AccessGuard(Fleet(key), HOST_NAME, keys, frozenset())), lambda *_: None)

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await guarded(scope, receive, send)
        while scope["type"] == "lifespan":
            await send({"type": f"{(await receive())['type']}.complete"})

    return application


def app(arguments: dict[str, str]) -> Any:
    """The application for `serve run`, over the models of the environment."""
    return make_app(*MODELS)


def make_app(*models: str) -> Any:
    """The application for `serve.run`, over models as `MODELS` has them."""
    key = secrets.token_bytes(32)
    named = named_models(Settings(EngineConfig(models[0]), SERVER, {}), models[1:])

    def built() -> Any:  # Serve builds it where the ingress runs
        return build(key)

    ingress = serve.deployment(
        serve.ingress(built)(type("Ingress", (_Ingress,), {})),
        name="Ingress",
        max_ongoing_requests=4096,
        ray_actor_options={"num_cpus": 0.1},
    )
    return ingress.bind(Engine.bind(named, key))


class _Ingress:
    """Holds the engines, so that Serve starts them with it."""

    def __init__(self, engines: DeploymentHandle) -> None:
        self.engines = engines
