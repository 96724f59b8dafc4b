"""`ridgeline route`: one address for several servers."""

import logging
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ridgeline.cli.output import print_status

if TYPE_CHECKING:
    from ridgeline.router.run import RouterConfig

REPLICA: Final = typer.Option("--replica", help="Address of a server, http://host:port, or with its weight: …=2. Repeatable.")
REPLICAS: Final = typer.Option(
    help="File with a server per line, as --replica takes it, or `canary` and one; read again when it changes: servers come and go, and "
    "one set takes the place of another."
)
CANARY: Final = typer.Option("--canary", help="A server that gets a share of requests [0.05] while it is as good as the others: …=0.1.")
ROUTING: Final = typer.Option(help="cache-aware, least-tokens, least-requests, prefix, two-choices, round-robin or random.")
SESSIONS: Final = typer.Option(
    "--session-affinity",
    help="What requests of a session have in common, and go to one server by: header:NAME, cookie:NAME, user, safety_identifier or "
    "prompt_cache_key. Repeatable; the first that a request has counts.",
)
EXACT: Final = typer.Option(
    help="Model of the servers, whose tokenizer and template are read here: a prompt goes where the most of its blocks is held, as servers "
    "tell that have the same --router-key-file, in place of where it was sent."
)
HEDGE: Final = typer.Option(
    help="Ask a second server where the first has not begun to answer within this percentile of first bytes, within the budget of "
    "retries [never]."
)
HOLD: Final = "Seconds that a request waits while there is no server at all, as behind a scaling to zero; 0: none waits."

ROUTER_KEY: Final = "Key that the servers have too: with it a stream goes on at another server when its own dies."


def route(
    replica: Annotated[list[str] | None, REPLICA] = None,
    replicas_file: Annotated[str | None, REPLICAS] = None,
    canary: Annotated[list[str] | None, CANARY] = None,
    routing: Annotated[str, ROUTING] = "cache-aware",
    session_affinity: Annotated[list[str] | None, SESSIONS] = None,
    exact_affinity: Annotated[str | None, EXACT] = None,
    chat_template: Annotated[str | None, typer.Option(help="The servers' --chat-template, for --exact-affinity.")] = None,
    hedge_percentile: Annotated[float | None, HEDGE] = None,
    hold_timeout: Annotated[float, typer.Option(min=0, max=3600, help=HOLD)] = 0.0,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any.")] = 8080,
    api_key_file: Annotated[str | None, typer.Option(help="Keys that clients need: the servers' own file.")] = None,
    router_key_file: Annotated[str | None, typer.Option(help=ROUTER_KEY)] = None,
    ssl_certfile: Annotated[str | None, typer.Option(help="Certificate of https, with its chain.")] = None,
    ssl_keyfile: Annotated[str | None, typer.Option(help="Its key.")] = None,
    shutdown_timeout: Annotated[float, typer.Option(min=0, max=3600, help="Seconds that open requests have at the end.")] = 30.0,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Route requests to several servers: each to the one that has its prefix cached, or the least to do."""
    from ridgeline.observe.logs import logging_to
    from ridgeline.router.run import run_router

    config = config_of(locals())
    has_reader = sys.stderr.isatty()

    def ready(url: str) -> None:
        line = f"Ridgeline routes at {url} (Ctrl-C ends it)"
        if has_reader:
            print_status(line)
        else:
            logging.getLogger("ridgeline.router").info(line)

    with logging_to(level=log_level):
        run_router(config, ready)


def config_of(given: Mapping[str, Any]) -> "RouterConfig":
    """The settings of a router, from the parameters of its verb."""
    from ridgeline.config.groups import ServerConfig
    from ridgeline.router.run import RouterConfig

    names = ("host", "port", "api_key_file", "router_key_file", "ssl_certfile", "ssl_keyfile", "chat_template")
    server = ServerConfig(**{name: given[name] for name in names})
    return RouterConfig(
        server, given["replica"] or (), given["canary"] or (), given["routing"], given["session_affinity"] or (), given["hedge_percentile"],
        given["hold_timeout"], given["shutdown_timeout"], given["replicas_file"], given["exact_affinity"],
    )  # fmt: skip
