"""The official client against a real server: sync and async, whole and streamed, and the exceptions that it makes of refusals."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest


@pytest.fixture(scope="module")
def server(serving: Callable[..., Any]) -> Iterator[Any]:
    with serving('fake:{"windows": [0, 64]}', "--api-key", "k", "--served-model-name", "m") as server:
        yield server


@pytest.fixture
def client(server: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0) as client:
        yield client


def test_whole_answers(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="m", prompt=["one", "two"], n=2, max_tokens=9, seed=1, logprobs=2)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert all(choice.finish_reason == "length" and len(choice.text) == 9 for choice in answer.choices)
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (8, 36, 44)
    found = answer.choices[3].logprobs
    assert found is not None and found.tokens is not None and found.top_logprobs is not None
    assert "".join(found.tokens) == answer.choices[3].text and len(found.top_logprobs[0]) == 2
    assert answer.model == "m" and answer.object == "text_completion" and answer.id.startswith("cmpl-")


def test_streams(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="m", prompt="text", max_tokens=50, seed=2, stop=["q", "Z"])
    with client.completions.create(
        model="m", prompt="text", max_tokens=50, seed=2, stop=["q", "Z"], stream=True, stream_options={"include_usage": True}
    ) as stream:
        chunks = list(stream)
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == whole.choices[0].text
    ends = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert ends == [whole.choices[0].finish_reason]
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage


def test_async(server: Any) -> None:
    async def run() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0) as client:

            async def one(number: int) -> str:
                stream = await client.completions.create(model="m", prompt="p", max_tokens=20, seed=number, stream=True)
                return "".join([choice.text async for chunk in stream for choice in chunk.choices])

            return await asyncio.gather(*(one(number % 4) for number in range(16)))

    texts = asyncio.run(run())
    assert texts[:4] * 4 == texts and len(set(texts)) == 4


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["m"]
    assert client.models.retrieve("m").owned_by == "ridgeline"


def test_extensions_through_extra_body(client: openai.OpenAI) -> None:
    body = {"top_k": 3, "min_tokens": 5, "ignore_eos": True, "stop_token_ids": [65], "skip_special_tokens": False}
    assert client.completions.create(model="m", prompt="p", max_tokens=6, extra_body=body).usage.completion_tokens >= 5  # type: ignore[union-attr]


def test_refusals_become_the_clients_exceptions(server: Any, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="gpt-9", prompt="p")
    assert missing.value.code == "model_not_found" and missing.value.request_id
    with pytest.raises(openai.BadRequestError) as bad:
        client.completions.create(model="m", prompt="p", temperature=99)
    assert bad.value.param == "temperature" and "99" in str(bad.value)
    with pytest.raises(openai.BadRequestError, match="echo"):
        client.completions.create(model="m", prompt="p", echo=True)
    with pytest.raises(openai.BadRequestError, match="chat template"):
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0) as stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()
