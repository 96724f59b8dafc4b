"""The router's run on a socket, until a signal: it listens at once, and ends when the answers under way have."""

import asyncio
import gc
import logging
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial

from ridgeline.config.groups import ServerConfig
from ridgeline.config.secret import read_router_key
from ridgeline.core.routing import ROUTING
from ridgeline.errors import ConfigError, nearest
from ridgeline.observe.logs import with_fields
from ridgeline.router.attempts import Hedge
from ridgeline.router.front import Front
from ridgeline.router.holdings import Holdings
from ridgeline.router.metrics import RouterMetrics
from ridgeline.router.prompts import Sessions
from ridgeline.router.proxy import Proxy
from ridgeline.router.replicas import Replicas
from ridgeline.router.roster import Roster
from ridgeline.router.short_way import ShortWay
from ridgeline.server.access import AccessLog
from ridgeline.server.app import ErrorHandler
from ridgeline.server.auth import AccessGuard, check_exposure
from ridgeline.server.http_server import HttpServer, listening_socket, loop_factory, url_of
from ridgeline.server.keys import ApiKeys
from ridgeline.server.listener import Connections, connection_limit
from ridgeline.server.origins import parse_origins
from ridgeline.server.tls import Certificate

log = logging.getLogger("ridgeline.router")


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """`server` has the settings of the listening side: host, port, keys, certificate, limits.

    replicas, canaries  URL, or URL=WEIGHT; the weight of a canary is its share of all requests
    replicas_file       has them instead, see `roster`
    session_affinity    where requests say which session they belong to, see `prompts.Sessions`
    hold_seconds        for which a request waits while there is no replica
    hedge_percentile    of first bytes, behind which a request gets a second replica; None: never
    exact_affinity      model by whose tokenizer prompts are held against the blocks that replicas have; None: by what they were sent
    """

    server: ServerConfig
    replicas: Sequence[str]
    canaries: Sequence[str] = ()
    routing: str = "cache-aware"
    session_affinity: Sequence[str] = ()
    hedge_percentile: float | None = None
    hold_seconds: float = 0.0
    shutdown_seconds: float = 30.0
    replicas_file: str | None = None
    exact_affinity: str | None = None


def check_config(config: RouterConfig) -> Roster:
    """The servers of a router that could run. Raises ConfigError."""
    if config.routing not in ROUTING:
        fix = {"--routing": nearest(config.routing, ROUTING)}
        raise ConfigError(f"--routing {config.routing!r:.40} is not known; known: {', '.join(ROUTING)}", fix=fix)
    check_exposure(config.server)
    Sessions.parse(config.session_affinity)
    Hedge(config.hedge_percentile)
    if config.exact_affinity is not None and config.server.router_key_file is None:
        raise ConfigError(
            "--exact-affinity needs a key that router and servers share: servers tell nobody else which blocks they hold",
            fix={"--router-key-file": "router-key"},
        )
    return Roster(config.replicas, config.canaries, config.replicas_file)


def run_router(config: RouterConfig, on_ready: Callable[[str], None]) -> None:
    """Routes until SIGINT or SIGTERM. `on_ready` gets the URL when a replica takes requests, or may be waited for.

    Raises ConfigError where it cannot start.
    """
    roster, key = check_config(config), read_router_key(config.server.router_key_file)
    replicas = Replicas(roster.named, ROUTING[config.routing], key, hold_seconds=config.hold_seconds)
    settings, tokens = config.server, None
    if config.exact_affinity is not None:
        from ridgeline.router.tokens import PromptTokens  # what reads models takes a while to import

        tokens, replicas.chooser.held = PromptTokens(config.exact_affinity, settings.chat_template), Holdings()
    metrics = RouterMetrics()
    certificate = Certificate(settings)
    keys, origins = ApiKeys(settings.api_key, settings.api_key_file), parse_origins(settings.allowed_origins)
    sessions, hedge = Sessions.parse(config.session_affinity), Hedge(config.hedge_percentile)
    proxy = Proxy(replicas, metrics, key, sessions, hedge, tokens)
    guard = AccessGuard(proxy, settings.host, keys, origins)
    app = AccessLog(ErrorHandler(guard), lambda *_: None)
    way = ShortWay(proxy, guard, replicas, metrics, key, sessions, hedge, tokens)
    connect = partial(Front, way)
    with listening_socket(settings.host, settings.port) as listener:
        limit = connection_limit(settings.max_connections)
        server = HttpServer(app, certificate, Connections(limit, settings.max_connections_per_client, settings.send_timeout), connect)
        url = url_of(listener, certificate)
        gc.collect()
        gc.freeze()  # what has been loaded stays: a collection that walked over it would hold up every stream
        with asyncio.Runner(loop_factory=loop_factory()) as runner, nullcontext() if tokens is None else closing(tokens):
            runner.run(_serve(replicas, roster, server, listener, config.shutdown_seconds, lambda: on_ready(url)))
            way.settle()


async def _serve(
    replicas: Replicas, roster: Roster, server: HttpServer, listener: socket.socket, seconds: float, on_ready: Callable[[], None]
) -> None:
    loop, ending = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ending.set)
    watching = asyncio.create_task(replicas.watch(roster))
    serving = asyncio.create_task(server.serve([listener]))
    announcing = asyncio.create_task(_announce(replicas, on_ready))
    try:
        await ending.wait()
        began = time.monotonic()
        log.info("shutdown began", extra=with_fields(open_requests=replicas.open_requests, timeout_seconds=seconds))
        for each in server.servers:
            each.close()
        replicas.turn_away()
        while replicas.open_requests and time.monotonic() - began < seconds:
            await asyncio.sleep(0.05)
        log.info("shutdown ended", extra=with_fields(aborted_requests=replicas.open_requests))
    finally:
        server.should_exit = True
        for task in (watching, announcing):
            task.cancel()
        await asyncio.gather(serving, watching, announcing, return_exceptions=True)
        replicas.close()


async def _announce(replicas: Replicas, on_ready: Callable[[], None]) -> None:
    while not replicas.ready() and not replicas.room.is_open:
        await asyncio.sleep(0.02)
    on_ready()
