"""`ridgeline serve`: flags to settings, start-up messages on stderr, the server."""

import logging
import sys
import time
from dataclasses import fields
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ridgeline.cli.output import LoadingProgress, print_status
from ridgeline.config.groups import EngineConfig, ServerConfig
from ridgeline.errors import ConfigError

if TYPE_CHECKING:
    from ridgeline.server.service import Model

DEFAULTS: Final = EngineConfig(model="")
SERVER_DEFAULTS: Final = ServerConfig()


def serve(
    model: Annotated[str, typer.Argument(help="`demo`, a GGUF file, a model directory, or a name of the hub (org/name).")],
    host: Annotated[str, typer.Option(help="Address to listen on; other than loopback needs --api-key.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    api_key: Annotated[str | None, typer.Option(help="Key that clients must send as a bearer token.")] = None,
    served_model_name: Annotated[str | None, typer.Option(help="Name that clients use for the model.")] = None,
    max_model_len: Annotated[int | None, typer.Option(help="Tokens of prompt and output [what model and cache hold].")] = None,
    max_num_seqs: Annotated[int | None, typer.Option(help="Sequences that run at once [64, on a GPU 256].")] = None,
    max_num_batched_tokens: Annotated[int | None, typer.Option(help="Tokens in one step [512, on a GPU 8192].")] = None,
    step_ms: Annotated[int, typer.Option(help="Milliseconds that a step with decode rows may take.")] = DEFAULTS.step_ms,
    kv_cache_memory_bytes: Annotated[int | None, typer.Option(help="Memory of the KV cache [as needed, up to 30 % of all].")] = None,
    swap_space: Annotated[float, typer.Option(help="GiB of host memory for evicted KV blocks.")] = DEFAULTS.swap_space,
    block_size: Annotated[int, typer.Option(help="Tokens in a block of the KV cache.")] = DEFAULTS.block_size,
    enable_prefix_caching: Annotated[bool, typer.Option(help="Reuse the KV cache of shared prefixes.")] = True,
    scheduling_policy: Annotated[str, typer.Option(help="fcfs, priority, static or one.")] = DEFAULTS.scheduling_policy,
    max_num_queued_reqs: Annotated[
        int, typer.Option(min=0, max=1 << 20, help="Requests that may wait; more get status 429.")
    ] = SERVER_DEFAULTS.max_waiting,
    chat_template: Annotated[str | None, typer.Option(help="File with a chat template that replaces the model's.")] = None,
    generation_config: Annotated[str, typer.Option(help="auto: sampling defaults of the model's authors; none: Ridgeline's.")] = "auto",
    sse_keep_alive_interval: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Seconds without output after which a stream gets a comment.")
    ] = SERVER_DEFAULTS.sse_keep_alive_interval,
    shutdown_timeout: Annotated[
        float, typer.Option(min=0, max=86400, help="Seconds that accepted requests may continue after SIGTERM.")
    ] = SERVER_DEFAULTS.shutdown_timeout,
    runner: Annotated[str, typer.Option(help="cuda, native, numpy, or auto: the first available one.")] = DEFAULTS.runner,
    dtype: Annotated[str, typer.Option(help="On a GPU: bf16, fp16, f32, fp8 (matrices as e4m3), or auto.")] = DEFAULTS.dtype,
    kv_dtype: Annotated[str, typer.Option(help="KV cache: bf16, f32, int8, on a GPU fp16, fp8, or auto.")] = DEFAULTS.kv_dtype,
    batch_invariant: Annotated[bool, typer.Option(help="On a GPU: answers do not depend on the batch; slower.")] = False,
    attention_backend: Annotated[
        str, typer.Option(help="On a GPU: triton, flash-attention or flashinfer (where installed), or auto: triton.")
    ] = DEFAULTS.attention_backend,
    threads: Annotated[int | None, typer.Option(help="Threads of a step [available CPU cores].")] = None,
    depth: Annotated[int, typer.Option(help="Steps in flight: two overlap scheduling with computing.")] = DEFAULTS.depth,
    speculative: Annotated[
        str, typer.Option(help="Speculative decoding: ngram (drafts from repeated text of the sequence), or off.")
    ] = DEFAULTS.speculative,
    num_speculative_tokens: Annotated[
        int, typer.Option(help="Most drafted ids per sequence and step.")
    ] = DEFAULTS.num_speculative_tokens,
    seed: Annotated[int | None, typer.Option(help="Seed from which requests without a seed draw theirs.")] = None,
    record: Annotated[str | None, typer.Option(help="File for every command, plan and result, token ids included; see `replay`.")] = None,
    expect_sha256: Annotated[
        str | None, typer.Option(help="SHA-256 that the weights must have, or a file as sha256sum writes it.")
    ] = None,
    trace: Annotated[str | None, typer.Option(help="File for a trace of every thread in every step, for Perfetto (native runner).")] = None,
) -> None:
    """Serve a model: a page and an OpenAI-compatible API."""
    given = locals()
    _check_finite(given)
    if generation_config not in ("auto", "none"):
        raise ConfigError(f"--generation-config is {generation_config!r}; auto and none are possible", fix={"--generation-config": "auto"})
    engine = EngineConfig(**{field.name: given[field.name] for field in fields(EngineConfig) if field.name in given})
    server = {field.name: given[field.name] for field in fields(ServerConfig) if field.name in given}
    config = ServerConfig(max_waiting=max_num_queued_reqs, **server)
    _run(engine, config)


def _check_finite(given: dict[str, Any]) -> None:
    """Rejects NaN and infinity, which pass bounds checks and have no JSON. Raises ConfigError."""
    for name, value in given.items():
        if isinstance(value, float) and not isfinite(value):
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{flag} is {value}, which is not a number", fix={flag: None})


def _run(engine: EngineConfig, config: ServerConfig) -> None:
    from ridgeline.server.run import run
    from ridgeline.server.service import Service

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s", stream=sys.stderr)
    began = time.monotonic()
    with LoadingProgress() as loading:

        def ready(model: "Model", url: str) -> None:
            loading.close()
            for note in _startup_notes(model):
                print_status(note)
            for decision in model.engine.decisions:
                value = decision.value if isinstance(decision.value, str) else f"{decision.value:,}"
                print_status(f"{decision.name} {value} ({decision.origin}: {decision.reason})")
            print_status(f"Ridgeline serves {model.name} at {url} (ready after {time.monotonic() - began:.1f} s; Ctrl-C ends it)")

        run(Service(engine, config, loading.show), ready)


TEMPLATE_SOURCES = {
    "model": "the model's own",
    "file": "from --chat-template",
    "built in": "Ridgeline's own (the model has none)",
}


def _startup_notes(model: "Model") -> list[str]:
    """Lines about the chat template, the model's defaults and its kind."""
    chat = "chat: no template; /v1/chat/completions needs --chat-template FILE"
    if model.chat is not None:
        names = (model.tokenizer.piece(token).decode("utf-8", "replace") for token in sorted(model.turn_end_ids))
        ends = " ".join(map(repr, names)) or "no token of their own"
        chat = f"chat template: {TEMPLATE_SOURCES[model.chat.source]}; turns end at {ends}"
    recommended = ", ".join(f"{name} {value}" for name, value in model.defaults.items())
    defaults = [f"defaults of the model: {recommended} (--generation-config none ignores them)"] if recommended else []
    base = [f"base model ({model.kind.reason}): it continues texts and was not trained to chat"] if model.kind.kind == "base" else []
    return [chat, *defaults, *base]
