"""A site of a fake model that answers `/v1/responses`, and the official client of two keys."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from gold import TEMPLATES
from ridgeline.config.groups import EngineConfig, ServerConfig

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>'
PATCH = '<tool_call>\n{"name": "apply_patch", "arguments": {"input": "*** Begin Patch\\n\\"x\\""}}\n</tool_call>'
SCRIPT = [
    ["Weather in Bern?", f"<think>\nHm, <b>.\n</think>\n\nLet me see.\n{CALL}"],
    ["Weather there and here?", f"{CALL}\n{CALL}"],
    ["Sunny, 21 °C", "It is sunny in Bern."],
    ["My name is Ada.", "Hello, Ada."],
    ["Who am I?", "You are Ada."],
    ["Patch it.", PATCH],
    ["List them.", '<tool_call>\n{"name": "mcp__files__list", "arguments": {}}\n</tool_call>'],
    ["As JSON.", '{"city": "Bern", "days": 3}'],
    ["Say nothing.", ""],
    ["Think.", "<think>\nfor ever"],
]
TOOL: Any = {
    "type": "function", "name": "weather", "description": "Weather of a city", "strict": True,
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False},
}  # fmt: skip
KEY = "some key"


class Client:
    """The official client over an application whose loop runs in a thread."""

    def __init__(self, site: Any, key: str = KEY) -> None:
        self.site = site
        http = httpx.AsyncClient(transport=httpx.ASGITransport(site.app, raise_app_exceptions=False))
        self.openai = AsyncOpenAI(base_url="http://127.0.0.1:8000/v1", api_key=key, max_retries=0, http_client=http)
        self.key = key

    def do(self, work: Any) -> Any:
        async def run() -> Any:
            return await work

        return self.site.wait(run())

    def create(self, given: Any, /, **more: Any) -> Any:
        return self.do(self.openai.responses.create(model="fake", input=given, **more))

    def events(self, given: Any, /, **more: Any) -> list[Any]:
        async def all_of() -> list[Any]:
            return [each async for each in await self.openai.responses.create(model="fake", input=given, stream=True, **more)]

        return self.do(all_of())

    def raw(self, method: str, path: str, **more: Any) -> httpx.Response:
        return self.site.request(method, path, headers={"authorization": f"Bearer {self.key}"}, **more)


def fake(**more: Any) -> EngineConfig:
    return EngineConfig("fake:" + json.dumps({"windows": [0, 32], "vocab": 258, "script": SCRIPT, **more}))


@pytest.fixture(scope="module", name="keys")
def responses_keys(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("keys") / "keys"
    file.write_text(f"{KEY.replace(' ', '-')}\nother\n")
    file.chmod(0o600)
    return str(file)


@pytest.fixture(scope="module", name="client")
def responses_client(chat_site: Any, keys: str) -> Iterator[Client]:
    template = str(TEMPLATES / "Qwen-Qwen3-0.6B.jinja")
    site = type(chat_site)(fake(), ServerConfig(chat_template=template, api_key_file=keys))
    site.wait(site.service.start())
    client = Client(site, KEY.replace(" ", "-"))
    yield client
    client.do(client.openai.close())
    site.close()


@pytest.fixture(name="other")
def other_client(client: Client) -> Iterator[Client]:
    other = Client(client.site, "other")
    yield other
    other.do(other.openai.close())
