"""`LLM.stream` and `LLM.abort`: the same answer in pieces, and no request left open after its iterator is dropped."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from ridgeline.core.params import SamplingParams
from ridgeline.engine.llm import LLM
from ridgeline.errors import EngineDeadError, RequestError

PARAMS = SamplingParams(max_tokens=40, seed=3)


@pytest.fixture(scope="module", params=[1, 3], ids=["depth 1", "depth 3"])
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    with LLM('fake:{"rows": 4, "blocks": 512}', depth=request.param, seed=1) as made:
        yield made


@pytest.mark.parametrize("fields", [{}, {"n": 3}, {"stop": ("e",)}, {"logprobs": 2}, {"max_tokens": 1}])
def test_pieces_are_the_answer(llm: LLM, fields: dict[str, object]) -> None:
    params = replace(PARAMS, **fields)  # type: ignore[arg-type]
    (whole,) = llm.generate("Hello", params)
    pieces = list(llm.stream("Hello", params))
    assert [piece.finished for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert len(pieces) > 10 or fields.keys() & {"stop", "max_tokens"}
    for index, choice in enumerate(whole.outputs):
        parts = [piece.outputs[index] for piece in pieces]
        assert "".join(part.text for part in parts) == choice.text
        assert tuple(token for part in parts for token in part.token_ids) == choice.token_ids
        assert (parts[-1].finish_reason, parts[-1].stop_reason) == (choice.finish_reason, choice.stop_reason)
        assert parts[-1].cumulative_logprob == choice.cumulative_logprob
    assert llm._engine.idle


def test_a_dropped_stream_is_aborted(llm: LLM) -> None:
    stream = llm.stream("Hello", replace(PARAMS, max_tokens=2000))
    assert next(stream).outputs[0].text
    assert not llm._engine.idle
    del stream
    assert llm._engine.idle
    never_begun = llm.stream("Hello", PARAMS)
    del never_begun
    assert llm._engine.idle


def test_others_are_answered_while_a_stream_waits(llm: LLM) -> None:
    (alone,) = llm.generate("Hello", PARAMS)
    stream = llm.stream("Hello", PARAMS)
    first = next(stream)
    (between,) = llm.generate("Hello", PARAMS)
    rest = "".join(piece.outputs[0].text for piece in stream)
    assert between.outputs == alone.outputs and first.outputs[0].text + rest == alone.outputs[0].text


def test_abort_keeps_what_there_is(llm: LLM) -> None:
    whole = "".join(piece.outputs[0].text for piece in llm.stream("Hello", PARAMS))
    text, reason = "", None
    for number, piece in enumerate(llm.stream("Hello", replace(PARAMS, max_tokens=2000))):
        text, reason = text + piece.outputs[0].text, piece.outputs[0].finish_reason
        if number == 5:
            llm.abort()
    assert reason == "abort" and 5 < len(text) < 20 and whole.startswith(text)
    assert llm._engine.idle


def test_mistakes_are_told_before_anything_runs(llm: LLM) -> None:
    with pytest.raises(RequestError, match="max_tokens"):
        llm.stream("Hello", replace(PARAMS, max_tokens=10**6))
    with pytest.raises(RequestError, match="best_of"):
        llm.stream("Hello", replace(PARAMS, best_of=2))


def test_a_stream_of_a_closed_llm_ends_with_an_error() -> None:
    made = LLM("fake:{}")
    stream = made.stream("Hello", PARAMS)
    next(stream)
    made.close()
    with pytest.raises(EngineDeadError):
        list(stream)
