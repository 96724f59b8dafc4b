"""Settings that are one model's where a server has several."""

from typing import Any

import pytest

from ridgeline.config.groups import EngineConfig, ServerConfig
from ridgeline.config.per_model import own_settings
from ridgeline.errors import ConfigError

NAMES = ("a", "a:b", "org/name")


def own(name: str, chat_template: str | None = None, **engine: Any) -> tuple[EngineConfig, ServerConfig]:
    return own_settings(name, NAMES, EngineConfig("unused", **engine), ServerConfig(chat_template=chat_template))


def test_each_model_has_what_is_written_for_it() -> None:
    templates = "org/name=x=1.jinja,a=y.jinja"
    assert [own(name, templates)[1].chat_template for name in NAMES] == ["y.jinja", None, "x=1.jinja"]
    adapters = ("a:law=/x", "a:b:law=/y", "org/name:tax=org/adapter", "a:c:odd=/z", "a:/folder")
    assert [own(name, lora=adapters)[0].lora for name in NAMES] == [
        ("law=/x", "c:odd=/z", "/folder"), ("law=/y",), ("tax=org/adapter",),
    ]  # fmt: skip
    assert own("a") == (EngineConfig("unused"), ServerConfig())
    assert [own(name, lora=("a:law=/x",))[0].adapter_slots for name in NAMES] == [8, 0, 0]


@pytest.mark.parametrize(
    ("given", "problem", "flag"),
    [
        ({"chat_template": "x.jinja"}, "names no model; where there are several, write NAME=VALUE", "--chat-template"),
        ({"chat_template": "a=x.jinja,c=y.jinja"}, "'c=y.jinja' names no model", "--chat-template"),
        ({"chat_template": "a=x.jinja,a=y.jinja"}, "two values for 'a'", "--chat-template"),
        ({"chat_template": "a="}, "names no model", "--chat-template"),
        ({"expect_sha256": "0" * 64}, "'a', 'a:b', 'org/name'", "--expect-sha256"),
        ({"lora": ("law=/x",)}, "write MODEL:NAME=PATH", "--lora"),
    ],
)
def test_what_names_no_model_is_an_error(given: Any, problem: str, flag: str) -> None:
    with pytest.raises(ConfigError, match="(?s)" + problem) as raised:
        own("a", **given)
    assert raised.value.fix == {flag: None}
