"""`ridgeline serve`: flags to settings, progress while loading, and the line that says where the server is. Everything goes to stderr."""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Final

import typer

from ridgeline.config.groups import EngineConfig, ServerConfig

Progress = Callable[[str, float], None]
DEFAULTS: Final = EngineConfig(model="")
SERVER_DEFAULTS: Final = ServerConfig()


def serve(
    model: Annotated[str, typer.Argument(help="`demo`, or the path of a GGUF file.")],
    host: Annotated[str, typer.Option(help="Address to listen on; other than loopback needs --api-key.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    api_key: Annotated[str | None, typer.Option(help="Key that clients must send as a bearer token.")] = None,
    served_model_name: Annotated[str | None, typer.Option(help="Name that clients use for the model.")] = None,
    max_model_len: Annotated[int | None, typer.Option(help="Tokens of prompt and output [what model and cache hold].")] = None,
    max_num_seqs: Annotated[int, typer.Option(help="Sequences that run at once.")] = DEFAULTS.max_num_seqs,
    max_num_batched_tokens: Annotated[int, typer.Option(help="Tokens in one step.")] = DEFAULTS.max_num_batched_tokens,
    kv_cache_memory_bytes: Annotated[int | None, typer.Option(help="Memory of the KV cache [the need, up to 30 % of all].")] = None,
    block_size: Annotated[int, typer.Option(help="Tokens in a block of the KV cache.")] = DEFAULTS.block_size,
    enable_prefix_caching: Annotated[bool, typer.Option(help="Reuse the KV cache of shared prefixes.")] = True,
    scheduling_policy: Annotated[str, typer.Option(help="fcfs, priority, static or one.")] = DEFAULTS.scheduling_policy,
    max_num_queued_reqs: Annotated[
        int, typer.Option(min=0, help="Requests that may wait; beyond them clients get 429.")
    ] = SERVER_DEFAULTS.max_waiting,
    seed: Annotated[int | None, typer.Option(help="Seed from which requests without a seed draw theirs.")] = None,
) -> None:
    """Serve a model: a page and an OpenAI-compatible API."""
    engine = EngineConfig(
        model=model,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        kv_cache_memory_bytes=kv_cache_memory_bytes,
        block_size=block_size,
        enable_prefix_caching=enable_prefix_caching,
        scheduling_policy=scheduling_policy,
        seed=seed,
    )
    _run(engine, ServerConfig(host, port, api_key, served_model_name, max_num_queued_reqs))


def _run(engine: EngineConfig, config: ServerConfig) -> None:
    from ridgeline.server.run import run
    from ridgeline.server.service import Model, Service

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s", stream=sys.stderr)
    began = time.monotonic()
    with progress_shown() as progress:

        def ready(model: Model, url: str) -> None:
            for decision in model.engine.decisions:
                progress(f"{decision.name} {decision.value:,} ({decision.origin}: {decision.reason})", 1.0)
            progress(f"Ridgeline serves {model.name} at {url} (ready after {time.monotonic() - began:.1f} s; Ctrl-C ends it)", 1.0)

        run(Service(engine, config, progress), ready)


@contextmanager
def progress_shown() -> Iterator[Progress]:
    """A spinner line on a terminal; elsewhere one line a stage. A stage that is complete stays."""
    if not sys.stderr.isatty():
        yield _plain_lines()
        return
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    with console.status("starting") as status:

        def show(stage: str, fraction: float) -> None:
            if fraction >= 1.0:
                console.print(stage, markup=False, soft_wrap=True)
            status.update(f"{stage} {fraction:.0%}" if fraction < 1.0 else "")

        yield show


def _plain_lines() -> Progress:
    shown = ""

    def show(stage: str, fraction: float) -> None:
        nonlocal shown
        if stage != shown:
            shown = stage
            print(stage, file=sys.stderr, flush=True)

    return show
