"""The application in this process, over a fake engine in a real child process. One for the whole session."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from app_client import AppLoop

import ridgeline
from ridgeline.config.groups import EngineConfig, ServerConfig
from ridgeline.server.app import build_app
from ridgeline.server.service import Service

TEMPLATE = """{%- for message in messages -%}
<{{ message.role }}>{{ message.content }}{% for call in message.tool_calls or [] %}[{{ call.function.name }}]{% endfor %}</>
{% endfor -%}
{%- if tools %}{{ tools | tojson }}{% endif -%}
{%- if documents %}{{ documents | tojson }}{% endif -%}
{%- if mood is defined %}({{ mood }}){% endif -%}
{%- if add_generation_prompt %}<assistant>{% endif %}"""
"""A chat template for fake models."""

SOURCE = str(Path(ridgeline.__file__).resolve().parents[1])


class Site(AppLoop):
    """Requests to the application of one fake model."""

    def __init__(self, engine: EngineConfig, config: ServerConfig) -> None:
        super().__init__()
        self.service = Service(engine, config)
        self.connect(build_app(self.service))

    def complete(self, **body: Any) -> httpx.Response:
        return self.request("POST", "/v1/completions", json=body)

    def chat(self, content: Any = "hi", **body: Any) -> httpx.Response:
        return self.request("POST", "/v1/chat/completions", json={"messages": [{"role": "user", "content": content}], **body})

    def events(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """The events of a stream, after checking its grammar byte by byte and what its events have in common."""
        answer = self.request("POST", path, json={**body, "stream": True})
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/event-stream")
        *lines, done, nothing = answer.text.split("\n\n")
        assert (done, nothing) == ("data: [DONE]", "")
        assert all(line.startswith("data: {") and "\n" not in line for line in lines)
        found = [json.loads(line[6:]) for line in lines]
        assert len({(event["id"], event["object"], event["created"], event["model"], event["system_fingerprint"]) for event in found}) == 1
        return found

    def close(self) -> None:
        self.end(self.service.stop())


@pytest.fixture(scope="session")
def _child_finds_the_source() -> None:
    """The engine is a child process and has to import the same tree."""
    os.environ["PYTHONPATH"] = SOURCE


@pytest.fixture(scope="session")
def site(_child_finds_the_source: None) -> Iterator[Site]:
    site = Site(EngineConfig('fake:{"windows": [0, 32], "vocab": 258}'), ServerConfig())
    site.wait(site.service.start())
    yield site
    site.close()


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("template") / "template.jinja"
    file.write_text(TEMPLATE)
    return str(file)


@pytest.fixture(scope="session")
def chat_site(_child_finds_the_source: None, template: str) -> Iterator[Site]:
    """A fake model that chats, in a context of 512 tokens."""
    site = Site(EngineConfig('fake:{"windows": [0, 32], "vocab": 258, "max_model_len": 512}'), ServerConfig(chat_template=template))
    site.wait(site.service.start())
    yield site
    site.close()


@pytest.fixture(scope="session")
def form_site(_child_finds_the_source: None, template: str) -> Iterator[Site]:
    """A fake model that chats and follows grammars."""
    site = Site(
        EngineConfig('fake:{"vocab": 258, "max_model_len": 2048, "script": [["Novel", "x"]]}'), ServerConfig(chat_template=template)
    )
    site.wait(site.service.start())
    yield site
    site.close()


@pytest.fixture
def new_site(_child_finds_the_source: None) -> Iterator[Any]:
    """Makes further sites, and closes them."""
    sites: list[Site] = []

    def make(engine: EngineConfig, config: ServerConfig | None = None, start: bool = True) -> Site:
        sites.append(Site(engine, config or ServerConfig()))
        if start:
            sites[-1].wait(sites[-1].service.start())
        return sites[-1]

    yield make
    for each in sites:
        each.close()
