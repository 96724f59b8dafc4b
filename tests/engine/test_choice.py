"""The end of a choice: which outputs count, and that it is closed once."""

from dataclasses import asdict
from typing import Any

import pytest

from ridgeline.core.commands import Close, Output
from ridgeline.core.events import Finish
from ridgeline.core.params import SamplingParams
from ridgeline.core.plan import TokenLogprobs
from ridgeline.engine.admit import ModelLimits, admit
from ridgeline.engine.answer import ChoiceBuilder
from ridgeline.sim.laws.executor import fake_executor
from ridgeline.text.tokenizer import ByteTokenizer

LIMITS = ModelLimits(258, 1024, frozenset({257}), fake_executor().info.kv)


def play(outputs: list[tuple[bytes, Finish | None]], **fields: Any) -> tuple[str, list[Close], str | int | None]:
    params = SamplingParams(**fields)
    choice = ChoiceBuilder(admit((1,), params, LIMITS, request_id="r", draw_seed=lambda: 1), 0, params, ByteTokenizer())
    text, closes = "", []
    for ids, end in outputs:
        deltas, close = choice.process(Output("r", 0, tuple(ids), None, end))
        text += "".join(delta.text for delta in deltas)
        closes += [close] if close else []
    return text, closes, choice.stop_reason


def test_the_engine_closes_what_has_no_stop_strings() -> None:
    assert play([(b"ab", None), (b"c", Finish.LENGTH)]) == ("abc", [], None)
    assert play([(b"ab", None), (b"c", Finish.STOP)], stop_token_ids=(99,)) == ("ab", [], 99)


def test_a_stop_string_counts_the_ids_that_complete_it() -> None:
    late = [(b"ab\nc", None), (b"\nxy", None), (b"z", Finish.LENGTH)]
    assert play(late, stop=("c\n",)) == ("ab\n", [Close("r", 0, 5, Finish.STOP)], "c\n")


def test_a_provisional_end_is_answered() -> None:
    assert play([(b"abc", Finish.LENGTH)], stop=("x",)) == ("abc", [Close("r", 0, 3, Finish.LENGTH)], None)
    assert play([(b"abc", Finish.STOP)], stop=("x",), stop_token_ids=(99,)) == ("ab", [Close("r", 0, 3, Finish.STOP)], 99)
    assert play([(b"ab", Finish.LENGTH)], stop=("bc",)) == ("ab", [Close("r", 0, 2, Finish.LENGTH)], None)


def a_choice(**fields: Any) -> ChoiceBuilder:
    params = SamplingParams(**fields)
    return ChoiceBuilder(admit((1, 2, 3), params, LIMITS, request_id="r", draw_seed=lambda: 1), 0, params, ByteTokenizer())


def test_nothing_is_shown_where_nothing_was_to_be_generated() -> None:
    for end in (Finish.STOP, Finish.LENGTH):
        assert play([(b"a", end)], max_tokens=0) == ("", [Close("r", 0, 0, Finish.LENGTH)], None)
    assert play([(b"", Finish.ERROR)], max_tokens=0) == ("", [Close("r", 0, 0, Finish.ERROR)], None)


def test_prompt_scores_come_before_anything_else() -> None:
    choice = a_choice(max_tokens=0, prompt_logprobs=1)
    first, second = TokenLogprobs(-1.0, ((2, -1.0),)), TokenLogprobs(-2.0, ((9, -0.5),))
    assert choice.prompt_logprobs == []
    for found in (first, second):
        assert choice.process(Output("r", 0, (), prompt_logprobs=(found,))) == ([], None)
    _, close = choice.process(Output("r", 0, (97,), None, Finish.LENGTH))
    assert close == Close("r", 0, 0, Finish.LENGTH)
    assert choice.prompt_logprobs == [first, second]
    assert choice.cumulative_logprob is None


def test_an_output_without_ids_shows_nothing() -> None:
    choice = a_choice(prompt_logprobs=1)
    deltas, close = choice.process(Output("r", 0, (), prompt_logprobs=(TokenLogprobs(-1.0),)))
    assert close is None and not any(delta.ids or delta.text for delta in deltas)


def test_log_probabilities_are_summed_up_to_where_the_answer_ends() -> None:
    choice = a_choice(logprobs=0, stop=("c",))
    assert choice.cumulative_logprob is None
    for token, value in zip(b"ab", (-0.5, -0.25), strict=True):
        choice.process(Output("r", 0, (token,), (TokenLogprobs(value),)))
    choice.process(Output("r", 0, tuple(b"cd"), (TokenLogprobs(-1.0), TokenLogprobs(-99.0))))
    assert choice.cumulative_logprob == -1.75


@pytest.mark.parametrize(
    "fields", [{}, {"stop": ("京, zur",)}, {"stop": ("京, zür", "🌍x"), "min_tokens": 30, "include_stop_str_in_output": True}]
)
def test_a_fresh_pipeline_goes_on_behind_any_delivered_point(fields: dict[str, Any]) -> None:
    """A replica that knows request and ids alone: what was delivered, in one piece, leads to the text behind it, cut within a character or
    a stop string too."""
    ids = "Grüße 🌍, 東京, zurück 東京, zür".encode()
    params = SamplingParams(max_tokens=len(ids), **fields)

    def feed(choice: ChoiceBuilder, pieces: list[bytes]) -> list[tuple[str, Close | None]]:
        found = []
        for piece in pieces:
            end = Finish.LENGTH if choice._count + len(piece) == len(ids) else None
            deltas, close = choice.process(Output("r", 0, tuple(piece), None, end))
            found.append(("".join(delta.text for delta in deltas), close))
        return found

    whole = feed(a_choice(**asdict(params)), [ids[at : at + 1] for at in range(len(ids))])
    for cut in range(1, len(ids)):
        before, *behind = feed(a_choice(**asdict(params)), [ids[:cut], *(ids[at : at + 1] for at in range(cut, len(ids)))])
        assert before[0] == "".join(text for text, _ in whole[:cut]) and behind == whole[cut:], cut
