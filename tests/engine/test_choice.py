"""The edge of a choice: which outputs count, who says so, and that it is said once."""

from typing import Any

from ridgeline.core.commands import Close, Output
from ridgeline.core.events import Finish
from ridgeline.core.params import SamplingParams
from ridgeline.engine.admit import ModelLimits, admit
from ridgeline.sim.executor import fake_executor
from ridgeline.text.bytes import ByteTokenizer
from ridgeline.text.choice import Choice

LIMITS = ModelLimits(258, 1024, frozenset({257}), fake_executor().info.kv)


def play(outputs: list[tuple[bytes, Finish | None]], **fields: Any) -> tuple[str, list[Close], str | int | None]:
    params = SamplingParams(**fields)
    choice = Choice(admit((1,), params, LIMITS, request_id="r", draw_seed=lambda: 1), 0, params, ByteTokenizer())
    text, closes = "", []
    for ids, end in outputs:
        releases, close = choice.take(Output("r", 0, tuple(ids), None, end))
        text += "".join(release.text for release in releases)
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
