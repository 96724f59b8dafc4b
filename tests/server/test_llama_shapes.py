"""Requests of the shapes that llama.cpp's own tests of its server send: what is the same here, and what is refused by name."""

import base64
import json
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import fsum
from typing import Any

import pytest

from ridgeline.config.groups import EngineConfig, ServerConfig
from ridgeline.text.fim import Fim
from ridgeline.text.tokenizer import ByteTokenizer

PROMPT = "The best thing about winter is"
TALK = [{"role": "system", "content": "Novel"}, {"role": "user", "content": "Which one shall I read?"}]
LONG = TALK * 60
DOCUMENTS = ["wheels turn", "a river in spring", "turning wheels", "bread and salt"]


def post(site: Any, path: str, status: int = 200, **body: Any) -> Any:
    answer = site.request("POST", path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def told(site: Any, path: str, **body: Any) -> str:
    """The message of a refusal."""
    message = post(site, path, 400, **body)["error"]["message"]
    assert isinstance(message, str)
    return message


# ── completions ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_one_seed_gives_one_text_with_and_without_the_cache(site: Any) -> None:
    body = {"prompt": PROMPT, "n_predict": 8, "seed": 42, "temperature": 1.0}
    texts = {post(site, "/completion", **body, cache_prompt=cached)["content"] for cached in (True, False, True)}
    assert len(texts) == 1
    others = {post(site, "/completion", **{**body, "seed": seed})["content"] for seed in range(4)}
    assert len(others) == 4, "another seed, another text"


def test_prompts_as_ids_as_texts_and_both(site: Any) -> None:
    ids = post(site, "/tokenize", content=PROMPT, add_special=True)["tokens"]
    body = {"n_predict": 6, "temperature": 0.0}
    alone = post(site, "/completion", prompt=ids, **body)["content"]
    for prompts in ([ids, ids], [ids, PROMPT], [PROMPT, ids]):
        assert [each["content"] for each in post(site, "/completion", prompt=prompts, **body)] == [alone, alone]
    assert "mixes" in told(site, "/completion", prompt=[5, 6, PROMPT, 7, PROMPT], **body)
    assert "prompt" in told(site, "/completion", prompt={"prompt_string": PROMPT, "multimodal_data": ["AAAA"]}, **body)


@pytest.mark.parametrize("as_object", [False, True])
def test_biases_of_ids(site: Any, as_object: bool) -> None:
    """As pairs or as an object; false bans."""
    ids = post(site, "/tokenize", content="abcdefghijklmnopqrstuvwxyz")["tokens"]
    pairs = [[each, -100.0 if as_object or each % 2 else False] for each in ids]
    bias: Any = {str(each): value for each, value in pairs} if as_object else pairs
    text = post(site, "/completion", prompt=PROMPT, n_predict=48, seed=3, logit_bias=bias)["content"]
    assert text and not any(letter in text for letter in "abcdefghijklmnopqrstuvwxyz")
    assert any(
        letter in post(site, "/completion", prompt=PROMPT, n_predict=48, seed=3)["content"] for letter in "abcdefghijklmnopqrstuvwxyz"
    )
    for wrong in ([[" river ", -100]], {" river ": -100}, [[97, True]]):
        assert "logit_bias" in told(site, "/completion", prompt=PROMPT, logit_bias=wrong)


def test_probabilities_per_token(site: Any) -> None:
    body = {"prompt": PROMPT, "n_probs": 10, "temperature": 0.0, "n_predict": 5}
    whole = post(site, "/completion", **body)["completion_probabilities"]
    streamed = site.request("POST", "/completion", json={**body, "stream": True}).text.strip().split("\n\n")
    events = [json.loads(each.removeprefix("data: ")) for each in streamed]
    assert all(len(each["completion_probabilities"]) == 1 for each in events if not each["stop"])
    for each in [*whole, *(place for event in events for place in event.get("completion_probabilities", ()))]:
        assert len(each["top_logprobs"]) == 10
        for one in (each, *each["top_logprobs"]):
            assert isinstance(one["id"], int) and isinstance(one["token"], str) and isinstance(one["bytes"], list) and one["logprob"] <= 0
    assert "post_sampling_probs" in told(site, "/completion", **body, post_sampling_probs=True)


@pytest.mark.parametrize(("rows", "requests"), [(1, 2), (4, 6)])
def test_slots_are_busy_while_they_compute(new_site: Any, rows: int, requests: int) -> None:
    site = new_site(EngineConfig(f'fake:{{"vocab": 258, "rows": {rows}, "step_seconds": 0.02}}'))
    body = {"prompt": PROMPT, "n_predict": 30, "temperature": 1.0, "ignore_eos": True}
    with ThreadPoolExecutor(requests) as pool:
        answers = [pool.submit(post, site, "/completion", **body, seed=number) for number in range(requests)]
        most, deadline = 0, time.monotonic() + 20
        while most < min(rows, requests) and time.monotonic() < deadline:
            most = max(most, sum(each["is_processing"] for each in site.get("/slots").json()))
        assert most == min(rows, requests)
        assert all(len(each.result()["content"]) > 10 for each in answers)


def test_a_client_that_goes_frees_its_slot(new_site: Any) -> None:
    site = new_site(EngineConfig('fake:{"vocab": 258, "rows": 1, "step_seconds": 0.05}'))
    import asyncio

    async def leave() -> None:
        async with asyncio.timeout(0.3):
            await site.client.post("/completion", json={"prompt": PROMPT, "ignore_eos": True, "stream": True})

    with pytest.raises(TimeoutError):
        site.wait(leave())
    deadline = time.monotonic() + 10
    while site.get("/slots").json()[0]["is_processing"]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert threading.active_count() < 50


# ── the end of the context ──────────────────────────────────────────────────────────────────────────────────────────────


def test_the_context_is_never_shifted(chat_site: Any) -> None:
    """A short prompt is answered up to its end; a long one is refused by a type that clients know, streamed or not."""
    for asked, expected in ((64, 64), (-1, 512 - 5)):
        whole = post(chat_site, "/completion", prompt=[65] * 5, n_predict=asked, ignore_eos=True)
        assert whole["timings"]["predicted_n"] == expected and whole["truncated"] is False and whole["stop_type"] == "limit"
    for more in ({}, {"stream": True}):
        error = post(chat_site, "/completion", 400, prompt="a" * 600, n_predict=64, **more)["error"]
        assert error["type"] == "exceed_context_size_error" and "601" in error["message"] and "512" in error["message"]
        error = post(chat_site, "/chat/completions", 400, messages=LONG, **more)["error"]
        assert error["code"] == "context_length_exceeded"
    assert post(chat_site, "/infill", 400, input_prefix="a" * 600, input_suffix="b")["error"]["type"] == "invalid_request_error", "no marks"
    events = chat_site.events("/v1/completions", prompt="Once", n_predict=40)
    assert {each["choices"][0]["finish_reason"] for each in events} <= {None, "length", "stop"}


# ── chats ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("content", ["Which one?", [{"type": "text", "text": "Which"}, {"type": "text", "text": "one?"}]])
def test_a_chat_without_prefix(chat_site: Any, content: Any) -> None:
    body = {"max_tokens": 8, "messages": [TALK[0], {"role": "user", "content": content}], "ignore_eos": True}
    found = post(chat_site, "/chat/completions", **body)
    choice = found["choices"][0]
    assert "cmpl" in found["id"] and found["usage"]["completion_tokens"] == 8 and choice["finish_reason"] == "length"
    assert choice["message"]["role"] == "assistant"
    events = chat_site.events("/chat/completions", **body, stream_options={"include_usage": True}, timings_per_token=True)
    first, *rest = [each["choices"][0] for each in events if each["choices"]]
    assert first["delta"]["role"] == "assistant" and not any("role" in each["delta"] for each in rest) and rest[-1]["finish_reason"]
    assert events[-1]["usage"]["completion_tokens"] == 8
    assert len(post(chat_site, "/chat/completions", **body, n=2)["choices"]) == 2


@pytest.mark.parametrize(("form", "text"), [
    ({"type": "json_object", "schema": {"const": "42"}}, '"42"'),
    ({"type": "json_object", "schema": {"type": "array", "prefixItems": [{"const": 7}], "items": False, "minItems": 1}}, "[7]"),
    ({"type": "json_schema", "json_schema": {"schema": {"const": "foooooo"}}}, '"foooooo"'),
])  # fmt: skip
def test_forms_of_an_answer(form_site: Any, form: dict[str, Any], text: str) -> None:
    answer = post(form_site, "/chat/completions", messages=TALK, max_tokens=32, response_format=form)["choices"][0]
    assert json.loads(answer["message"]["content"]) == json.loads(text) and answer["finish_reason"] == "stop"


def test_forms_by_llama_cpps_own_fields(form_site: Any) -> None:
    for field, value, text in (("json_schema", {"const": "42"}, '"42"'), ("grammar", 'root ::= "a"{5,5}', "aaaaa")):
        answer = post(form_site, "/chat/completions", messages=TALK, max_tokens=16, **{field: value})
        assert answer["choices"][0]["message"]["content"] == text
    free = post(form_site, "/chat/completions", messages=TALK, max_tokens=40, response_format={"type": "json_object"})["choices"][0]
    assert free["message"]["content"].startswith("{")


@pytest.mark.parametrize("form", [
    {"type": "sound"}, {"type": "json_object", "schema": 123}, {"type": "json_object", "schema": {"type": 123}},
    {"type": "json_object", "schema": {"type": "hiccup"}}, {"type": "json_schema"},
])  # fmt: skip
def test_forms_that_are_none(form_site: Any, form: dict[str, Any]) -> None:
    assert (
        post(form_site, "/chat/completions", 400, messages=TALK, max_tokens=4, response_format=form)["error"]["param"] == "response_format"
    )


@pytest.mark.parametrize("messages", [
    None, "text", [123], [{}], [{"role": 123}], [{"role": "system", "content": 123}], [TALK[0], {}], [],
])  # fmt: skip
def test_messages_that_are_none(chat_site: Any, messages: Any) -> None:
    assert "messages" in told(chat_site, "/chat/completions", messages=messages)
    assert "messages" in told(chat_site, "/apply-template", messages=messages)


def test_log_probabilities_of_a_chat(chat_site: Any) -> None:
    body = {"messages": TALK, "max_tokens": 5, "temperature": 0.0, "logprobs": True, "top_logprobs": 10}
    choice = post(chat_site, "/chat/completions", **body)["choices"][0]
    places = choice["logprobs"]["content"]
    assert len(places) == 5 and all(each["logprob"] <= 0 and len(each["top_logprobs"]) == 10 for each in places)
    assert bytes(byte for each in places for byte in each["bytes"]).decode(errors="replace") == choice["message"]["content"]


def test_templates(chat_site: Any) -> None:
    plain = post(chat_site, "/apply-template", messages=TALK)["prompt"]
    assert plain.endswith("<assistant>")
    assert post(chat_site, "/apply-template", messages=TALK, add_generation_prompt=False)["prompt"] == plain.removesuffix("<assistant>")
    assert post(chat_site, "/apply-template", messages=TALK, tools=[])["prompt"] == plain
    tool = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}
    assert "clock" in post(chat_site, "/apply-template", messages=TALK, tools=[tool], tool_choice="none")["prompt"]
    assert "never taken from a request" in told(chat_site, "/apply-template", messages=TALK, chat_template="{{ 1 }}")
    begun = [*TALK, {"role": "assistant", "content": "I would"}]
    ends = {"continue_final_message": True, "add_generation_prompt": False}
    assert post(chat_site, "/apply-template", messages=begun, **ends)["prompt"].endswith("I would")


# ── infill ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_infill_by_a_model_that_fills_in(chat_site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fim = Fim(ByteTokenizer(), 1, 2, 3, False, frozenset({1, 2, 3}))
    monkeypatch.setattr(chat_site.service.deployment, "_model", replace(chat_site.service.model, fim=lambda: fim))
    body = {"input_prefix": "int main() {\n", "prompt": "    int n = count_", "input_suffix": "}\n", "n_predict": 4, "seed": 1}
    plain = post(chat_site, "/infill", **body)
    assert plain["tokens_predicted"] <= 4 and "count_" in plain["prompt"]
    extra = post(chat_site, "/infill", **body, input_extra=[{"filename": "count.h", "text": "int count_all();\n"}])
    assert "count.h" in extra["prompt"] and extra["tokens_evaluated"] > plain["tokens_evaluated"]
    assert post(chat_site, "/infill", input_prefix="a", input_suffix="b", n_predict=1)["stop"], "without a prompt"
    for wrong in ({}, {"filename": "ok"}, {"filename": 123}, {"filename": 123, "text": "abc"}, {"filename": 123, "text": 456}):
        assert "input_extra" in told(chat_site, "/infill", **body, input_extra=[wrong])
    assert "prompt" in told(chat_site, "/infill", **{**body, "prompt": [1, 2]})


# ── tokens ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_tokens_and_texts(site: Any) -> None:
    text = "Unicode 媽 and 🤗"
    ids = post(site, "/tokenize", content=text)["tokens"]
    assert post(site, "/detokenize", tokens=ids)["content"] == text
    assert post(site, "/tokenize", content=text, add_special=True)["tokens"] == [256, *ids]
    pieces = post(site, "/tokenize", content=text, with_pieces=True)["tokens"]
    assert [each["id"] for each in pieces] == ids
    assert b"".join(each["piece"].encode() if isinstance(each["piece"], str) else bytes(each["piece"]) for each in pieces).decode() == text
    assert post(site, "/tokenize", content="")["tokens"] == []
    assert "tokens" in told(site, "/detokenize", tokens="abc")


# ── vectors ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("given", ["", "text", [12, 34, 56], ["one", "two"], ["one", [12, 34]], [[12, 34], [56]]])
@pytest.mark.parametrize("path", ["/v1/embeddings", "/embedding", "/embeddings"])
def test_texts_and_ids_become_vectors(site: Any, path: str, given: Any) -> None:
    found = post(site, path, **{"content" if path == "/embedding" else "input": given})
    vectors = [each["embedding"] for each in found["data"]] if isinstance(found, dict) else [each["embedding"][0] for each in found]
    several = isinstance(given, list) and not isinstance(given[0], int)
    assert len(vectors) == (len(given) if several else 1)
    assert all(fsum(number**2 for number in each) == pytest.approx(1) for each in vectors)


@pytest.mark.parametrize(
    "given", [[], [12, "text", 56], [[12, "text"]], {"prompt_string": "a"}, {"content": [{"type": "text", "text": "a"}]}, 5]
)
def test_what_becomes_no_vector(site: Any, given: Any) -> None:
    for path, field in (("/v1/embeddings", "input"), ("/embedding", "content")):
        assert field in told(site, path, **{field: given})


def test_vectors_of_equal_texts_are_equal_and_counted(site: Any) -> None:
    found = post(site, "/v1/embeddings", input=[PROMPT] * 5)
    assert len({tuple(each["embedding"]) for each in found["data"]}) == 1
    assert (
        found["usage"]["prompt_tokens"]
        == found["usage"]["total_tokens"]
        == 5 * post(site, "/v1/embeddings", input=PROMPT)["usage"]["total_tokens"]
    )
    packed = post(site, "/v1/embeddings", input=PROMPT, encoding_format="base64")["data"][0]["embedding"]
    numbers = struct.unpack(f"<{len(found['data'][0]['embedding'])}f", base64.b64decode(packed))
    assert list(numbers) == pytest.approx(found["data"][0]["embedding"])
    assert "tokens" in told(site, "/v1/embeddings", input="a" * 20_000)
    assert post(site, "/embedding", content="a", embd_normalize=2)
    assert "embd_normalize" in told(site, "/embedding", content="a", embd_normalize=-1)


@pytest.mark.parametrize("path", ["/rerank", "/reranking", "/v1/rerank", "/v1/reranking"])
def test_documents_in_their_order(site: Any, path: str) -> None:
    found = post(site, path, query="wheels", documents=DOCUMENTS)
    scores = [each["relevance_score"] for each in found["results"]]
    assert len(scores) == 4 and scores == sorted(scores, reverse=True)
    assert found["usage"]["prompt_tokens"] == found["usage"]["total_tokens"] > 0
    for most, count in ((2, 2), (4, 4), (99, 4)):
        assert len(post(site, path, query="wheels", documents=DOCUMENTS, top_n=most)["results"]) == count


def test_documents_in_the_form_of_text_embeddings_inference(site: Any) -> None:
    ours = post(site, "/rerank", query="wheels", documents=DOCUMENTS)["results"]
    found = post(site, "/rerank", query="wheels", texts=DOCUMENTS)
    assert [(each["index"], each["score"]) for each in found] == [(each["index"], each["relevance_score"]) for each in ours]
    assert "text" not in found[0] and len(post(site, "/rerank", query="wheels", texts=DOCUMENTS, top_n=2)) == 2
    (first, *_) = post(site, "/rerank", query="wheels", texts=DOCUMENTS, return_text=True)
    assert first["text"] == DOCUMENTS[first["index"]]
    assert "send one" in told(site, "/rerank", query="wheels", texts=DOCUMENTS, documents=DOCUMENTS)


@pytest.mark.parametrize("documents", [[], None, 123, [1, 2, 3]])
def test_documents_that_are_none(site: Any, documents: Any) -> None:
    assert "documents" in told(site, "/rerank", query="wheels", documents=documents)


# ── the server ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_is_saved_restored_erased_or_set(site: Any) -> None:
    for action in ("save", "restore", "erase"):
        assert site.request("POST", f"/slots/0?action={action}", json={"filename": "slot.bin"}).status_code == 404
    for path, body in (("/props", {"chat_template": "x"}), ("/lora-adapters", [{"id": 0, "scale": 0.5}])):
        assert site.request("POST", path, json=body).status_code == 405
    assert "lora" in told(site, "/completion", prompt="a", lora=[{"id": 0, "scale": 0.3}])


def test_keys(new_site: Any) -> None:
    """As llama-server, but for the list of models, which needs the key too."""
    site = new_site(EngineConfig("fake:{}"), ServerConfig(api_key="sk-winter"))
    body = {"prompt": PROMPT, "n_predict": 1}
    assert [site.get(path).status_code for path in ("/health", "/", "/models", "/props", "/slots")] == [200, 200, 401, 401, 401]
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"X-Api-Key": "wrong"}, {"Authorization": "sk-winter"}):
        answer = site.request("POST", "/completions", json=body, headers=headers)
        assert answer.status_code == 401 and answer.json()["error"]["type"] == "authentication_error"
    for headers in ({"Authorization": "Bearer sk-winter"}, {"X-Api-Key": "sk-winter"}):
        assert "content" in site.request("POST", "/completions", json=body, headers=headers).json()


def test_a_page_of_another_origin(new_site: Any) -> None:
    site = new_site(EngineConfig("fake:{}"), ServerConfig(allowed_origins=("http://winter.example",)))
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "Authorization"}
    answer = site.request("OPTIONS", "/completions", headers={"Origin": "http://winter.example", **asks})
    assert answer.headers["access-control-allow-origin"] == "http://winter.example" and answer.status_code in (200, 204)
    assert site.request("OPTIONS", "/completions", headers={"Origin": "http://other.example", **asks}).status_code == 403


def test_an_image_is_refused_by_name(chat_site: Any) -> None:
    for url in ("file://x/cat.jpeg", "file://../x/cat.jpeg", "data:image/png;base64,AAAA", "http://127.0.0.1:9/cat.png"):
        part = {"type": "image_url", "image_url": {"url": url}}
        message = told(chat_site, "/chat/completions", messages=[{"role": "user", "content": [{"type": "text", "text": "a"}, part]}])
        assert "messages[0]" in message and "of type text" in message and "cat" not in message
