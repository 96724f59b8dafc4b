"""The contents of steps: chunks, budget, depth, input ids, block boundaries."""

import pytest

from ridgeline.core.events import Closed, Computed, Finish, PrefixHit, Scheduled
from ridgeline.core.fast_forward import skippable_steps
from ridgeline.core.plan import LAST, Result
from ridgeline.errors import LawViolation


def test_a_prompt_is_computed_in_chunks_and_samples_at_its_end(loop) -> None:
    run = loop(token_budget=16)
    run.finish(run.request("a", 50, max_tokens=3))
    assert [list(plan.count) for plan in run.plans] == [[16], [16], [16], [2], [1], [1]]
    assert [list(plan.sample) for plan in run.plans] == [[0], [0], [0], [1], [1], [1]]
    assert [list(plan.start) for plan in run.plans] == [[0], [16], [32], [48], [50], [51]]
    assert [list(plan.sample) for plan in run.plans] == [[0], [0], [0], [1], [1], [1]]
    assert run.ids("a") == run.expected("a")
    run.check_ended()


def test_the_older_goes_first_and_the_younger_gets_the_rest_of_the_budget(loop) -> None:
    run = loop(token_budget=10)
    run.turn(run.request("old", 4))
    run.turn(run.request("young", 30))
    assert list(run.plans[1].count) == [1, 9]
    assert list(run.plans[1].sample) == [1, 0]
    run.finish()
    run.check_ended()


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_depth_changes_no_answer_and_computes_nothing_twice(loop, depth: int) -> None:
    run = loop(depth=depth, token_budget=16, windows=(0, 6))
    run.finish(*[run.request(f"r{i}", 3 + 5 * i, max_tokens=4 + 3 * i) for i in range(5)])
    run.check_ended()
    for name, request in run.requests.items():
        assert run.ids(name) == run.expected(name)
        assert run.events_of(Closed, name)[0].usage.completion_tokens == request.max_tokens
    computed = sum(sum(plan.count) for plan in run.plans)
    assert computed == sum(len(r.prompt) + r.max_tokens - 1 for r in run.requests.values())


def test_an_input_is_a_known_id_or_the_last_sampled_one(loop) -> None:
    one, two = loop(depth=1), loop(depth=2)
    for run in (one, two):
        run.finish(run.request("a", 5, max_tokens=4))
    assert [plan.tokens[0] for plan in one.plans[1:]] == list(one.expected("a")[:3])
    assert two.plans[1].tokens[0] == LAST
    assert [plan.start[0] for plan in one.plans] == [plan.start[0] for plan in two.plans] == [0, 5, 6, 7]


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_depth_is_the_number_of_steps_in_flight(loop, depth: int) -> None:
    run = loop(depth=depth)
    run.apply(run.request("a", 5, max_tokens=20))
    while run.plan() is not None:
        pass
    assert len(run.scheduler.steps_in_flight) == depth
    run.finish()
    run.check_ended()


def test_no_step_is_planned_beyond_the_last_output(loop) -> None:
    run = loop(depth=4)
    run.apply(run.request("a", 5, max_tokens=2))
    assert run.plan() is not None
    assert run.plan() is not None
    assert run.plan() is None
    run.finish()
    assert run.ids("a") == run.expected("a")


@pytest.mark.parametrize("windows", [(0,), (0, 5), (6,)])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_cold_equals_warm_at_every_length_around_block_boundaries(loop, size: int, windows: tuple[int, ...]) -> None:
    for length in range(1, 4 * size + 2):
        run = loop(block_tokens=size, windows=windows, token_budget=7)
        ids = tuple(range(50, 50 + length))
        run.finish(run.request("cold", ids, max_tokens=3, seed=9))
        run.finish(run.request("warm", ids, max_tokens=3, seed=9))
        run.check_ended()
        assert run.ids("cold") == run.ids("warm") == run.expected("cold")
        assert run.events_of(Closed, "warm")[0].usage.cached_tokens == (length - 1) // size * size
        assert sum(hit.tokens for hit in run.events_of(PrefixHit, "warm")) == (length - 1) // size * size


def test_columns_of_events_are_those_of_the_plan(loop) -> None:
    run = loop(token_budget=8)
    run.finish(run.request("a", 10, max_tokens=2), run.request("b", 3, max_tokens=2))
    for plan, scheduled, computed in zip(run.plans, run.events_of(Scheduled), run.events_of(Computed), strict=True):
        assert scheduled.step == computed.step == plan.step
        assert scheduled.count == plan.count
        assert scheduled.sequences == computed.sequences
        assert list(computed.sampled) == list(plan.sample)


def test_a_result_must_fit_its_plan(loop) -> None:
    run = loop(depth=2)
    run.apply(run.request("a", 5))
    first, second = run.plan(), run.plan()
    good = run.executor.collect(run.tickets[0])
    with pytest.raises(ValueError, match="step 0 is the oldest"):
        run.scheduler.commit(second, good, 0.0)
    with pytest.raises(LawViolation, match="law 4"):
        run.scheduler.commit(first, Result(first.step, ((),), good.finite), 0.0)


def test_skippable_steps_decide_nothing(loop) -> None:
    run = loop(windows=(0, 9), blocks=40, rows=3, token_budget=8)
    run.turn(*[run.request(f"r{i}", 6 + i, max_tokens=14 + i) for i in range(4)])
    seen = 0
    while not run.scheduler.idle:
        quiet, before = skippable_steps(run.scheduler), len(run.events)
        assert quiet >= 0
        for _ in range(quiet):
            run.turn()
            assert list(run.plans[-1].count) == [1] * len(run.plans[-1].row)
        assert {type(event).__name__ for event in run.events[before:]} <= {"Scheduled", "Computed", "StepTimed"}
        seen += quiet
        run.turn()
    assert seen > 15
    assert all(closed.reason is Finish.LENGTH for closed in run.events_of(Closed))


def test_skippable_steps_end_where_blocks_run_out(loop) -> None:
    """Two sequences of 6 known ids with blocks of 4: one block is left, and they need new ones at positions 8 and 12."""
    run = loop(blocks=5, rows=2)
    run.turn(*[run.request(f"r{i}", 5, max_tokens=11, seed=i) for i in range(2)])
    assert len(run.scheduler.cache.pool.free) == 1
    assert skippable_steps(run.scheduler) == 3
    run.finish()
    run.check_ended()


def test_no_step_is_skippable_while_a_sequence_could_start(loop) -> None:
    run = loop(rows=2, policy="priority")
    run.turn(*[run.request(f"r{i}", 5, max_tokens=11, priority=3) for i in range(2)])
    assert skippable_steps(run.scheduler) == 9
    run.apply(run.request("equal", 5, priority=3))
    assert skippable_steps(run.scheduler) == 9
    run.apply(run.request("urgent", 5, priority=1))
    assert skippable_steps(run.scheduler) == 0
