"""Settings of an engine as arguments of `LLM`: Ridgeline's, and vLLM's where they mean the same or nothing. Reads no environment."""

import logging
import os
from collections.abc import Mapping
from typing import Any, Final

from ridgeline.config.foreign import ARGUMENTS
from ridgeline.config.groups import EngineConfig, ServerConfig, public_fields
from ridgeline.config.values import read_value, unknown_name
from ridgeline.errors import ConfigError

log = logging.getLogger("ridgeline.engine")

RUNNERS: Final = ("generate", "pooling")
"""Values of vLLM's `runner`: here a model that generates makes vectors too."""


def read_arguments(model: str | os.PathLike[str], given: Mapping[str, Any]) -> EngineConfig:
    """The settings. Raises ConfigError for an argument that is none, with the nearest one, and for a value of the wrong type or range."""
    known = {**public_fields(EngineConfig), **{each.name: each for each in public_fields(EngineConfig).values()}}
    values: dict[str, Any] = {}
    for name, value in {"model": model, **given}.items():
        written, other = name, ARGUMENTS.get(name)
        if name in known and (value is None or (name == "runner" and value in RUNNERS)) and name != "model":
            continue
        if name not in known:
            if name in public_fields(ServerConfig):
                if value is None:
                    continue
                raise ConfigError(
                    f"LLM argument {name!r} is not a setting of LLM, which serves nobody, but of `ridgeline serve`; leave it out"
                )
            if other is None or (other.ours and other.ours not in known):
                raise unknown_name(name, public_fields(EngineConfig), "LLM argument")
            found = "" if value is None else other.translate(str(value).lower() if isinstance(value, bool) else str(value), name)
            if isinstance(found, str):
                if found:
                    log.warning("LLM: %s", found)
                continue
            name, value = found
        value = read_value(known[name], value, written)
        if values.setdefault(known[name].name, value) != value:
            raise ConfigError(f"{written} {value!r:.60} and {name} {values[known[name].name]!r:.60} are the same setting; give one")
    return EngineConfig(**{name: value for name, value in values.items() if value is not None or name == "model"})
