"""Scarce blocks and rows: preemption, pinning, windows, and requests that could never fit."""

import pytest

from ridgeline.core.admission import blocks_needed
from ridgeline.core.commands import Abort
from ridgeline.core.events import Closed, Finish, Preempted, Rejected, Started, Wait, Waiting


def own(number: int, length: int) -> tuple[int, ...]:
    return tuple(10 * number + i % 7 + 100 for i in range(length))


@pytest.mark.parametrize("windows", [(0,), (0, 6), (5, 0, 0)])
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_preempted_and_resumed_answers_the_same(loop, depth: int, windows: tuple[int, ...]) -> None:
    run = loop(blocks=12 * len(windows), windows=windows, depth=depth, token_budget=12, rows=6)
    run.finish(*[run.request(f"r{i}", own(i, 5 + i), max_tokens=18, seed=i) for i in range(6)])
    run.check_ended()
    assert run.events_of(Preempted)
    assert any(e.resumed for e in run.events_of(Started))
    for name in run.requests:
        assert run.ids(name) == run.expected(name)


def test_a_preempted_sequence_drains_before_its_row_is_reused(loop) -> None:
    run = loop(blocks=9, depth=2, rows=2, block_tokens=2)
    run.finish(*[run.request(f"r{i}", own(i, 3 + i), max_tokens=14, seed=i) for i in range(2)])
    run.check_ended()
    assert [e.reason for e in run.events_of(Waiting)] == [Wait.DRAIN]
    assert run.ids("r1") == run.expected("r1")


def test_the_youngest_is_preempted_and_the_oldest_never(loop) -> None:
    run = loop(blocks=14, rows=6, token_budget=16)
    run.finish(*[run.request(f"r{i}", own(i, 4), max_tokens=20, seed=i) for i in range(6)])
    run.check_ended()
    victims = [e.request_id for e in run.events_of(Preempted)]
    assert victims
    assert "r0" not in victims
    assert all(e.by < e.request_id for e in run.events_of(Preempted))


@pytest.mark.parametrize("most", [0, 1, 2])
def test_no_sequence_is_preempted_more_often_than_allowed(loop, most: int) -> None:
    """Under a constant stream of requests, with blocks too few for all."""
    run = loop(blocks=20, windows=(0, 7), rows=8, token_budget=16, max_preemptions=most, depth=2)
    for i in range(24):
        run.turn(run.request(f"r{i}", own(i, 3 + i % 5), max_tokens=6 + i % 13, seed=i))
    run.finish()
    run.check_ended()
    preemptions: dict[str, int] = {}
    for event in run.events_of(Preempted):
        preemptions[event.request_id] = preemptions.get(event.request_id, 0) + 1
    assert max(preemptions.values(), default=0) <= most
    assert bool(preemptions) is (most > 0)


def test_no_second_preemption_while_the_blocks_of_the_first_are_pending_free(loop) -> None:
    run = loop(blocks=11, rows=4, block_tokens=2, depth=4, token_budget=8)
    run.finish(*[run.request(f"r{i}", own(i, 4), max_tokens=4, seed=i) for i in range(4)])
    run.check_ended()
    by_turn: dict[int, int] = {}
    for index, event in enumerate(run.events):
        if isinstance(event, Preempted):
            scheduled = sum(type(e).__name__ == "Scheduled" for e in run.events[:index])
            by_turn[scheduled] = by_turn.get(scheduled, 0) + 1
    assert by_turn and max(by_turn.values()) == 1


@pytest.mark.parametrize("size", [1, 3, 4])
@pytest.mark.parametrize("windows", [(0,), (0, 5), (7,), (0, 4, 9), (1,)])
def test_the_needed_blocks_suffice_and_one_less_is_rejected(loop, windows: tuple[int, ...], size: int) -> None:
    prompt, outputs = 13, 9
    need = blocks_needed(loop(windows=windows, block_tokens=size).executor.info.kv, prompt + outputs - 1)
    run = loop(blocks=need, windows=windows, block_tokens=size, token_budget=6, depth=2)
    run.finish(run.request("a", prompt, max_tokens=outputs), run.request("b", prompt, max_tokens=outputs))
    run.check_ended()
    assert [e.reason for e in run.events_of(Closed)] == [Finish.LENGTH] * 2
    short = loop(blocks=need - 1, windows=windows, block_tokens=size) if need > 1 else None
    if short is not None:
        short.finish(short.request("a", prompt, max_tokens=outputs))
        (rejection,) = short.events_of(Rejected)
        assert f"need {need} blocks" in rejection.message and f"there are {need - 1}" in rejection.message
        assert rejection.retry_after_seconds is None


def test_a_window_group_frees_blocks_behind_its_window(loop) -> None:
    run = loop(windows=(6,), block_tokens=2, blocks=40)
    run.turn(run.request("a", 3, max_tokens=60))
    most = 0
    while run.turn():
        most = max(most, run.scheduler.cache.pool.held)
    assert most == blocks_needed(run.executor.info.kv, 62) == 4
    run.check_ended()


def test_blocks_behind_a_window_are_held_by_the_step_that_reads_them(loop) -> None:
    run = loop(windows=(4,), block_tokens=2, blocks=40, depth=3, token_budget=8)
    run.apply(run.request("a", 30, max_tokens=4))
    for _ in range(3):
        run.plan()
    run.commit()
    run.plan()
    assert run.scheduler.cache.pool.held_by_steps
    run.finish()
    run.check_ended()
    assert run.ids("a") == run.expected("a")


def test_blocks_of_an_ended_sequence_are_held_by_its_last_step(loop) -> None:
    run = loop(depth=3)
    run.apply(run.request("a", 6, max_tokens=30))
    for _ in range(3):
        run.plan()
    held = run.scheduler.cache.pool.held
    run.apply(Abort("a"))
    for _ in range(2):
        run.commit()
        assert run.scheduler.cache.pool.held == held
        assert not run.scheduler.lifecycle.running and len(run.scheduler.lifecycle.rows) == 7
    run.commit()
    run.check_ended()


def test_a_waiting_request_starts_when_all_known_ids_have_blocks(loop) -> None:
    """With fewer it would soon be preempted. Here no sequence is, although both together never fit."""
    run = loop(blocks=10, token_budget=8)
    run.finish(run.request("old", own(1, 16), max_tokens=20), run.request("young", own(2, 24), max_tokens=4))
    run.check_ended()
    assert not run.events_of(Preempted)


def test_rows_bound_what_runs(loop) -> None:
    run = loop(rows=2)
    run.finish(*[run.request(f"r{i}", 5, max_tokens=3 + i) for i in range(5)])
    run.check_ended()
    assert max(len(plan.row) for plan in run.plans) == 2
    assert [e.request_id for e in run.events_of(Started)] == [f"r{i}" for i in range(5)]


@pytest.mark.parametrize("depth", [1, 3])
def test_pinned_sequences_do_not_wait_for_each_others_windows(loop, depth: int) -> None:
    """Two sequences that are never preempted, with windows as long as themselves: together they need one block less than there is."""
    run = loop(rows=2, windows=(0, 16), block_tokens=2, blocks=29, max_preemptions=0, depth=depth)
    run.finish(run.request("a", 2, max_tokens=13), run.request("b", 2, max_tokens=13))
    assert len(run.plans) < 20
    run.check_ended()
