"""`/v1/responses` through the official client: items, events in their order, tools, structured text."""

import json
from typing import Any

import pytest
from openai import BadRequestError
from pydantic import BaseModel
from responses_site import SCRIPT, TOOL, Client, other_client, responses_client, responses_keys  # noqa: F401  (fixtures among them)


def test_a_whole_answer(client: Client) -> None:
    answer = client.create("My name is Ada.", instructions="Be brief.", metadata={"a": "b"}, temperature=0.5, prompt_cache_key="k")
    assert answer.id.startswith("resp_") and answer.object == "response" and answer.status == "completed" and answer.error is None
    assert answer.output_text == "Hello, Ada." and [item.type for item in answer.output] == ["message"]
    (message,) = answer.output
    assert message.id.startswith("msg_") and message.role == "assistant" and message.status == "completed"
    assert (answer.instructions, answer.metadata, answer.temperature, answer.prompt_cache_key) == ("Be brief.", {"a": "b"}, 0.5, "k")
    usage = answer.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens and usage.output_tokens == len("Hello, Ada.") + 1
    again = client.create("My name is Ada.", instructions="Be brief.").usage
    assert again.input_tokens_details.cached_tokens > usage.input_tokens_details.cached_tokens


def test_items_of_reasoning_text_and_calls(client: Client) -> None:
    answer = client.create("Weather in Bern?", tools=[TOOL])
    thought, message, call = answer.output
    assert (thought.type, thought.summary, thought.content[0].text.strip()) == ("reasoning", [], "Hm, <b>.")
    assert message.content[0].text == "Let me see." == answer.output_text
    assert (call.type, call.name, json.loads(call.arguments), call.status) == ("function_call", "weather", {"city": "Bern"}, "completed")
    assert call.call_id.startswith("call_") and call.id.startswith("fc_") and call.namespace is None
    assert 0 < answer.usage.output_tokens_details.reasoning_tokens < answer.usage.output_tokens


def test_efforts_and_budgets(client: Client, chat_site: Any) -> None:
    def reasoning(**more: Any) -> tuple[int, list[str]]:
        answer = client.create("Weather in Bern?", max_output_tokens=60, **more)
        return answer.usage.output_tokens_details.reasoning_tokens, [item.type for item in answer.output]

    free = reasoning()
    assert free == reasoning(reasoning={"effort": "high", "summary": "auto"}) and free[1][0] == "reasoning"
    assert reasoning(extra_body={"thinking_token_budget": 3})[0] < free[0]
    silent = client.create("My name is Ada.", reasoning={"effort": "none"})
    assert silent.output_text == "Hello, Ada." and silent.reasoning.effort == "none"
    other = chat_site.request("POST", "/v1/responses", json={"input": "hi", "reasoning": {"effort": "low"}, "max_output_tokens": 2})
    assert other.status_code == 200 and other.headers["x-ridgeline-ignored-fields"] == "reasoning.effort"


EVENTS = [
    "response.created", "response.in_progress",
    "response.output_item.added", "response.content_part.added", "response.reasoning_text.delta", "response.reasoning_text.done",
    "response.content_part.done", "response.output_item.done",
    "response.output_item.added", "response.content_part.added", "response.output_text.delta", "response.output_text.done",
    "response.content_part.done", "response.output_item.done",
    "response.output_item.added", "response.function_call_arguments.delta", "response.function_call_arguments.done",
    "response.output_item.done",
    "response.completed",
]  # fmt: skip


def test_events_in_their_order(client: Client) -> None:
    events = client.events("Weather in Bern?", tools=[TOOL])
    kinds = [event.type for event in events]
    assert [kind for at, kind in enumerate(kinds) if at == 0 or kinds[at - 1] != kind] == EVENTS
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1].response
    assert {event.response.id for event in events if hasattr(event, "response")} == {last.id}
    assert [event.response.status for event in events if hasattr(event, "response")] == ["in_progress", "in_progress", "completed"]
    added = [event.item for event in events if event.type == "response.output_item.added"]
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert done == last.output and [item.id for item in added] == [item.id for item in done]
    assert [item.status for item in added] == ["in_progress"] * 3 and added[2].arguments == ""
    for index, kind in enumerate(("reasoning_text", "output_text", "function_call_arguments")):
        told = [event for event in events if event.type == f"response.{kind}.delta"]
        assert len(told) > 3 and {event.output_index for event in told} == {index}
        assert {event.item_id for event in told} == {last.output[index].id}
        item = last.output[index]
        assert "".join(event.delta for event in told) == (item.arguments if index == 2 else item.content[0].text)


def without_ids(answer: Any) -> Any:
    """What two answers to the same have in common."""
    plain = json.loads(json.dumps(answer if isinstance(answer, dict) else answer.to_dict()))
    for name in ("id", "created_at", "completed_at", "usage"):
        plain.pop(name)
    for item in plain["output"]:
        item.pop("id"), item.pop("call_id", None)
    return plain


@pytest.mark.parametrize("text", [after for after, _ in SCRIPT])
def test_a_stream_is_the_whole_answer(client: Client, text: str) -> None:
    more: Any = {"tools": [TOOL], "max_output_tokens": 200}
    whole, events = client.create(text, **more), client.events(text, **more)
    assert without_ids(events[-1].response) == without_ids(whole)
    assert events[-1].response.usage.output_tokens == whole.usage.output_tokens


def test_the_bytes_of_a_stream(client: Client) -> None:
    answer = client.raw("POST", "/v1/responses", json={"model": "fake", "input": "My name is Ada.", "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, nothing = answer.text.split("\n\n")
    assert nothing == "" and "[DONE]" not in answer.text and len(events) > 9
    for event in events:
        name, data = event.split("\n")
        assert name == "event: " + json.loads(data.removeprefix("data: "))["type"]


def test_the_clients_own_stream(client: Client) -> None:
    async def run() -> Any:
        async with client.openai.responses.stream(model="fake", input="Weather in Bern?", tools=[TOOL]) as stream:
            return [each async for each in stream], await stream.get_final_response()

    events, last = client.do(run())
    assert events[-1].type == "response.completed" and last.output[2].parsed_arguments == {"city": "Bern"}
    assert [event for event in events if event.type == "response.output_text.delta"][-1].snapshot == last.output_text


class Trip(BaseModel):
    city: str
    days: int


def test_structured_text(client: Client) -> None:
    answer = client.do(client.openai.responses.parse(model="fake", input="As JSON.", text_format=Trip))
    assert answer.output_parsed == Trip(city="Bern", days=3) and answer.text.format.name == "Trip"
    no_thought = {"reasoning": {"effort": "none"}, "max_output_tokens": 60}
    plain = client.create("My name is Ada.", text={"format": {"type": "json_object"}}, **no_thought)
    assert plain.output_text.startswith("{") and plain.text.format.type == "json_object"

    async def streamed() -> Any:
        async with client.openai.responses.stream(model="fake", input="As JSON.", text_format=Trip) as stream:
            return await stream.get_final_response()

    assert client.do(streamed()).output_parsed == Trip(city="Bern", days=3)


def test_the_loop_of_tools(client: Client) -> None:
    """The items of an answer, and what the tools gave, are the next request's input; with and without the server's memory."""
    first = client.create("Weather in Bern?", tools=[TOOL])
    call = first.output[-1]
    given = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny, 21 °C"}
    asked = {"role": "user", "content": "Weather in Bern?"}
    alone = client.create([asked, *(item.to_dict() for item in first.output), given], tools=[TOOL], store=False)
    chained = client.create([given], previous_response_id=first.id, tools=[TOOL])
    parts = client.create([{**given, "output": [{"type": "input_text", "text": "Sunny, 21 °C"}]}], previous_response_id=first.id)
    assert alone.output_text == chained.output_text == parts.output_text == "It is sunny in Bern."
    assert alone.usage.input_tokens == chained.usage.input_tokens and chained.previous_response_id == first.id


def test_calls_of_one_answer(client: Client) -> None:
    both = client.create("Weather there and here?", tools=[TOOL])
    assert [item.type for item in both.output] == ["function_call"] * 2 and both.output[0].call_id != both.output[1].call_id
    one = client.create("Weather there and here?", tools=[TOOL], parallel_tool_calls=False)
    assert [item.type for item in one.output] == ["function_call"] and one.parallel_tool_calls is False
    events = client.events("Weather there and here?", tools=[TOOL])
    assert [event.output_index for event in events if event.type == "response.output_item.done"] == [0, 1]


def test_custom_tools_and_namespaces(client: Client) -> None:
    patch = {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}}
    events = client.events("Patch it.", tools=[patch])
    (call,) = events[-1].response.output
    assert (call.type, call.name, call.input) == ("custom_tool_call", "apply_patch", '*** Begin Patch\n"x"')
    assert [event.type.removeprefix("response.") for event in events[2:-1]] == [
        "output_item.added", "custom_tool_call_input.delta", "custom_tool_call_input.done", "output_item.done"
    ]  # fmt: skip
    given = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "My name is Ada."}
    assert client.create([given], previous_response_id=events[-1].response.id, tools=[patch]).output_text == "Hello, Ada."
    files = {"type": "namespace", "name": "mcp__files__", "tools": [{"type": "function", "name": "list", "parameters": {}}]}
    (call,) = client.create("List them.", tools=[files]).output
    assert (call.type, call.namespace, call.name) == ("function_call", "mcp__files__", "list")


def test_ends(client: Client) -> None:
    cut = client.create("My name is Ada.", max_output_tokens=5)
    assert (cut.status, cut.incomplete_details.reason, cut.output_text) == ("incomplete", "max_output_tokens", "Hello")
    assert cut.output[0].status == "incomplete"
    assert client.events("My name is Ada.", max_output_tokens=5)[-1].type == "response.incomplete"
    thinking = client.create("Think.", max_output_tokens=15)
    assert [item.type for item in thinking.output] == ["reasoning"] and thinking.output[0].status == "incomplete"
    nothing = client.create("Say nothing.")
    assert nothing.status == "completed" and nothing.output_text == "" and [item.type for item in nothing.output] == ["message"]
    assert client.create("My name is Ada.", max_output_tokens=1_000_000).status == "completed", "an upper bound may be above the context"


def test_conversations_that_do_not_fit(client: Client) -> None:
    turns: list[Any] = [{"role": "user", "content": f"{at} " + "x" * 300} for at in range(20)]
    turns = [each for turn in turns for each in (turn, {"role": "assistant", "content": "y"})]
    asked = [{"role": "developer", "content": "Be brief."}, *turns, {"role": "user", "content": "My name is Ada."}]
    with pytest.raises(BadRequestError, match="input has") as refused:
        client.create(asked)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")
    cut = client.create(asked, truncation="auto")
    assert cut.output_text == "Hello, Ada." and cut.truncation == "auto" and 1_000 < cut.usage.input_tokens < 4_096
    alone = client.create("My name is Ada.", truncation="auto").usage.input_tokens
    assert alone < 100
    with pytest.raises(BadRequestError, match="input has"):
        client.create("x" * 5_000, truncation="auto")


def test_log_probabilities(client: Client) -> None:
    more: Any = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "tools": [TOOL]}
    answer = client.create("Weather in Bern?", **more)
    found = answer.output[1].content[0].logprobs
    assert "".join(each.token for each in found).strip() == "Let me see." and all(len(each.top_logprobs) == 2 for each in found)
    deltas = [each for each in client.events("Weather in Bern?", **more) if each.type == "response.output_text.delta"]
    assert "".join(logprob.token for each in deltas for logprob in each.logprobs).strip() == "Let me see."
    assert client.create("My name is Ada.").output[0].content[0].logprobs == []


CODEX: dict[str, Any] = {
    "model": "fake", "instructions": "You are a coding agent.", "tool_choice": "auto", "parallel_tool_calls": False, "store": False,
    "stream": True, "reasoning": {"effort": "medium", "summary": "auto"}, "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0198-aa", "text": {"verbosity": "medium"}, "client_metadata": {"x": "y"}, "service_tier": "priority",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<permissions>read-only</permissions>"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<environment_context/>"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weather in Bern?"}]},
        {
            "type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}], "encrypted_content": None,
        },
        {"type": "message", "role": "assistant", "phase": "commentary", "content": [{"type": "output_text", "text": "Let me see."}]},
        {"type": "function_call", "name": "shell", "arguments": '{"command":["ls"]}', "call_id": "call_1"},
        {"type": "function_call_output", "call_id": "call_1", "output": "Sunny, 21 °C"},
    ],
    "tools": [
        {
            "type": "function", "name": "shell", "description": "Runs a command.", "strict": False,
            "parameters": {"type": "object", "properties": {"command": {"type": "array", "items": {"type": "string"}}}},
        },
        {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}},
        {"type": "web_search", "external_web_access": False}, {"type": "image_generation", "output_format": "png"},
        {"type": "local_shell"},
    ],
}  # fmt: skip
"""A body as Codex CLI sends it."""


def test_a_body_of_codex(client: Client) -> None:
    answer = client.raw("POST", "/v1/responses", json=CODEX)
    assert answer.status_code == 200, answer.text
    last = json.loads(answer.text.split("\n\n")[-2].split("data: ")[1])["response"]
    assert last["output"][0]["content"][0]["text"] == "It is sunny in Bern." and last["store"] is False
    assert [tool["type"] for tool in last["tools"]] == ["function", "custom"]
    told = answer.headers["x-ridgeline-ignored-fields"].split(", ")
    assert set(told) == {"tools.web_search", "tools.image_generation", "tools.local_shell", "reasoning_effort"}


@pytest.mark.parametrize(("more", "param", "said"), [
    ({"input": []}, "input", "0 items"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input", "not stored"),
    ({"input": [{"type": "item_reference"}]}, "input", "no id"),
    ({"input": [{"type": "computer_call", "call_id": "c"}]}, "input", "computer_call"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input", "input_image"),
    ({"input": [{"type": "function_call", "name": "f", "call_id": "c"}]}, "input", "arguments"),
    ({"input": [{"role": "user"}]}, "input", "content"),
    ({"tools": [{"type": "file_search", "vector_store_ids": []}]}, "tools", "file_search"),
    ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools", "mcp"),
    ({"tools": [TOOL, TOOL]}, "tools", "two"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "other"}}, "tool_choice", "function"),
    ({"tools": [TOOL], "tool_choice": {"type": "web_search"}}, "tool_choice", "tool_choice"),
    ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens"),
    ({"temperature": -1}, "temperature", "temperature"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format", "text.format"),
    ({"include": ["everything"]}, "include", "include"),
    ({"metadata": {str(at): "" for at in range(17)}}, "metadata", "17"),
    ({"background": True, "store": False}, "background", "stored"),
    ({"previous_response_id": "resp_1"}, "previous_response_id", "no stored answer"),
    ({"extra_body": {"conversation": "conv_1"}}, "conversation", "previous_response_id"),
    ({"extra_body": {"messages": []}}, "messages", "input"),
    ({"top_logprobs": 99}, "top_logprobs", "top_logprobs"),
])  # fmt: skip
def test_bad_requests(client: Client, more: dict[str, Any], param: str, said: str) -> None:
    with pytest.raises(BadRequestError, match=said) as refused:
        client.create(more.pop("input", "hi"), **more)
    assert refused.value.param == param


def test_streams_of_what_is_stored_are_refused(client: Client) -> None:
    answer = client.create("My name is Ada.")
    refused = client.raw("GET", f"/v1/responses/{answer.id}?stream=true")
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "stream"
