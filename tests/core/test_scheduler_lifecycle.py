"""The life cycle of requests: stops, aborts and closes in every state, and rejections."""

import pytest

from ridgeline.core.commands import Abort, Close
from ridgeline.core.commit import finish_reason
from ridgeline.core.events import Admitted, Closed, EndedProvisionally, Finish, Preempted, Rejected, Usage, Wait
from ridgeline.core.params import Sampling
from ridgeline.core.sequence import Sequence
from ridgeline.errors import LawViolation
from ridgeline.sim.laws.model import FakeModel

STOPPING = FakeModel(stop_ids=(1,), stop_permille=300)


def test_a_stop_id_ends_and_counts_but_not_before_min_tokens(loop) -> None:
    run = loop(model=STOPPING, depth=4)
    run.finish(*[run.request(f"r{i}", 5, max_tokens=40, stop_ids=frozenset({1}), min_tokens=i) for i in range(6)])
    run.check_ended()
    for i, name in enumerate(run.requests):
        ids, (closed,) = run.ids(name), run.events_of(Closed, name)
        assert ids[-1] == 1 and len(ids) > i and 1 not in ids[:-1]
        assert closed.reason is Finish.STOP
        assert closed.usage == Usage(5, len(ids), 0)


def test_a_stop_id_sampled_too_early_does_not_end(loop) -> None:
    """The sampler bans it; if it is sampled all the same, the engine does not end there."""
    request = loop().request("a", 3, max_tokens=5, min_tokens=2, stop_ids=frozenset({1})).request
    sequence = Sequence(request, 0, 0, 1)
    reasons = []
    for token in (1, 1, 1, 9, 9):
        sequence.known.append(token)
        reasons.append(finish_reason(sequence))
    assert reasons == [None, None, Finish.STOP, None, Finish.LENGTH]


def test_what_steps_in_flight_sample_after_an_end_is_dropped(loop) -> None:
    run = loop(model=STOPPING, depth=4)
    run.finish(run.request("a", 5, max_tokens=60, stop_ids=frozenset({1})))
    run.check_ended()
    assert sum(sum(plan.sample) for plan in run.plans) == len(run.ids("a")) + 3
    assert [o.end for o in run.outputs] == [None] * (len(run.outputs) - 1) + [Finish.STOP]


@pytest.mark.parametrize("depth", [1, 3])
def test_abort_in_every_state_ends_once_and_gives_everything_back(loop, depth: int) -> None:
    reached = set()
    for when in range(40):
        run = loop(depth=depth, rows=2, blocks=10, block_tokens=2, token_budget=8)
        run.apply(*[run.request(f"r{i}", (7, 8, 9, 10, i), max_tokens=9, two_phase=i == 0) for i in range(4)])
        for tick in range(when):
            run.plan() if tick % 3 or not run.tickets else run.commit()
        for choices in run.scheduler.lifecycle.open.values():
            reached |= {(s.state.name, bool(s.in_flight), bool(s.waiting_for)) for s in choices.values()}
        run.apply(*[Abort(name) for name in run.requests], Abort("unknown"))
        run.apply(*[Abort(name) for name in run.requests])
        assert not run.scheduler.lifecycle.open
        run.finish()
        run.check_ended()
        for closed in run.events_of(Closed):
            assert closed.usage.completion_tokens == len(run.ids(closed.request_id))
    assert {("WAITING", False, False), ("RUNNING", True, False), ("ENDED", False, False)} <= reached
    assert ("WAITING", False, True) in reached


def test_abort_while_preempted_with_steps_in_flight(loop) -> None:
    run = loop(blocks=9, depth=2, rows=2, block_tokens=2)
    run.apply(run.request("r0", 3, max_tokens=15), run.request("r1", (5, 6, 7, 8), max_tokens=11))
    while run.plan() is not None or not run.events_of(Preempted):
        if len(run.scheduler.steps_in_flight) == 2:
            run.commit()
    assert run.sequence("r1").waiting_for == {Wait.DRAIN}
    run.finish(Abort("r1"))
    run.check_ended()
    assert [e.reason for e in run.events_of(Closed, "r1")] == [Finish.ABORT]


def test_an_end_is_provisional_until_the_front_end_closes(loop) -> None:
    run = loop()
    run.finish(run.request("a", 5, max_tokens=4, two_phase=True))
    assert [e.reason for e in run.events_of(EndedProvisionally)] == [Finish.LENGTH]
    assert not run.events_of(Closed) and not run.scheduler.idle
    assert run.scheduler.cache.pool.held == 0 and len(run.scheduler.lifecycle.rows) == 8
    run.apply(Close("a", 0, 2, Finish.STOP))
    run.apply(Close("a", 0, 4, Finish.LENGTH), Abort("a"))
    run.check_ended()
    assert [(e.reason, e.usage) for e in run.events_of(Closed)] == [(Finish.STOP, Usage(5, 2, 0))]


@pytest.mark.parametrize("depth", [1, 4])
def test_a_close_may_come_before_the_engines_end(loop, depth: int) -> None:
    run = loop(depth=depth)
    run.turn(run.request("a", 5, max_tokens=40, two_phase=True))
    for _ in range(6):
        run.turn()
    run.finish(Close("a", 0, 3, Finish.STOP), Close("a", 7, 3, Finish.STOP))
    run.check_ended()
    assert [(e.reason, e.usage.completion_tokens) for e in run.events_of(Closed)] == [(Finish.STOP, 3)]
    assert len(run.ids("a")) == 7


def test_a_close_cannot_keep_what_was_never_sampled(loop) -> None:
    run = loop()
    run.turn(run.request("a", 5, max_tokens=40, two_phase=True), run.request("b", 5, two_phase=True))
    run.apply(Close("a", 0, 99, Finish.STOP), Close("b", 0, -1, Finish.STOP))
    assert [e.usage.completion_tokens for e in run.events_of(Closed)] == [1, 0]


def test_choices_end_apart_and_the_request_with_the_last(loop) -> None:
    run = loop(model=STOPPING)
    run.finish(run.request("a", 5, max_tokens=20, choices=4, stop_ids=frozenset({1})))
    run.check_ended()
    assert len({e.time for e in run.events_of(Closed)}) > 1


def test_requests_that_do_not_fit_are_rejected(loop) -> None:
    run = loop(rows=1, max_waiting=2, max_model_len=64, blocks=64)
    run.apply(run.request("long", 60, max_tokens=5))
    run.apply(*[run.request(f"r{i}", 5, choices=3) for i in range(3)])
    assert [(e.request_id, e.retry_after_seconds) for e in run.events_of(Rejected)] == [("long", None), ("r2", 1.0)]
    assert "60 prompt tokens and 5 output tokens" in run.events_of(Rejected)[0].message
    assert "2 requests are waiting" in run.events_of(Rejected)[1].message
    for _ in range(3):
        run.turn()
    run.apply(run.request("r3", 5))
    assert len(run.events_of(Admitted)) == 3
    run.finish()
    run.check_ended()


def test_retry_after_follows_the_rate_of_starts(loop) -> None:
    run = loop(rows=1, max_waiting=3)
    for i in range(12):
        run.apply(run.request(f"r{i}", 5, max_tokens=6))
        for _ in range(6):
            run.turn()
    run.apply(*[run.request(f"x{i}", 5) for i in range(4)])
    assert run.events_of(Rejected)[-1].retry_after_seconds == pytest.approx(6.0, abs=1)


def test_an_id_in_use_is_rejected(loop) -> None:
    run = loop()
    run.apply(run.request("a", 5), run.request("a", 5))
    assert len(run.events_of(Admitted)) == len(run.events_of(Rejected)) == 1


def test_logprobs_are_sent_with_their_ids(loop) -> None:
    run = loop(depth=2)
    run.finish(run.request("a", 5, sampling=Sampling(logprobs=2)), run.request("b", 5))
    assert all(len(o.logprobs) == len(o.ids) == 1 for o in run.outputs if o.request_id == "a")
    assert all(o.logprobs is None for o in run.outputs if o.request_id == "b")


def test_a_corrupt_pool_raises_at_once(loop) -> None:
    run = loop()
    run.turn(run.request("a", 5))
    pool = run.scheduler.cache.pool
    pool.free.append(run.sequence("a").tables[0][0])
    with pytest.raises(LawViolation, match="law 2"):
        run.turn()
