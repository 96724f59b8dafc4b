"""Tool calls and reasoning through the official client: answers that are scripted by a grammar, and calls that one forces."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from chat_llama import write_chat_llama
from openai import AsyncOpenAI, BadRequestError

from gold import TEMPLATES
from ridgeline.config.groups import EngineConfig, ServerConfig

USER = {"role": "user", "content": "Weather in Bern?"}
CITY = {"type": "string", "enum": ["Bern", "Zürich"]}


def tool(name: str, strict: bool = False, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "parameters": parameters, "strict": strict}}


UNFOLLOWED = {"type": "string", "no_such_keyword_of_schemas": 1, "not": {}}
"""A schema that has a keyword of JSON Schema that no grammar follows."""


TOOLS = [tool("weather", city=CITY, days={"type": "integer", "minimum": 1, "maximum": 9}), tool("clock", city=CITY)]
ARGUMENTS = ('{"city": "Zürich", "days":2}', '{"city":"Bern"}')
CALLS = (
    f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS[0]}}}\n</tool_call>\n'
    f'<tool_call>\n{{"name": "clock", "arguments": {ARGUMENTS[1]}}}\n</tool_call>'
)
SAID = f"<think>\nHm, <b>.\n</think>\n\nLet me see.\n{CALLS}"


@pytest.fixture(scope="module")
def client(chat_site: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A random model behind Qwen's template; `ask` calls the official client."""
    template = TEMPLATES / "Qwen-Qwen3-0.6B.jinja"
    model = write_chat_llama(tmp_path_factory.mktemp("random"))
    site = type(chat_site)(EngineConfig(str(model), max_model_len=2048), ServerConfig(chat_template=str(template)))
    site.wait(site.service.start())
    transport = httpx.ASGITransport(site.app, raise_app_exceptions=False)
    http = httpx.AsyncClient(transport=transport)
    openai = AsyncOpenAI(base_url="http://127.0.0.1:8000/v1", api_key="x", max_retries=0, http_client=http)
    name = site.service.model.name

    def ask(script: str | None = None, **more: Any) -> Any:
        body = {"structured_outputs": {"choice": [script]}} if script else {}
        return site.wait(openai.chat.completions.create(model=name, messages=[USER], max_tokens=400, extra_body=body, **more))

    async def streamed(script: str | None, more: dict[str, Any]) -> list[Any]:
        body = {"structured_outputs": {"choice": [script]}} if script else {}
        chunks = await openai.chat.completions.create(
            model=name, messages=[USER], max_tokens=400, stream=True, stream_options={"include_usage": True}, extra_body=body, **more
        )
        return [each async for each in chunks]

    ask.streamed = lambda script=None, **more: site.wait(streamed(script, more))
    yield ask
    site.wait(openai.close())
    site.close()


def test_calls_and_reasoning_of_a_whole_answer(client: Any) -> None:
    answer = client(SAID, tools=TOOLS)
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls" and choice.message.content == "Let me see."
    assert choice.message.reasoning_content.strip() == choice.message.reasoning.strip() == "Hm, <b>."
    assert [(call.function.name, call.function.arguments) for call in choice.message.tool_calls] == [
        ("weather", ARGUMENTS[0]), ("clock", ARGUMENTS[1])
    ]  # fmt: skip
    assert len({call.id for call in choice.message.tool_calls}) == 2
    assert 0 < answer.usage.completion_tokens_details.reasoning_tokens < answer.usage.completion_tokens
    only = client(CALLS, tools=TOOLS, parallel_tool_calls=False).choices[0]
    assert [call.function.name for call in only.message.tool_calls] == ["weather"] and only.message.content is None


def test_a_stream_says_the_same(client: Any) -> None:
    *chunks, last = client.streamed(SAID, tools=TOOLS)
    assert last.usage.completion_tokens_details.reasoning_tokens > 0
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(delta.content or "" for delta in deltas) == "Let me see."
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas).strip() == "Hm, <b>."
    calls: dict[int, list[Any]] = {}
    for piece in (piece for delta in deltas for piece in delta.tool_calls or ()):
        calls.setdefault(piece.index, []).append(piece)
    for index, name in enumerate(("weather", "clock")):
        first, *rest = calls[index]
        assert first.id and first.function.name == name and all(each.id is each.function.name is None for each in rest)
        assert "".join(each.function.arguments for each in calls[index]) == ARGUMENTS[index]
    assert len(calls[0]) > 3, "arguments come as they are written"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["tool_calls"]


def test_without_tools_calls_are_text(client: Any) -> None:
    for more in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        choice = client(CALLS, **more).choices[0]
        assert choice.message.content == CALLS and not choice.message.tool_calls and choice.finish_reason == "stop"


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_call_that_must_be_made_is_made(client: Any, temperature: float) -> None:
    for choice, names in (("required", {"weather", "clock"}), ({"type": "function", "function": {"name": "clock"}}, {"clock"})):
        more = {"parallel_tool_calls": False, "temperature": temperature, "seed": 3, "reasoning_effort": "none"}
        answer = client(tools=TOOLS, tool_choice=choice, **more).choices[0]
        (call,) = answer.message.tool_calls
        arguments = json.loads(call.function.arguments)
        assert answer.finish_reason == "tool_calls" and not answer.message.content
        assert call.function.name in names and arguments["city"] in CITY["enum"]
        assert arguments.keys() == ({"city", "days"} if call.function.name == "weather" else {"city"})


@pytest.mark.parametrize(("more", "param"), [
    ({"tool_choice": "required"}, "tool_choice"), ({"tools": TOOLS, "tool_choice": "always"}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
    ({"tools": [tool("f", True, a=UNFOLLOWED)], "tool_choice": "required"}, "tools"), ({"tools": [tool("f", True, a=UNFOLLOWED)]}, "tools"),
    ({"tools": [tool("f"), tool("f")]}, "tools"), ({"tools": [tool("no name")]}, "tools"), ({"tools": [tool("x" * 129)]}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]}, "tools"),
    ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}}, "tool_choice"),
])  # fmt: skip
def test_choices_that_cannot_be(client: Any, more: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequestError) as refused:
        client(**more)
    assert refused.value.param == param
