"""Scheduling policies: order, preemption between classes, and static against continuous batching."""

import pytest

from ridgeline.core.events import Closed, Preempted, Started


def order(run) -> list[str]:
    return [e.request_id for e in run.events_of(Started)]


def test_fcfs_serves_in_order_of_arrival(loop) -> None:
    run = loop(rows=1)
    run.finish(*[run.request(f"r{i}", 5, max_tokens=2, priority=9 - i) for i in range(4)])
    assert order(run) == ["r0", "r1", "r2", "r3"]


def test_priority_serves_the_smaller_number_first_then_the_older(loop) -> None:
    run = loop(rows=1, policy="priority")
    run.finish(*[run.request(f"r{i}", 5, max_tokens=2, priority=p) for i, p in enumerate((3, 1, 3, 1, -2))])
    assert order(run) == ["r4", "r1", "r3", "r0", "r2"]


def test_a_higher_class_preempts_the_youngest_of_the_lowest_for_a_row(loop) -> None:
    run = loop(rows=3, policy="priority")
    run.turn(*[run.request(f"r{i}", 5, max_tokens=20, priority=p) for i, p in enumerate((1, 5, 5))])
    run.turn(run.request("urgent", 5, priority=0))
    assert [(e.request_id, e.by, e.why) for e in run.events_of(Preempted)] == [("r2", "urgent", "row")]
    run.finish()
    run.check_ended()


def test_an_equal_class_waits(loop) -> None:
    run = loop(rows=2, policy="priority")
    run.turn(*[run.request(f"r{i}", 5, max_tokens=20, priority=1) for i in range(2)])
    run.finish(run.request("equal", 5, priority=1))
    run.check_ended()
    assert not run.events_of(Preempted)


def test_the_first_in_order_is_not_preempted(loop) -> None:
    run = loop(rows=1, policy="priority")
    run.turn(run.request("only", 5, max_tokens=20, priority=5))
    run.finish(run.request("urgent", 5, priority=0))
    run.check_ended()
    assert not run.events_of(Preempted)


def test_static_batching_starts_no_sequence_before_the_batch_has_ended(loop) -> None:
    run = loop(rows=3, policy="static")
    run.finish(*[run.request(f"r{i}", 5, max_tokens=2 + 5 * i) for i in range(6)])
    run.check_ended()
    starts = {e.request_id: e.time for e in run.events_of(Started)}
    ends = {e.request_id: e.time for e in run.events_of(Closed)}
    assert len({starts[f"r{i}"] for i in range(3)}) == 1
    assert starts["r3"] > max(ends[f"r{i}"] for i in range(3))


def test_one_at_a_time(loop) -> None:
    run = loop(rows=3, policy="one")
    run.finish(*[run.request(f"r{i}", 5, max_tokens=3) for i in range(4)])
    run.check_ended()
    assert max(len(plan.row) for plan in run.plans) == 1


@pytest.mark.parametrize("policy", ["fcfs", "priority", "static", "one"])
def test_a_policy_changes_no_answer(loop, policy: str) -> None:
    run = loop(rows=3, policy=policy, blocks=16, token_budget=9, depth=2)
    run.finish(*[run.request(f"r{i}", 4 + i, max_tokens=5 + i, priority=i % 3, choices=1 + i % 2) for i in range(8)])
    run.check_ended()
    assert all(len(run.ids(name)) == request.max_tokens for name, request in run.requests.items())


def test_continuous_batching_takes_fewer_steps(loop) -> None:
    steps = {}
    for policy in ("fcfs", "static", "one"):
        run = loop(rows=4, policy=policy)
        run.finish(*[run.request(f"r{i}", 5, max_tokens=3 + 9 * (i % 3)) for i in range(16)])
        steps[policy] = len(run.plans)
    assert steps["fcfs"] < 0.75 * steps["static"] < 0.5 * steps["one"]
