"""One seed: the very engine that serves, with an executor that computes nothing and a clock that is told the time.

Owns the simulated world's loop and the checks after each of its turns; decides nothing that the engine decides.
"""

import heapq
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count

from ridgeline.core import laws
from ridgeline.core.commands import Admit, Command
from ridgeline.core.params import Admitted
from ridgeline.core.plan import Plan, Result
from ridgeline.core.policy import POLICIES
from ridgeline.core.quiet import quiet_steps
from ridgeline.core.scheduler import Scheduler
from ridgeline.core.sequence import Sequence
from ridgeline.engine.engine import Engine, Turn
from ridgeline.engine.executor import Executor, ExecutorInfo, Ticket
from ridgeline.errors import LawViolation
from ridgeline.sim.clock import VirtualClock
from ridgeline.sim.laws.drafts import Guesses
from ridgeline.sim.laws.edge import Edge
from ridgeline.sim.laws.executor import SimExecutor
from ridgeline.sim.laws.oracle import Computed, Source
from ridgeline.sim.laws.order import Order, Pace, Quiet
from ridgeline.sim.laws.reach import Reach
from ridgeline.sim.laws.workload import World, draw

FULL_EVERY = 24
"""Every block's holders are recounted after so many steps; the cheap laws are checked after each."""
QUIET_EVERY = 4
"""In one of so many seeds the scheduler is held to its `quiet_steps`."""


Hear = Callable[[Plan | Turn], None]
"""Hears everything that the engine plans and says, in order."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A law that did not hold, or (law 0) an exception of the engine: `seed` alone reproduces it, at `step`."""

    seed: int
    step: int
    law: int
    message: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one seed came to. `rows` sums the sequences of all steps;"""

    seed: int
    steps: int
    rows: int
    groups: int
    reached: Counter[str]
    violation: Violation | None = None


class Witness:
    """Stands between engine and executor, checks each plan (law 5), passes it on, and tells reach counters and trace of it."""

    def __init__(self, executor: Executor, scheduler: Scheduler, reach: Reach, trace: Hear | None) -> None:
        self._executor = executor
        self._scheduler = scheduler
        self._reach = reach
        self._trace = trace
        self.steps = 0
        self.rows = 0

    @property
    def info(self) -> ExecutorInfo:
        return self._executor.info

    def submit(self, plan: Plan) -> Ticket:
        if self._trace is not None:
            self._trace(plan)
        laws.check_plan(plan, self._scheduler.limits, self.info.kv)
        ticket = self._executor.submit(plan)
        self._reach.on_plan(plan)
        return ticket

    def collect(self, ticket: Ticket) -> Result:
        result = self._executor.collect(ticket)
        self.steps += 1
        self.rows += len(ticket.plan.row)
        self._reach.on_result(ticket.plan, result)
        return result

    def close(self) -> None:
        self._executor.close()


class Simulation:
    """One world from its first command to its last event. After every turn the cheap laws hold, at idle all of them.

    Any executor will do whose steps move `clock`, and any source of right answers; `not_finite` tells where it reported NaN.
    """

    def __init__(
        self,
        world: World,
        clock: VirtualClock,
        executor: Executor,
        source: Callable[[Admitted, int], Source],
        not_finite: Mapping[tuple[int, int], int],
        trace: Hear | None = None,
    ) -> None:
        self.world = world
        self.clock = clock
        self.edge = Edge(world, source, not_finite, self._send)
        guesses = Guesses(world.seed, world.drafts, world.model, source, self._drafts) if world.drafts else None
        self.scheduler = Scheduler(world.limits, world.info.kv, POLICIES[world.policy], guesses)
        self._drafted = -1
        self._watch_victims()
        Pace(self.scheduler)
        self.reach = Reach(world, self.edge, self.scheduler)
        self._order = Order(world)
        self._quiet = Quiet()
        self.witness = Witness(executor, self.scheduler, self.reach, trace)
        self.engine = Engine(self.scheduler, self.witness, self.clock, world.limits.depth)
        self._trace = trace
        self._numbers = count()
        self._inbound = [(time, next(self._numbers), command) for time, command in world.inbound]
        tokens = sum(
            (len(command.request.prompt) + world.limits.max_model_len) * command.request.choices
            for _, command in world.inbound
            if isinstance(command, Admit)
        )
        self._patience = tokens * (world.limits.max_preemptions + 1) + 100
        """Steps within which everything must end: each computes at least one token, again after each preemption."""

    def run(self, most_steps: int) -> None:
        """Runs to the end, or for `most_steps`; raises `LawViolation`, or whatever the engine raises."""
        while self._inbound or not self.engine.idle:
            if self.witness.steps >= most_steps:
                return
            if not self._turn():
                self._wait()
            if self.witness.steps > self._patience:
                raise LawViolation(6, f"{self._patience} steps were not enough")
        laws.check_full(self.scheduler)
        self.edge.finish()

    def _turn(self) -> bool:
        commands = self._due()
        for command in commands:
            self.reach.on_command(command)
        turn = self.engine.turn(commands)
        if self.witness.steps % FULL_EVERY:
            laws.check(self.scheduler)
        else:
            laws.check_full(self.scheduler)
        self.edge.on_turn(commands, turn)
        self._order.on_turn(commands, turn.events)
        if self.world.seed % QUIET_EVERY == 0:
            self._quiet.on_turn(commands, turn.events, partial(quiet_steps, self.scheduler))
        for event in turn.events:
            self.reach.on_event(event)
        if self._trace is not None:
            self._trace(turn)
        return turn.progressed

    def _drafts(self) -> None:
        """Drafts are being laid on for the next step."""
        self._drafted = self.scheduler.step

    def _watch_victims(self) -> None:
        """Nobody falls for blocks that come without it once the steps in flight have committed, nor for a draft."""
        life, pool, room = self.scheduler.life, self.scheduler.cache.pool, self.scheduler.room
        preempt, groups = life.preempt, len(self.world.info.kv.groups)

        def watched(victim: Sequence, by: Sequence, why: str) -> None:
            needed = groups + self.scheduler.cache.away(by)
            if why == "blocks" and room.spare(by) + pool.coming() >= needed:
                raise LawViolation(6, f"sequence {victim.number} is preempted for blocks, {pool.coming()} are coming without it")
            if self._drafted == self.scheduler.step:
                raise LawViolation(6, f"sequence {victim.number} is preempted for a draft")
            preempt(victim, by, why)

        life.preempt = watched  # type: ignore[method-assign]

    def _due(self) -> list[Command]:
        now = self.clock.now()
        due: list[Command] = []
        while self._inbound and self._inbound[0][0] <= now:
            due.append(heapq.heappop(self._inbound)[2])
        return due

    def _wait(self) -> None:
        """Nothing is in flight: only a further command can change anything."""
        if self._inbound:
            self.clock.advance_to(self._inbound[0][0])
        elif not self.engine.idle:
            raise LawViolation(6, "requests are open, nothing is in flight and nothing is planned")

    def _send(self, delay: float, command: Command) -> None:
        heapq.heappush(self._inbound, (self.clock.now() + delay, next(self._numbers), command))


def simulate(world: World, trace: Hear | None = None) -> Simulation:
    """The simulation of a world on the fake model and the KV oracle."""
    clock = VirtualClock()
    executor = SimExecutor(world.info, world.model, clock, world.latency, world.eager)

    def source(request: Admitted, choice: int) -> Source:
        return Computed(request, choice, world.model)

    return Simulation(world, clock, executor, source, executor.not_finite, trace)


def run_seed(seed: int, most_steps: int, trace: Hear | None = None) -> Outcome:
    """Runs the world of `seed` to its end, to its first violation, or for `most_steps`."""
    world = draw(seed)
    simulation = simulate(world, trace)
    violation = None
    try:
        simulation.run(most_steps)
    except LawViolation as broken:
        violation = Violation(seed, simulation.witness.steps, broken.law, str(broken))
    except Exception as crash:  # a crash of the engine is a finding of the swarm, reported with its seed
        at = traceback.extract_tb(crash.__traceback__)[-1]
        message = f"{type(crash).__name__}: {crash} ({at.filename.rpartition('/')[2]}:{at.lineno})"
        violation = Violation(seed, simulation.witness.steps, 0, message)
    return Outcome(
        seed=seed,
        steps=simulation.witness.steps,
        rows=simulation.witness.rows,
        groups=len(world.info.kv.groups),
        reached=simulation.reach.counts,
        violation=violation,
    )
