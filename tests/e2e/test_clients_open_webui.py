"""The calls that Open WebUI makes of an OpenAI server, body by body: model list, streamed chat, titles, tags, follow-ups, queries.

Written from its source (backend/open_webui/routers/openai.py, tasks.py, utils/payload.py). It takes `metadata` out of a body before it
sends it; what else a chat carries goes on as it is.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
HEADERS = {
    "Authorization": "Bearer k", "Content-Type": "application/json", "X-OpenWebUI-User-Name": "Ada%20L", "X-OpenWebUI-User-Id": "1",
    "X-OpenWebUI-User-Email": "ada@example.com", "X-OpenWebUI-User-Role": "admin", "X-OpenWebUI-Chat-Id": "c1",
}  # fmt: skip
HISTORY = [
    {"role": "system", "content": "You help."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": [{"type": "text", "text": "What now?"}]},
]
ADVANCED = {"temperature": 0.8, "top_p": 0.9, "max_tokens": 24, "frequency_penalty": 0.1, "presence_penalty": 0.1, "seed": 3,
            "stop": ["~~"]}  # fmt: skip
"""Advanced parameters, as the settings of a chat write them."""
TASKS = {"title": {"max_completion_tokens": 200}, "tags": {}, "follow ups": {}, "queries": {}}


@pytest.fixture(scope="module")
def client(serving: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    template = tmp_path_factory.mktemp("template") / "chat.jinja"
    template.write_text(TEMPLATE)
    fake = 'fake:{"windows": [0, 64], "max_model_len": 512}'
    arguments = (fake, "--api-key", "k", "--served-model-name", "m", "--chat-template", str(template))
    with serving(*arguments) as server, httpx.Client(base_url=f"{server.url}/v1", headers=HEADERS, timeout=30) as client:
        yield client


def test_the_model_list(client: httpx.Client) -> None:
    """It keeps `id`, takes `owned_by` and `name` where they are, and reads the list under `data`."""
    listed = client.get("/models").raise_for_status().json()
    assert listed["object"] == "list" and [(model["id"], model["object"]) for model in listed["data"]] == [("m", "model")]
    assert listed["data"][0]["owned_by"] != "ollama", "it would send Ollama's fields"


@pytest.mark.parametrize("advanced", [{}, ADVANCED], ids=["plain", "advanced"])
def test_a_streamed_chat(client: httpx.Client, advanced: dict[str, Any]) -> None:
    body = {
        "stream": True, "model": "m", "messages": HISTORY, "stream_options": {"include_usage": True}, "session_id": None, "chat_id": "c1",
        "id": "m1", "features": {"web_search": False}, "background_tasks": {"title_generation": True},
        "variables": {"{{USER_NAME}}": "Ada"},
        "model_item": {"id": "m"}, "tool_ids": None, "filter_ids": [], "files": None, **advanced,
    }  # fmt: skip
    with client.stream("POST", "/chat/completions", json=body) as answer:
        lines = [line for line in answer.iter_lines() if line]
        assert answer.status_code == 200, lines
        assert answer.headers["content-type"].startswith("text/event-stream")
    assert lines[-1] == "data: [DONE]" and all(line.startswith("data: ") for line in lines)
    events = [json.loads(line[6:]) for line in lines[:-1]]
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])
    assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] > 0
    assert [choice["finish_reason"] for event in events for choice in event["choices"]][-1] in ("stop", "length")


@pytest.mark.parametrize("task", sorted(TASKS))
def test_tasks_beside_a_chat(client: httpx.Client, task: str) -> None:
    """They ask for JSON in words, whole, and find it between the first and the last brace."""
    content = f'### Task:\nGenerate {task}.\nJSON format: {{ "{task}": "…" }}\n<chat_history>\nUSER: Hi\n</chat_history>'
    body = {"model": "m", "messages": [{"role": "user", "content": content}], "stream": False, **TASKS[task]}
    answer = client.post("/chat/completions", json=body).raise_for_status().json()
    assert isinstance(answer["choices"][0]["message"]["content"], str) and answer["choices"][0]["message"]["role"] == "assistant"


def test_a_refusal_is_shown(client: httpx.Client) -> None:
    """It shows `error.message`, or `error` itself."""
    answer = client.post("/chat/completions", json={"model": "other", "messages": HISTORY, "stream": True})
    assert answer.status_code == 404 and "other" not in answer.json()["error"]["message"] and answer.json()["error"]["message"]
