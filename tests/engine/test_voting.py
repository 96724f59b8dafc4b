"""Self-consistency: what is read of a text, who is elected, and what is refused."""

import math
from typing import Any

import pytest

from ridgeline import LLM, SamplingParams, Vote
from ridgeline.engine.answer import Election
from ridgeline.engine.voting import elect, read_answer
from ridgeline.errors import RequestError

MARK = Vote(marker="Answer:")


@pytest.mark.parametrize(
    ("vote", "text", "answer"),
    [
        (MARK, "Answer: 1\nno. Answer:  42 \nmore", "42"),
        (MARK, "42", None),
        (MARK, "Answer:   ", None),
        (Vote(json_pointer="/a/1"), 'first {"a": [0, 1]}, then {"a": [2, {"c": 1, "b": 2}]}.', '{"b": 2, "c": 1}'),
        (Vote(json_pointer="/x~1y~0"), '{"x/y~": "Bern"}', "Bern"),
        (Vote(json_pointer=""), "so [1, 2 ] it is", "[1, 2]"),
        (Vote(json_pointer="/a"), '{"a": null}', "null"),
        (Vote(json_pointer="/a"), '{"b": 1} {"a": ', None),
        (Vote(json_pointer="/01"), "[1, 2]", None),
        (Vote(json_pointer="/9"), "[" * 60_000, None),
        (Vote(json_pointer="/a"), r'{"a": "\ud800!"}', "?!"),
        (Vote(json_pointer="/a"), r'{"a": ["\ud800"]}', '["?"]'),
        (Vote(regex=r"\d+"), "1, 2 or 3", "3"),
        (Vote(regex=r"is (\d+)"), "is 1, is 2 or 3", "2"),
        (Vote(regex=r"(a)|b"), "b", None),
    ],
)
def test_what_is_read(vote: Vote, text: str, answer: str | None) -> None:
    assert read_answer(vote, text) == answer


def test_an_answer_of_any_depth_can_be_read() -> None:
    found = [read_answer(Vote(json_pointer=""), "[" * depth + "]" * depth) for depth in range(700, 1_005)]
    assert found[0] and found[-1] is None


def test_an_empty_answer_is_not_none_at_all() -> None:
    texts = ['{"a": 1', '{"a": ""}', '{"a": ""}', '{"a": "x"}']
    assert elect(Vote(json_pointer="/a"), texts, [0.0, -2.0, -1.0, -0.5]) == (2, Election("", 2, 4))


def test_who_is_elected() -> None:
    texts = ["Answer: 7", "Answer: 8", "nothing", "Answer: 8", "Answer: 9", "Answer: 9"]
    assert elect(MARK, texts, [-1, -5, -0.1, -4, -9, -8]) == (3, Election("8", 2, 6)), "of two pairs that with the likelier text"
    assert elect(MARK, texts[:4], [-1, -5, -0.1, -4]) == (3, Election("8", 2, 4))
    assert elect(MARK, ["a", "b"], [-2, -1]) == (1, Election(None, 0, 2))
    assert elect(MARK, ["Answer: 1", "b"], [math.nan, -1]) == (0, Election("1", 1, 2))


@pytest.mark.parametrize(
    "given",
    [
        {"vote": Vote()}, {"vote": Vote("a", "/b")}, {"vote": Vote("")}, {"vote": Vote(json_pointer="b")}, {"vote": Vote(regex="(")},
        {"vote": Vote("a" * 513)}, {"vote": MARK, "best_of": None}, {"vote": MARK, "n": 2}, {"vote": MARK, "best_of": 1},
    ],
)  # fmt: skip
def test_what_is_refused(llm: LLM, given: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        llm.generate("a", SamplingParams(**{"best_of": 3, "max_tokens": 4, **given}))
    assert caught.value.param == "vote"


@pytest.fixture(scope="module")
def llm() -> Any:
    with LLM('fake:{"vocab": 258}', max_model_len=256) as llm:
        yield llm


def test_the_elected_is_one_of_the_choices(llm: LLM) -> None:
    """The same choices as with n, and of them the one that reading them by hand elects."""
    every = SamplingParams(n=8, seed=3, max_tokens=12, logprobs=0)
    (all_,) = llm.generate("count", every)
    vote = Vote(regex=r"(?s)^.")
    (one,) = llm.generate("count", SamplingParams(best_of=8, vote=vote, seed=3, max_tokens=12))
    texts = [each.text for each in all_.outputs]
    index, election = elect(vote, texts, [each.cumulative_logprob or 0.0 for each in all_.outputs])
    assert one.outputs[0].text == texts[index] and one.outputs[0].vote == election and len(one.outputs) == 1
