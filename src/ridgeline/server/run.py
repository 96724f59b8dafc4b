"""The server's run on a socket, until a signal: binds first, loads while `/livez` answers already, drains at the end.

Owns the order of start and stop, and the listening socket. Never exits the process.
"""

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import Callable
from functools import partial
from typing import Final

from ridgeline.config.env import state_directory
from ridgeline.observe.logs import with_fields
from ridgeline.observe.throughput import log_throughput
from ridgeline.server.admin import Admin
from ridgeline.server.admin_listener import admin_socket
from ridgeline.server.app import build_app, build_models_app
from ridgeline.server.auth import check_exposure
from ridgeline.server.chaos import Clients
from ridgeline.server.http_server import HttpServer, listening_socket, loop_factory, url_of
from ridgeline.server.listener import Connections, connection_limit
from ridgeline.server.loading import Model
from ridgeline.server.running import announced, end_noted
from ridgeline.server.service import Service
from ridgeline.server.several.resident import kv_blocks
from ridgeline.server.several.roster import Roster
from ridgeline.server.signals import Shutdown, reload_on_signal
from ridgeline.server.swap import CheckFit
from ridgeline.server.tls import Certificate

log = logging.getLogger("ridgeline.server")

MAX_YOUNG: Final = 10_000
"""Objects behind which the collector looks for garbage among the newest. Of Python's 700 most belong to requests under way, and are walked
over again and again: that took 6 % of a short request."""


def run(served: Service | Roster, on_ready: Callable[[list[Model], str], None], check_fit: CheckFit) -> None:
    """Serves until SIGINT or SIGTERM. `on_ready` gets the models that are loaded, and the URL; `check_fit`: see `server.swap`.

    Raises a RidgelineError where it cannot start, KeyboardInterrupt where SIGINT comes while it loads.
    """
    gc.freeze()  # modules, over which the collection below need not walk
    settings = served.config
    names = served.name if isinstance(served, Service) else ", ".join(served.residents)
    check_exposure(settings)
    certificate = Certificate(settings)
    with (
        end_noted(state_directory(), names) as ending,
        listening_socket(settings.host, settings.port) as listener,
        admin_socket(settings.admin_socket) as admin,
        announced(state_directory(), url=url_of(listener, certificate), model=names, admin=admin.getsockname() if admin else None),
    ):
        app = build_app(served) if isinstance(served, Service) else build_models_app(served)
        limit = connection_limit(settings.max_connections)
        log.debug("listening", extra=with_fields(url=url_of(listener, certificate), max_connections=limit))
        server = HttpServer(app, certificate, Connections(limit, settings.max_connections_per_client, settings.send_timeout))
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            ending.reason, is_interrupted = runner.run(_serve(served, server, listener, admin, certificate, on_ready, check_fit))
            if is_interrupted:
                raise KeyboardInterrupt


async def _serve(
    served: Service | Roster,
    server: HttpServer,
    listener: socket.socket,
    admin_listener: socket.socket | None,
    certificate: Certificate,
    on_ready: Callable[[list[Model], str], None],
    check_fit: CheckFit,
) -> tuple[str, bool]:
    """(what asked for the end, True if that was an interrupt before it was ready)."""
    is_ready = False

    async def load() -> None:
        models = [await served.start()] if isinstance(served, Service) else await served.start()
        gc.collect()
        gc.set_threshold(MAX_YOUNG, *gc.get_threshold()[1:])
        gc.freeze()  # what has been loaded stays: a collection that walked over a vocabulary would hold up every stream
        gc.enable()
        nonlocal is_ready
        is_ready = True
        on_ready(models, url_of(listener, certificate))
        if isinstance(served, Service):
            throughput = log_throughput(served.current_metrics, lambda: served.model.limits.kv.blocks)
            await asyncio.gather(served.deployments.wait_failed(), throughput)
        else:
            of_all = served.residents.values()
            lines = (log_throughput(each.service.current_metrics, partial(kv_blocks, each), model=each.name) for each in of_all)
            await asyncio.gather(*lines)

    shutdown = Shutdown(served, server)
    shutdown.listen(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    first = served if isinstance(served, Service) else served.first.service
    if served.config.api_key_file is not None or certificate.context is not None:
        reload_on_signal(first, certificate)
    clients = Clients(server.open_connections, listener.getsockname()[:2], certificate.context is not None)
    admin = None if admin_listener is None else Admin(admin_listener, served, shutdown.begin, clients, check_fit)
    if admin is not None:
        admin.start()
    serving, loading = asyncio.create_task(server.serve([listener])), asyncio.create_task(load())
    try:
        await asyncio.wait({serving, loading}, return_when=asyncio.FIRST_COMPLETED)
        if loading.done() and not shutdown.has_begun:  # no signal came, so this is a failure to report
            loading.result()
        await serving
    finally:
        server.should_exit = True
        if admin is not None:
            admin.close()
        loading.cancel()
        shutdown.cancel()
        await served.stop()
        await asyncio.gather(serving, loading, return_exceptions=True)
    shutdown.log_end()
    return shutdown.reason, not is_ready and shutdown.reason == "SIGINT"
