"""`ridgeline serve`: flags to settings, start-up messages on stderr, the server."""

import logging
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.output import LoadingProgress, print_status
from ridgeline.cli.setting_flags import read_flags, with_setting_flags
from ridgeline.config.sources import Settings
from ridgeline.config.values import flag_of
from ridgeline.errors import ConfigError

if TYPE_CHECKING:
    from ridgeline.server.service import Model


@with_setting_flags()
def serve(
    model: Annotated[str | None, typer.Argument(help="`demo`, a GGUF file, a model directory, or a name of the hub (org/name).")] = None,
    **given: Any,
) -> None:
    """Serve a model: a page and an OpenAI-compatible API."""
    settings = read_flags(given, model)
    try:
        _run(settings)
    except ConfigError as error:
        raise settings.located(error) from None


def _run(settings: Settings) -> None:
    from ridgeline.server.run import run
    from ridgeline.server.service import Service

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s", stream=sys.stderr)
    began = time.monotonic()
    with LoadingProgress() as loading:

        def ready(model: "Model", url: str) -> None:
            loading.close()
            for note in _startup_notes(model):
                print_status(note)
            decisions = settings.with_origins(model.engine.decisions)
            for decision in decisions:
                value = decision.value if isinstance(decision.value, str) else f"{decision.value:,}"
                print_status(f"{decision.name} {value} ({decision.origin}: {decision.reason})")
            decided = {decision.name for decision in decisions}
            for name, value, origin in settings.shown():
                if name not in decided and name != "model" and str(origin) != flag_of(name):
                    print_status(f"{name} {value} ({origin})")
            print_status(f"Ridgeline serves {model.name} at {url} (ready after {time.monotonic() - began:.1f} s; Ctrl-C ends it)")

        run(Service(settings.engine, settings.server, loading.show), ready)


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
