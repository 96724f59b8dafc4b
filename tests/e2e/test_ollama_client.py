"""Ollama's official client against real servers, and the bodies of programs that speak its API: LangChain, Open WebUI, Continue."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import ollama
import pytest

ASKED: Any = [{"role": "user", "content": "Name the largest planet."}]
SHORT: Any = {"num_predict": 12, "temperature": 0}


@pytest.fixture
def client(demo_server: Any) -> Iterator[ollama.Client]:
    with ollama.Client(demo_server.url) as client:
        yield client


@pytest.fixture(scope="module")
def locked(serving: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    file = tmp_path_factory.mktemp("keys") / "keys"
    file.write_text("tenant client-key\nowner admin-key scope=admin\n")
    file.chmod(0o600)
    with serving('fake:{"max_model_len": 128}', "--api-key-file", str(file)) as server:
        yield server


def test_chat(client: ollama.Client) -> None:
    whole = client.chat("demo", ASKED, options=SHORT)
    assert whole.done and whole.done_reason == "length" and whole.model == "demo" and whole.eval_count == 12
    assert min(whole.total_duration or 0, whole.prompt_eval_duration or 0, whole.eval_duration or 0) > 0
    parts = [*client.chat("demo:latest", ASKED, stream=True, options=SHORT)]
    assert "".join(part.message.content or "" for part in parts) == whole.message.content and parts[-1].done_reason == "length"
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]


def test_generate(client: ollama.Client) -> None:
    whole = client.generate("demo", "Name the largest planet.", options=SHORT)
    assert whole.response == client.chat("demo", ASKED, options=SHORT).message.content, "the template is put around it"
    parts = client.generate("demo", "Name the largest planet.", stream=True, options=SHORT)
    assert "".join(part.response or "" for part in parts) == whole.response
    assert client.generate("demo", "The largest planet is", raw=True, options=SHORT).response != whole.response
    planet = {"enum": ["Jupiter", "Mars"]}
    schema = {"type": "object", "properties": {"planet": planet}, "required": ["planet"], "additionalProperties": False}
    options = {"num_predict": 32}
    held = client.generate("demo", "The largest planet?", format=schema, options=options)
    assert json.loads(held.response or "")["planet"] in ("Jupiter", "Mars")


def test_models(client: ollama.Client) -> None:
    (listed,), (running,) = client.list().models, client.ps().models
    assert listed.model == running.model == "demo:latest" and (listed.size or 0) > 1e8 and listed.digest == running.digest
    assert listed.details is not None and listed.details.family == "gemma3" and running.context_length == 2048
    shown = client.show("demo")
    assert shown.modelinfo is not None and shown.modelinfo["gemma3.context_length"] == 32768 and "completion" in (shown.capabilities or [])


def test_refusals(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="no model of that name") as missing:
        client.chat("other", ASKED)
    assert missing.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match=r"options\.mirostat"):
        client.generate("demo", "a", options={"mirostat": 1})
    with pytest.raises(ollama.ResponseError, match="nothing at this path"):
        client.create("mine", from_="demo")


def test_only_admins_change_the_library(locked: Any) -> None:
    with ollama.Client(locked.url, headers={"Authorization": "Bearer client-key"}) as client:
        assert client.generate("fake", "a", options={"num_predict": 1}).done
        for refused in (lambda: client.pull("llama3.2:1b"), lambda: client.delete("fake"), lambda: client.copy("fake", "mine")):
            with pytest.raises(ollama.ResponseError, match="scope=admin"):
                refused()
    with ollama.Client(locked.url, headers={"Authorization": "Bearer admin-key"}) as admin:
        assert admin.copy("fake", "mine").status == "success" and admin.generate("mine", "a", options={"num_predict": 1}).done
        assert admin.delete("mine").status == "success"
        with pytest.raises(ollama.ResponseError, match="no model of that name"):
            admin.delete("mine")


OPEN_WEBUI = {
    "model": "demo:latest", "messages": [{"role": "system", "content": "You help."}, *ASKED], "stream": True, "keep_alive": "5m",
    "options": {"temperature": 0.8, "top_k": 40, "num_ctx": 2048, "num_predict": 6, "stop": ["~~"], "seed": 1},
}  # fmt: skip
"""As its /ollama/api/chat passes it on."""
LANGCHAIN = {
    "model": "demo", "stream": True, "think": None, "format": None, "keep_alive": None, "tools": [], "logprobs": None, "top_logprobs": None,
    "messages": [{"role": "user", "content": "Hi", "images": []}],
    "options": {"mirostat": None, "num_ctx": None, "num_predict": 6, "repeat_last_n": None, "temperature": 0.2, "tfs_z": None},
}  # fmt: skip
"""As langchain-ollama's ChatOllama forms it."""
CONTINUE = {
    "model": "demo", "raw": True, "keep_alive": 1800, "prompt": "def add(a, b):", "stream": True,
    "options": {"temperature": 0.01, "num_predict": 6, "num_ctx": 2048, "stop": ["\n\n"], "num_thread": None, "mirostat": None},
}  # fmt: skip
"""As its completions of code ask."""


@pytest.mark.parametrize(
    ("path", "body"), [("chat", OPEN_WEBUI), ("chat", LANGCHAIN), ("generate", CONTINUE)], ids=["Open WebUI", "LangChain", "Continue"]
)
def test_bodies_of_programs(demo_server: Any, path: str, body: dict[str, Any]) -> None:
    answer = httpx.post(f"{demo_server.url}/api/{path}", json=body, timeout=30).raise_for_status()
    *parts, last = [json.loads(line) for line in answer.text.splitlines()]
    assert last["done"] and last["eval_count"] <= 6 and all(not part["done"] for part in parts)
    assert httpx.get(demo_server.url).text == "Ollama is running"
