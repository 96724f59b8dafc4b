"""The router's run on a socket, until a signal: it listens at once, and ends when the answers under way have."""

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from ridgeline.config.groups import ServerConfig
from ridgeline.config.secret import read_router_key
from ridgeline.core.routing import ROUTING
from ridgeline.errors import ConfigError, nearest
from ridgeline.observe.logs import with_fields
from ridgeline.router.attempts import Hedge
from ridgeline.router.metrics import RouterMetrics
from ridgeline.router.prompts import Sessions
from ridgeline.router.proxy import Proxy
from ridgeline.router.replicas import Replica, Replicas
from ridgeline.server.access import AccessLog
from ridgeline.server.app import ErrorHandler
from ridgeline.server.auth import AccessGuard, check_exposure
from ridgeline.server.http_server import HttpServer, listening_socket, loop_factory, url_of
from ridgeline.server.keys import ApiKeys
from ridgeline.server.listener import Connections, connection_limit
from ridgeline.server.origins import parse_origins
from ridgeline.server.tls import Certificate

log = logging.getLogger("ridgeline.router")

MAX_REPLICAS: Final = 1_024
MAX_WEIGHT: Final = 1_000.0
USUAL_SHARE: Final = 0.05
MAX_SHARE: Final = 0.5
"""Largest share of a canary."""


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """`server` has the settings of the listening side: host, port, keys, certificate, limits.

    replicas, canaries  URL, or URL=WEIGHT; the weight of a canary is its share of all requests
    session_affinity    where requests say which session they belong to, see `prompts.Sessions`
    hold_seconds        for which a request waits while there is no replica
    hedge_percentile    of first bytes, behind which a request gets a second replica; None: never
    """

    server: ServerConfig
    replicas: Sequence[str]
    canaries: Sequence[str] = ()
    routing: str = "cache-aware"
    session_affinity: Sequence[str] = ()
    hedge_percentile: float | None = None
    hold_seconds: float = 0.0
    shutdown_seconds: float = 30.0


def parse_replicas(config: RouterConfig, key: bytes | None = None) -> list[Replica]:
    """The replicas that were named, which share `key` with the router.

    Raises ConfigError for a name that is no address, twice the same, or a weight out of range.
    """
    found = [Replica(number, *_parse("--replica", text, MAX_WEIGHT), key=key) for number, text in enumerate(config.replicas)]
    for text in config.canaries:
        url, share = _parse("--canary", text if "=" in text else f"{text}={USUAL_SHARE}", MAX_SHARE)
        found.append(Replica(len(found), url, 1.0, share, key))
    urls = [each.upstream.url for each in found]
    if not config.replicas or len(found) > MAX_REPLICAS:
        raise ConfigError(f"there are {len(config.replicas)} replicas; name 1 to {MAX_REPLICAS}, each with --replica http://host:port")
    if double := next((url for url in urls if urls.count(url) > 1), None):
        raise ConfigError(f"{double} is named more than once")
    return found


def _parse(flag: str, text: str, most: float) -> tuple[str, float]:
    url, _, weight = text.partition("=")
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.path in ("", "/") and not parts.query
        is_address = is_address and "@" not in parts.netloc and (parts.port or 1) > 0
        share = float(weight) if weight else 1.0
    except ValueError:
        is_address, share = False, 0.0
    if not is_address:
        raise ConfigError(f"{flag} {text!r:.200} is no address of a server; write http://host:port, or http://host:port=WEIGHT")
    if weight and not 0 < share <= most:
        raise ConfigError(f"{flag} {text!r:.200}: {weight!r:.20} is outside 0 … {most:g}")
    return url.rstrip("/"), share


def check_config(config: RouterConfig, key: bytes | None = None) -> list[Replica]:
    """The replicas of a router that could run. Raises ConfigError."""
    if config.routing not in ROUTING:
        fix = {"--routing": nearest(config.routing, ROUTING)}
        raise ConfigError(f"--routing {config.routing!r:.40} is not known; known: {', '.join(ROUTING)}", fix=fix)
    check_exposure(config.server)
    Sessions.parse(config.session_affinity)
    Hedge(config.hedge_percentile)
    return parse_replicas(config, key)


def run_router(config: RouterConfig, on_ready: Callable[[str], None]) -> None:
    """Routes until SIGINT or SIGTERM. `on_ready` gets the URL when a replica takes requests, or may be waited for.

    Raises ConfigError where it cannot start.
    """
    key = read_router_key(config.server.router_key_file)
    replicas = Replicas(check_config(config, key), ROUTING[config.routing], hold_seconds=config.hold_seconds)
    settings, metrics = config.server, RouterMetrics()
    certificate = Certificate(settings)
    keys, origins = ApiKeys(settings.api_key, settings.api_key_file), parse_origins(settings.allowed_origins)
    proxy = Proxy(replicas, metrics, key, Sessions.parse(config.session_affinity), Hedge(config.hedge_percentile))
    app = AccessLog(ErrorHandler(AccessGuard(proxy, settings.host, keys, origins)), lambda *_: None)
    with listening_socket(settings.host, settings.port) as listener:
        limit = connection_limit(settings.max_connections)
        server = HttpServer(app, certificate, Connections(limit, settings.max_connections_per_client, settings.send_timeout))
        url = url_of(listener, certificate)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_serve(replicas, server, listener, config.shutdown_seconds, lambda: on_ready(url)))


async def _serve(replicas: Replicas, server: HttpServer, listener: socket.socket, seconds: float, on_ready: Callable[[], None]) -> None:
    loop, ending = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ending.set)
    watching = asyncio.create_task(replicas.watch())
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
