"""Features of whole completions, used by evaluation harnesses: echo, prompt log-probabilities, `best_of`, beam search."""

import json
import math
from collections import Counter
from operator import itemgetter
from typing import Any

import pytest

from ridgeline.core.params import Vote
from ridgeline.engine.voting import read_answer


def columns(choice: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Token, log-probability, best ids and offset, token by token."""
    found = choice["logprobs"]
    return list(zip(found["tokens"], found["token_logprobs"], found["top_logprobs"], found["text_offset"], strict=True))


# ── echo ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def parse_logprobs(outputs: Any, ctxlens: list[int]) -> list[tuple[float, bool]]:
    """lm-eval's `LocalCompletionsAPI.parse_logprobs`: the sum over the continuation, and whether it is greedy. The last token is new."""
    found = []
    for choice, length in zip(sorted(outputs["choices"], key=itemgetter("index")), ctxlens, strict=True):
        values = choice["logprobs"]["token_logprobs"][length:-1]
        tops = choice["logprobs"]["top_logprobs"][length:-1]
        tokens = choice["logprobs"]["tokens"][length:-1]
        found.append((sum(values), all(token == max(top, key=top.get) for token, top in zip(tokens, tops, strict=True))))
    return found


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_the_request_of_lm_eval(site: Any, max_tokens: int) -> None:
    """The body that its local-completions model sends for log-likelihoods (with 1), and the shape other harnesses use (with 0)."""
    prompts = [[256, *b"The sky is", *b" blue"], [256, *b"2 + 2 =", *b" 4"]]
    contexts = [11, 8]
    body = b'{"model": "fake", "prompt": %s, "temperature": 0, "max_tokens": %d, "logprobs": 1, "seed": 1234, "echo": true}'
    answer = site.request("POST", "/v1/completions", content=body % (json.dumps(prompts).encode(), max_tokens))
    assert answer.status_code == 200, answer.text
    outputs = answer.json()
    assert outputs["usage"]["prompt_tokens"] == 26 and outputs["usage"]["completion_tokens"] == 2 * max_tokens
    for prompt, choice in zip(prompts, outputs["choices"], strict=True):
        text = bytes(prompt[1:]).decode()
        assert choice["text"][: len(text)] == text and len(choice["text"]) == len(text) + max_tokens
        assert choice["finish_reason"] == "length"
        found = columns(choice)
        assert len(found) == len(prompt) + max_tokens
        assert found[0] == ("<bos>", None, None, 0)
        for token, value, top, offset in found[1:]:
            assert choice["text"][offset : offset + 1] == token
            assert value <= 0 and top[token] == value and 1 <= len(top) <= 2 and max(top.values()) == max(value, *top.values())
    if max_tokens:
        for total, _ in parse_logprobs(outputs, contexts):
            assert -math.inf < total < 0


def test_what_was_sampled_scores_the_same_as_a_prompt(site: Any) -> None:
    first = site.complete(prompt="abc", max_tokens=40, temperature=0, logprobs=3, return_token_ids=True).json()["choices"][0]
    ids = first["prompt_token_ids"] + first["token_ids"]
    scored = site.complete(prompt=ids, max_tokens=0, logprobs=3, echo=True).json()["choices"][0]
    assert scored["text"] == "abc" + first["text"]
    own = columns(first)
    assert [found[:3] for found in columns(scored)[-len(own) :]] == [found[:3] for found in own]
    assert [found[3] for found in columns(scored)[-len(own) :]] == [3 + found[3] for found in own]


@pytest.mark.parametrize("more", [
    {"prompt": "hello"}, {"prompt": ["a", "bcd"], "n": 3}, {"prompt": "é🦊", "logprobs": 2}, {"prompt": [1, 2, 195], "logprobs": 0},
    {"prompt": ["ab", "c"], "n": 2, "logprobs": 4, "stop": ["e", "Q"]}, {"prompt": "x", "logprobs": 1, "max_tokens": 0, "n": 2},
    {"prompt": "x" * 700, "logprobs": 1, "n": 4, "max_tokens": 3}, {"prompt": [256, 256, 65], "logprobs": 1},
])  # fmt: skip
def test_an_echo_is_the_prompt_and_then_the_same_answer(site: Any, more: dict[str, Any]) -> None:
    body = {"max_tokens": 12, "seed": 3, **more}
    plain, echoed = (site.complete(**body, echo=echo).json() for echo in (False, True))
    streamed: dict[int, dict[str, Any]] = {}
    for line in site.complete(**body, echo=True, stream=True).text.split("\n\n")[:-2]:
        (new,) = json.loads(line[6:])["choices"]
        choice = streamed.setdefault(new["index"], {"text": "", "logprobs": None})
        choice["text"] += new["text"]
        if new["logprobs"]:
            choice["logprobs"] = choice["logprobs"] or {name: [] for name in new["logprobs"]}
            choice["logprobs"] = {name: choice["logprobs"][name] + values for name, values in new["logprobs"].items()}
    assert plain["usage"] | {"prompt_tokens_details": None} == echoed["usage"] | {"prompt_tokens_details": None}
    prompts = more["prompt"] if isinstance(more["prompt"][0], str) and not isinstance(more["prompt"], str) else [more["prompt"]]
    for mine, theirs in zip(echoed["choices"], plain["choices"], strict=True):
        prompt = prompts[mine["index"] // body.get("n", 1)]
        text = prompt if isinstance(prompt, str) else bytes(token for token in prompt if token < 256).decode("utf-8", "replace")
        text = "<bos>A" if prompt == [256, 256, 65] else text
        assert mine["text"] == text + theirs["text"] == streamed[mine["index"]]["text"]
        assert mine["logprobs"] == streamed[mine["index"]]["logprobs"]
        if "logprobs" in more:
            own = columns(theirs)
            found = columns(mine)
            assert [each[:3] for each in found[len(found) - len(own) :]] == [each[:3] for each in own]
            assert [each[3] for each in found[len(found) - len(own) :]] == [len(text) + each[3] for each in own]


def test_prompt_logprobs_are_vllms(site: Any, chat_site: Any) -> None:
    choices = site.complete(prompt=[10, 11, 12], max_tokens=1, prompt_logprobs=2, n=2).json()["choices"]
    assert choices[0]["prompt_logprobs"] == choices[1]["prompt_logprobs"]
    found = choices[0]["prompt_logprobs"]
    assert found[0] is None and len(found) == 3
    for token, each in zip((11, 12), found[1:], strict=True):
        assert str(token) in each and 2 <= len(each) <= 3
        assert all(set(value) == {"logprob", "rank", "decoded_token"} for value in each.values())
        assert {value["rank"] for value in each.values()} <= {1, 2, None} and each[str(token)]["decoded_token"] == chr(token)
    answer = chat_site.chat(max_tokens=1, prompt_logprobs=0).json()
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"] and "prompt_logprobs" not in answer["choices"][0]
    assert [len(each) for each in answer["prompt_logprobs"][1:]] == [1] * (answer["usage"]["prompt_tokens"] - 1)
    assert site.complete(prompt="a", prompt_logprobs=1, stream=True).json()["error"]["param"] == "prompt_logprobs"


def test_an_echo_shows_as_many_ids_as_logprobs_asks(site: Any) -> None:
    choice = site.complete(prompt="abc", max_tokens=1, echo=True, logprobs=1, prompt_logprobs=5).json()["choices"][0]
    assert all(len(top) <= 2 for top in choice["logprobs"]["top_logprobs"][1:])
    assert all(5 <= len(each) <= 6 for each in choice["prompt_logprobs"][1:])


def test_scores_in_one_answer_are_bounded(site: Any) -> None:
    prompts = [[1] * 1_000] * 20
    for more in ({"prompt_logprobs": 20}, {"echo": True, "logprobs": 20}, {"prompt_logprobs": 4, "n": 8}):
        error = site.complete(prompt=prompts, max_tokens=1, **more).json()["error"]
        assert error["param"] == next(name for name in ("prompt_logprobs", "logprobs") if name in more)
        assert "400000" in error["message"]
    assert site.complete(prompt=prompts[:1], max_tokens=1, prompt_logprobs=20).status_code == 200


# ── the best of many ────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_best_are_the_likeliest(site: Any) -> None:
    body = {"prompt": ["first", "second"], "max_tokens": 9, "seed": 6, "logprobs": 0}
    everything = site.complete(**body, n=8).json()["choices"]
    answer = site.complete(**body, n=3, best_of=8).json()
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    for prompt in (0, 1):
        ranked = sorted(everything[8 * prompt : 8 * prompt + 8], key=lambda choice: -math.fsum(choice["logprobs"]["token_logprobs"]))
        kept = answer["choices"][3 * prompt : 3 * prompt + 3]
        assert [choice["text"] for choice in kept] == [choice["text"] for choice in ranked[:3]]
        assert [choice["logprobs"] for choice in kept] == [choice["logprobs"] for choice in ranked[:3]]
    assert answer["usage"]["completion_tokens"] == sum(len(choice["logprobs"]["tokens"]) for choice in everything)
    assert answer["usage"]["prompt_tokens"] == 13
    plain = site.complete(**{**body, "logprobs": None}, n=3, best_of=8).json()["choices"]
    assert [choice["text"] for choice in plain] == [choice["text"] for choice in answer["choices"]]
    assert plain[0]["logprobs"] is None, "made for the choice, not for the client"


def test_the_best_of_a_stream_is_refused(site: Any, chat_site: Any) -> None:
    for answer in (site.complete(prompt="a", best_of=2, stream=True), chat_site.chat(best_of=2, stream=True)):
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "best_of"
    assert site.complete(prompt="a", n=2, best_of=2, stream=True).status_code == 200
    assert site.complete(prompt="a", n=3, best_of=2).json()["error"]["param"] == "best_of"
    assert len(chat_site.chat(best_of=4, max_tokens=3).json()["choices"]) == 1


def test_a_vote_elects_the_commonest_answer(site: Any, chat_site: Any) -> None:
    """Of the same choices the one that reading them says; completions, chats, several prompts."""
    body = {"prompt": ["first", "second"], "max_tokens": 9, "seed": 6}
    texts = [choice["text"] for choice in site.complete(**body, n=8).json()["choices"]]
    mark = texts[0][2]
    choices = site.complete(**body, best_of=8, vote={"marker": mark}).json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1]
    for prompt, choice in enumerate(choices):
        given = [read_answer(Vote(marker=mark), text) for text in texts[8 * prompt : 8 * prompt + 8]]
        votes = Counter(each for each in given if each is not None)
        told = choice["vote"]
        assert told["voters"] == 8 and told["votes"] == max(votes.values(), default=0)
        assert choice["text"] in texts[8 * prompt : 8 * prompt + 8]
        assert told["answer"] == read_answer(Vote(marker=mark), choice["text"]) and (not votes or votes[told["answer"]] == told["votes"])
    assert "vote" not in site.complete(**body, best_of=8).json()["choices"][0]
    assert chat_site.chat(best_of=4, max_tokens=3, vote={"json_pointer": ""}).json()["choices"][0]["vote"]["voters"] == 4
    wrong = [{"vote": {"marker": "a"}}, {"vote": {}, "best_of": 2}, {"vote": {"marker": "a"}, "best_of": 2, "stream": True}]
    for more in (*wrong, {"vote": {"marker": "a"}, "best_of": 3, "n": 2}, {"vote": {"marker": "a"}, "n": 2, "use_beam_search": True}):
        for answer in (site.complete(prompt="a", **more), chat_site.chat(**more)):
            assert answer.status_code == 400 and answer.json()["error"]["param"] == "vote", answer.text


# ── beam search ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_beams(site: Any) -> None:
    body = {"prompt": list(b"beams"), "max_tokens": 6, "use_beam_search": True, "return_token_ids": True}
    answer = site.complete(**body, n=4).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert len({choice["text"] for choice in answer["choices"]}) == 4
    assert all(choice["text"] == bytes(choice["token_ids"]).decode() for choice in answer["choices"])
    assert answer["usage"]["prompt_tokens"] == 5 and answer["usage"]["completion_tokens"] == 24
    assert site.complete(**body, n=4).json()["choices"] == answer["choices"]
    assert site.complete(**body, n=1, best_of=4).json()["choices"] == answer["choices"][:1], "as wide, and the best is answered"
    first = answer["choices"][0]["token_ids"][0]
    ended = site.complete(**body, n=2, stop_token_ids=[first], length_penalty=0).json()["choices"]
    stopped = next(choice for choice in ended if choice["finish_reason"] == "stop")
    assert stopped["stop_reason"] == first and stopped["text"] == "" and stopped["token_ids"] == [first]


def test_beams_of_several_prompts_and_of_a_chat(site: Any, chat_site: Any) -> None:
    body = {"max_tokens": 4, "n": 2, "use_beam_search": True, "echo": True}
    together = site.complete(prompt=["one", "two"], **body).json()["choices"]
    alone = [site.complete(prompt=prompt, **body).json()["choices"] for prompt in ("one", "two")]
    assert [choice["text"] for choice in together] == [choice["text"] for choices in alone for choice in choices]
    assert [choice["text"][:3] for choice in together] == ["one", "one", "two", "two"]
    many = site.complete(prompt=["one"] * 64, **{**body, "n": 8}, seed=1)
    assert len(many.json()["choices"]) == 512, "no more requests at once than there is room for"
    answer = chat_site.chat(max_tokens=4, n=2, use_beam_search=True, temperature=0, length_penalty=0.5).json()
    assert len(answer["choices"]) == 2 and all(len(choice["message"]["content"]) == 4 for choice in answer["choices"])


@pytest.mark.parametrize(("more", "param"), [
    ({"stream": True}, "use_beam_search"), ({"temperature": 0.5}, "temperature"), ({"top_p": 0.5}, "top_p"), ({"logprobs": 0}, "logprobs"),
    ({"stop": "x"}, "stop"), ({"logit_bias": {"1": 1}}, "logit_bias"), ({"bad_words": ["x"]}, "bad_words"), ({"n": 9}, "n"),
    ({"length_penalty": 11}, "length_penalty"), ({"max_tokens": 0}, "max_tokens"), ({"max_tokens": 4096}, "max_tokens"),
    ({"min_tokens": 1}, "min_tokens"), ({"presence_penalty": 1}, "presence_penalty"), ({"stop_token_ids": [258]}, "stop_token_ids"),
])  # fmt: skip
def test_what_a_beam_search_refuses(site: Any, more: dict[str, Any], param: str) -> None:
    answer = site.complete(**{"prompt": "a", "max_tokens": 2, "use_beam_search": True, **more})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text


def test_beams_that_nobody_waits_for_leave_nothing_behind(site: Any) -> None:
    import asyncio

    async def leave() -> None:
        body = {"prompt": ["a"] * 8, "max_tokens": 200, "n": 8, "use_beam_search": True}
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await site.client.post("/v1/completions", json=body)

    site.wait(leave())
    for _ in range(100):
        if not site.service.engine.open_requests:
            break
        site.wait(asyncio.sleep(0.02))
    assert not site.service.engine.open_requests
