"""The prefill budget: tokens that prefilling rows may have together beside decoding rows."""

import pytest

from ridgeline.core.commands import SetKnob
from ridgeline.core.pace import Pace
from ridgeline.core.params import Limits
from ridgeline.core.plan import Plan
from ridgeline.core.step_time import StepSeconds


def counts(plan: Plan) -> list[int]:
    return list(plan.count)


@pytest.mark.parametrize(
    ("rows", "tokens"),
    [(0, 512), (1, 77), (10, 55), (30, 10), (500, 10), (505, 7), (600, 1)],
)
def test_prefill_budget_by_decode_rows(rows: int, tokens: int) -> None:
    limits = Limits(token_budget=512, mixed_tokens=80, row_tokens=2.5)
    assert limits.prefill_budget(rows) == tokens


def test_a_long_prompt_is_chunked_beside_decoding_rows(loop) -> None:
    run = loop(token_budget=64, rows=4, mixed_tokens=16, row_tokens=2.5)
    run.turn(run.request("a", 6, max_tokens=12), run.request("b", 6, max_tokens=12))
    run.turn(run.request("long", 40, max_tokens=2))
    run.finish()
    assert [counts(plan) for plan in run.plans[:6]] == [[6, 6], [1, 1, 11], [1, 1, 11], [1, 1, 11], [1, 1, 7], [1, 1, 1]]
    run.check_ended()


def test_without_decoding_rows_prefill_has_the_token_budget(loop) -> None:
    run = loop(token_budget=64, rows=4, mixed_tokens=16)
    run.finish(run.request("a", 100, max_tokens=1), run.request("b", 20, max_tokens=1))
    assert [counts(plan) for plan in run.plans] == [[64], [36, 20]]


def test_prompts_share_the_prefill_budget_in_order(loop) -> None:
    run = loop(token_budget=64, rows=4, mixed_tokens=17)
    run.turn(run.request("a", 6, max_tokens=12))
    run.turn(run.request("b", 20, max_tokens=2), run.request("c", 20, max_tokens=2))
    run.finish()
    assert [counts(plan) for plan in run.plans[:5]] == [[6], [1, 16], [1, 4, 12], [1, 1, 8], [1, 1]]
    run.check_ended()


def test_prompts_advance_beside_any_number_of_decoding_rows(loop) -> None:
    run = loop(token_budget=64, rows=8, mixed_tokens=16, row_tokens=9.0)
    run.turn(*[run.request(f"r{i}", 2, max_tokens=30) for i in range(6)])
    run.turn(run.request("late", 12, max_tokens=2))
    run.finish()
    assert [counts(plan)[-1] for plan in run.plans[1:7]] == [2] * 6
    assert all(counts(plan)[:6] == [1] * 6 for plan in run.plans[1:7])
    run.check_ended()


def test_the_time_of_a_step_bounds_prompts_from_the_next_plan_on(loop) -> None:
    run = loop(token_budget=256, rows=4, pace=Pace(StepSeconds(0.001, 0.0, 0.001), 0.033))
    run.turn(run.request("a", 2, max_tokens=30))
    run.turn(run.request("long", 200, max_tokens=2))
    run.apply(SetKnob("step_ms", 9))
    run.turn()
    assert [plan.count[-1] for plan in run.plans[-2:]] == [31, 7]
    run.finish()
    run.check_ended()


def test_what_the_engine_was_made_without_stays_away(loop) -> None:
    run = loop()
    run.finish(SetKnob("num_speculative_tokens", 4), SetKnob("step_ms", 1), run.request("a"))
    assert run.scheduler.drafter is None
    run.check_ended()
