"""The engine is killed at random moments under sixteen answers of all kinds: each is, but for ids and times, the one nobody disturbed."""

import asyncio
import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from gold import TEMPLATES
from ridgeline.config.groups import EngineConfig, ServerConfig

LONG = "Grüße aus Zürich 🌍, 東京 — und zurück. " * 6
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "array", "items": {"type": "integer"}}},
           "required": ["city", "days"], "additionalProperties": False}  # fmt: skip
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich 🌍 am See", "days": [1, 2, 3, 4, 5, 6, 7, 8, 9]}}\n</tool_call>'
SCRIPT = [
    ["Long?", LONG], ["Call?", f"<think>\nA call, surely.\n</think>\n\nI look it up.\n{CALL}\n{CALL}"],
    ["Think?", f"<think>\n{LONG}\n</think>\n\n{LONG}"], ["Form?", json.dumps({"city": "東京 " * 20, "days": list(range(30))})],
]  # fmt: skip
VOLATILE = {
    "id", "created", "created_at", "completed_at", "item_id", "call_id", "response_id", "sequence_number", "obfuscation", "signature",
    "encrypted_content",
}  # fmt: skip
TOOL = {"name": "weather", "description": "Weather.", "parameters": WEATHER}
FORM = {"type": "json_schema", "json_schema": {"name": "f", "schema": WEATHER, "strict": True}}


def chat(text: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "max_tokens": 400, "seed": 3, **more}


def complete(**more: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/completions", {"prompt": "Once", "max_tokens": 150, "seed": 4, **more}


ASKED = [
    complete(stream=True, temperature=0),
    complete(stream=True, n=4, logprobs=2, stream_options={"include_usage": True}),
    complete(echo=True, logprobs=1, prompt="A prompt that is scored, token by token, as it is long. " * 8),
    complete(prompt=["one", "two", "three"], best_of=2, presence_penalty=0.7, frequency_penalty=0.3, logit_bias={"66": 3}, min_tokens=100),
    complete(use_beam_search=True, n=3, max_tokens=40, temperature=0),
    complete(stream=True, prompt="Long?", stop=["zurück. Grüße aus Zürich 🌍, 東京 — und zurück. G"], include_stop_str_in_output=True),
    chat("Long?", stream=True, stop=["京 — und zurück. Grüße aus Zürich 🌍, 東京 — un"]),
    chat("Long?", n=4, logprobs=True, top_logprobs=1),
    chat("Call?", stream=True, tools=[{"type": "function", "function": TOOL}], stream_options={"include_usage": True}),
    chat("Call?", tools=[{"type": "function", "function": TOOL}], tool_choice="required"),
    chat("Form?", stream=True, response_format=FORM),
    chat("Form?", response_format=FORM, n=2),
    chat("Think?", stream=True, thinking_token_budget=120),
    ("/v1/messages", {"model": "fake", "max_tokens": 400, "stream": True, "messages": [{"role": "user", "content": "Call?"}],
                      "tools": [{"name": "weather", "description": "Weather.", "input_schema": WEATHER}]}),
    ("/v1/responses", {"input": "Think?", "stream": True, "max_output_tokens": 500}),
    ("/v1/responses", {"input": "Long?", "background": True, "max_output_tokens": 500}),
]  # fmt: skip


def merged(into: Any, new: Any) -> Any:
    """One value of all events: texts and lists are joined, objects with an `index` merged by it; ids and times are left out."""
    if isinstance(new, dict):
        into = {} if into is None else into
        for key, value in new.items():
            if key not in VOLATILE and value is not None:
                same = key in ("type", "object", "role", "model", "finish_reason", "name", "system_fingerprint", "status", "stop_reason")
                into[key] = value if same else merged(into.get(key), value)
        return into
    if isinstance(new, list):
        if not new:
            return into
        if any(isinstance(each, dict) and "index" in each for each in new):
            into = {} if into is None else into
            for each in new:
                into[each["index"]] = merged(into.get(each["index"]), each | {"index": None})
            return into
        return (into or []) + [merged(None, each) for each in new]
    return (into or "") + new if isinstance(new, str) else new


async def answered(site: Any, path: str, body: dict[str, Any]) -> Any:
    """The whole answer, comparable."""
    while "try again in a few seconds" in (answer := await site.client.post(path, json=body)).text:  # it came while no engine ran
        await asyncio.sleep(0.05)
    assert answer.status_code == 200, answer.text
    if body.get("stream"):
        by_type: dict[str, Any] = {}
        for line in answer.text.splitlines():
            if line.startswith("data: {"):
                event = json.loads(line[6:])
                assert "error" not in event or event["error"] is None, event
                kind = f"{event.get('type')} {event.get('output_index', event.get('index'))} {event.get('content_index')}"
                by_type[kind] = merged(by_type.get(kind), event)
        return by_type
    found = answer.json()
    while found.get("status") in ("queued", "in_progress"):
        await asyncio.sleep(0.05)
        found = (await site.client.get(f"{path}/{found['id']}")).json()
    return merged(None, found)


async def all_answered(site: Any) -> list[Any]:
    return await asyncio.gather(*(answered(site, path, body) for path, body in ASKED))


def is_there(pid: int) -> bool:
    """True until the process has been ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def killed_under_load(
    site: Any, kills: int, rng: random.Random, how: int = signal.SIGKILL
) -> tuple[list[Any], list[float], list[float]]:
    """The answers; seconds from each kill until the engine was found to be gone or to hang; and until the next token."""
    client, metrics, found, pauses = site.service.deployment.client, site.service.metrics, list[float](), list[float]()
    answers = asyncio.ensure_future(all_answered(site))
    for _ in range(kills):
        enough = metrics.generation_tokens + rng.randrange(1, 400)
        while metrics.generation_tokens < enough and not answers.done():
            await asyncio.sleep(0.002)
        if answers.done():
            break
        starts, pid, at = client.starts, client.pid, time.monotonic()
        os.kill(pid, how)
        while is_there(pid):
            await asyncio.sleep(0.005)
        found.append(time.monotonic() - at)
        while not (client.starts > starts and site.service.is_ready):
            await asyncio.sleep(0.005)
        before = metrics.generation_tokens
        while metrics.generation_tokens == before and not answers.done():
            await asyncio.sleep(0.002)
        pauses.append(time.monotonic() - at)
    return await answers, found, pauses


def make_site(new_site: Any) -> Any:
    model = {"script": SCRIPT, "vocab": 258, "step_seconds": 0.004, "rows": 24, "max_model_len": 8192}
    engine = EngineConfig(f"fake:{json.dumps(model)}", enable_prefix_caching=False)  # what is cached depends on who came first
    site = new_site(engine, ServerConfig(chat_template=str(TEMPLATES / "Qwen-Qwen3-0.6B.jinja")))
    site.service.deployment.client._delay = lambda failures: 0.0
    return site


def differences(one: Any, other: Any, at: str = "") -> list[str]:
    """Where two answers differ, and how."""
    if isinstance(one, dict) and isinstance(other, dict):
        return [each for key in {**one, **other} for each in differences(one.get(key), other.get(key), f"{at}.{key}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [each for index, pair in enumerate(zip(one, other, strict=True)) for each in differences(*pair, f"{at}[{index}]")]
    return [] if one == other else [f"{at}: {one!r:.600} is not {other!r:.600}"]


def test_five_kills_change_no_answer(new_site: Any) -> None:
    site = make_site(new_site)
    undisturbed = site.wait(all_answered(site))
    answers, _, pauses = site.wait(killed_under_load(site, 5, random.Random(1)))
    assert not differences(answers, undisturbed)
    assert len(pauses) >= 4 and max(pauses) < 10
    assert site.service.current_metrics().continued >= 16 and not site.service.deployment.open_requests


def told(seconds: list[float]) -> str:
    return f"the longest {max(seconds):.2f} s, in the middle {sorted(seconds)[len(seconds) // 2]:.2f} s"


@pytest.mark.night
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("how", "times"), [(signal.SIGKILL, 100), (signal.SIGSTOP, 20)])
def test_many_ends_change_no_answer(new_site: Any, how: int, times: int) -> None:
    """With SIGSTOP nothing ends: the watch has to notice, within 10 s."""
    site, rng, all_found, all_pauses = make_site(new_site), random.Random(times), list[float](), list[float]()
    undisturbed = site.wait(all_answered(site))
    while len(all_pauses) < times:
        answers, found, pauses = site.wait(killed_under_load(site, 4 if how == signal.SIGKILL else 1, rng, how), 180)
        assert not differences(answers, undisturbed)
        all_found += found
        all_pauses += pauses
    print(f"{len(all_pauses)} pauses, {told(all_pauses)}; found after, {told(all_found)}")
    assert max(all_found) < 10 and max(all_pauses) < (10 if how == signal.SIGKILL else 12) and not site.service.deployment.open_requests
