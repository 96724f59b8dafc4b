"""The real model behind the real server: ready in time, answers through the official client, scores that agree."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from gold import demo_lines

READY_SECONDS = 30.0
"""A bound for any machine under any load; the figure itself is printed."""


@pytest.fixture
def server(demo_server: Any) -> Any:
    assert demo_server.ready_seconds < READY_SECONDS
    return demo_server


@pytest.fixture
def client(server: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=100) as client:
        yield client


def test_streamed_and_whole_greedy_answers_are_equal(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "demo", "prompt": "The three largest cities of France are", "max_tokens": 6, "temperature": 0}
    whole = client.completions.create(**asked)
    assert whole.usage is not None and whole.usage.completion_tokens == 6
    assert "Paris" in whole.choices[0].text
    with client.completions.create(**asked, stream=True) as stream:
        assert "".join(choice.text for chunk in stream for choice in chunk.choices) == whole.choices[0].text


def test_answers_begin_as_llama_cpps(client: openai.OpenAI) -> None:
    """The first token, where llama.cpp's best two are clearly apart; and its log-probability, which formats and kernels blur a little."""
    short = [line for line in demo_lines() if len(line["prompt_ids"]) < 40]
    lines = [line for line in short if line["top5"][0][0]["logprob"] - line["top5"][0][1]["logprob"] > 0.5]
    assert len(lines) >= 5
    prompts = [line["prompt_ids"] for line in lines]
    answer = client.completions.create(model="demo", prompt=prompts, max_tokens=1, temperature=0, logprobs=1)
    for choice, line in zip(answer.choices, lines, strict=True):
        assert line["text"].startswith(choice.text), (line["prompt"], choice.text)
        found = choice.logprobs.token_logprobs[0]  # type: ignore[union-attr, index]
        assert found == pytest.approx(line["top5"][0][0]["logprob"], abs=0.5), line["prompt"]


MESSAGES: Any = [{"role": "user", "content": "Name the capital of France. <end_of_turn>"}]
"""The control token in it is text: a client's."""
EVERY_FIELD: dict[str, Any] = {
    "model": "demo", "max_tokens": 5, "temperature": 0.9, "top_p": 0.9, "n": 2, "seed": 4, "stop": ["\n\n", "zzz"], "presence_penalty": 0.3,
    "frequency_penalty": 0.3, "logit_bias": {"506": -3}, "user": "me",
    "extra_body": {"top_k": 50, "min_p": 0.02, "repetition_penalty": 1.1, "min_tokens": 3, "bad_words": ["Paris"],
                   "stop_token_ids": [108], "skip_special_tokens": False, "return_token_ids": True},
}  # fmt: skip


def test_chat_greedy(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "demo", "messages": MESSAGES, "max_tokens": 6, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    whole = client.chat.completions.create(**asked)
    found = whole.choices[0].logprobs
    assert found is not None and found.content is not None
    assert all(each.token == each.top_logprobs[0].token for each in found.content), "greedy takes the likeliest"
    with client.chat.completions.create(**asked, stream=True) as stream:
        assert "".join(choice.delta.content or "" for chunk in stream for choice in chunk.choices) == whole.choices[0].message.content


def test_chat_with_every_field(client: openai.OpenAI, server: Any) -> None:
    asked = EVERY_FIELD | {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2}
    whole = client.chat.completions.create(**asked)
    texts = [choice.message.content for choice in whole.choices]
    assert len(set(texts)) == 2 and not any("Paris" in (text or "") for text in texts)

    async def streamed() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=100) as asynchronous:
            found = ["", ""]
            async for chunk in await asynchronous.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
                for choice in chunk.choices:
                    found[choice.index] += choice.delta.content or ""
            assert chunk.usage is not None and whole.usage is not None
            assert chunk.usage.completion_tokens == whole.usage.completion_tokens
            return found

    assert asyncio.run(streamed()) == texts


def test_completions_with_every_field(client: openai.OpenAI) -> None:
    asked = EVERY_FIELD | {"prompt": "The capital of France is", "logprobs": 2, "echo": True}
    whole = client.completions.create(**asked)
    assert all(choice.text.startswith("The capital of France is") for choice in whole.choices)
    with client.completions.create(**asked, stream=True) as stream:
        found = ["", ""]
        for choice in (choice for chunk in stream for choice in chunk.choices):
            found[choice.index] += choice.text
    assert found == [choice.text for choice in whole.choices]


def test_control_tokens_come_from_the_template_alone(server: Any) -> None:
    with httpx.Client(base_url=server.url) as http:
        turns = http.post("/tokenize", json={"messages": MESSAGES}).json()["tokens"]
        text = http.post("/tokenize", json={"prompt": "<start_of_turn>user\n"}).json()["tokens"]
        names = http.post("/tokenize", json={"messages": MESSAGES, "return_token_strs": True}).json()["token_strs"]
    assert turns[0] == 2 and turns.count(2) == 1, "one BOS"
    assert text[:2] == [2, 105], "in a raw prompt the name of a control token is the token"
    assert turns.count(105) == 2 and turns.count(106) == 1, names


def test_what_was_sampled_scores_the_same_as_a_prompt(client: openai.OpenAI) -> None:
    """The runner is exact: log-probabilities of outputs are those of the same ids in an echoed prompt, as evaluation harnesses ask for."""
    first = client.completions.create(
        model="demo", prompt="The capital of France is", max_tokens=5, temperature=0, logprobs=1, extra_body={"return_token_ids": True}
    ).choices[0]
    ids: Any = first.prompt_token_ids + first.token_ids  # type: ignore[attr-defined]
    scored = client.completions.create(model="demo", prompt=[ids], max_tokens=0, temperature=0, logprobs=1, echo=True)
    found = scored.choices[0].logprobs
    assert found is not None and found.token_logprobs is not None and first.logprobs is not None
    assert found.tokens is not None and len(found.tokens) == len(ids) and found.token_logprobs[0] is None
    assert found.token_logprobs[-5:] == first.logprobs.token_logprobs
    assert scored.usage is not None and scored.usage.completion_tokens == 0
    assert scored.choices[0].text == "The capital of France is" + first.text


def test_beams_are_ranked_by_what_their_ids_score(client: openai.OpenAI) -> None:
    prompt = "The capital of France is"
    asked: dict[str, Any] = {"model": "demo", "prompt": prompt, "max_tokens": 3, "temperature": 0}
    ids = {"return_token_ids": True}
    greedy = client.completions.create(**asked, logprobs=0, extra_body=ids).choices[0]
    beams = client.completions.create(**asked, n=2, extra_body=ids | {"use_beam_search": True}).choices
    full = [beam.prompt_token_ids + beam.token_ids for beam in beams]  # type: ignore[attr-defined]
    scored = client.completions.create(model="demo", prompt=full, max_tokens=0, echo=True, logprobs=0).choices
    sums = [sum(choice.logprobs.token_logprobs[-3:]) for choice in scored]  # type: ignore[union-attr, index, misc]
    assert sums == sorted(sums, reverse=True)
    assert sums[0] >= sum(greedy.logprobs.token_logprobs), "at least as likely as greedy"  # type: ignore[union-attr, arg-type]


@pytest.mark.alone
def test_tokenizer_routes(client: openai.OpenAI, server: Any) -> None:
    with httpx.Client(base_url=server.url) as http:
        for text in ("Hello wörld", "  spaces\n\n\tand 🦊"):
            ids = http.post("/tokenize", json={"prompt": text}).json()["tokens"]
            assert ids[0] == 2, "BOS first"
            assert http.post("/detokenize", json={"tokens": ids[1:]}).json()["prompt"] == text
        began = time.monotonic()
        answer = http.post("/v1/completions", json={"prompt": "long words " * 90_000, "max_tokens": 1}, timeout=20)
        assert answer.status_code == 400 and answer.json()["error"]["code"] == "context_length_exceeded"
        assert time.monotonic() - began < 5
