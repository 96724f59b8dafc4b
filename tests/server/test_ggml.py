"""llama-server's own routes, by the shapes that its tests and its clients' requests expect, and vLLM's routes for operators."""

import json
import threading
from typing import Any

import pytest

from ridgeline.config.groups import EngineConfig, ServerConfig

HI = [{"role": "user", "content": "hi"}]


def post(site: Any, path: str, status: int = 200, **body: Any) -> Any:
    answer = site.request("POST", path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def events(site: Any, path: str, **body: Any) -> list[dict[str, Any]]:
    answer = site.request("POST", path, json={**body, "stream": True})
    *lines, nothing = answer.text.split("\n\n")
    assert answer.headers["content-type"].startswith("text/event-stream") and nothing == "" and "[DONE]" not in answer.text
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.mark.parametrize("path", ["/completion", "/completions"])
def test_a_completion(site: Any, path: str) -> None:
    body = {"prompt": "The meaning of life is", "n_predict": 8, "seed": 7, "cache_prompt": True, "id_slot": -1}
    whole = post(site, path, **body, return_tokens=True)
    assert whole["stop"] is True and whole["stop_type"] == "limit" and whole["stopping_word"] == "" and whole["truncated"] is False
    assert whole["timings"]["predicted_n"] == whole["tokens_predicted"] == len(whole["tokens"]) == 8
    assert whole["timings"]["prompt_n"] + whole["timings"]["cache_n"] == whole["tokens_evaluated"] == 1 + len(body["prompt"])
    assert whole["generation_settings"]["n_predict"] == 8 and whole["generation_settings"]["seed"] == 7
    assert isinstance(whole["has_new_line"], bool) and whole["prompt"].endswith(body["prompt"])
    assert post(site, path, **body)["tokens"] == []
    *parts, last = events(site, path, **body)
    assert "".join(part["content"] for part in parts) == whole["content"] and last["content"] == "" and last["stop"] is True
    assert [token for part in parts for token in part["tokens"]] == whole["tokens"] and not any(part["stop"] for part in parts)
    assert all(part["tokens"] for part in parts) and last["timings"]["predicted_n"] == 8 and "generation_settings" in last


def test_options_mean_what_they_mean_elsewhere(site: Any) -> None:
    ours = {"temperature": 0.7, "top_k": 9, "min_p": 0.01, "seed": 5, "stop": ["q"]}
    expected = site.complete(prompt="a", max_tokens=12, repetition_penalty=1.2, **ours).json()["choices"][0]["text"]
    assert post(site, "/completion", prompt="a", n_predict=12, repeat_penalty=1.2, repeat_last_n=-1, **ours)["content"] == expected
    greedy = post(site, "/completion", prompt="a", n_predict=6, temperature=-1, seed=-1)["content"]
    assert greedy == site.complete(prompt="a", max_tokens=6, temperature=0).json()["choices"][0]["text"]
    ends = post(site, "/completion", prompt="a", seed=1, stop=["x", "y", "z", "a", "e"])
    assert (ends["stop_type"], ends["stopping_word"] in "xyzae") in (("word", True), ("eos", True), ("limit", True))
    assert post(site, "/completion", prompt="a", n_predict=100_000, seed=1)["tokens_predicted"] <= 4096, "what does not fit is clipped"
    assert len(post(site, "/completion", 400, prompt="a" * 5_000)["error"]) == 3


@pytest.mark.parametrize(("text", "has_line"), [("a\nb", True), ("ab", False)])
def test_the_end_of_a_stream_knows_the_text_that_was_told(
    new_site: Any, monkeypatch: pytest.MonkeyPatch, text: str, has_line: bool
) -> None:  # fmt: skip
    """That it has a line break, and the prompt, which is decoded beside the event loop where that may take long, once for all choices."""
    site = new_site(EngineConfig("fake:" + json.dumps({"vocab": 258, "script": [["hello", text]]})))
    tokenizer, threads = type(site.service.model.tokenizer), []
    decode = tokenizer.decode

    def noted(*given: Any) -> str:
        threads.append(threading.current_thread())
        return decode(*given)

    monkeypatch.setattr(tokenizer, "decode", noted)
    monkeypatch.setattr(tokenizer, "quick_characters", 0)
    ends = [each for each in events(site, "/completion", prompt="hello", n_predict=9, n=2) if each["stop"]]
    assert [each["has_new_line"] for each in ends] == [has_line] * 2 and all(each["prompt"].endswith("hello") for each in ends)
    assert len(threads) == 1 and threads[0] is not site._thread
    assert post(site, "/completion", prompt="hello", n_predict=9)["has_new_line"] is has_line


def test_several_prompts(site: Any) -> None:
    ids = [256, *b"ab"]
    found = post(site, "/completion", prompt=[ids, ids], n_predict=3, temperature=0)
    assert [each["index"] for each in found] == [0, 1] and found[0]["content"] == found[1]["content"]
    assert post(site, "/completion", prompt=ids, n_predict=3, temperature=0)["content"] == found[0]["content"]
    assert len(post(site, "/completion", prompt=["a"], n_predict=1, n=2)) == 2
    parts = events(site, "/completion", prompt=["a", "b"], n_predict=2)
    assert {part["index"] for part in parts if part["stop"]} == {0, 1}


def test_probabilities_of_tokens(site: Any) -> None:
    whole = post(site, "/completion", prompt="a", n_predict=5, n_probs=3, seed=1)["completion_probabilities"]
    assert len(whole) == 5
    for each in whole:
        assert {*each} == {"id", "token", "bytes", "logprob", "top_logprobs"} and each["logprob"] <= 0 and len(each["top_logprobs"]) == 3
    streamed = events(site, "/completion", prompt="a", n_predict=5, n_probs=3, seed=1)
    assert [token for part in streamed for token in part.get("completion_probabilities", ())] == whole
    assert "completion_probabilities" not in post(site, "/completion", prompt="a", n_predict=1, n_probs=0)


def test_fields_of_the_answer_that_are_asked_for(site: Any) -> None:
    asked = ["content", "generation_settings/n_predict", "prompt", "timings/none", "nothing"]
    found = post(site, "/completion", prompt="a", n_predict=2, response_fields=asked)
    assert {*found} == {"content", "generation_settings/n_predict", "prompt"} and found["generation_settings/n_predict"] == 2


@pytest.mark.parametrize("body", [
    {"prompt": "a", "mirostat": 2}, {"prompt": "a", "post_sampling_probs": True}, {"prompt": "a", "grammar": "root ::= \"a\""},
    {"prompt": "a", "json_schema": {"type": "string"}}, {"prompt": [1, "a"]}, {"prompt": {"prompt_string": "a"}}, {},
    {"prompt": "a", "n_probs": -1},
])  # fmt: skip
def test_refusals(site: Any, body: dict[str, Any]) -> None:
    """In llama-server's form; this model follows no grammar."""
    error = post(site, "/completion", 400, **body)["error"]
    assert {*error} == {"code", "message", "type"} and error["code"] == 400 and error["message"]


def test_forms_are_followed(new_site: Any) -> None:
    site = new_site(EngineConfig('fake:{"vocab": 258, "script": [["a", "x"]]}'))
    assert post(site, "/completion", prompt="a", grammar='root ::= "yes"', n_predict=9)["content"] == "yes"
    held = post(site, "/completion", prompt="a", json_schema={"const": 7}, n_predict=9)
    assert (held["content"], held["stop_type"]) == ("7", "eos")


def test_infill(site: Any) -> None:
    """What clients of editors send; the model is told prefix and suffix by its own marks, or refuses."""
    body = {"input_prefix": "def add(a, b):\n", "input_suffix": "\n", "prompt": "    return ", "n_predict": 4,
            "input_extra": [{"filename": "a.py", "text": "x = 1"}], "samplers": ["top_k", "infill"], "t_max_predict_ms": 5}  # fmt: skip
    assert "suffix" in post(site, "/infill", 400, **body)["error"]["message"]
    for extra in ({}, {"filename": "ok"}, {"filename": 123}, {"filename": 1, "text": "a"}):
        assert post(site, "/infill", 400, **{**body, "input_extra": [extra]})["error"]["code"] == 400


def test_what_is_told_of_the_server(chat_site: Any) -> None:
    props, slots = chat_site.get("/props").json(), chat_site.get("/slots").json()
    assert props["total_slots"] == len(slots) == chat_site.service.model.engine.info.rows
    assert props["default_generation_settings"]["n_ctx"] == slots[0]["n_ctx"] == 512
    assert props["model_path"] == "fake" and "{%" in props["chat_template"] and props["bos_token"] == "<bos>"
    assert all({*slot} == {"id", "n_ctx", "speculative", "is_processing"} and slot["is_processing"] is False for slot in slots)
    for method, path in (("POST", "/props"), ("POST", "/slots"), ("POST", "/slots/0?action=save"), ("POST", "/slots/0?action=restore")):
        assert chat_site.request(method, path, json={"filename": "x"}).status_code in (404, 405)
    assert chat_site.get("/slots?fail_on_no_slot=1").status_code == 200
    assert chat_site.get("/models").json() == chat_site.get("/v1/models").json() and chat_site.get("/health").json() == {"status": "ok"}


def test_templates_and_vectors(chat_site: Any) -> None:
    prompt = post(chat_site, "/apply-template", messages=HI)["prompt"]
    assert prompt == "<user>hi</>\n<assistant>"
    ids = post(chat_site, "/v1/chat/completions/render", messages=HI)
    assert bytes(ids["token_ids"]).decode() == prompt and ids["model"] == "fake"
    assert post(chat_site, "/chat/completions", messages=HI, max_tokens=1)["object"] == "chat.completion"
    (vector,) = (each["embedding"] for each in post(chat_site, "/v1/embeddings", input="hi")["data"])
    assert post(chat_site, "/embedding", content=["hi", "ho"])[0]["embedding"] == [pytest.approx(vector)]
    assert post(chat_site, "/embeddings", input="hi")[0]["index"] == 0
    told = post(chat_site, "/api/embed", model="fake:latest", input=["hi", "ho"])
    assert told["embeddings"][0] == pytest.approx(vector) and len(told["embeddings"]) == 2 and told["prompt_eval_count"] > 0
    assert post(chat_site, "/api/embeddings", model="fake", prompt="hi")["embedding"] == pytest.approx(vector)
    assert post(chat_site, "/api/embed", model="fake", input=[])["embeddings"] == []
    post(chat_site, "/api/embed", 400, model="fake", input="a" * 600, truncate=False)
    assert len(post(chat_site, "/api/embed", model="fake", input="a" * 600)["embeddings"]) == 1, "cut"


def test_what_operators_of_vllm_ask(new_site: Any) -> None:
    site = new_site(EngineConfig("fake:{}"), ServerConfig(api_key="k"))
    assert site.get("/ping").status_code == 200 and site.get("/load").status_code == 401
    site.client.headers["Authorization"] = "Bearer k"
    assert site.get("/load").json() == {"server_load": 0} and site.get("/is_sleeping").json() == {"is_sleeping": False}
    info = site.get("/server_info").json()
    assert info["model"] == "fake" and info["rows"] > 0
    assert all({*each} == {"name", "value", "origin", "reason"} for each in info["settings"])
    assert site.get("/tokenizer_info").json()["vocab_size"] == site.service.model.limits.vocab
