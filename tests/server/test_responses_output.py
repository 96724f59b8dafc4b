"""Items and events of answers in random pieces, and what a client hears of an engine that dies."""

import json
import os
import random
import signal
import threading
import time
from typing import Any

import httpx
import msgspec
import pytest

from gold import TEMPLATES
from ridgeline.config.groups import EngineConfig, ServerConfig
from ridgeline.engine import open_requests
from ridgeline.server import responses_shapes as shapes
from ridgeline.server.responses_input import Called, as_messages
from ridgeline.server.responses_output import Output
from ridgeline.text.stream import TextDelta
from ridgeline.text.tokenizer import ByteTokenizer
from ridgeline.text.tools.families import FAMILIES, Reasoning
from ridgeline.text.tools.hearing import Reading

HERMES = next(family for family in FAMILIES if family.begin == "<tool_call>")
CALLED = {"weather": Called("function", "weather"), "files__list": Called("function", "list", "files"), "patch": Called("custom", "patch")}
CALL = '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>'
SAID = [
    "", "Hello, <b>Ada</b>.", "<think>\nHm.\n</think>\n\nHello.", "<think>\nfor ever",
    "Let me see.\n" + CALL.format("weather", '{"city": "Bern"}') + "\n" + CALL.format("files__list", "{}"),
    CALL.format("patch", '{"input": "a\\n\\"b\\" ü"}') + "Done.", "<think>\nHm.\n</think>\n" + CALL.format("patch", '"x"'),
    'So <tool_call>\n{"name": "weather", "argum', CALL.format("unknown", '{"a": [1, {"b": "</tool_call>"}]}'),
]  # fmt: skip
CUT = "<think>\nHm.\n</think>\n\nI call.\n" + CALL.format("weather", '{"city": "Bern"}')


def heard(text: str, pieces: list[str], *, is_whole: bool = True) -> tuple[list[Any], list[shapes.OutputItem]]:
    """Events and items of a text that comes in pieces, one token each."""
    assert "".join(pieces) == text
    reading = Reading(HERMES, Reasoning("<think>", "</think>"), {}, ByteTokenizer(), False, True, None)
    output, events = Output("0" * 32, reading, CALLED, None), list[Any]()
    for at, piece in enumerate(pieces):
        events += output.hear(TextDelta(0, (at,), (piece,)), at == len(pieces) - 1)
    events += output.end(is_whole)
    return events, output.items


def plain(items: list[shapes.OutputItem]) -> list[dict[str, Any]]:
    found = json.loads(msgspec.json.encode(items))
    return [{name: value for name, value in item.items() if name not in ("id", "call_id")} for item in found]


def told(events: list[Any]) -> list[dict[str, Any]]:
    """Items as a client puts them together from deltas alone."""
    texts: dict[int, str] = {}
    for event in events:
        if hasattr(event, "delta"):
            texts[event.output_index] = texts.get(event.output_index, "") + event.delta
    return [{"index": index, "text": texts[index]} for index in sorted(texts)]


@pytest.mark.parametrize("text", [*SAID, *(CUT[:at] for at in range(0, len(CUT), 7))])
def test_a_stream_in_any_pieces_is_the_whole_answer(text: str) -> None:
    draw = random.Random(len(text))
    _, whole = heard(text, [text])
    for _ in range(30):
        cuts = sorted(draw.sample(range(1, len(text)), draw.randint(0, min(len(text) - 1, 30)))) if len(text) > 1 else []
        events, items = heard(text, [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)])
        assert plain(items) == plain(whole)
        assert [event.sequence_number for event in events] == list(range(len(events)))
        ids = [event.item.id for event in events if isinstance(event, shapes.ItemDone)]
        assert ids == [item.id for item in items] == [event.item.id for event in events if isinstance(event, shapes.ItemAdded)]
        assert [event.item for event in events if isinstance(event, shapes.ItemDone)] == items
        for each in told(events):
            item = plain(items)[each["index"]]
            assert each["text"] == (item["content"][0]["text"] if "content" in item else item.get("arguments", item.get("input")))


def test_ends_of_items() -> None:
    text = 'So <tool_call>\n{"name": "weather", "arguments": {"city'
    (call,) = heard(text, [text])[1][1:]
    assert call.status == "incomplete", "a call that is not whole is none that can be made, however the answer ended"
    text = "<think>\nHm.\n</think>\n\nI"
    assert [item.status for item in heard(text, [text], is_whole=False)[1]] == ["completed", "incomplete"]


def test_items_of_a_turn_are_one_message() -> None:
    call = shapes.Item("function_call", call_id="c", name="f", arguments="{}")
    items = [
        shapes.Item("reasoning", summary=[shapes.Part("summary_text", "Hm.")]),
        shapes.Item("message", role="assistant", content=[shapes.Part("output_text", "So:")]),
        call, shapes.Item("custom_tool_call", call_id="d", name="g", namespace="n", input='"x"'),
        shapes.Item("function_call_output", call_id="c", output="1"), shapes.Item("function_call_output", call_id="d", output="2"),
        shapes.Item("message", role="assistant", content=[shapes.Part("refusal", refusal="No.")]),
        shapes.Item("message", role="assistant", content=[shapes.Part("output_text", "a"), shapes.Part("output_text", "b")]),
        shapes.Item("message", role="user", content=[shapes.Part("input_text", "?")]), call,
    ]  # fmt: skip
    turn, one, two, refusal, said, user, called = as_messages(items)
    assert (turn.role, turn.reasoning_content, turn.content) == ("assistant", "Hm.", "So:")
    assert [(each.id, each.function.name, each.function.arguments) for each in turn.tool_calls or ()] == [
        ("c", "f", "{}"), ("d", "n__g", '{"input": "\\"x\\""}')
    ]  # fmt: skip
    assert [(each.role, each.content, each.tool_call_id) for each in (one, two)] == [("tool", "1", "c"), ("tool", "2", "d")]
    assert refusal.content == "No." and isinstance(said.content, list) and [part.text for part in said.content] == ["a", "b"]
    assert user.role == "user" and called.tool_calls and called.content is None


@pytest.fixture
def mortal(new_site: Any) -> Any:
    engine = EngineConfig('fake:{"vocab": 258, "token_seconds": 0.005}')
    return new_site(engine, ServerConfig(chat_template=str(TEMPLATES / "Qwen-Qwen3-0.6B.jinja")))


def test_an_engine_that_dies(mortal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where requests go on in no other engine: a stream ends with `response.failed`, an answer in the background has failed."""
    monkeypatch.setattr(open_requests, "MAX_BLAME", open_requests.BLAME)
    asked = {"input": "hi", "ignore_eos": True}
    background = mortal.request("POST", "/v1/responses", json={**asked, "background": True}).json()["id"]
    found: list[httpx.Response] = []
    stream = threading.Thread(target=lambda: found.append(mortal.request("POST", "/v1/responses", json={**asked, "stream": True})))
    stream.start()
    end = time.monotonic() + 20
    while mortal.service.deployment.open_requests < 2:
        assert time.monotonic() < end
        time.sleep(0.01)
    os.kill(mortal.service.engine.pid, signal.SIGKILL)
    stream.join()
    assert found[0].status_code == 200
    last = json.loads(found[0].text.split("\n\n")[-2].split("data: ")[1])
    assert last["type"] == "response.failed" and last["response"]["status"] == "failed"
    assert last["response"]["error"]["code"] == "server_error" and "[DONE]" not in found[0].text
    whole = mortal.get(f"/v1/responses/{background}").json()
    assert whole["status"] == "failed" and whole["error"]["message"]
