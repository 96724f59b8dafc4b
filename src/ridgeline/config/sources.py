"""One resolver of where settings come from: command line, then environment, then file, then default. Says which won and what it overrode.

Never prints a value of a secret. Reads no environment itself (`config.env` does).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from ridgeline.config.file import check_private, read_settings
from ridgeline.config.groups import EngineConfig, Group, ServerConfig, public_fields, public_name
from ridgeline.config.resolve import Decision
from ridgeline.config.setting import Setting, setting_of
from ridgeline.config.values import flag_of, read_value, unknown_name
from ridgeline.errors import ConfigError, nearest

PREFIX: Final = "RIDGELINE_"
OTHER_VARIABLES: Final = ("RIDGELINE_CONFIG", "RIDGELINE_ISA", "RIDGELINE_NO_EXT")
"""Variables that are no settings."""
SERVICE_LINKS: Final = ("_SERVICE_HOST", "_SERVICE_PORT", "_TCP", "_TCP_ADDR", "_TCP_PORT", "_TCP_PROTO")
"""Ends of the variables by which Kubernetes tells pods of a service that is called `ridgeline`."""
GROUPS: Final[tuple[Group, ...]] = (EngineConfig, ServerConfig)


@dataclass(frozen=True, slots=True)
class Origin:
    """The place where the value of a setting stands.

    kind   `flag`, `environment` or `file`
    place  the flag, the variable, or file and key
    over   places of values that it overrides
    """

    kind: str
    place: str
    over: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = self.place if self.kind == "flag" else f"{self.kind}: {self.place}"
        return text + (f", over {' and '.join(self.over)}" if self.over else "")


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings as they were given, with an origin for each that is not a default, by public name. notes: what should be looked at."""

    engine: EngineConfig
    server: ServerConfig
    origins: Mapping[str, Origin]
    notes: tuple[str, ...] = ()

    def with_origins(self, decisions: Iterable[Decision]) -> tuple[Decision, ...]:
        """The decisions with origins in place of `flag`: the engine cannot know where a value was given."""
        return tuple(self._with_origin(each) for each in decisions)

    def _with_origin(self, decision: Decision) -> Decision:
        origin = self.origins.get(decision.name)
        if decision.origin != "flag" or origin is None or str(origin) == flag_of(decision.name):
            return decision
        reason = decision.reason.replace(flag_of(decision.name), str(origin.place), 1)
        over = f", over {' and '.join(origin.over)}" if origin.over else ""
        return replace(decision, origin=origin.kind, reason=reason + over)

    def located(self, error: ConfigError) -> ConfigError:
        """The error, with the place of each setting that its fix names and that is not on the command line, which then cannot mend it."""
        fix, places = dict(error.fix), []
        for flag in error.fix:
            origin = self.origins.get(flag.removeprefix("--").replace("-", "_"))
            if origin is not None and origin.kind != "flag":
                places.append(f"{flag} is set by {origin.place}")
                if fix[flag] is None:
                    del fix[flag]
        return ConfigError(f"{error} ({', '.join(places)})", fix=fix) if places else error

    def shown(self) -> Iterator[tuple[str, str, Origin]]:
        """(name, value as text, origin) of each setting that was given; `set` for a secret."""
        values = {public_name(each): (each, getattr(group, each.name)) for group in (self.engine, self.server) for each in fields(group)}
        for name, origin in self.origins.items():
            each, value = values[name]
            yield name, show_value(value, setting_of(each)), origin


def show_value(value: object, setting: Setting) -> str:
    """A value of a setting for people: 4,096, true, a b, – for an open one, `set` for a secret."""
    if value is None or value == ():
        return "–"
    if setting.secret:
        return "set"
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    if isinstance(value, bool):
        return str(value).lower()
    if type(value) is int and setting.unit in ("tokens", "bytes"):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def gather(
    flags: Mapping[str, Any], variables: Mapping[str, str], config: str | None = None, model: str | None = None,
    choose_model: Callable[[], str] | None = None,
) -> Settings:  # fmt: skip
    """The settings of engine and server.

    flags         public name → value of the command line, None where it was not given
    variables     the environment's variables that begin with RIDGELINE_
    config        path of a file with settings; None: that of RIDGELINE_CONFIG
    model         of the command line
    choose_model  asked where no model is named; None: that is an error
    Raises ConfigError where a name is unknown, a value cannot be right, or a file with a secret can be read by others.
    """
    known = public_fields(*GROUPS)
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    notes: list[str] = []

    def put(name: str, value: Any, kind: str, place: str) -> None:
        before = origins.get(name)
        values[name] = read_value(known[name], value, place)
        origins[name] = Origin(kind, place, () if before is None else (before.place, *before.over))

    config = config or variables.get("RIDGELINE_CONFIG")
    for written, value in _of_file(config, known).items():
        put(_name(written), value, "file", f"{config}: {written}")
    for name, variable in _of_environment(variables, known, notes).items():
        put(name, variables[variable], "environment", variable)
    for name, value in {**flags, "model": model}.items():
        if value is not None:
            put(name, value, "flag", "MODEL" if name == "model" else flag_of(name))
    if "model" not in values and choose_model is not None:
        put("model", choose_model(), "flag", "MODEL")
    if "model" not in values:
        message = "no model is given: name one, for instance `demo`, on the command line, in RIDGELINE_MODEL or in a file of --config"
        raise ConfigError(message, fix={"MODEL": "demo"})
    if origins.get("api_key", Origin("", "")).kind == "flag":
        notes.append("--api-key can be seen by every user of this machine (ps); RIDGELINE_API_KEY and --api-key-file cannot")
    if "*" in values.get("allowed_origins", ()) and not {"api_key", "api_key_file"} & values.keys():
        notes.append("--allowed-origins * without an API key lets every site that a user of this machine visits use the server")
    engine, server = (
        {each.name: values[name] for name, each in public_fields(group).items() if name in values and values[name] is not None}
        for group in GROUPS
    )
    return Settings(EngineConfig(**engine), ServerConfig(**server), origins, tuple(notes))


def _of_file(path: str | None, known: Mapping[str, Any]) -> dict[str, Any]:
    """Name, as it is written, → value, of the file's settings that are not left open."""
    if path is None:
        return {}
    found = {name: value for name, value in read_settings(path).items() if value is not None}
    seen: dict[str, str] = {}
    for written in found:
        name = _name(written)
        if name not in known:
            raise unknown_name(written, known, f"--config {path!r:.200}:")
        if seen.setdefault(name, written) != written:
            raise ConfigError(f"--config {path!r:.200} has {seen[name]} and {written}, which are the same setting; remove one")
    if any(setting_of(known[_name(written)]).secret for written in found):
        check_private(path, "--config")
    return found


def _of_environment(variables: Mapping[str, str], known: Mapping[str, Any], notes: list[str]) -> dict[str, str]:
    """Setting → variable. Unknown variables are noted: others than this program may have set them."""
    names = {f"{PREFIX}{name.upper()}": name for name in known}
    found = {}
    for variable, value in sorted(variables.items()):
        if variable in names and value != "" and not (variable == "RIDGELINE_PORT" and value.startswith(("tcp://", "udp://"))):
            found[names[variable]] = variable
        elif variable in names and value != "":
            notes.append(f"{variable}={value[:60]} is Kubernetes' and is not used; `enableServiceLinks: false` in the pod ends it")
        elif variable not in names and variable not in OTHER_VARIABLES and not variable.endswith(SERVICE_LINKS):
            near = nearest(variable, names)
            hint = f"; did you mean {near}?" if near else ""
            notes.append(f"the environment variable {variable[:80]} is no setting and is not used{hint}")
    return found


def _name(written: str) -> str:
    """The public name of a setting that a file may write with dashes, as its flag."""
    return written.removeprefix("--").replace("-", "_")
