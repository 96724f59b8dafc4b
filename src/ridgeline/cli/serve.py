"""`ridgeline serve`: flags to settings, start-up messages on stderr, the server."""

import logging
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline import __version__
from ridgeline.cli.output import LoadingProgress, print_status
from ridgeline.cli.setting_flags import located, read_flags, with_setting_flags
from ridgeline.config.groups import EngineConfig, ServerConfig, public_fields
from ridgeline.config.sources import Settings
from ridgeline.config.values import flag_of
from ridgeline.errors import RidgelineError

if TYPE_CHECKING:
    from ridgeline.server.loading import Model

log = logging.getLogger("ridgeline.serve")


@with_setting_flags()
def serve(
    model: Annotated[str | None, typer.Argument(help="`demo`, a GGUF file, a model directory, or a name of the hub (org/name).")] = None,
    **given: Any,
) -> None:
    """Serve a model: a page and an OpenAI-compatible API."""
    settings = read_flags(given, model)
    with located(settings):
        _run(settings)


def _run(settings: Settings) -> None:
    from ridgeline.cli.fit import check_fit
    from ridgeline.observe.logs import logging_to, with_fields
    from ridgeline.server.run import run
    from ridgeline.server.service import Service

    began, config = time.monotonic(), settings.server
    has_reader = sys.stderr.isatty() and config.log_format == "text"

    def report(line: str, event: str = "", level: int = logging.INFO, **fields: object) -> None:
        """On a terminal a line for people, else one of the log."""
        if not has_reader or level < logging.INFO:
            log.log(level, event or line, extra=with_fields(**fields))
        else:
            print_status(line)

    with logging_to(level=config.log_level, form=config.log_format), LoadingProgress(None if has_reader else report) as loading:
        log.info("starting", extra=with_fields(version=__version__, model=settings.engine.model, pid=os.getpid()))
        for note in settings.notes:
            report(f"note: {note}", level=logging.WARNING)

        def ready(model: "Model", url: str) -> None:
            loading.close()
            for note in _startup_notes(model):
                report(note)
            _report_settings(settings, model, report)
            seconds = time.monotonic() - began
            line = f"Ridgeline serves {model.name} at {url} (ready after {seconds:.1f} s; Ctrl-C ends it)"
            report(line, model=model.name, url=url, start_seconds=seconds)

        try:
            run(Service(settings.engine, config, loading.show), ready, check_fit)
        except RidgelineError as error:
            if not has_reader:
                log.error("ended", extra=with_fields(reason=str(error)))
            raise


def _report_settings(settings: Settings, model: "Model", report: Callable[..., None]) -> None:
    """Reports what was decided and why, and which settings come from the environment or a file; what is no setting at level debug."""
    names = public_fields(EngineConfig, ServerConfig)
    decisions = settings.with_origins(model.engine.decisions)
    for each in decisions:
        value = each.value if isinstance(each.value, str) else f"{each.value:,}"
        report(
            f"{each.name} {value} ({each.origin}: {each.reason})", "setting", logging.INFO if each.name in names else logging.DEBUG,
            name=each.name, value=each.value, origin=each.origin, reason=each.reason,
        )  # fmt: skip
    decided = {each.name for each in decisions}
    for name, value, origin in settings.shown():
        if name not in decided and name != "model" and str(origin) != flag_of(name):
            report(f"{name} {value} ({origin})", "setting", name=name, value=value, origin=str(origin))


TEMPLATE_SOURCES = {
    "model": "the model's own",
    "file": "from --chat-template",
    "built in": "Ridgeline's own (the model has none)",
}


def _startup_notes(model: "Model") -> list[str]:
    """Lines about the chat template, the model's defaults and its kind."""
    chat = "chat: no template; /v1/chat/completions needs --chat-template FILE"
    if model.chat is not None and not model.chat.is_usable:
        chat = f"chat: not possible, {model.chat.findings[0].cause}; give another template with --chat-template FILE"
    elif model.chat is not None:
        names = (model.tokenizer.piece(token).decode("utf-8", "replace") for token in sorted(model.turn_end_ids))
        ends = " ".join(map(repr, names)) or "no token of their own"
        chat = f"chat template: {TEMPLATE_SOURCES[model.chat.source]}; turns end at {ends}"
    recommended = ", ".join(f"{name} {value}" for name, value in model.defaults.items())
    defaults = [f"defaults of the model: {recommended} (--generation-config none ignores them)"] if recommended else []
    base = [f"base model ({model.kind.reason}): it continues texts and was not trained to chat"] if model.kind.kind == "base" else []
    return [chat, *defaults, *base]
