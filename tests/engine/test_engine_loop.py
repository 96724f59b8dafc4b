"""The engine loop: order of turns, steps in flight, and failures of the executor."""

from collections.abc import Sequence

import pytest

from ridgeline.core.commands import Abort, Admit, Close, Command
from ridgeline.core.events import Closed, EndedProvisionally, Finish
from ridgeline.core.params import Limits, SamplingParams
from ridgeline.core.plan import Plan, Result
from ridgeline.core.policy import POLICIES
from ridgeline.core.scheduler import Scheduler
from ridgeline.engine.admit import ModelLimits, admit
from ridgeline.engine.engine import Engine, Turn
from ridgeline.engine.executor import ExecutorInfo, Ticket
from ridgeline.sim.clock import VirtualClock
from ridgeline.sim.laws.executor import SimExecutor, fake_executor


class LateExecutor:
    """Answers for a step only when it must: `collect` of the oldest, with as many submitted behind it as the engine lets."""

    grammars = None
    trace = None
    adapters = None
    blocks = None

    def __init__(self, inner: SimExecutor) -> None:
        self.inner = inner
        self.waiting: list[Ticket] = []
        self.seen: list[int] = []

    @property
    def info(self) -> ExecutorInfo:
        return self.inner.info

    def submit(self, plan: Plan) -> Ticket:
        ticket = self.inner.submit(plan)
        self.waiting.append(ticket)
        return ticket

    def collect(self, ticket: Ticket) -> Result:
        self.seen.append(len(self.waiting))
        self.waiting.remove(ticket)
        return self.inner.collect(ticket)

    def close(self) -> None:
        self.inner.close()


def engine_of(depth: int, executor: SimExecutor | LateExecutor | None = None, token_budget: int = 2048) -> Engine:
    """The scheduler would go to depth 4: it is the engine that holds back."""
    executor = executor or fake_executor(windows=(0, 24))
    scheduler = Scheduler(Limits(rows=executor.info.rows, depth=4, token_budget=token_budget), executor.info.kv, POLICIES["fcfs"])
    return Engine(scheduler, executor, VirtualClock(), depth)


def request(name: str, prompt: Sequence[int] = (5, 6, 7), **fields: object) -> Admit:
    limits = ModelLimits(512, 4096, frozenset({1}), fake_executor(windows=(0, 24)).info.kv)
    params = SamplingParams(**fields)  # type: ignore[arg-type]
    return Admit(admit(prompt, params, limits, request_id=name, draw_seed=lambda: 7))


def run(engine: Engine, commands: Sequence[Command]) -> list[Turn]:
    turns = [engine.turn(commands)]
    while turns[-1].progressed:
        turns.append(engine.turn())
    return turns


def ids(turns: list[Turn], name: str, choice: int = 0) -> tuple[int, ...]:
    return sum((o.ids for turn in turns for o in turn.outputs if (o.request_id, o.choice) == (name, choice)), ())


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_depth_is_the_number_of_steps_in_flight(depth: int) -> None:
    late = LateExecutor(fake_executor(windows=(0, 24)))
    engine = engine_of(depth, late)
    run(engine, [request("a", max_tokens=40)])
    assert max(late.seen) == depth
    assert late.seen[10] == depth
    assert engine.idle and engine.in_flight == 0


def test_depth_changes_no_answer() -> None:
    commands = [request(f"r{i}", prompt=tuple(range(3 + i, 40)), max_tokens=20 + i, n=1 + i % 3) for i in range(8)]
    answers = set()
    for depth in (1, 2, 3, 4):
        turns = run(engine_of(depth, token_budget=48), commands)
        answers.add(tuple(ids(turns, f"r{i}", c) for i in range(8) for c in range(1 + i % 3)))
        closed = [e for turn in turns for e in turn.events if isinstance(e, Closed)]
        assert len(closed) == sum(1 + i % 3 for i in range(8))
    assert len(answers) == 1


def test_a_turn_without_work_says_so() -> None:
    engine = engine_of(2)
    turn = engine.turn()
    assert not turn.progressed and turn.step is None and not turn.outputs and engine.idle


def test_provisional_end_waits_for_the_close() -> None:
    engine = engine_of(1)
    turns = run(engine, [request("a", max_tokens=4, stop=("never",))])
    assert any(isinstance(e, EndedProvisionally) for turn in turns for e in turn.events)
    assert not engine.idle
    turn = engine.turn([Close("a", 0, 3, Finish.STOP)])
    closed = [e for e in turn.events if isinstance(e, Closed)]
    assert [(c.reason, c.usage.completion_tokens) for c in closed] == [(Finish.STOP, 3)] and engine.idle


def test_abort_while_in_flight() -> None:
    engine = engine_of(4)
    for _ in range(3):
        engine.turn([request("a", max_tokens=100)] if engine.idle else [])
    turns = run(engine, [Abort("a")])
    assert [e.reason for turn in turns for e in turn.events if isinstance(e, Closed)] == [Finish.ABORT]
    assert engine.idle


@pytest.mark.parametrize("method", ["submit", "collect"])
def test_a_failing_executor_is_not_survived(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = fake_executor()

    def fail(*_: object) -> None:
        raise MemoryError("out of device memory")

    monkeypatch.setattr(executor, method, fail)
    with pytest.raises(MemoryError):
        run(engine_of(1, executor), [request("a")])


def test_depth_is_at_least_one() -> None:
    with pytest.raises(ValueError, match="depth is 0"):
        engine_of(0)
