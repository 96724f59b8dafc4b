"""Laws 12 and 13: a seed is a simulation to the byte, and the simulator plans what the engine plans."""

import heapq
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from ridgeline import LLM, SamplingParams
from ridgeline.core.commands import Admit, Command
from ridgeline.core.lifecycle import Lifecycle
from ridgeline.core.pace import Pace
from ridgeline.core.params import Admitted, Limits
from ridgeline.core.plan import Plan, Result, Timings
from ridgeline.core.policy import POLICIES
from ridgeline.core.scheduler import Scheduler
from ridgeline.engine.engine import Engine, Turn
from ridgeline.engine.executor import Executor, ExecutorInfo, Ticket
from ridgeline.sim.clock import VirtualClock
from ridgeline.sim.laws.executor import fake_executor
from ridgeline.sim.laws.run import run_seed

ALL = 1 << 30
FAKE = {"blocks": 40, "rows": 4, "block_tokens": 4, "windows": [0, 8], "max_model_len": 64, "step_seconds": 2e-4, "token_seconds": 2e-5}
STEP_SECONDS = 1e-3
"""`--step-ms`: forty tokens by the start's measurement, fewer by the steps'."""


def trace_of(seed: int) -> list[str]:
    """Everything that the engine planned and said."""
    lines: list[str] = []
    outcome = run_seed(seed, ALL, lambda said: lines.append(repr(said)))
    assert len(lines) > outcome.steps > 0
    return [*lines, repr(outcome)]


@pytest.mark.parametrize("seed", range(0, 200, 13))
def test_the_same_seed_gives_the_same_bytes(seed: int) -> None:
    assert trace_of(seed) == trace_of(seed)


def test_another_process_gives_the_same_bytes() -> None:
    """No hash seed, address or set order of the interpreter gets in."""
    program = "from ridgeline.sim.laws.run import run_seed\nfor s in (3, 4, 5): print(run_seed(s, 1 << 30, lambda said: print(repr(said))))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == [line for seed in (3, 4, 5) for line in trace_of(seed)]


class Recorder:
    """An executor that notes every plan and passes it on."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.grammars, self.adapters = executor.grammars, executor.adapters
        self.plans: list[str] = []
        self.timings: list[Timings] = []

    @property
    def info(self) -> ExecutorInfo:
        return self._executor.info

    def submit(self, plan: Plan) -> Ticket:
        self.plans.append(repr(plan))
        return self._executor.submit(plan)

    def collect(self, ticket: Ticket) -> Result:
        """With a time that no model of a step foresees."""
        result = self._executor.collect(ticket)
        noise = 1.0 + ticket.plan.step % 7 / 5
        self.timings.append(replace(result.timings, run=noise * result.timings.run))
        return replace(result, timings=self.timings[-1])

    def close(self) -> None:
        self._executor.close()


class Replayed(Recorder):
    """Lets each step end when it ended in the recorded run: the same step times."""

    def __init__(self, executor: Executor, clock: VirtualClock, ends: Sequence[float], timings: Sequence[Timings]) -> None:
        super().__init__(executor)
        self._clock = clock
        self._ends = ends
        self._timings = timings

    def collect(self, ticket: Ticket) -> Result:
        result = super().collect(ticket)
        self._clock.advance_to(self._ends[ticket.plan.step])
        return replace(result, timings=self._timings[ticket.plan.step])


Recorded = tuple[Limits, ExecutorInfo, list[str], list[tuple[float, list[Command]]], list[float], list[Timings]]


def serve(depth: int) -> Recorded:
    """The engine as `LLM` runs it, on the machine's clock with an executor that takes its time: limits, plans, commands, ends of steps."""
    turns: list[tuple[float, list[Command]]] = []
    with LLM("fake:" + json.dumps(FAKE), depth=depth, max_num_seqs=4, max_num_batched_tokens=64, seed=1, step_ms=1) as llm:
        engine = llm._engine._engine
        limits = engine.scheduler.limits
        engine.executor = recorder = Recorder(engine.executor)
        turn = engine.turn

        def noted(commands: Sequence[Command] = ()) -> Turn:
            turns.append((engine.clock.now(), list(commands)))
            return turn(commands)

        engine.turn = noted  # type: ignore[method-assign]
        params = [SamplingParams(max_tokens=4 + 3 * i % 17, stop=["a"] if i % 3 == 0 else [], n=1 + (i == 4), seed=i) for i in range(12)]
        llm.generate([f"a shared beginning, then {i % 5}" if i % 2 else f"{i} begins a prompt that is its own" for i in range(12)], params)
        ends = [time for time, _ in turns[1:]] + [engine.clock.now()]
        return limits, recorder.info, recorder.plans, turns, ends, recorder.timings


def simulate(recorded: Recorded, *, learns: bool = True) -> list[str]:
    """The simulator's plans for the recorded commands and step times."""
    limits, info, _, turns, ends, timings = recorded
    clock = VirtualClock()
    inner = fake_executor(**{**FAKE, "step_seconds": 0.0, "token_seconds": 0.0})  # type: ignore[arg-type]
    executor = Replayed(inner, clock, ends, timings)
    pace = Pace(info.seconds, STEP_SECONDS) if learns and info.seconds else None
    engine = Engine(Scheduler(limits, info.kv, POLICIES["fcfs"], None, pace), executor, clock, limits.depth)
    inbound = [(time, index, commands) for index, (time, commands) in enumerate(turns) if commands]
    while inbound or not engine.idle:
        due: list[Command] = []
        while inbound and inbound[0][0] <= clock.now():
            due += heapq.heappop(inbound)[2]
        if not engine.turn(due).progressed and inbound:
            clock.advance_to(inbound[0][0])
    return executor.plans


@pytest.mark.parametrize("depth", [1, 3])
def test_engine_and_simulator_plan_the_same(depth: int) -> None:
    recorded = serve(depth)
    assert len(recorded[2]) > 20
    assert simulate(recorded) == recorded[2]
    assert simulate(recorded, learns=False) != recorded[2], "nothing has been learned"


def shallow(self: Engine) -> None:
    """A planted bug of the loop: one step in flight too few."""
    while self.in_flight < max(1, self.depth - 1) and (plan := self.scheduler.schedule(self.clock.now())):
        self._in_flight.append(self.executor.submit(plan))


def last_first(admit: Callable[..., None]) -> Callable[..., None]:
    """A planted bug of the core: every request is as urgent as can be, the latest most."""

    def planted(self: Lifecycle, *given: object) -> None:
        self.policy = replace(self.policy, rank=lambda sequence: (-sequence.number,))
        admit(self, *given)

    return planted


@pytest.mark.parametrize("where", ["core", "engine"])
def test_a_planted_bug_shows_in_both_traces(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = serve(3)[2], trace_of(3)
    if where == "core":
        monkeypatch.setattr(Lifecycle, "admit", last_first(Lifecycle.admit))
    else:
        monkeypatch.setattr(Engine, "_submit", shallow)
    recorded = serve(3)
    assert recorded[2] != before[0]
    assert simulate(recorded) == recorded[2]
    assert trace_of(3) != before[1]


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_so_many_steps_are_in_flight(depth: int) -> None:
    """Results come `depth` − 1 steps late, and the engine goes on meanwhile."""
    executor = fake_executor(rows=4, block_tokens=4)
    limits = Limits(rows=4, token_budget=64, depth=depth, max_model_len=4096)
    engine = Engine(Scheduler(limits, executor.info.kv, POLICIES["fcfs"]), executor, VirtualClock(), depth)
    request = Admitted("r0", (1, 2, 3), max_tokens=40, seed=1)
    engine.turn([Admit(request)])
    for step in range(1, 20):
        turn = engine.turn()
        assert (turn.step, executor.in_flight) == (step, depth - 1)
    assert executor.peak_in_flight == depth
