"""`suffix` of completions: the model's own marks around prompt and suffix, for every form of a prompt."""

from dataclasses import replace
from typing import Any

import pytest

from ridgeline.text.fim import Fim
from ridgeline.text.tokenizer import ByteTokenizer

MARKS = (1, 2, 3)


@pytest.fixture
def site(chat_site: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    fim = Fim(ByteTokenizer(), *MARKS, False, frozenset({*MARKS, *b"0123456789"}))
    monkeypatch.setattr(chat_site.service.deployment, "_model", replace(chat_site.service.model, fim=lambda: fim))
    return chat_site


def test_the_prompt_has_both_parts(site: Any) -> None:
    expected = [256, 1, *b"def f(", 2, *b"): pass", 3]
    for prompt in ("def f(", ["def f("], [256, *b"def f("]):
        choice = site.complete(prompt=prompt, suffix="): pass", max_tokens=4, return_token_ids=True).json()["choices"][0]
        assert choice["prompt_token_ids"] == expected
    many = site.complete(prompt=["a", "b"], suffix="c", max_tokens=1, return_token_ids=True).json()["choices"]
    assert [each["prompt_token_ids"] for each in many] == [[256, 1, *text, 2, *b"c", 3] for text in (b"a", b"b")]
    events = site.events("/v1/completions", prompt="def f(", suffix="): pass", max_tokens=4, seed=3)
    whole = site.complete(prompt="def f(", suffix="): pass", max_tokens=4, seed=3).json()["choices"][0]
    assert "".join(each["choices"][0]["text"] for each in events) == whole["text"]


def test_a_mark_ends_the_middle(site: Any) -> None:
    """Here digits do."""
    ends = [site.complete(prompt="a", suffix="b", max_tokens=200, seed=seed).json()["choices"][0] for seed in range(6)]
    assert any(each["finish_reason"] == "stop" for each in ends)
    assert not any(letter.isdigit() for each in ends for letter in each["text"])


def test_what_a_suffix_excludes(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for more in ({"echo": True}, {"truncate_prompt_tokens": 4}):
        answer = site.complete(prompt="a", suffix="b", **more)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == next(iter(more))
    monkeypatch.setattr(site.service.deployment, "_model", replace(site.service.model, fim=lambda: None))
    answer = site.complete(prompt="a", suffix="b")
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "suffix" and "middle" in answer.json()["error"]["message"]
    assert site.complete(prompt="a", suffix="", max_tokens=1).status_code == 200, "nothing follows"
