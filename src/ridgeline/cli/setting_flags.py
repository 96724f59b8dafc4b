"""Flags of settings, made of the fields of `config.groups`: for `serve` and `config explain` all, and hidden ones that other servers have;
for verbs with an engine in this process the engine's.

A flag is text until `config.sources` reads it, as variables and files are, so that a mistake reads the same wherever it stands.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import Field, replace
from typing import Annotated, Any, Final, TypeVar

import typer

from ridgeline.config.env import setting_variables
from ridgeline.config.foreign import FOREIGN, SWITCH, Foreign
from ridgeline.config.groups import EngineConfig, public_fields
from ridgeline.config.setting import setting_of
from ridgeline.config.sources import GROUPS, Settings, gather, show_value
from ridgeline.config.values import flag_of
from ridgeline.errors import ConfigError

Verb = TypeVar("Verb", bound=Callable[..., Any])

CONFIG: Final = Annotated[
    str | None,
    typer.Option(help="File of settings, YAML or TOML: `max_model_len: 8k`. Flags and RIDGELINE_* variables override it.", metavar="FILE"),
]
OF_TEXTS: Final = ("chat_template", "generation_config")
"""Settings of the front end that answers in this process follow too."""
NOT_HERE: Final = ("model", "seed", "step_timeout")
"""Settings that are no flags of an engine in this process: an argument, what the flags of sampling say, what watches another process."""


def add_flags(verb: Verb, types: Mapping[str, Any]) -> Verb:
    """Replaces the `**` parameter of `verb` by flags of these annotated types, passed as keywords, None where not given."""
    signature = inspect.signature(verb)
    own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    flags = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind) for name, kind in types.items()]
    verb.__signature__ = signature.replace(parameters=[*own, *flags])  # type: ignore[attr-defined]
    verb.__annotations__ = {**{each.name: each.annotation for each in own}, **types}
    return verb


def with_setting_flags(*own_flags: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator that replaces the `**given` parameter of a verb by the flags of all settings, and by `config`; those not given are None.

    own_flags  flags of the verb that mean something else in other servers
    """

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        types: dict[str, Any] = {"config": CONFIG}
        types |= {name: _flag(name, each) for name, each in public_fields(*reversed(GROUPS)).items() if name != "model"}
        types |= {f"other_{number}": _foreign_flag(each) for number, each in enumerate(FOREIGN) if not {*own_flags} & {*each.names}}
        return add_flags(verb, types)

    return decorate


def with_engine_flags(*without: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that replaces the `**` parameter of a verb by `config` and the flags of settings that an engine in this process follows,
    but for those that the verb decides itself (`without`); those not given are None."""

    def decorate(verb: Callable[..., Any]) -> Callable[..., Any]:
        return add_flags(verb, {"config": CONFIG} | {name: _flag(name, each) for name, each in _of_engine().items() if name not in without})

    return decorate


def _of_engine() -> "dict[str, Field[Any]]":
    """Public name → field of the settings that an engine in this process follows and that are flags."""
    known = public_fields(*GROUPS)
    return {name: known[name] for name in (*public_fields(EngineConfig), *OF_TEXTS) if name not in NOT_HERE}


def read_engine_flags(given: Mapping[str, Any], model: str | None, choose_model: Callable[[], str] | None = None) -> Settings:
    """The settings that flags, environment and file give together to an engine in this process. Raises ConfigError.

    given         parameters of a verb that has the flags
    choose_model  asked where no model is named; None: that is an error
    """
    return gather({name: given.get(name) for name in _of_engine()}, setting_variables(), given.get("config"), model, choose_model)


def engine_arguments(settings: Settings) -> dict[str, Any]:
    """The engine's settings that were given, as arguments of `LLM`, with those of its texts."""
    engine = {name: getattr(settings.engine, each.name) for name, each in public_fields(EngineConfig).items() if name in settings.origins}
    del engine["model"]
    return engine | {name: getattr(settings.server, name) for name in OF_TEXTS}


@contextmanager
def located(settings: Settings) -> Iterator[None]:
    """Errors inside name the places of settings that are not on the command line."""
    try:
        yield
    except ConfigError as error:
        raise settings.located(error) from None


def read_flags(given: Mapping[str, Any], model: str | None, more: Mapping[str, str] | None = None) -> Settings:
    """The settings that flags, environment and file give together. Raises ConfigError.

    given  parameters of a verb that has the flags
    more   settings by name that count as flags
    """
    flags = {name: given[name] for name in public_fields(*GROUPS) if given.get(name) not in (None, [])}
    flags |= more or {}
    notes = []
    for number, each in enumerate(FOREIGN):
        value = given.get(f"other_{number}")
        if value is None or value is False:
            continue
        found = each.translate(SWITCH if value is True else value, each.names[-1])
        if isinstance(found, str):
            notes += [found] if found else []
            continue
        name, text = found
        before = model if name == "model" else flags.get(name)
        if before not in (None, text):
            message = f"{each.names[-1]} {text!r:.60} and {before!r:.60} are the same setting, {name}; give one"
            raise ConfigError(message, fix=dict.fromkeys(each.names))
        if name == "model":
            model = text
        else:
            flags[name] = text
    settings = gather(flags, setting_variables(), given.get("config"), model)
    return replace(settings, notes=(*notes, *settings.notes))


UNITS: Final = {
    "tokens": "TOKENS", "bytes": "BYTES", "GiB": "GIB", "seconds": "SECONDS", "FILE": "FILE", "FOLDER": "FOLDER", "PORT": "PORT"
}  # fmt: skip


def _flag(name: str, each: "Field[Any]") -> Any:
    """The type of a setting's flag, with its help."""
    setting, flag, text = setting_of(each), flag_of(name), setting_of(each).help
    if each.default not in (None, (), "auto") and "[" not in text:
        text = f"{text.removesuffix('.')} [{show_value(each.default, setting)}]."
    if each.type is bool:
        return Annotated[bool | None, typer.Option(f"{flag}/--no-{flag[2:]}", help=text, show_default=False)]
    is_number = each.type is float or "int" in str(each.type)
    words = (*setting.choices, "URL") if setting.choices and setting.unit == "URL" else setting.choices
    metavar = "|".join(words) or UNITS.get(setting.unit) or ("NUMBER" if is_number else "TEXT")
    kind = list[str] if each.default == () else str
    return Annotated[kind | None, typer.Option(flag, help=text, metavar=metavar, show_default=False)]


def _foreign_flag(each: Foreign) -> Any:
    return Annotated[bool if each.switch else str | None, typer.Option(*each.names, hidden=True)]
