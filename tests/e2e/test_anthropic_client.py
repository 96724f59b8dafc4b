"""Anthropic's official client against real servers: whole and streamed answers, counts, models, exceptions that it makes of refusals."""

from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import httpx
import pytest

QUESTION: Any = [{"role": "user", "content": "Name the largest planet."}]
GREEDY = {"temperature": 0}
"""For `extra_body`: the newest client has no argument for it."""
BILLING = "x-anthropic-billing-header: cc_version=2.1; cch={};\n"


@pytest.fixture
def client(demo_server: Any) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=demo_server.url, api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def locked(serving: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    template = tmp_path_factory.mktemp("template") / "chat.jinja"
    template.write_text("{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}{% if add_generation_prompt %}<a>{% endif %}")
    settings = ("--api-key", "k", "--chat-template", str(template))
    with serving('fake:{"windows": [0, 64], "max_model_len": 128, "rows": 1}', *settings) as server:
        yield server


def test_a_whole_answer(client: anthropic.Anthropic) -> None:
    answer = client.messages.create(model="demo", max_tokens=12, messages=QUESTION, extra_body=GREEDY, metadata={"user_id": "u"})
    assert (answer.type, answer.role, answer.model, answer.stop_reason) == ("message", "assistant", "demo", "max_tokens")
    assert answer.id.startswith("msg_") and [block.type for block in answer.content] == ["text"] and answer.content[0].text
    assert answer.usage.output_tokens == 12 and answer._request_id
    counted = client.messages.count_tokens(model="demo", messages=QUESTION).input_tokens
    assert counted == answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)


def test_a_stream_is_the_whole_answer(client: anthropic.Anthropic) -> None:
    system = [{"type": "text", "text": "Be brief."}]
    asked: Any = {"model": "demo", "max_tokens": 24, "messages": QUESTION, "system": system, "extra_body": GREEDY}
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        kinds = [event.type for event in stream if event.type != "text"]
        last = stream.get_final_message()
    assert last.content[0].text == whole.content[0].text and last.stop_reason == whole.stop_reason
    assert last.usage.output_tokens == whole.usage.output_tokens
    assert kinds[:2] == ["message_start", "content_block_start"] and kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}


def test_the_bytes_of_a_stream(demo_server: Any) -> None:
    body = {"model": "demo", "max_tokens": 3, "messages": QUESTION, "stream": True}
    answer = httpx.post(f"{demo_server.url}/v1/messages", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream") and answer.headers["request-id"]
    *events, nothing = answer.text.split("\n\n")
    names = [event.split("\n")[0] for event in events]
    assert nothing == "" and names[:3] == ["event: message_start", "event: ping", "event: content_block_start"]
    assert names[-1] == "event: message_stop" and "[DONE]" not in answer.text
    assert all(f'data: {{"type":"{name[7:]}"' in event for name, event in zip(names, events, strict=True))


def test_stop_sequences_and_prefill(client: anthropic.Anthropic) -> None:
    asked: Any = {"model": "demo", "max_tokens": 40, "extra_body": GREEDY}
    free = client.messages.create(**asked, messages=QUESTION).content[0].text
    word = free.split()[2]
    cut = client.messages.create(**asked, messages=QUESTION, stop_sequences=[word])
    assert (cut.stop_reason, cut.stop_sequence, cut.content[0].text) == ("stop_sequence", word, free[: free.index(word)])
    start = free[: free.index(word)].rstrip()
    continued = client.messages.create(**asked, messages=[*QUESTION, {"role": "assistant", "content": start}])
    assert (start + continued.content[0].text)[: len(free) // 2] == free[: len(free) // 2]


def test_a_line_about_billing_is_no_part_of_the_prompt(client: anthropic.Anthropic) -> None:
    def count(system: Any) -> int:
        return client.messages.count_tokens(model="demo", system=system, messages=QUESTION).input_tokens

    blocks = [{"type": "text", "text": BILLING.format("1")}, {"type": "text", "text": "Be brief."}]
    assert count("Be brief.") == count(BILLING.format("a") + "Be brief.") == count(blocks) > count(BILLING.format("abc"))


def test_turns_of_one_role_are_one_message(client: anthropic.Anthropic) -> None:
    parts: Any = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    turns: Any = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    counted = [client.messages.count_tokens(model="demo", messages=each).input_tokens for each in (parts, turns)]
    assert counted[0] == counted[1]
    between = client.messages.count_tokens(model="demo", messages=[*QUESTION, {"role": "system", "content": "Be brief."}])
    assert between.input_tokens > client.messages.count_tokens(model="demo", messages=QUESTION).input_tokens


def test_models(client: anthropic.Anthropic) -> None:
    (only,) = client.models.list()
    assert only.id == "demo" and only.max_input_tokens == 2048 and client.models.retrieve("demo") == only


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("tools", [{"name": "f", "input_schema": {}}], "does not read tools"),
        ("thinking", {"type": "always"}, "thinking"),
        ("messages", [{"role": "user", "content": [{"type": "image", "source": {}}]}], "blocks of image"),
        ("extra_body", {"temperature": -1}, "temperature"),
        ("stop_sequences", ["x" * 999], "stop_sequences"),
        ("messages", [], "messages"),
    ],
)
def test_bad_requests(client: anthropic.Anthropic, field: str, value: Any, said: str) -> None:
    asked: Any = {"model": "demo", "max_tokens": 4, "messages": QUESTION} | {field: value}
    with pytest.raises(anthropic.BadRequestError, match=said) as refused:
        client.messages.create(**asked)
    assert refused.value.body["error"]["type"] == "invalid_request_error" and refused.value.request_id  # type: ignore[index]


def test_max_tokens_is_required(demo_server: Any) -> None:
    refused = httpx.post(f"{demo_server.url}/v1/messages", json={"model": "demo", "messages": QUESTION})
    assert refused.status_code == 400 and "max_tokens is missing" in refused.json()["error"]["message"]


def test_exceptions_of_the_client(client: anthropic.Anthropic, locked: Any) -> None:
    asked: Any = {"max_tokens": 4, "messages": QUESTION}
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="other", **asked)
    with pytest.raises(anthropic.AuthenticationError):
        anthropic.Anthropic(base_url=locked.url, api_key="wrong", max_retries=0).messages.create(model="fake", **asked)
    bearer = anthropic.Anthropic(base_url=locked.url, auth_token="k", max_retries=0)
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        bearer.messages.create(model="fake", max_tokens=4, messages=[{"role": "user", "content": "a" * 200}])
    with pytest.raises(anthropic.ContentTooLargeError, match="more than 1048576 bytes") as large:
        bearer.messages.create(model="fake", max_tokens=4, messages=[{"role": "user", "content": "a" * (1 << 20)}])
    assert large.value.body["error"]["type"] == "request_too_large"  # type: ignore[index]


def test_an_answer_ends_where_the_context_does(locked: Any) -> None:
    client = anthropic.Anthropic(base_url=locked.url, api_key="k", max_retries=0)
    answer = client.messages.create(model="fake", max_tokens=16_000, messages=QUESTION)
    assert answer.stop_reason in ("model_context_window_exceeded", "end_turn")
    assert answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0) + answer.usage.output_tokens <= 128
