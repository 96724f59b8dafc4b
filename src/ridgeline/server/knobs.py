"""Settings that change while the server runs: which, within which bounds, and who has to hear of it.

A knob has the name, the type and the bounds of its setting. Those of the engine go to it as commands (`core.commands.SetKnob`), and again
to every engine that follows.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from ridgeline.config.groups import EngineConfig, ServerConfig, public_fields
from ridgeline.config.values import read_value, unknown_name
from ridgeline.core.commands import Knob
from ridgeline.errors import ConfigError
from ridgeline.observe.logs import set_level
from ridgeline.server.service import Service

Value = str | int | float | None
_FIELDS: Final = public_fields(EngineConfig, ServerConfig)


def _queue(service: Service, value: Any) -> None:
    service.waiting_room.max_waiting = value


def _tell_engine(service: Service, name: Knob, value: int) -> None:
    """A brown-out takes its part of the new value."""
    service.deployment.set_knob(name, value)
    if service.brown_out is not None:
        service.brown_out.forget()


def _step(service: Service, value: Any) -> None:
    service.late_steps.step_ms = value
    _tell_engine(service, "step_ms", value)


def _drafts(service: Service, value: Any) -> None:
    _tell_engine(service, "num_speculative_tokens", value)


def _brown_out(service: Service, value: Any) -> None:
    service.set_brown_out(value)


def _level(service: Service, value: Any) -> None:
    set_level(value)


def _nobody(service: Service, value: Any) -> None:
    """Tells nobody: the knob is read from the service's settings whenever it is needed."""


KNOBS: Final[Mapping[str, Callable[[Service, Any], None]]] = {
    "step_ms": _step,
    "num_speculative_tokens": _drafts,
    "max_num_queued_reqs": _queue,
    "log_level": _level,
    "shutdown_timeout": _nobody,
    "sse_keep_alive_interval": _nobody,
    "reasoning_budget": _nobody,
    "brown_out": _brown_out,
    "ttft_target": _nobody,
}
"""Public name → who hears of a new value."""


def knob_values(service: Service) -> dict[str, Value]:
    """The knobs that this server has, with their values."""
    deployment, found = service.deployment, dict[str, Value]()
    for name in KNOBS:
        field = _FIELDS[name].name
        found[name] = getattr(service.config, field) if hasattr(service.config, field) else getattr(deployment.engine_config, field)
    if deployment.engine_config.speculative == "off":
        del found["num_speculative_tokens"]
    return found | deployment.knobs


def set_knob(service: Service, name: str, value: object) -> tuple[Value, Value]:
    """Changes a knob, and returns its values before and behind. Raises ConfigError for a name that is no knob, and for a value that is not
    the setting's. Drafts (num_speculative_tokens) are at most those of the start, for which the engine has room; 0 drafts nothing."""
    values = knob_values(service)
    if name not in values:
        if name == "num_speculative_tokens":
            raise ConfigError(f"{name}: this server was started without drafts; start it with --speculative ngram")
        raise unknown_name(name, values, "the knob")
    each, drafts = _FIELDS[name], service.deployment.engine_config.num_speculative_tokens
    is_off = name == "num_speculative_tokens" and value in (0, "0")
    new: Value = 0 if is_off else read_value(each, value, name)
    if name == "num_speculative_tokens" and isinstance(new, int) and new > drafts:
        raise ConfigError(f"{name} is {new}, and this server was started with {drafts}: the engine has room for no more")
    if hasattr(service.config, each.name):
        changed: dict[str, Any] = {each.name: new}
        service.config = replace(service.config, **changed)
    KNOBS[name](service, new)
    return values[name], new
