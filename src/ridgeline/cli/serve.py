"""`ridgeline serve`: flags to settings, start-up messages on stderr, the server."""

import gc
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ridgeline import __version__
from ridgeline.cli.output import LoadingProgress, print_status
from ridgeline.cli.setting_flags import located, read_flags, with_setting_flags
from ridgeline.config.groups import EngineConfig, ServerConfig, public_fields
from ridgeline.config.per_model import own_settings
from ridgeline.config.sources import Settings
from ridgeline.config.values import flag_of
from ridgeline.errors import ConfigError, RidgelineError

if TYPE_CHECKING:
    from ridgeline.server.loading import Model

log = logging.getLogger("ridgeline.serve")
MAX_MODELS: Final = 32


@with_setting_flags()
def serve(
    model: Annotated[str | None, typer.Argument(help="`demo`, a GGUF file, a model directory, or a name of the hub (org/name).")] = None,
    others: Annotated[
        list[str] | None, typer.Argument(metavar="[MODEL]...", help="Further models, by whose names requests choose; NAME=MODEL names one.")
    ] = None,
    **given: Any,
) -> None:
    """Serve models: a page and an OpenAI-compatible API."""
    gc.disable()  # until `server.run` freezes what is loaded: modules and vocabularies would be walked over again and again
    settings = read_flags(given, model)
    with located(settings):
        from ridgeline.engine.spawned import started_ahead  # loads while the server is imported

        is_alone = not others and settings.server.keep_alive is None
        with started_ahead(settings.engine) if is_alone else nullcontext():
            _run(settings, named_models(settings, others or ()))


def _run(settings: Settings, models: "dict[str, str]") -> None:
    from ridgeline.cli.fit import check_fit, planned_bytes
    from ridgeline.observe.logs import logging_to, with_fields
    from ridgeline.server.run import run
    from ridgeline.server.service import Service
    from ridgeline.server.several.roster import make_roster

    began, config = time.monotonic(), settings.server
    has_reader = sys.stderr.isatty() and config.log_format == "text"

    def report(line: str, event: str = "", level: int = logging.INFO, **fields: object) -> None:
        """Prints a line on a terminal, else writes one to the log."""
        if not has_reader or level < logging.INFO:
            log.log(level, event or line, extra=with_fields(**fields))
        else:
            print_status(line)

    with logging_to(level=config.log_level, form=config.log_format), LoadingProgress(None if has_reader else report) as loading:
        log.info("starting", extra=with_fields(version=__version__, model=", ".join(models.values()), pid=os.getpid()))
        for note in settings.notes:
            report(f"note: {note}", level=logging.WARNING)

        def ready(loaded: "list[Model]", url: str) -> None:
            loading.close()
            for model in loaded:
                for note in _startup_notes(model):
                    report(note if len(models) == 1 else f"{model.name}: {note}")
            _report_settings(settings, loaded[0], report)
            seconds, names = time.monotonic() - began, ", ".join(models)
            later = ", ".join(name for name in models if name not in {model.name for model in loaded})
            waits = f"; {later} when asked for" if later else ""
            line = f"Ridgeline serves {names} at {url} (ready after {seconds:.1f} s{waits}; Ctrl-C ends it)"
            report(line, model=names, url=url, start_seconds=seconds)

        try:
            if len(models) == 1 and config.keep_alive is None:
                ((name, model),) = models.items()
                one = Service(replace(settings.engine, model=model), replace(config, served_model_name=name), loading.show)
                run(one, ready, check_fit)
            else:
                run(make_roster(models, settings.engine, config, planned_bytes, loading.show), ready, check_fit)
        except RidgelineError as error:
            if not has_reader:
                log.error("ended", extra=with_fields(reason=str(error)))
            raise


MODEL_NAME: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._/:-]{0,127})=(.+)", re.DOTALL)


def named_models(settings: Settings, others: Sequence[str]) -> "dict[str, str]":
    """Name for clients → model, of the first one, which the settings have, and of the others. Raises ConfigError for a name that two have,
    and for settings of models that none of them is."""
    from ridgeline.server.loading import served_name

    engine, server = settings.engine, settings.server
    if others and server.served_model_name is not None:
        flag = "--served-model-name"
        raise ConfigError(f"{flag} is of one model, and there are {1 + len(others)}; name each as NAME=MODEL", fix={flag: None})
    found: dict[str, str] = {}
    for model in (engine.model, *others):
        named = None if os.path.exists(model) else MODEL_NAME.fullmatch(model)
        name, model = (named[1], named[2]) if named else (served_name(model, server), model)
        if name in found:
            raise ConfigError(f"two models are called {name!r}; give one another name, as other={model[:100]}")
        found[name] = model
    if len(found) > MAX_MODELS:
        raise ConfigError(f"{len(found)} models are given; a server has {MAX_MODELS} at most")
    if others:
        own_settings(next(iter(found)), found, engine, server)
    return found


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
