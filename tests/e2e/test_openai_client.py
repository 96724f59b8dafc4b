"""The official client against a real server: sync and async, whole and streamed, and the exceptions that it makes of refusals."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"


@pytest.fixture(scope="module")
def server(serving: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    template = tmp_path_factory.mktemp("template") / "chat.jinja"
    template.write_text(TEMPLATE)
    with serving('fake:{"windows": [0, 64]}', "--api-key", "k", "--served-model-name", "m", "--chat-template", str(template)) as server:
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


MESSAGES: list[Any] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Who"}, {"type": "text", "text": "are you?"}]},
    {"role": "assistant", "content": "I am", "refusal": None},
    {"role": "user", "content": "Go on."},
]
EVERY_CHAT_FIELD: dict[str, Any] = {
    "model": "m", "messages": MESSAGES, "frequency_penalty": 0.5, "logit_bias": {"65": -5}, "logprobs": True, "top_logprobs": 3,
    "max_completion_tokens": 30, "metadata": {"a": "b"}, "modalities": ["text"], "n": 2, "parallel_tool_calls": True,
    "presence_penalty": 0.2, "response_format": {"type": "text"}, "seed": 3, "service_tier": "auto", "stop": ["zq", "~~"], "store": False,
    "temperature": 0.8, "tool_choice": "none", "top_p": 0.95, "user": "me", "safety_identifier": "x", "prompt_cache_key": "y",
    "extra_body": {"top_k": 40, "min_p": 0.01, "min_tokens": 4, "repetition_penalty": 1.1, "ignore_eos": True, "bad_words": ["xx"]},
}  # fmt: skip


def test_chat_with_every_field(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**EVERY_CHAT_FIELD)
    assert [choice.index for choice in answer.choices] == [0, 1] and answer.object == "chat.completion"
    for choice in answer.choices:
        assert choice.message.role == "assistant" and choice.message.content and choice.logprobs is not None
        found = choice.logprobs.content or []
        assert "".join(each.token for each in found) == choice.message.content and all(len(each.top_logprobs) == 3 for each in found)
    assert answer.usage is not None and answer.usage.completion_tokens <= 60
    assert answer.system_fingerprint


def test_streamed_chat_through_the_clients_accumulator(client: openai.OpenAI) -> None:
    asked = EVERY_CHAT_FIELD | {"stop": ["a", "e", "o", "t"], "max_completion_tokens": 200}  # an answer cut short is an error to it
    whole = client.chat.completions.create(**asked)
    with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert [choice.message.content for choice in final.choices] == [choice.message.content for choice in whole.choices]
    assert [choice.finish_reason for choice in final.choices] == [choice.finish_reason for choice in whole.choices]
    assert "".join(deltas) and final.usage is not None and whole.usage is not None
    assert final.usage.completion_tokens == whole.usage.completion_tokens
    for mine, theirs in zip(final.choices, whole.choices, strict=True):
        assert mine.logprobs is not None and theirs.logprobs is not None
        assert mine.logprobs.content == theirs.logprobs.content


def test_async_chat(server: Any) -> None:
    async def run() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0) as client:

            async def one(number: int) -> str:
                asked: dict[str, Any] = {"model": "m", "messages": MESSAGES, "max_tokens": 20, "seed": number % 4}
                if number % 2:
                    return (await client.chat.completions.create(**asked)).choices[0].message.content or ""
                stream = await client.chat.completions.create(**asked, stream=True)
                return "".join([choice.delta.content or "" async for chunk in stream for choice in chunk.choices])

            return await asyncio.gather(*(one(number) for number in range(16)))

    texts = asyncio.run(run())
    assert texts[:4] * 4 == texts and len(set(texts)) == 4


EVERY_COMPLETION_FIELD: dict[str, Any] = {
    "model": "m", "prompt": ["one", "two"], "best_of": 2, "echo": True, "frequency_penalty": 0.5, "logit_bias": {"65": -5}, "logprobs": 2,
    "max_tokens": 12, "n": 2, "presence_penalty": 0.2, "seed": 3, "stop": ["zq"], "temperature": 0.8, "top_p": 0.95, "user": "me",
    "extra_body": {"top_k": 40, "min_p": 0.01, "min_tokens": 4, "repetition_penalty": 1.1, "ignore_eos": True, "bad_words": ["xx"],
                   "allowed_token_ids": list(range(32, 127)), "stop_token_ids": [126], "return_token_ids": True},
}  # fmt: skip


def test_completions_with_every_field(client: openai.OpenAI) -> None:
    whole = client.completions.create(**EVERY_COMPLETION_FIELD)
    assert [choice.text[:3] for choice in whole.choices] == ["one", "one", "two", "two"]
    with client.completions.create(**EVERY_COMPLETION_FIELD, stream=True, stream_options={"include_usage": True}) as stream:
        chunks = list(stream)
    texts, offsets = ["", "", "", ""], [[], [], [], []]  # type: ignore[var-annotated]
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        texts[choice.index] += choice.text
        offsets[choice.index] += (choice.logprobs.text_offset or []) if choice.logprobs else []
    assert texts == [choice.text for choice in whole.choices]
    assert offsets == [choice.logprobs.text_offset for choice in whole.choices if choice.logprobs]
    assert chunks[-1].usage is not None and whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


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
    with pytest.raises(openai.BadRequestError, match="suffix"):
        client.completions.create(model="m", prompt="p", suffix="s")
    with pytest.raises(openai.BadRequestError, match="reasoning_effort"):
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], reasoning_effort="low")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0) as stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()
