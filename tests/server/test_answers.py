"""Completions: usage, choices, stops, log-probabilities, seeds; a stream has the same content as a whole answer."""

from typing import Any

import pytest

from ridgeline.config.groups import EngineConfig, ServerConfig


def test_choices_are_requests_with_seed_and_index(site: Any) -> None:
    prompts = ["first", "second"]
    together = site.complete(prompt=prompts, n=3, max_tokens=12, seed=5).json()["choices"]
    assert [choice["index"] for choice in together] == list(range(6))
    for number, prompt in enumerate(prompts):
        alone = site.complete(prompt=prompt, n=3, max_tokens=12, seed=5).json()["choices"]
        assert [choice["text"] for choice in alone] == [choice["text"] for choice in together[3 * number : 3 * number + 3]]
    assert len({choice["text"] for choice in together}) == 6


def test_a_seed_repeats_and_no_seed_does_not(site: Any) -> None:
    texts = [site.complete(prompt="a", max_tokens=20, seed=3).json()["choices"][0]["text"] for _ in range(2)]
    assert texts[0] == texts[1]
    texts = [site.complete(prompt="a", max_tokens=20).json()["choices"][0]["text"] for _ in range(2)]
    assert texts[0] != texts[1]


def test_usage_counts_the_prompt_once_and_every_output(site: Any) -> None:
    usage = site.complete(prompt=[[1, 2, 3], [4]], n=4, max_tokens=6).json()["usage"]
    assert usage == {"prompt_tokens": 4, "completion_tokens": 48, "total_tokens": 52, "prompt_tokens_details": {"cached_tokens": 0}}


def test_usage_at_a_stop_string_counts_the_ids_that_count(site: Any) -> None:
    text = site.complete(prompt="x", max_tokens=50, seed=1).json()["choices"][0]["text"]
    stop = text[20:22]
    answer = site.complete(prompt="x", max_tokens=50, seed=1, stop=stop).json()
    assert answer["choices"][0]["text"] == text[: text.index(stop)]
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["stop_reason"] == stop
    assert answer["usage"]["completion_tokens"] == text.index(stop) + 2


def test_stop_token_ids(site: Any) -> None:
    text = site.complete(prompt="x", max_tokens=50, seed=1).json()["choices"][0]["text"]
    answer = site.complete(prompt="x", max_tokens=50, seed=1, stop_token_ids=[ord(text[9])]).json()
    choice = answer["choices"][0]
    at = text.index(text[9])
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (text[:at], "stop", ord(text[9]))
    assert answer["usage"]["completion_tokens"] == at + 1


def test_logprobs_are_openais_columns(site: Any) -> None:
    choice = site.complete(prompt="x", max_tokens=12, seed=2, logprobs=3).json()["choices"][0]
    found = choice["logprobs"]
    assert "".join(found["tokens"]) == choice["text"]
    assert found["text_offset"] == list(range(12))
    assert all(value <= 0 for value in found["token_logprobs"])
    for token, value, top in zip(found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True):
        assert top[token] == value and len(top) == 3
    assert site.complete(prompt="x", max_tokens=2).json()["choices"][0]["logprobs"] is None


def test_cached_tokens_and_salts(site: Any) -> None:
    prompt = [7] * 100

    def cached(**more: Any) -> int:
        return site.complete(prompt=prompt, max_tokens=1, **more).json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert cached() == 0
    assert cached() == 96
    assert cached(cache_salt="other tenant") == 0
    assert cached(cache_salt="other tenant") == 96


def test_models(site: Any) -> None:
    listed = site.get("/v1/models").json()
    assert listed["object"] == "list" and [card["id"] for card in listed["data"]] == ["fake"]
    assert site.get("/v1/models/fake").json() == listed["data"][0]


def test_names_and_health_while_loading(new_site: Any) -> None:
    site = new_site(EngineConfig('fake:{"rows": 1}'), ServerConfig(served_model_name="my/model"), start=False)
    assert site.get("/livez").status_code == 200
    assert site.get("/").status_code == 200
    for path in ("/readyz", "/health", "/v1/models", "/metrics"):
        answer = site.get(path)
        assert answer.status_code == 503 and answer.json()["error"]["code"] == "engine_unavailable"
        assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert site.complete(prompt="a").status_code == 503
    site.wait(site.service.start())
    assert site.get("/readyz").status_code == site.get("/health").status_code == 200
    assert site.get("/v1/models/my/model").json()["id"] == "my/model"
    assert site.complete(prompt="a", model="my/model").status_code == 200
    assert site.complete(prompt="a", model="fake").status_code == 404


def test_too_many_requests_are_told_when_to_come_back(new_site: Any) -> None:
    site = new_site(EngineConfig('fake:{"rows": 2, "step_seconds": 0.02}'), ServerConfig(max_waiting=2))

    async def burst() -> list[Any]:
        import asyncio

        return await asyncio.gather(*(site.client.post("/v1/completions", json={"prompt": "a", "max_tokens": 10}) for _ in range(8)))

    answers = site.wait(burst())
    statuses = sorted(answer.status_code for answer in answers)
    assert statuses == [200] * 4 + [429] * 4
    for answer in answers:
        if answer.status_code == 429:
            assert answer.json()["error"]["code"] == "overloaded"
            assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert site.service.metrics.rejected["overloaded"] == site.service.metrics.tenants.find("").rejected == 4
    for body in ({"prompt": ["a"] * 5}, {"prompt": ["a", "b"], "n": 3}, {"prompt": "a", "n": 1, "best_of": 5}):
        answer = site.complete(**body, max_tokens=1)
        assert answer.status_code == 400 and "takes at most 4 at once" in answer.json()["error"]["message"]
    assert site.complete(prompt=["a"] * 4, max_tokens=1).status_code == site.complete(prompt="a", n=4, max_tokens=1).status_code == 200


def test_an_unforeseen_error_keeps_its_text(site: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def break_down(*_: Any, **__: Any) -> None:
        raise RuntimeError("secret at 0x7f00 in /home/me")

    monkeypatch.setattr(site.service, "admitter", break_down)
    answer = site.complete(prompt="a")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (500, "internal_error")
    assert "secret" not in answer.text
    incident = error["message"].split()[-1]
    assert incident in caplog.text and "secret" in caplog.text


def test_the_seed_of_the_server_seeds_what_has_no_seed(new_site: Any) -> None:
    texts = []
    for _ in range(2):
        site = new_site(EngineConfig("fake:{}", seed=4))
        texts.append([site.complete(prompt="a").json()["choices"][0]["text"] for _ in range(3)])
    assert texts[0] == texts[1] and len(set(texts[0])) == 3


def test_a_stream_that_is_silent_has_comments(new_site: Any) -> None:
    """The first token is slow (a long prompt), and the ones after it are; text that a stop string may swallow is silent too."""
    site = new_site(EngineConfig('fake:{"token_seconds": 0.002, "step_seconds": 0.1}'), ServerConfig(sse_keep_alive_interval=0.04))
    for token, more in ((1, {}), (2, {"stop": ["no such text"]})):
        answer = site.complete(prompt=[token] * 200, max_tokens=3, stream=True, **more)
        lines = answer.text[:-2].split("\n\n")
        comments = [index for index, line in enumerate(lines) if line == ": keep-alive"]
        assert comments[:3] == [0, 1, 2], "during the prompt"
        assert max(comments) > lines.index(next(line for line in lines if line.startswith("data: "))), "and between tokens"
        assert lines[-1] == "data: [DONE]" and all(line.startswith("data: ") for line in lines if line != ": keep-alive")


def test_a_prompt_cut_to_its_last_tokens(site: Any) -> None:
    def prompt(asked: Any, most: int, **more: Any) -> list[int]:
        answer = site.complete(prompt=asked, truncate_prompt_tokens=most, return_token_ids=True, **{"max_tokens": 1, **more}).json()
        return answer["choices"][0]["prompt_token_ids"]

    assert prompt([1, 2, 3, 4], 2) == [3, 4]
    assert prompt([1, 2], 2) == prompt([1, 2], 9) == [1, 2]
    assert prompt("abcd", 3) == [256, 99, 100] and prompt("abcd", 1) == [256]
    assert prompt([7] * 5000, -1, max_tokens=96) == [7] * 4000
    for most in (0, -2, 4097, 2**62):
        error = site.complete(prompt="a", truncate_prompt_tokens=most).json()["error"]
        assert error["param"] == "truncate_prompt_tokens" and error["code"] == "invalid_value"
