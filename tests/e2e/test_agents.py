"""Requests as Claude Code, Codex and OpenCode form them (tests/clients/bodies), through whole loops of tools with scripted answers."""

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import httpx
import pytest
from scripted import BODIES, NAME

Events = list[dict[str, Any]]
KINDS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "thinking", "input_json_delta": "tool_use"}


class Said(NamedTuple):
    """An answer: its thought, its text, its calls (id, name, arguments as text), and what the agent appends to its history."""

    thought: str
    text: str
    calls: list[tuple[str, str, str]]
    history: list[Any]


def chat(events: Events) -> Said:
    """As the AI SDK reads chunks: arguments of a call are joined by index, reasoning is passed back."""
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    text, thought = ("".join(delta.get(name) or "" for delta in deltas) for name in ("content", "reasoning_content"))
    calls: dict[int, list[str]] = {}
    for piece in (piece for delta in deltas for piece in delta.get("tool_calls") or ()):
        call = calls.setdefault(piece["index"], [piece.get("id") or "", piece["function"].get("name") or "", ""])
        call[2] += piece["function"].get("arguments") or ""
    (reason,) = [choice["finish_reason"] for event in events for choice in event["choices"] if choice["finish_reason"]]
    assert reason == ("tool_calls" if calls else "stop") and events[-1]["choices"] == [] and events[-1]["usage"]["total_tokens"]
    told = [{"id": call, "type": "function", "function": {"name": name, "arguments": given}} for call, name, given in calls.values()]
    message = {"role": "assistant", "content": text, **({"reasoning_content": thought} if thought else {})}
    return Said(thought, text, [(*each,) for each in calls.values()], [message | {"tool_calls": told} if told else message])  # type: ignore[misc]


def messages(events: Events) -> Said:
    """As Anthropic's client reads events: blocks are passed back as they came."""
    blocks: list[dict[str, Any]] = []
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(blocks)
                blocks.append(dict(event["content_block"]))
            case "content_block_delta":
                kind, (name, piece) = event["delta"]["type"], next(each for each in event["delta"].items() if each[0] != "type")
                block = blocks[event["index"]]
                assert block["type"] == KINDS[kind]
                block[name] = block.get(name, "") + piece
    calls = [(block["id"], block["name"], block.pop("partial_json", "{}")) for block in blocks if block["type"] == "tool_use"]
    (end,) = [event for event in events if event["type"] == "message_delta"]
    assert end["delta"]["stop_reason"] == ("tool_use" if calls else "end_turn") and end["usage"]["output_tokens"]
    for block in blocks:
        if block["type"] == "tool_use":
            block["input"] = json.loads(next(given for call, _, given in calls if call == block["id"]))
    text, thought = ("".join(block.get(kind, "") for block in blocks) for kind in ("text", "thinking"))
    return Said(thought, text, calls, [{"role": "assistant", "content": blocks}])


def responses(events: Events) -> Said:
    """As Codex reads events: whole items, passed back as they came."""
    names = [event["type"] for event in events]
    assert names[0] == "response.created" and names[-1] == "response.completed" and events[-1]["response"]["usage"]["total_tokens"]
    items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [item["type"] for item in items] == [item["type"] for item in events[-1]["response"]["output"]]
    calls = [(item["call_id"], item["name"], item["arguments"]) for item in items if item["type"] == "function_call"]
    text = "".join(part["text"] for item in items if item["type"] == "message" for part in item["content"])
    thoughts = [part["text"] for item in items if item["type"] == "reasoning" for part in [*(item.get("content") or []), *item["summary"]]]
    assert "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta") == text
    return Said("".join(thoughts[:1]), text, calls, items)


READ: dict[str, Callable[[Events], Said]] = {"opencode": chat, "claude_code": messages, "codex": responses}


def results(agent: str, told: list[tuple[str, str]]) -> list[Any]:
    """Results of calls, by id, as the agent appends them."""
    if agent == "opencode":
        return [{"role": "tool", "tool_call_id": call, "content": text} for call, text in told]
    if agent == "codex":
        return [{"type": "function_call_output", "call_id": call, "output": text} for call, text in told]
    blocks: list[dict[str, Any]] = [{"tool_use_id": call, "type": "tool_result", "content": text} for call, text in told]
    blocks[-1]["cache_control"] = {"type": "ephemeral"}
    return [{"role": "user", "content": blocks}]


@pytest.mark.parametrize("agent", BODIES)
def test_a_loop_of_tools(scripted_server: Any, agent: str) -> None:
    given = BODIES[agent]
    body = json.loads(json.dumps(given["body"]))
    history, calls, thought, cached = body["input" if agent == "codex" else "messages"], [], "", []
    for _ in range(4):
        if agent == "claude_code":
            body["system"][0]["text"] = re.sub("cch=.*;", f"cch={len(history):05};", body["system"][0]["text"])
        answer = httpx.post(scripted_server.url + given["path"], json=body, headers=given["headers"], timeout=30)
        assert answer.status_code == 200, answer.text
        events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
        said = READ[agent](events)
        thought = thought or said.thought.strip()
        cached.append(max(_cached(events)))
        if not said.calls:
            break
        history += said.history
        told = []
        for call, name, arguments in said.calls:
            calls.append([name, json.loads(arguments)])
            wanted = f"{name} {calls[-1][1].get('cmd', '')}".strip()
            told.append((call, given["results"].get(wanted) or given["results"][name]))
        history += results(agent, told)
    assert (thought, calls, said.text) == (given["thought"], given["calls"], given["answer"])
    assert answer.headers.get("x-ridgeline-ignored-fields") == given.get("ignored")
    assert all(tokens > 1000 for tokens in cached[1:]), "each request begins as the one before"


def _cached(value: Any) -> list[int]:
    """Numbers of cached tokens that stand anywhere in it."""
    if isinstance(value, dict):
        own = [number for name, number in value.items() if name in ("cached_tokens", "cache_read_input_tokens") and isinstance(number, int)]
        return [*own, *(number for each in value.values() for number in _cached(each))] or [0]
    return [number for each in value for number in _cached(each)] if isinstance(value, list) else []


def test_before_a_session(scripted_server: Any) -> None:
    """What agents ask first: which models, how many tokens."""
    headers = BODIES["claude_code"]["headers"]
    counted = {name: BODIES["claude_code"]["body"][name] for name in ("model", "messages", "system", "tools", "thinking")}
    answer = httpx.post(f"{scripted_server.url}/v1/messages/count_tokens?beta=true", json=counted, headers=headers)
    assert answer.status_code == 200 and answer.json()["input_tokens"] > 500
    for path in ("/v1/models?client_version=0.147.0", "/v1/models"):
        assert httpx.get(scripted_server.url + path, headers={"Authorization": "Bearer none"}).json()["data"][0]["id"] == NAME
