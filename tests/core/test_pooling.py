"""Rows whose result is a vector: in chunks, beside decoding rows, in a pool that is too small; whole texts, of which nothing is shared."""

from dataclasses import replace

import pytest

from ridgeline.core import laws
from ridgeline.core.commands import Abort
from ridgeline.core.events import Closed, Finish, Preempted, PrefixHit, Rejected, Scheduled
from ridgeline.core.params import Pooling
from ridgeline.core.plan import Result
from ridgeline.errors import LawViolation
from ridgeline.sim.laws.model import FakeModel, chain_stamps

TEXT = tuple(range(40, 63))
WHOLE = Pooling("mean", whole=True)


def vector(run, name: str) -> bytes:
    (found,) = [each.vector for each in run.outputs if each.request_id == name]
    return found


def check(run, *names: str) -> None:
    """Each text has the vector that it has alone, and ended once, without an output."""
    assert run.scheduler.idle
    laws.check_full(run.scheduler)
    for name in names:
        request = run.requests[name]
        params = request.row_params(0)
        assert vector(run, name) == run.model.vector(chain_stamps(run.model.origin(params), request.prompt)[-1], params)
        (closed,) = run.events_of(Closed, name)
        assert (closed.reason, closed.usage.completion_tokens, closed.usage.prompt_tokens) == (Finish.STOP, 0, len(request.prompt))


@pytest.mark.parametrize("budget", [1, 3, 8, 64])
@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("length", [1, 2, 4, 5, 8, 23])
def test_a_text_ends_with_its_vector(loop, budget: int, depth: int, length: int) -> None:
    run = loop(token_budget=budget, depth=depth)
    run.finish(run.request("a", TEXT[:length], max_tokens=0, pooling=Pooling()), run.request("b", 9, max_tokens=0, pooling=Pooling("mean")))
    check(run, "a", "b")
    assert sum(len(plan.pool) for plan in run.plans) == 2 and not any(any(plan.sample) for plan in run.plans)


@pytest.mark.parametrize("policy", ["fcfs", "priority", "static"])
def test_beside_rows_that_sample_and_in_a_small_pool(loop, policy: str) -> None:
    run = loop(token_budget=16, depth=2, blocks=12, rows=4, policy=policy, mixed_tokens=8)
    kinds = (Pooling(), Pooling("mean"), Pooling("cls"))
    texts = [run.request(f"t{number}", 20 + number, max_tokens=0, pooling=kinds[number % 3], priority=number % 2) for number in range(9)]
    run.turn(run.request("g", 5, max_tokens=30), *texts)
    run.finish(run.request("h", 6, max_tokens=20))
    for name in ("g", "h"):
        assert run.ids(name) == run.expected(name)
    check(run, *(f"t{number}" for number in range(9)))


def test_a_text_of_the_whole_context_fits(loop) -> None:
    run = loop(max_model_len=32, blocks=8)
    run.finish(run.request("a", 32, max_tokens=0, pooling=Pooling()))
    check(run, "a")


def test_the_last_tokens_vector_reuses_a_prefix_and_others_do_not(loop) -> None:
    run = loop(token_budget=64)
    for name, pooling in (("a", Pooling()), ("b", Pooling()), ("c", Pooling("mean")), ("d", Pooling("cls")), ("e", WHOLE)):
        run.finish(run.request(name, TEXT, max_tokens=0, pooling=pooling))
    assert [each.request_id for each in run.events_of(PrefixHit)] == ["b"]
    check(run, "a", "b", "c", "d", "e")


def test_whole_texts_take_one_step_and_share_nothing(loop) -> None:
    run = loop(token_budget=50, depth=2, blocks=24, rows=8)
    run.finish(*[run.request(f"w{number}", TEXT, max_tokens=0, pooling=WHOLE) for number in range(7)])
    check(run, *(f"w{number}" for number in range(7)))
    assert not run.events_of(PrefixHit) and not run.scheduler.cache.index.blocks
    assert [list(plan.count) for plan in run.plans] == [[23, 23]] * 3 + [[23]]


def test_a_whole_text_longer_than_a_step_is_rejected(loop) -> None:
    """It could never start, and would close the queue to those behind it."""
    run = loop(token_budget=22)
    run.finish(run.request("a", TEXT, max_tokens=0, pooling=WHOLE), run.request("b", TEXT[1:], max_tokens=0, pooling=WHOLE))
    (rejected,) = run.events_of(Rejected)
    assert rejected.request_id == "a" and "23 tokens is computed in one step, which has 22" in rejected.message
    check(run, "b")


@pytest.mark.parametrize(("blocks", "token_budget", "lack"), [(8, 64, "blocks"), (24, 40, "budget")])
def test_what_a_whole_text_lacks_is_named(loop, blocks: int, token_budget: int, lack: str) -> None:
    run = loop(blocks=blocks, token_budget=token_budget)
    run.turn(*[run.request(f"w{number}", TEXT, max_tokens=0, pooling=WHOLE) for number in range(2)])
    assert [each.lack for each in run.events_of(Scheduled)][:1] == [lack]


def test_a_preempted_text_has_the_same_vector(loop) -> None:
    run = loop(token_budget=8, depth=2, blocks=10, rows=4, policy="priority")
    run.turn(run.request("g", 4, max_tokens=12), run.request("a", 30, max_tokens=0, pooling=Pooling("mean"), priority=1))
    run.turn()
    run.finish(run.request("b", 24, max_tokens=4))
    assert run.events_of(Preempted)
    check(run, "a")


def test_numbers_that_are_not_finite_end_it_with_an_error(loop) -> None:
    run = loop(model=FakeModel(nan_permille=1000, nan_positions=4), token_budget=3)
    run.finish(run.request("a", TEXT, max_tokens=0, pooling=Pooling()))
    (closed,) = run.events_of(Closed)
    assert closed.reason is Finish.ERROR and run.scheduler.idle
    laws.check_full(run.scheduler)


def test_an_abort_before_the_commit_sends_nothing(loop) -> None:
    run = loop(depth=2)
    run.apply(run.request("a", TEXT, max_tokens=0, pooling=Pooling()))
    run.plan()
    run.apply(Abort("a"))
    run.finish()
    assert not run.outputs and run.events_of(Closed)[0].reason is Finish.ABORT
    laws.check_full(run.scheduler)


def test_a_result_without_its_vectors_breaks_a_law(loop) -> None:
    run = loop()
    run.apply(run.request("a", TEXT, max_tokens=0, pooling=Pooling()))
    run.plan()
    ticket = run.tickets.pop()
    result: Result = run.executor.collect(ticket)
    with pytest.raises(LawViolation, match="pooled"):
        run.scheduler.commit(ticket.plan, replace(result, vectors=()), run.now)


def test_texts_say_nothing_of_how_long_answers_are(loop) -> None:
    """What a tenant's next answer is taken to cost: texts without outputs do not make it less."""

    def charge(name: str) -> int:
        run.apply(run.request(name, 6, max_tokens=100))
        (waiting,) = [each for each in run.scheduler.lifecycle.waiting if each.request.request_id == name]
        run.apply(Abort(name))
        return waiting.charge

    run = loop()
    before = charge("a")
    run.finish(*[run.request(f"t{number}", 6, max_tokens=0, pooling=Pooling()) for number in range(4)])
    assert charge("b") == before
