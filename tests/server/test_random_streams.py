"""Streams of random requests: their grammar, and their content joined equals the whole answer, usage included."""

import random
from typing import Any

import pytest

SOME, MANY = 40, 5_000
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def joined_completions(found: list[dict[str, Any]]) -> tuple[dict[int, dict[str, Any]], dict[str, Any] | None]:
    """Choices and usage put together from events, as a client would; checks what must hold of every stream."""
    choices: dict[int, dict[str, Any]] = {}
    usage = None
    for event in found:
        assert usage is None, "nothing comes after usage"
        if not event["choices"]:
            usage = event["usage"]
            continue
        (new,) = event["choices"]
        empty = {"index": new["index"], "text": "", "finish_reason": None, "stop_reason": None, "logprobs": None}
        choice = choices.setdefault(new["index"], empty)
        assert choice["finish_reason"] is None, "nothing of a choice comes after its end"
        choice["text"] += new["text"]
        choice["finish_reason"], choice["stop_reason"] = new["finish_reason"], new["stop_reason"]
        if new["logprobs"]:
            choice["logprobs"] = choice["logprobs"] or {name: [] for name in new["logprobs"]}
            for name, values in new["logprobs"].items():
                choice["logprobs"][name] += values
    return choices, usage


def joined_chat(found: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Choices and usage as a client puts them together. Checks the order: role once and first, then text, then one end, then usage."""
    choices: dict[int, dict[str, Any]] = {}
    usage = None
    for chunk in found:
        assert usage is None, "nothing comes after usage"
        if not chunk["choices"]:
            usage = chunk["usage"]
            continue
        (new,) = chunk["choices"]
        delta = new["delta"]
        if new["index"] not in choices:
            assert delta == {"role": "assistant", "content": ""} and new["finish_reason"] is None
            choices[new["index"]] = {
                "index": new["index"], "message": {"role": "assistant", "content": ""}, "logprobs": None,
                "finish_reason": None, "stop_reason": None,
            }  # fmt: skip
            continue
        choice = choices[new["index"]]
        assert "role" not in delta and choice["finish_reason"] is None
        assert set(delta) == {"content"} or (new["finish_reason"] and delta == {}), "only an end may be without text"
        choice["message"]["content"] += delta.get("content", "")
        choice["finish_reason"], choice["stop_reason"] = new["finish_reason"], new["stop_reason"]
        if new["logprobs"]:
            choice["logprobs"] = choice["logprobs"] or {"content": [], "refusal": None}
            choice["logprobs"]["content"] += new["logprobs"]["content"]
    return [choices[index] for index in sorted(choices)], usage


def random_fields(rng: random.Random) -> dict[str, Any]:
    """Any fields that a stream of either kind may have."""
    body: dict[str, Any] = {
        "max_tokens": rng.choice([1, 2, 17, 40]), "seed": rng.randrange(1000), "temperature": rng.choice([0, 0.5, 1.0, 2])
    }  # fmt: skip
    options: dict[str, Any] = {
        "n": rng.choice([1, 2, 3, 8]),
        "stop": rng.sample(["a", "Zz", "q", "e0", "~", "7"], rng.randint(1, 4)),
        "stop_token_ids": rng.sample(range(32, 127), 3),
        "min_tokens": rng.randint(0, 1),
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.01,
    }
    return body | {name: value for name, value in options.items() if rng.random() < 0.3}


def text(rng: random.Random) -> str:
    return "".join(rng.choices("ab é🦊", k=rng.randint(1, 20)))


def check_usage(whole: dict[str, Any], found: list[dict[str, Any]], usage: dict[str, Any] | None, continuous: bool) -> None:
    """The same as of the whole answer; in every event where that was asked for, and then it only grows."""
    assert usage is not None and {**usage, "prompt_tokens_details": None} == {**whole["usage"], "prompt_tokens_details": None}
    running = [event["usage"] for event in found[:-1] if "usage" in event]
    assert len(running) == (len(found) - 1 if continuous else 0)
    if continuous:
        counts = [each["completion_tokens"] for each in running]
        assert counts == sorted(counts) and running[-1] | {"prompt_tokens_details": usage["prompt_tokens_details"]} == usage


def compare_chats(site: Any, number: int) -> None:
    rng = random.Random(number)
    body = random_fields(rng) | {"messages": [{"role": "user", "content": text(rng)}]}
    if rng.random() < 0.4:
        body |= {"logprobs": True, "top_logprobs": rng.randint(0, 4)}
    whole = site.request("POST", CHAT, json=body).json()
    continuous = number % 2 == 0
    options = {"include_usage": True, "continuous_usage_stats": continuous}
    found = site.events(CHAT, **body, stream_options=options)
    choices, usage = joined_chat(found)
    for choice in whole["choices"]:
        assert (choice.pop("token_ids") is not None) == ("return_token_ids" in body)
        choice["message"] = {name: value for name, value in choice["message"].items() if value is not None}
    assert choices == whole["choices"]
    check_usage(whole, found, usage, continuous)
    assert joined_chat(site.events(CHAT, **body))[1] is None, "no usage unless asked for"


def compare_completions(site: Any, number: int) -> None:
    rng = random.Random(number)
    body = random_fields(rng) | {"prompt": rng.choice([text(rng), [text(rng) for _ in range(3)], [1, 2, 3], [[65], [66, 67]]])}
    body |= {name: value for name, value in {"logprobs": rng.randint(0, 4), "echo": True}.items() if rng.random() < 0.4}
    whole = site.complete(**body).json()
    continuous = number % 2 == 0
    options = {"include_usage": True, "continuous_usage_stats": continuous}
    found = site.events(COMPLETIONS, **body, stream_options=options)
    choices, usage = joined_completions(found)
    shown = ("index", "text", "logprobs", "finish_reason", "stop_reason")
    assert [choices[index] for index in sorted(choices)] == [{name: choice[name] for name in shown} for choice in whole["choices"]]
    ids: dict[int, list[int]] = {}
    for event in found:
        for choice in event["choices"]:
            ids.setdefault(choice["index"], []).extend(choice["token_ids"] or [])
    assert [ids[index] for index in sorted(ids)] == [choice["token_ids"] or [] for choice in whole["choices"]]
    check_usage(whole, found, usage, continuous)


CASES: list[dict[str, Any]] = [
    {"prompt": "hello", "max_tokens": 40},
    {"prompt": "hello", "max_tokens": 40, "temperature": 0},
    {"prompt": ["a", "b", "c"], "max_tokens": 9, "n": 3, "logprobs": 2},
    {"prompt": [[1, 2], [3]], "max_tokens": 5, "n": 8},
    {"prompt": [1, 2, 3], "max_tokens": 30, "logprobs": 0},
    {"prompt": "stop here", "max_tokens": 200, "stop": ["e", "0"], "logprobs": 3},
    {"prompt": "stop here", "max_tokens": 200, "stop": "k", "include_stop_str_in_output": True, "n": 4},
    {"prompt": "stop here", "max_tokens": 200, "stop": ["zzzz"], "min_tokens": 150},
    {"prompt": "ids", "max_tokens": 200, "stop_token_ids": [65, 66, 67], "logprobs": 1},
    {"prompt": "ids", "max_tokens": 20, "stop": ["a", "b", "c", "d"], "stop_token_ids": list(range(65, 91)), "min_tokens": 10},
    {"prompt": "é🦊", "max_tokens": 3, "ignore_eos": True},
]


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_a_stream_says_the_same_as_a_whole_answer(site: Any, case: dict[str, Any]) -> None:
    whole = site.complete(**case, seed=11).json()
    found = site.events(COMPLETIONS, **case, seed=11, stream_options={"include_usage": True})
    choices, usage = joined_completions(found)
    assert usage is not None
    assert {**usage, "prompt_tokens_details": None} == {**whole["usage"], "prompt_tokens_details": None}
    shown = [{name: choice[name] for name in choices[0]} for choice in whole["choices"]]
    assert [choices[index] for index in sorted(choices)] == shown
    assert len({event["id"] for event in found}) == 1
    assert site.events(COMPLETIONS, **case, seed=11)[-1]["choices"], "no usage unless asked for"


@pytest.mark.parametrize("number", range(SOME))
def test_chats(chat_site: Any, number: int) -> None:
    compare_chats(chat_site, number)


@pytest.mark.parametrize("number", range(SOME))
def test_completions(chat_site: Any, number: int) -> None:
    compare_completions(chat_site, number)


@pytest.mark.night
@pytest.mark.timeout(1800)
def test_ten_thousand(chat_site: Any) -> None:
    for number in range(MANY):
        compare_chats(chat_site, number)
        compare_completions(chat_site, number)
