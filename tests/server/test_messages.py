"""Tools, thinking and forms of output in Anthropic's dialect, through its official client: a model that follows a script behind Qwen3's
template, whole and streamed."""

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import httpx2
import msgspec
import pytest
from pydantic import BaseModel

from gold import TEMPLATES
from ridgeline.config.groups import EngineConfig, ServerConfig
from ridgeline.server import fields
from ridgeline.server.anthropic_chat import as_chat
from ridgeline.server.chat_prompts import tokenise_chat
from ridgeline.server.message_blocks import BlockEvents, ThinkingForm, whole_blocks
from ridgeline.text.tools.parser import CallArguments, CallBegin, CallEnd, Text

TEMPLATE = str(TEMPLATES / "Qwen-Qwen3-0.6B.jinja")
CITY = {"type": "string", "enum": ["Bern", "Zürich"]}
ARGUMENTS = ('{"city": "Zürich", "days":2}', '{"city":"Bern","big": 123456789012345678901234567890,"x": 1.0}')
CALLS = (
    f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS[0]}}}\n</tool_call>\n'
    f'<tool_call>\n{{"name": "clock", "arguments": {ARGUMENTS[1]}}}\n</tool_call>'
)
SCRIPT = [
    ["Weather?", f"<think>\nHm, <b>.\n</think>\n\nLet me see.\n{CALLS}"],
    ["21 degrees", "Take a hat."],
    ["Only text?", "Plain ‘text’, two words."],
    ["Half a call?", '<tool_call>\n{"name": "clock", "arguments": {"city": "Be'],
    ["As JSON?", '{"city": "Bern", "days": 3}'],
    ["Nothing?", ""],
    ["Which city?", "no call"],
]


def tool(name: str, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": name == "clock"}
    return {"name": name, "description": "It tells.", "input_schema": schema, "cache_control": {"type": "ephemeral"}}


TOOLS = [tool("weather", city=CITY, days={"type": "integer", "minimum": 1, "maximum": 9}), tool("clock", city=CITY)]


class Client:
    """The official client, asked synchronously."""

    def __init__(self, site: Any) -> None:
        self.site = site
        http = httpx2.AsyncClient(transport=httpx2.ASGITransport(site.app, raise_app_exceptions=False))
        self.own = anthropic.AsyncAnthropic(base_url="http://127.0.0.1:8000", api_key="x", max_retries=0, http_client=http)

    def body(self, asked: Any, more: dict[str, Any]) -> dict[str, Any]:
        messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
        return {"model": "fake", "max_tokens": 400, "messages": messages, **more}

    def ask(self, asked: Any, **more: Any) -> Any:
        return self.site.wait(self.own.messages.create(**self.body(asked, more)))

    def count(self, asked: Any, **more: Any) -> int:
        body = self.body(asked, more)
        del body["max_tokens"]
        return int(self.site.wait(self.own.messages.count_tokens(**body)).input_tokens)

    def stream(self, asked: Any, **more: Any) -> tuple[list[Any], Any]:
        """The events of the helper, and the message that it puts together."""

        async def read() -> tuple[list[Any], Any]:
            async with self.own.messages.stream(**self.body(asked, more)) as stream:
                return [event async for event in stream], await stream.get_final_message()

        return self.site.wait(read())

    def post(self, path: str = "/v1/messages", **body: Any) -> httpx.Response:
        return self.site.request("POST", path, json={"model": "fake", "max_tokens": 400, **body})


@pytest.fixture(scope="module")
def client(chat_site: Any) -> Iterator[Client]:
    model = "fake:" + json.dumps({"script": SCRIPT, "vocab": 258, "max_model_len": 1 << 17, "blocks": 1 << 13})
    site = type(chat_site)(EngineConfig(model), ServerConfig(chat_template=TEMPLATE))
    site.wait(site.service.start())
    client = Client(site)
    yield client
    site.wait(client.own.close())
    site.close()


def kinds(message: Any) -> list[str]:
    return [block.type for block in message.content]


def test_thinking_text_and_calls(client: Client) -> None:
    answer = client.ask("Weather?", tools=TOOLS)
    thinking, text, weather, clock = answer.content
    assert (thinking.thinking.strip(), text.text) == ("Hm, <b>.", "Let me see.") and thinking.signature
    assert (weather.name, weather.input) == ("weather", {"city": "Zürich", "days": 2})
    assert (clock.name, clock.input) == ("clock", json.loads(ARGUMENTS[1]))
    assert weather.id.startswith("toolu_") and clock.id.startswith("toolu_") and weather.id != clock.id
    assert (answer.stop_reason, answer.stop_sequence) == ("tool_use", None)
    assert 0 < answer.usage.output_tokens_details.thinking_tokens < answer.usage.output_tokens
    assert ARGUMENTS[1] in client.post(messages=[{"role": "user", "content": "Weather?"}], tools=TOOLS).text, "byte by byte"


def test_a_stream_says_the_same(client: Client) -> None:
    whole = client.ask("Weather?", tools=TOOLS)
    events, last = client.stream("Weather?", tools=TOOLS)
    assert kinds(last) == kinds(whole) and last.stop_reason == "tool_use"
    assert (last.content[0].thinking, last.content[1].text) == (whole.content[0].thinking, whole.content[1].text)
    assert last.content[0].signature
    assert [(each.name, each.input) for each in last.content[2:]] == [(each.name, each.input) for each in whole.content[2:]]
    assert last.usage.output_tokens_details == whole.usage.output_tokens_details
    starts = [event.index for event in events if event.type == "content_block_start"]
    ends = [event.index for event in events if event.type == "content_block_stop"]
    assert starts == ends == [0, 1, 2, 3]
    deltas = [event.delta for event in events if event.type == "content_block_delta"]
    pieces = [delta.partial_json for delta in deltas if delta.type == "input_json_delta"]
    assert "".join(pieces) == "".join(ARGUMENTS) and len(pieces) > 8, "arguments come as they are written"
    assert [delta.type for delta in deltas].count("signature_delta") == 1


def test_results_go_back_to_the_model(client: Client) -> None:
    first = client.ask("Weather?", tools=TOOLS)
    call, other = first.content[2:]
    results = [
        {"type": "text", "text": "And now?"},
        {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "rain"}, {"type": "text", "text": "wind"}]},
        {"type": "tool_result", "tool_use_id": other.id, "content": "21 degrees", "is_error": True, "cache_control": {"type": "ephemeral"}},
    ]
    turns = [{"role": "user", "content": "Weather?"}, {"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
    answer = client.ask(turns, tools=TOOLS)
    assert kinds(answer) == ["text"] and answer.content[0].text == "Take a hat." and answer.stop_reason == "end_turn"
    prompt = prompt_of(client, turns)
    assert prompt.index("rain\nwind") < prompt.index("Error: 21 degrees") < prompt.index("And now?")
    assert prompt.count("<tool_response>") == 2 and '"city": "Zürich", "days": 2' in prompt


def test_the_clients_own_loop_of_tools(client: Client) -> None:
    """`tool_runner` makes schemas of functions, runs what is called, and asks again until nothing is."""
    ran: list[Any] = []

    @anthropic.beta_async_tool
    async def weather(city: str, days: int) -> str:
        """Tells the weather."""
        ran.append((city, days))
        return "cloudy"

    @anthropic.beta_async_tool
    async def clock(city: str, big: int, x: float) -> str:
        """Tells the time."""
        ran.append((city, big, x))
        return "noon, 21 degrees"

    async def run() -> list[Any]:
        body = client.body("Weather?", {"tools": [weather, clock]})
        return [message async for message in client.own.beta.messages.tool_runner(**body)]

    first, last = client.site.wait(run())
    assert ran == [("Zürich", 2), ("Bern", 123456789012345678901234567890, 1.0)]
    assert (first.stop_reason, last.stop_reason, last.content[-1].text) == ("tool_use", "end_turn", "Take a hat.")
    assert last.usage.cache_read_input_tokens > 0


def test_a_stream_begins_with_what_was_cached(client: Client) -> None:
    asked = "Only text? " + "So many words. " * 40
    for is_cached in (False, True):
        events, message = client.stream(asked)
        begun = next(event for event in events if event.type == "message_start").message.usage
        assert begun.input_tokens + begun.cache_read_input_tokens == client.count(asked)
        assert (begun.cache_read_input_tokens > 400) == is_cached
        assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (begun.input_tokens, begun.cache_read_input_tokens)


def test_a_thread_is_refused_so_that_clients_go_on_without(client: Client) -> None:
    """Clients that would have a conversation kept send only what is new of it: nobody may answer that as if it were all."""
    refused = client.post(messages=[{"role": "user", "content": "Only text?"}], thread={"type": "create"})
    error = refused.json()["error"]
    assert refused.status_code == 400 and error["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    assert client.post("/v1/messages/count_tokens", messages=[], thread={"type": "create"}).json()["error"] == error


def prompt_of(client: Client, messages: Any, **more: Any) -> str:
    """The prompt that the model got."""
    body = json.dumps({"messages": messages, **more}, default=lambda block: block.to_dict()).encode()
    payload, notes = fields.COUNT_TOKENS.read(body)
    model = client.site.service.model
    ids = client.site.wait(tokenise_chat(as_chat(payload, model.chat, notes), model, notes))
    return str(model.tokenizer.decode(ids, skip_special=False))


def test_thinking_is_passed_back(client: Client) -> None:
    said = [
        {"type": "thinking", "thinking": "Long thought.", "signature": ""}, {"type": "redacted_thinking", "data": "x"},
        {"type": "tool_use", "id": "a", "name": "clock", "input": {}},
    ]  # fmt: skip
    result = {"type": "tool_result", "tool_use_id": "a"}
    turns = [{"role": "user", "content": "Weather?"}, {"role": "assistant", "content": said}, {"role": "user", "content": [result]}]
    assert "<think>\nLong thought.\n</think>" in prompt_of(client, turns), "within a round of calls the template keeps reasoning"
    assert "Long thought" not in prompt_of(client, [*turns, {"role": "assistant", "content": "ok"}, {"role": "user", "content": "Thanks"}])


def test_omitted_thinking_is_passed_back_in_its_signature(client: Client) -> None:
    more = {"tools": TOOLS, "thinking": {"type": "adaptive", "display": "omitted"}}
    whole = client.ask("Weather?", **more)
    events, streamed = client.stream("Weather?", **more)
    assert not [event for event in events if event.type == "thinking"]
    for answer in (whole, streamed):
        assert answer.content[0].thinking == "" and answer.usage.output_tokens_details.thinking_tokens > 0
        results = [{"type": "tool_result", "tool_use_id": block.id, "content": "x"} for block in answer.content[2:]]
        turns = [("user", "Weather?"), ("assistant", answer.content), ("user", results)]
        assert "<think>\nHm, <b>." in prompt_of(client, [{"role": role, "content": content} for role, content in turns])
    for signature in ("thought_?", "thought_/w==", "other"):
        said = [{"type": "thinking", "thinking": "", "signature": signature}, {"type": "text", "text": "a"}]
        turns = [("user", "Weather?"), ("assistant", said), ("user", "b")]
        assert client.count([{"role": role, "content": content} for role, content in turns]) > 0


def test_a_budget_ends_thinking(client: Client) -> None:
    """The closing mark comes when the budget is spent, whatever the script says next."""
    answer = client.ask("Weather?", thinking={"type": "enabled", "budget_tokens": 4})
    assert answer.content[0].thinking.strip() == "Hm," and answer.usage.output_tokens_details.thinking_tokens == 4
    with pytest.raises(anthropic.BadRequestError, match="thinking is out of range"):
        client.ask("Weather?", thinking={"type": "enabled", "budget_tokens": -5})


def test_instructions_between_turns_come_behind_results(client: Client) -> None:
    call = {"type": "tool_use", "id": "a", "name": "clock", "input": {}}
    turns = [
        {"role": "system", "content": "x-anthropic-billing-header: cch=1;"},
        {"role": "ctx", "content": "Weather?"}, {"role": "assistant", "content": [call]}, {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "noon"}]},
    ]  # fmt: skip
    prompt = prompt_of(client, turns)
    assert prompt.index("<tool_response>\nnoon") < prompt.index("Be brief.") and "billing" not in prompt


@pytest.mark.parametrize(("thinking", "is_off"), [
    (None, False), ({"type": "disabled"}, True), ({"type": "enabled", "budget_tokens": 2048}, False),
    ({"type": "adaptive", "display": "summarized"}, False),
])  # fmt: skip
def test_thinking_can_be_switched_off(client: Client, thinking: Any, is_off: bool) -> None:
    more = {} if thinking is None else {"thinking": thinking}
    turns = [{"role": "user", "content": "Only text?"}]
    assert prompt_of(client, turns, **more).endswith("</think>\n\n") is is_off
    answer = client.ask("Only text?", **more)
    assert answer.content[0].text == SCRIPT[2][1]
    assert answer.usage.input_tokens + answer.usage.cache_read_input_tokens == client.count("Only text?", **more)


def test_a_call_that_the_end_cuts_off_is_not_made(client: Client) -> None:
    answer = client.ask("Half a call?", tools=TOOLS, max_tokens=40)
    assert answer.stop_reason == "max_tokens" and "tool_use" not in kinds(answer)
    assert kinds(client.stream("Half a call?", tools=TOOLS, max_tokens=60)[1])[-1] == "tool_use", "what was streamed is streamed"


def test_one_call_alone(client: Client) -> None:
    for choice in ({"type": "auto", "disable_parallel_tool_use": True}, {"type": "auto"}, {"type": "none"}):
        answer = client.ask("Weather?", tools=TOOLS, tool_choice=choice)
        calls = kinds(answer).count("tool_use")
        assert calls == {"none": 0}.get(choice["type"], 1 if len(choice) > 1 else 2)  # type: ignore[call-overload]
        assert answer.stop_reason == ("tool_use" if calls else "end_turn")


@pytest.mark.parametrize(("choice", "names"), [
    ({"type": "any", "disable_parallel_tool_use": True}, {"weather", "clock"}), ({"type": "tool", "name": "weather"}, {"weather"}),
])  # fmt: skip
def test_a_call_that_must_be_made_is_made(client: Client, choice: Any, names: set[str]) -> None:
    answer = client.ask("Which city?", tools=TOOLS, tool_choice=choice, thinking={"type": "disabled"})
    (call,) = answer.content
    assert call.name in names and call.input["city"] in CITY["enum"] and answer.stop_reason == "tool_use"


class Plan(BaseModel):
    city: str
    days: int


def test_an_answer_in_a_form(client: Client) -> None:
    parsed = client.site.wait(client.own.messages.parse(
        model="fake", max_tokens=100, messages=[{"role": "user", "content": "As JSON?"}], output_format=Plan
    ))  # fmt: skip
    assert parsed.parsed_output == Plan(city="Bern", days=3)
    schema = {"type": "object", "properties": {"city": CITY}, "required": ["city"], "additionalProperties": False}
    form = {"type": "json_schema", "schema": schema}
    for more in ({"output_config": {"format": form}}, {"output_format": form}):
        asked = {"messages": [{"role": "user", "content": "Only text?"}], "thinking": {"type": "disabled"}, **more}
        answer = client.post(**asked).json()
        assert json.loads(answer["content"][0]["text"])["city"] in CITY["enum"]


def test_blocks_in_the_order_of_what_was_said() -> None:
    """Text between calls has a block of its own; arguments that are no object of JSON are told as Anthropic's API has such told."""
    said = [Text("a"), Text("b"), CallBegin("f", "call_1"), CallArguments("[1"), CallArguments("]"), CallEnd(), Text("c"),
            CallBegin("g", "functions.g:0"), CallEnd(), CallBegin("h", "call_2"), CallArguments('{"cut')]  # fmt: skip
    found = json.loads(msgspec.json.encode(whole_blocks(said, ThinkingForm("s"))))
    assert found == [
        {"type": "text", "text": "ab"}, {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"INVALID_JSON": "[1]"}},
        {"type": "text", "text": "c"}, {"type": "tool_use", "id": "functions.g:0", "name": "g", "input": {}},
    ]  # fmt: skip
    blocks = BlockEvents(ThinkingForm("s"))
    events = json.loads(msgspec.json.encode([*blocks.tell(said), *blocks.finish()]))
    assert [event["index"] for event in events if event["type"] == "content_block_start"] == [0, 1, 2, 3, 4]
    assert [event["index"] for event in events if event["type"] == "content_block_stop"] == [0, 1, 2, 3, 4]


def test_an_answer_of_nothing_has_a_block(client: Client) -> None:
    assert kinds(client.ask("Nothing?")) == kinds(client.stream("Nothing?")[1]) == ["text"]


def test_a_stop_sequence(client: Client) -> None:
    for answer in (client.ask("Only text?", stop_sequences=[", two"]), client.stream("Only text?", stop_sequences=[", two"])[1]):
        assert (answer.stop_reason, answer.stop_sequence, answer.content[0].text) == ("stop_sequence", ", two", "Plain ‘text’")


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
CALL = {"type": "tool_use", "id": "a", "name": "clock", "input": {}}


@pytest.mark.parametrize(("content", "said"), [
    ([IMAGE], r"messages\[0\]\.content\[0\]: blocks of image are not supported"),
    ([{"type": "tool_result", "tool_use_id": "a", "content": [IMAGE]}], r"content\[0\]\.content\[0\]: blocks of image"),
    ([{"type": "tool_result", "content": "x"}], "tool_use_id"), ([{"type": "text"}], "has no text"),
    ([CALL], "a tool_use stands in a turn of the assistant"),
    ([{"type": "document", "source": {"type": "base64", "data": "x"}}], "documents"), ([{"type": "x" * 100}], "blocks of this type"),
])  # fmt: skip
def test_blocks_that_are_refused(client: Client, content: Any, said: str) -> None:
    with pytest.raises(anthropic.BadRequestError, match=said):
        client.ask([{"role": "user", "content": content}])


@pytest.mark.parametrize(("more", "said"), [
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0. is web_search_20250305, which Anthropic's servers"),
    ({"tools": [{"name": "f"}]}, "no input_schema"), ({"tool_choice": {"type": "any"}}, "there are no tools"),
    ({"tools": TOOLS, "tool_choice": {"type": "tool"}}, "no name"),
    ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice names a function"),
    ({"tools": [{"name": "f", "input_schema": {"type": "array"}}]}, r"tools\[0\].input_schema describes no object"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}}, "output_config.format: "),
    ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
])  # fmt: skip
def test_requests_that_are_refused(client: Client, more: Any, said: str) -> None:
    refused = client.post(messages=[{"role": "user", "content": "Only text?"}], **more)
    assert refused.status_code == 400 and refused.json()["error"]["type"] == "invalid_request_error"
    assert re.search(said, refused.json()["error"]["message"]), refused.text


def test_a_call_at_the_end_is_not_continued(client: Client) -> None:
    with pytest.raises(anthropic.BadRequestError, match="send its tool_result"):
        client.ask([{"role": "user", "content": "x"}, {"role": "assistant", "content": [CALL]}])


def test_a_body_of_claude_code(client: Client) -> None:
    """Every field that it sends with a request, in the order and shape of its public sources."""
    cached = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    tools = [{**tool(f"Tool{number}", city=CITY), "description": "Reads. " * 100, "eager_input_streaming": True} for number in range(40)]
    body = {
        "messages": [{"role": "user", "content": [
            {"type": "text", "text": "<system-reminder>\nNote.\n</system-reminder>"}, {"type": "text", "text": "Only text?", **cached}
        ]}, {"role": "system", "content": [{"type": "text", "text": "Reminder."}]}],
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.282.1f; cc_entrypoint=cli; cch=fa690;"},
            {"type": "text", "text": "You are an agent.", **cached}, {"type": "text", "text": "Long instructions. " * 40, **cached},
        ],
        "tools": tools, "metadata": {"user_id": '{"device_id":"1","session_id":"2"}'}, "max_tokens": 32000,
        "thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}, "stream": False,
    }  # fmt: skip
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14"}
    site = client.site
    answer = site.request("POST", "/v1/messages?beta=true", json={"model": "fake", **body}, headers=headers)
    assert answer.status_code == 200 and answer.json()["content"] == [{"type": "text", "text": SCRIPT[2][1]}], answer.text
    assert answer.headers["x-ridgeline-ignored-fields"] == "output_config.effort"
    again = json.loads(json.dumps(body).replace("cch=fa690", "cch=00000"))
    usage = site.request("POST", "/v1/messages?beta=true", json={"model": "fake", **again}, headers=headers).json()["usage"]
    assert usage["cache_read_input_tokens"] > 30_000 and usage["input_tokens"] <= 16
    counted = site.request("POST", "/v1/messages/count_tokens?beta=true", json={"model": "fake", **body}, headers=headers).json()
    assert counted == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}


def test_exceptions_of_a_server_that_is_busy_or_loads(new_site: Any) -> None:
    """Those that its clients wait for and try again."""
    loading = Client(new_site(EngineConfig("fake:{}"), start=False))
    with pytest.raises(anthropic.ServiceUnavailableError) as early:
        loading.ask("Weather?")
    slow = EngineConfig('fake:{"rows": 1, "step_seconds": 0.02}')
    busy = Client(new_site(slow, ServerConfig(max_waiting=0, chat_template=TEMPLATE)))

    async def burst() -> list[Any]:
        asked = (busy.own.messages.create(**busy.body("Weather?", {"max_tokens": 20})) for _ in range(3))
        return await asyncio.gather(*asked, return_exceptions=True)

    kinds = sorted(type(each).__name__ for each in busy.site.wait(burst()))
    assert kinds == ["Message", "RateLimitError", "RateLimitError"]
    assert early.value.type == "overloaded_error" and early.value.response.headers["retry-after"] == "2"
