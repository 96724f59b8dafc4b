"""Vectors of texts over HTTP: forms of the input, of the answer, bounds; scores and rankings made of them; no head, no answer."""

import asyncio
import base64
import re
import struct
import threading
from math import fsum
from typing import Any

import pytest

from ridgeline.config.groups import EngineConfig
from ridgeline.core.params import Pooling
from ridgeline.engine import pooled
from ridgeline.server import embeddings
from ridgeline.server import vectors as vectors_module
from ridgeline.server.vectors import MAX_TEXTS

WIDTH = 8


def embed(site, given: Any, path: str = "/v1/embeddings", **body: Any) -> Any:
    answer = site.request("POST", path, json={"input": given, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def vectors(answer: Any) -> list[list[float]]:
    assert [each["index"] for each in answer["data"]] == list(range(len(answer["data"])))
    return [each["embedding"] for each in answer["data"]]


def test_every_form_of_the_input_gives_the_same_vector(site) -> None:
    ids = [256, *b"hello"]
    (text,) = vectors(embed(site, "hello"))
    assert len(text) == WIDTH and abs(fsum(each * each for each in text) - 1) < 1e-6
    assert vectors(embed(site, ids)) == vectors(embed(site, [ids])) == vectors(embed(site, ["hello"])) == [text]
    both = embed(site, ["hello", "other"])
    assert vectors(both)[0] == text != vectors(both)[1]
    assert both["usage"] == {"prompt_tokens": 12, "total_tokens": 12}
    assert (both["object"], both["model"], both["data"][0]["object"]) == ("list", "fake", "embedding")


def test_more_texts_than_rows_come_in_their_order(site) -> None:
    rows = site.service.model.engine.info.rows
    texts = [f"text {number}" for number in range(5 * rows)]
    found = vectors(embed(site, texts))
    assert found[-1] == vectors(embed(site, texts[-1]))[0]
    assert len({tuple(each) for each in found}) == len(texts)


def test_base64_has_the_same_numbers(site) -> None:
    (plain,) = vectors(embed(site, "hello"))
    coded = embed(site, "hello", encoding_format="base64")["data"][0]["embedding"]
    assert list(struct.unpack(f"<{WIDTH}f", base64.b64decode(coded))) == plain


def test_dimensions_are_the_first_ones_normalised_again(site) -> None:
    (whole,), (part,) = vectors(embed(site, "hello")), vectors(embed(site, "hello", dimensions=3))
    length = fsum(each * each for each in whole[:3]) ** 0.5
    assert part == pytest.approx([each / length for each in whole[:3]], abs=1e-6)


def test_a_cut_text_is_its_first_tokens(site) -> None:
    assert vectors(embed(site, "hello, world", truncate_prompt_tokens=6)) == vectors(embed(site, "hello"))
    assert embed(site, "x" * 9_000, truncate_prompt_tokens=-1)["usage"]["prompt_tokens"] == 4096
    assert embed(site, [[1] * 4096])["usage"]["prompt_tokens"] == 4096


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({}, "missing_field", "input"),
        ({"input": []}, "empty_prompt", "input"),
        ({"input": [[]]}, "empty_prompt", "input"),
        ({"input": ["a", 1]}, "invalid_type", "input"),
        ({"input": 5}, "invalid_type", "input"),
        ({"input": [258]}, "invalid_value", "input"),
        ({"input": [[1, -1]]}, "invalid_value", "input"),
        ({"input": ["a"] * (MAX_TEXTS + 1)}, "invalid_value", "input"),
        ({"input": [1] * 4097}, "context_length_exceeded", "input"),
        ({"input": [[1] * 4096] * 74}, "invalid_value", "input"),
        ({"input": "a", "dimensions": 0}, "invalid_value", "dimensions"),
        ({"input": "a", "dimensions": WIDTH + 1}, "invalid_value", "dimensions"),
        ({"input": "a", "dimensions": 10**30}, "invalid_value", "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, "invalid_type", "encoding_format"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "invalid_value", "truncate_prompt_tokens"),
        ({"input": "a", "truncate_prompt_tokens": 4097}, "invalid_value", "truncate_prompt_tokens"),
        ({"input": "a", "normalize": False}, "unsupported_parameter", "normalize"),
        ({"input": "a", "deadline_ms": 0}, "invalid_value", "deadline_ms"),
        ({"input": "a", "model": "other"}, "model_not_found", "model"),
    ],
)
def test_what_cannot_be_taken_is_named(site, body: dict[str, Any], code: str, param: str) -> None:
    answer = site.request("POST", "/v1/embeddings", json=body)
    assert 400 <= answer.status_code < 500
    assert (answer.json()["error"]["code"], answer.json()["error"]["param"]) == (code, param), answer.text


def test_pooling_is_vllms_form(site) -> None:
    answer = embed(site, "hello", "/pooling")
    assert answer["data"] == [{"object": "pooling", "index": 0, "data": vectors(embed(site, "hello"))[0]}]


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
def test_scores_are_cosines(site, path: str) -> None:
    texts = ["cat", "dog", "cat"]
    (cat,), (dog,) = vectors(embed(site, "cat")), vectors(embed(site, "dog"))
    cosine = fsum(a * b for a, b in zip(cat, dog, strict=True))
    for body in ({"text_1": "cat", "text_2": texts}, {"queries": ["cat"] * 3, "documents": texts}, {"data_1": "cat", "data_2": texts}):
        answer = site.request("POST", path, json=body)
        assert [each["score"] for each in answer.json()["data"]] == pytest.approx([1.0, cosine, 1.0], abs=1e-6), answer.text
        assert answer.json()["usage"]["total_tokens"] in (16, 24)
    for body in ({"text_1": "cat"}, {"text_1": "a", "queries": "b", "text_2": "c"}, {"text_1": ["a", "b"], "text_2": texts}):
        assert site.request("POST", path, json=body).status_code == 400


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_documents_are_ranked(site, path: str) -> None:
    body = {"query": "cat", "documents": ["dog", {"text": "cat"}, "bird"]}
    answer = site.request("POST", path, json=body).json()
    scores = [each["relevance_score"] for each in answer["results"]]
    assert answer["results"][0] == {"index": 1, "relevance_score": pytest.approx(1.0), "document": {"text": "cat"}}
    assert scores == sorted(scores, reverse=True) and len(scores) == 3
    short = site.request("POST", path, json={**body, "top_n": 1, "return_documents": False}).json()
    assert short["results"] == [{"index": 1, "relevance_score": pytest.approx(1.0)}]
    for wrong in ({"query": "a"}, {"documents": ["a"]}, {**body, "top_n": -1}, {"query": "a", "documents": []}):
        assert site.request("POST", path, json=wrong).status_code == 400


def test_vectors_and_answers_share_an_engine(site) -> None:
    """At once, and with metrics that count both."""

    async def both() -> list[Any]:
        generate = {"prompt": "hello", "max_tokens": 20, "temperature": 0}
        posts = [site.client.post("/v1/completions", json=generate), site.client.post("/v1/embeddings", json={"input": ["hello"] * 40})]
        return await asyncio.gather(*posts * 3)

    found = site.wait(both())
    assert [each.status_code for each in found] == [200] * 6
    assert len({each.text.partition('"created"')[2][20:] for each in found[1::2]}) == 1
    metrics = site.get("/metrics").text
    assert 'vllm:request_success_total{finished_reason="stop"' in metrics


@pytest.mark.parametrize(("path", "body"), [
    ("/v1/embeddings", {"input": ["a"] * 9}), ("/v1/embeddings", {"input": ["a"] * 9, "encoding_format": "base64"}),
    ("/pooling", {"input": ["a"] * 9}), ("/score", {"text_1": "a", "text_2": ["b"] * 8}),
    ("/rerank", {"query": "a", "documents": ["b"] * 8}), ("/api/embed", {"model": "fake", "input": ["a"] * 9}),
    ("/embedding", {"content": ["a"] * 9}),
])  # fmt: skip
def test_many_numbers_are_not_the_event_loops(site, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]) -> None:
    """The same bodies, made in another thread where there are many, a vector at a time."""

    def answer() -> Any:
        """Without what differs from one to the next."""
        found = site.request("POST", path, json=body)
        assert found.status_code == 200, found.text
        return re.sub(r'"(id|created|\w+_duration)":("[^"]*"|\d+)', "", found.text)

    here, threads = answer(), []

    def noted(work: Any) -> Any:
        def call(*given: Any) -> Any:
            threads.append(threading.current_thread())
            return work(*given)

        return call

    monkeypatch.setattr(vectors_module, "LOOP_BYTES", 8 * 4 * WIDTH)
    for module, name in ((vectors_module, "numbers"), (pooled, "numbers"), (embeddings, "b64encode")):
        monkeypatch.setattr(module, name, noted(getattr(module, name)))
    assert answer() == here and len(threads) >= 8
    assert not {site._thread} & set(threads)


def test_a_prefix_is_reused(site) -> None:
    """Of vectors that are made of the last token."""
    text = "the same long beginning of many texts, over and over " * 4

    def hits() -> float:
        lines = site.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("vllm:prefix_cache_hits_total{"))

    embed(site, text + "a")
    before = hits()
    embed(site, text + "b")
    assert hits() - before >= 192


def test_the_client_of_openai(site) -> None:
    import openai

    client = openai.AsyncOpenAI(api_key="none", base_url="http://127.0.0.1:8000/v1", http_client=site.client)
    found = site.wait(client.embeddings.create(model="fake", input=["hello", "other"], dimensions=4))
    plain = site.wait(client.embeddings.create(model="fake", input=["hello", "other"], dimensions=4, encoding_format="float"))
    assert [each.embedding for each in found.data] == [each.embedding for each in plain.data]
    assert found.usage.total_tokens == 12


@pytest.mark.parametrize("generates", [True, False])
def test_a_model_without_a_head_generates_nothing(new_site, monkeypatch: pytest.MonkeyPatch, template: str, generates: bool) -> None:
    site = new_site(EngineConfig('fake:{"vocab": 258}'))
    info = site.service.model.engine.info
    object.__setattr__(info, "generates", generates)
    object.__setattr__(info, "pooling", Pooling(whole=not generates))
    for path, body in (("/v1/completions", {"prompt": "a"}), ("/v1/responses", {"input": "a"})):
        answer = site.request("POST", path, json={**body, "model": "fake"})
        assert generates or (answer.status_code == 400 and "vectors" in answer.text), answer.text
    assert len(vectors(embed(site, ["hello " * 20] * 9))) == 9
