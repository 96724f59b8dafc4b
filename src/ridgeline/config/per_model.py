"""Settings that are one model's where a server has several: written for a model behind its name, as its own address of them is.

--chat-template a=FILE,b=FILE      --expect-sha256 a=DIGEST      --lora a:law=PATH --lora b:law=PATH
"""

from collections.abc import Collection
from dataclasses import replace

from ridgeline.config.groups import EngineConfig, ServerConfig
from ridgeline.errors import ConfigError


def own_settings(name: str, names: Collection[str], engine: EngineConfig, server: ServerConfig) -> tuple[EngineConfig, ServerConfig]:
    """The settings of the model `name`, of several by these names. Raises ConfigError for a value that names none of them, or one twice."""
    templates = _by_model("--chat-template", server.chat_template, names)
    digests = _by_model("--expect-sha256", engine.expect_sha256, names)
    adapters = tuple(own for model, own in (_adapter(each, names) for each in engine.lora) if model == name)
    own = replace(engine, expect_sha256=digests.get(name), lora=adapters)
    return own, replace(server, chat_template=templates.get(name))


def _by_model(flag: str, value: str | None, names: Collection[str]) -> dict[str, str]:
    """Model → its value, of NAME=VALUE with commas between."""
    found: dict[str, str] = {}
    for part in () if value is None else value.split(","):
        name, equals, own = part.partition("=")
        if not equals or not own or name not in names:
            known = ", ".join(map(repr, names))
            raise ConfigError(
                f"{flag} {part!r:.200} names no model; where there are several, write NAME=VALUE with commas between, of {known}",
                fix={flag: None},
            )
        if name in found:
            raise ConfigError(f"{flag} has two values for {name!r}; leave one out", fix={flag: None})
        found[name] = own
    return found


def _adapter(value: str, names: Collection[str]) -> tuple[str, str]:
    """(model, adapter as NAME=PATH) of MODEL:NAME=PATH. A model's name may have colons itself."""
    model = max((name for name in names if value.startswith(f"{name}:")), key=len, default=None)
    if model is None:
        known = ", ".join(map(repr, names))
        raise ConfigError(
            f"--lora {value!r:.200} names no model; where there are several, write MODEL:NAME=PATH, of {known}", fix={"--lora": None}
        )
    return model, value.removeprefix(f"{model}:")
