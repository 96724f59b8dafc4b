"""Requests with a grammar wait until it is ready, and hold up nobody else."""

from ridgeline.core.commands import Admit, GrammarReady
from ridgeline.core.events import Closed, Finish, Ready, Wait, Waiting
from ridgeline.core.params import Admitted, Grammar, Limits, Sampling
from ridgeline.core.plan import KVGroup, KVShape
from ridgeline.core.policy import POLICIES
from ridgeline.core.scheduler import Scheduler

GRAMMAR = Grammar(b"digest", "text")


def scheduler() -> Scheduler:
    shape = KVShape((KVGroup("full", (0,)),), 16, 32, b"")
    return Scheduler(Limits(rows=4), shape, POLICIES["fcfs"])


def request(name: str, grammar: Grammar | None = GRAMMAR, choices: int = 1) -> Admit:
    return Admit(Admitted(name, (1, 2, 3), 4, seed=1, choices=choices, sampling=Sampling(grammar=grammar)))


def test_it_waits_and_others_start() -> None:
    engine = scheduler()
    engine.apply([request("a", choices=2), request("b", None)], 0.0)
    plan = engine.schedule(0.0)
    assert plan is not None and len(plan.row) == 1
    events = engine.take_events()
    assert [(each.request_id, each.choice) for each in events if isinstance(each, Waiting)] == [("a", 0), ("a", 1)]
    engine.apply([GrammarReady(b"another")], 0.0)
    assert engine.lifecycle.waiting and all(Wait.GRAMMAR in each.waiting_for for each in engine.lifecycle.waiting)
    engine.apply([GrammarReady(GRAMMAR.digest)], 0.0)
    assert [each.reason for each in engine.take_events() if isinstance(each, Ready)] == [Wait.GRAMMAR] * 2
    assert not any(each.waiting_for for each in engine.lifecycle.waiting)


def test_a_grammar_that_cannot_be_compiled_ends_its_requests_alone() -> None:
    engine = scheduler()
    engine.apply([request("a", choices=2), request("b", None), request("c", Grammar(b"other", ""))], 0.0)
    engine.apply([GrammarReady(GRAMMAR.digest, "too large")], 0.0)
    closed = [each for each in engine.take_events() if isinstance(each, Closed)]
    assert [(each.request_id, each.reason, each.message) for each in closed] == [("a", Finish.ERROR, "too large")] * 2
    assert set(engine.lifecycle.open) == {"b", "c"} and engine.lifecycle.unstarted == {"b", "c"}


def test_an_abort_ends_the_wait() -> None:
    from ridgeline.core.commands import Abort

    engine = scheduler()
    engine.apply([request("a"), Abort("a"), GrammarReady(GRAMMAR.digest)], 0.0)
    assert engine.idle and engine.schedule(0.0) is None
