"""Ollama's dialect: lines of streams, durations, options, forms, calls, models, and what only an admin may do."""

import json
from pathlib import Path
from typing import Any

import pytest
from hub_server import serve_hub

from gold import TEMPLATES
from ridgeline.config.groups import EngineConfig, ServerConfig

HI = [{"role": "user", "content": "hi"}]
NUMBERS = ("total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration")


def post(site: Any, path: str, status: int = 200, **body: Any) -> Any:
    answer = site.request("POST", f"/api/{path}", json={"model": "fake", **body})
    assert answer.status_code == status, answer.text
    return answer


def lines(answer: Any) -> list[dict[str, Any]]:
    assert answer.headers["content-type"] == "application/x-ndjson" and answer.text.endswith("}\n")
    return [json.loads(line) for line in answer.text.splitlines()]


@pytest.mark.parametrize(("path", "asked"), [
    ("chat", {"messages": HI}), ("generate", {"prompt": "hi"}), ("generate", {"prompt": "h", "raw": True}),
])  # fmt: skip
def test_a_stream_is_the_whole_answer(chat_site: Any, path: str, asked: dict[str, Any]) -> None:
    """A stream is what comes unless it is refused; the last line alone has the end, its counts and durations that add up."""
    asked = {**asked, "options": {"num_predict": 5, "seed": 3}}
    *parts, last = lines(post(chat_site, path, **asked))
    whole = post(chat_site, path, stream=False, **asked).json()
    assert whole["done"] is last["done"] is True and whole["done_reason"] == last["done_reason"] == "length"
    assert parts and all(part["done"] is False and not {*NUMBERS, "done_reason"} & {*part} for part in parts)

    def text(part: dict[str, Any]) -> str:
        return part["message"]["content"] if path == "chat" else part["response"]

    assert "".join(map(text, (*parts, last))) == text(whole)
    for end in (whole, last):
        assert end["eval_count"] == 5 and end["prompt_eval_count"] > 0 and end["created_at"].endswith("Z")
        assert end["total_duration"] >= end["load_duration"] + end["prompt_eval_duration"] + end["eval_duration"] > 0
    assert [last[name] for name in ("eval_count", "prompt_eval_count")] == [whole[name] for name in ("eval_count", "prompt_eval_count")]


def test_options_are_those_of_the_other_dialects(chat_site: Any) -> None:
    options = {"temperature": 0.7, "top_k": 9, "top_p": 0.9, "min_p": 0.01, "seed": 5, "num_predict": 12, "stop": ["q"],
               "presence_penalty": 0.5, "frequency_penalty": 0.25, "repeat_penalty": 1.2, "repeat_last_n": -1}  # fmt: skip
    ours = {**options, "max_tokens": 12, "repetition_penalty": 1.2}
    for name in ("num_predict", "repeat_penalty", "repeat_last_n"):
        del ours[name]
    expected = chat_site.chat("hi", **ours).json()["choices"][0]["message"]["content"]
    assert post(chat_site, "chat", messages=HI, options=options, stream=False).json()["message"]["content"] == expected
    assert post(chat_site, "generate", prompt="hi", options=options, stream=False).json()["response"] == expected
    options = {"num_predict": 1, "num_ctx": 9_999, "repeat_penalty": 1.1, "repeat_last_n": 64, "x": 1}
    answer = post(chat_site, "chat", messages=HI, options=options)
    assert answer.headers["x-ridgeline-ignored-fields"] == "options.x, options.repeat_last_n, options.num_ctx"
    assert len(lines(post(chat_site, "chat", messages=HI, options={"num_predict": 100_000, "seed": 1}))[-1]["done_reason"]) > 0, "clipped"


@pytest.mark.parametrize(("path", "field", "body"), [
    ("chat", "options.mirostat", {"options": {"mirostat": 1}}),
    ("chat", "options.top_p", {"options": {"top_p": 3}}),
    ("chat", "options.top_k", {"options": {"top_k": "x"}}),
    ("chat", "format", {"format": "yaml"}),
    ("chat", "messages[0].images", {"messages": [{"role": "user", "content": "a", "images": ["aGk="]}]}),
    ("chat", "tools[0]", {"tools": [{"type": "mcp", "function": {"name": "f"}}]}),
    ("generate", "images", {"images": ["aGk="]}),
    ("generate", "template", {"template": "{{ .Prompt }}"}),
    ("generate", "context", {"context": [1, 2]}),
    ("generate", "suffix", {"suffix": "b"}),
    ("generate", "system", {"raw": True, "system": "b"}),
    ("chat", "think", {"think": "high"}),
])  # fmt: skip
def test_what_is_not_supported_is_refused_by_name(chat_site: Any, path: str, field: str, body: dict[str, Any]) -> None:
    refused = post(chat_site, path, 400, **{**({"messages": HI} if path == "chat" else {"prompt": "a"}), **body}).json()
    assert set(refused) == {"error"} and field in refused["error"]


def test_names(chat_site: Any) -> None:
    assert lines(post(chat_site, "chat", model="fake:latest", messages=HI, options={"num_predict": 1}))[-1]["model"] == "fake:latest"
    for body, status in (({"model": "other"}, 404), ({"model": "fake:7b"}, 404), ({"model": ""}, 400), ({"model": None}, 400)):
        assert set(post(chat_site, "chat", status, messages=HI, **body).json()) == {"error"}
    assert chat_site.get("/api/nothing").json().keys() == chat_site.request("PUT", "/api/chat").json().keys() == {"error"}
    for path in ("chat", "generate"):
        loaded = post(chat_site, path, keep_alive=0).json()
        assert (loaded["done"], loaded["done_reason"]) == (True, "load")


def test_log_probabilities(chat_site: Any) -> None:
    asked = {"messages": HI, "logprobs": True, "top_logprobs": 2, "options": {"num_predict": 3, "seed": 1}}
    whole = post(chat_site, "chat", stream=False, **asked).json()["logprobs"]
    assert [len(each["top_logprobs"]) for each in whole] == [2, 2, 2] and all(each["logprob"] <= 0 for each in whole)
    assert [each for part in lines(post(chat_site, "chat", **asked)) for each in part.get("logprobs", ())] == whole


def test_the_model_is_told_without_its_path(new_site: Any, demo_file: Path) -> None:
    site = new_site(EngineConfig(str(demo_file), max_model_len=64), ServerConfig(served_model_name="tiny"))
    (listed,), (loaded,) = site.get("/api/tags").json()["models"], site.get("/api/ps").json()["models"]
    shown = site.request("POST", "/api/show", json={"name": "tiny:latest"}).json()
    assert listed["name"] == listed["model"] == loaded["name"] == "tiny:latest" and listed["digest"] == loaded["digest"]
    assert listed["size"] == demo_file.stat().st_size and loaded["context_length"] == 64 and loaded["size_vram"] == 0
    family = listed["details"]["family"]
    assert shown["details"] == listed["details"] and shown["model_info"]["general.architecture"] == family
    assert shown["model_info"][f"{family}.block_count"] > 0 and "completion" in shown["capabilities"]
    for told in (listed, loaded, shown):
        assert str(demo_file.parent) not in json.dumps(told)


def test_calls_and_thinking(new_site: Any) -> None:
    """Calls come whole, with arguments as an object; results without ids answer them in order."""
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>'
    script = [["in Bern?", f"<think>\nHm.\n</think>\n\n{call}"], ["sunny", "It is sunny."]]
    fake = {"vocab": 258, "max_model_len": 4096, "script": script}
    site = new_site(EngineConfig(f"fake:{json.dumps(fake)}"), ServerConfig(chat_template=str(TEMPLATES / "Qwen-Qwen3-0.6B.jinja")))
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
    asked = {"messages": [{"role": "user", "content": "Weather in Bern?"}], "tools": [tool]}
    whole = post(site, "chat", stream=False, **asked).json()
    assert whole["message"]["thinking"].strip() == "Hm." and whole["done_reason"] == "stop"
    assert [each["function"] for each in whole["message"]["tool_calls"]] == [{"name": "weather", "arguments": {"city": "Bern"}}]
    parts = lines(post(site, "chat", **asked))
    assert "".join(part["message"].get("thinking", "") for part in parts) == whole["message"]["thinking"]
    (told,) = (each["function"] for part in parts for each in part["message"].get("tool_calls", ()))
    assert told == whole["message"]["tool_calls"][0]["function"]
    call_back = {"role": "assistant", "content": "", "tool_calls": [{"function": told}]}
    history = [*asked["messages"], call_back, {"role": "tool", "content": "sunny", "tool_name": "weather"}]
    assert post(site, "chat", messages=history, tools=[tool], stream=False).json()["message"]["content"] == "It is sunny."
    assert {"tools", "thinking"} <= {*site.request("POST", "/api/show", json={"model": "fake"}).json()["capabilities"]}
    form = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
    held = post(site, "generate", prompt="x", raw=True, format=form, stream=False, options={"num_predict": 64}).json()
    assert json.loads(held["response"]) == {"a": 1}


def test_at_the_root(site: Any) -> None:
    """Its programs look there for its text; browsers get the page."""
    assert site.get("/").text == "Ollama is running" and site.request("HEAD", "/").status_code == 200
    assert site.get("/", headers={"Accept": "text/html,*/*;q=0.8"}).headers["content-type"].startswith("text/html")
    assert site.get("/api/version").json()["version"].count(".") == 2


@pytest.fixture
def owned(new_site: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    for name in ("HF_HOME", "XDG_CACHE_HOME", "HOME", "OLLAMA_MODELS"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    site = new_site(EngineConfig("fake:{}"), ServerConfig(api_key="k"))
    site.client.headers["Authorization"] = "Bearer k"
    return site


def test_an_admin_gives_aliases(owned: Any) -> None:
    def ask(method: str, path: str, **body: Any) -> int:
        return int(owned.request(method, path, json=body).status_code)

    assert ask("POST", "/api/copy", source="fake", destination="mine:latest") == 200
    assert ask("POST", "/api/generate", model="mine", prompt="a", options={"num_predict": 1}) == 200
    assert ask("POST", "/v1/completions", model="mine", prompt="a", max_tokens=1) == 200
    assert [each["name"] for each in owned.get("/api/tags").json()["models"]] == ["fake:latest", "mine:latest"]
    assert [each["id"] for each in owned.get("/v1/models").json()["data"]] == ["fake", "mine"]
    assert ask("DELETE", "/api/delete", model="mine") == 200 and ask("POST", "/v1/completions", model="mine", prompt="a") == 404
    assert ask("DELETE", "/api/delete", model="mine") == 404 and ask("POST", "/api/copy", source="mine", destination="b") == 404
    for destination in ("", "../x", "a" * 200, "a b"):
        assert ask("POST", "/api/copy", source="fake", destination=destination) == 400


def test_an_admin_pulls_and_deletes(owned: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a hub, by a name that is no path; a client's request never does."""
    with serve_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.files["org/tiny"] = {"tiny-Q8_0.gguf": b"GGUF" * 100_000}
        assert owned.complete(model="org/tiny", prompt="a").status_code == 404 and not hub.requests
        found = lines(owned.request("POST", "/api/pull", json={"model": "org/tiny"}))
        assert found[0]["status"] == "pulling manifest" and found[-1] == {"status": "success"}, found
        assert lines(owned.request("POST", "/api/pull", json={"model": "org/none"}))[-1].keys() == {"error"}
        for name in ("/etc/passwd", "./x", "../x", "a" * 300, "http://evil.example/x"):
            assert owned.request("POST", "/api/pull", json={"model": name}).status_code == 400, name
        assert owned.request("DELETE", "/api/delete", json={"model": "org/tiny"}).status_code == 200
        assert owned.request("DELETE", "/api/delete", json={"model": "org/tiny"}).status_code == 404
