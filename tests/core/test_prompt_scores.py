"""Scored prompts: every position but the last is scored once, whatever the chunks, cache hits and preemptions."""

import pytest

from ridgeline.core import laws
from ridgeline.core.commands import Abort
from ridgeline.core.events import Closed, Finish, Preempted, PrefixHit
from ridgeline.core.plan import Result, TokenLogprobs
from ridgeline.core.plan_builder import MAX_SCORED
from ridgeline.errors import LawViolation
from ridgeline.sim.laws.model import FakeModel, chain_stamps

PROMPT = tuple(range(40, 63))


def scores(run, name: str) -> list[TokenLogprobs]:
    return [each for output in run.outputs if output.request_id == name for each in output.prompt_logprobs or ()]


def expected(run, name: str) -> list[TokenLogprobs]:
    request = run.requests[name]
    stamps = chain_stamps(run.model.origin(request.row_params(0)), request.prompt)
    best = request.prompt_logprobs
    return [run.model.logprobs(stamp, token, best) for stamp, token in zip(stamps, request.prompt[1:], strict=False)]


def scored_positions(run) -> list[int]:
    """Returns the positions of row 0 that plans score."""
    found = []
    for plan in run.plans:
        assert len(plan.row) == 1
        found += [plan.start[0] + first + place for _, first, count in plan.score for place in range(count)]
    return found


@pytest.mark.parametrize("budget", [1, 3, 8, 64])
@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("length", [1, 2, 4, 5, 8, 23])
def test_every_position_but_the_last(loop, budget: int, depth: int, length: int) -> None:
    run = loop(token_budget=budget, depth=depth)
    run.finish(run.request("a", PROMPT[:length], max_tokens=3, prompt_logprobs=2))
    run.check_ended()
    assert scored_positions(run) == list(range(length - 1))
    assert scores(run, "a") == expected(run, "a")
    assert len(scores(run, "a")) == length - 1


def test_a_step_scores_a_bounded_number_of_positions(loop) -> None:
    """The limit holds for all rows together, in the policy's order."""
    run = loop(token_budget=2048, rows=8)
    names = ("a", "b", "c")
    run.turn(*[run.request(name, 90, max_tokens=3, prompt_logprobs=1) for name in names], run.request("d", 200, max_tokens=9))
    run.finish()
    scored = [sum(count for _, _, count in plan.score) for plan in run.plans]
    assert max(scored) == MAX_SCORED and sum(scored) == 3 * 89
    assert scored[:5] == [64, 64, 64, 64, 11]
    for name in names:
        assert scores(run, name) == expected(run, name)
    run.check_ended()


def test_scores_are_sent_before_the_first_id(loop) -> None:
    run = loop(token_budget=4)
    run.finish(run.request("a", 9, max_tokens=2, prompt_logprobs=0))
    sent = [(len(output.ids), output.prompt_logprobs is not None) for output in run.outputs]
    assert sent == [(0, True), (0, True), (1, False), (1, False)]


def test_only_requests_that_ask_are_scored(loop) -> None:
    run = loop()
    run.finish(run.request("a", PROMPT, max_tokens=2, choices=3, prompt_logprobs=1), run.request("b", 12, max_tokens=2))
    assert {(output.request_id, output.choice) for output in run.outputs if output.prompt_logprobs} == {("a", 0)}
    assert scores(run, "a") == expected(run, "a")


def test_a_cached_prompt_is_computed_anew_and_its_blocks_are_shared(loop) -> None:
    run = loop()
    run.finish(run.request("a", PROMPT, max_tokens=2))
    run.finish(run.request("b", PROMPT, max_tokens=2, prompt_logprobs=1))
    assert not run.events_of(PrefixHit, "b") and scores(run, "b") == expected(run, "b")
    run.finish(run.request("c", PROMPT, max_tokens=2))
    assert run.events_of(PrefixHit, "c")
    assert run.events_of(Closed, "b")[0].usage.cached_tokens == 0
    run.check_ended()


def test_it_does_not_wait_for_a_prefix_that_another_computes(loop) -> None:
    run = loop(token_budget=40, depth=2)
    run.finish(run.request("a", PROMPT, max_tokens=2), run.request("b", PROMPT, max_tokens=2, prompt_logprobs=1))
    assert run.plans[0].count.tolist() == [23, 17]
    assert scores(run, "b") == expected(run, "b")
    run.check_ended()


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("windows", [(0,), (0, 6)])
@pytest.mark.parametrize("outputs", [6, 16])
def test_preempted_in_the_middle(loop, depth: int, windows: tuple[int, ...], outputs: int) -> None:
    """Positions that were scored before the preemption are not scored again, and may come from the cache."""
    run = loop(blocks=9 if windows == (0,) else 14, rows=3, token_budget=3, depth=depth, windows=windows, max_preemptions=8)
    run.turn(run.request("old", 5, max_tokens=27))
    run.finish(run.request("young", PROMPT, max_tokens=outputs - 5, prompt_logprobs=1))
    assert run.events_of(Preempted, "young")
    assert scores(run, "young") == expected(run, "young")
    run.check_ended()


def test_scores_of_a_step_in_flight_are_dropped_with_their_request(loop) -> None:
    run = loop(token_budget=4, depth=3)
    run.turn(run.request("a", PROMPT, max_tokens=4, prompt_logprobs=1))
    before = len(scores(run, "a"))
    run.finish(Abort("a"))
    assert len(scores(run, "a")) == before < len(PROMPT) - 1
    run.check_ended()


def test_what_is_not_finite_scores_nothing(loop) -> None:
    model = FakeModel(nan_permille=1000, nan_positions=20)
    run = loop(token_budget=6, model=model)
    run.finish(run.request("a", PROMPT, max_tokens=2, prompt_logprobs=1))
    at = model.nan_position(run.requests["a"].row_params(0))
    assert 0 <= at < 20 and run.events_of(Closed, "a")[0].reason is Finish.ERROR
    assert scores(run, "a") == expected(run, "a")[: at // 6 * 6]


@pytest.mark.parametrize("wrong", [None, ((),), ((TokenLogprobs(0.0),) * 9,)])
def test_a_result_must_fit_its_plan(loop, wrong: tuple[tuple[TokenLogprobs, ...], ...] | None) -> None:
    run = loop(token_budget=8)
    run.apply(run.request("a", 12, prompt_logprobs=1))
    plan = run.plan()
    with pytest.raises(LawViolation, match="law 4: step 0 scored"):
        run.scheduler.commit(plan, Result(0, ((),), bytearray(b"\1"), scores=wrong), 0.0)


def test_an_unscored_scheduled_position_breaks_law_4(loop) -> None:
    run = loop(token_budget=8)
    run.turn(run.request("a", 12, prompt_logprobs=1))
    run.sequence("a").scored = 3
    with pytest.raises(LawViolation, match="law 4"):
        laws.check(run.scheduler)
