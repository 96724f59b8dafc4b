"""Simulation of one seed: the production engine with an executor that computes nothing and a virtual clock.

Owns the simulation loop and the checks after each turn; decides nothing that the engine decides.
"""

import heapq
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

from ridgeline.core import laws
from ridgeline.core.admission import blocks_needed
from ridgeline.core.commands import AdapterReady, Admit, BlocksFetched, Command
from ridgeline.core.drafts.drafter import Drafter
from ridgeline.core.fast_forward import skippable_steps
from ridgeline.core.params import Admitted
from ridgeline.core.plan import Plan, Result
from ridgeline.core.plan_builder import PlanBuilder
from ridgeline.core.policy import POLICIES
from ridgeline.core.scheduler import Scheduler
from ridgeline.core.sequence import Sequence
from ridgeline.engine.engine import Engine, Turn
from ridgeline.engine.executor import Executor, ExecutorInfo, Ticket
from ridgeline.errors import LawViolation
from ridgeline.sim.clock import VirtualClock
from ridgeline.sim.laws.coverage import Coverage
from ridgeline.sim.laws.ends import MAX_ENDS, EngineEnds
from ridgeline.sim.laws.executor import SimExecutor
from ridgeline.sim.laws.front_end import FrontEnd
from ridgeline.sim.laws.oracle import AnswerSource, ComputedAnswer, OracleDrafter, WatchedModelDrafter
from ridgeline.sim.laws.order import OrderChecker, PrefillBudgetChecker, SkippableStepsChecker
from ridgeline.sim.laws.store import Contents, SimStore
from ridgeline.sim.laws.workload import World, make_world

FULL_CHECK_INTERVAL = 24
"""Steps between recounts of every block's holders; the cheap laws are checked after each step."""
SKIP_CHECK_INTERVAL = 4
"""One seed in this many checks `skippable_steps`."""


Listener = Callable[[Plan | Turn], None]
"""Called with every plan, and with the outputs and events of every turn, in order."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A law that did not hold, or (law 0) an exception of the engine: `seed` alone reproduces it, at `step`."""

    seed: int
    step: int
    law: int
    message: str


@dataclass(frozen=True, slots=True)
class SeedOutcome:
    """Result of one seed. `rows` sums the sequences of all steps."""

    seed: int
    steps: int
    rows: int
    groups: int
    situation_counts: Counter[str]
    violation: Violation | None = None


class CheckedExecutor:
    """Wraps an executor: checks each plan (law 5), passes it on, and records it for coverage and trace."""

    grammars = None
    trace = None
    adapters = None
    blocks = None

    def __init__(self, executor: Executor, scheduler: Scheduler, coverage: Coverage, trace: Listener | None) -> None:
        self._executor = executor
        self._scheduler = scheduler
        self._coverage = coverage
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
        self._coverage.on_plan(plan)
        return ticket

    def collect(self, ticket: Ticket) -> Result:
        result = self._executor.collect(ticket)
        self.steps += 1
        self.rows += len(ticket.plan.row)
        self._coverage.on_result(ticket.plan, result)
        return result

    def beat(self) -> int:
        return self._executor.beat()

    def close(self) -> None:
        self._executor.close()


class Simulation:
    """Runs one world from its first command to its last event. After every turn the cheap laws hold, at idle all of them.

    executor    any executor whose steps advance `clock`
    source      right answer of a choice
    not_finite  first positions that no id may be sampled from since the executor has reported NaN, by (seed, choice)
    restart     makes the executor of the next engine; None: no engine ends
    """

    def __init__(
        self,
        world: World,
        clock: VirtualClock,
        executor: Executor,
        source: Callable[[Admitted, int], AnswerSource],
        not_finite: Mapping[tuple[int, int], int],
        trace: Listener | None = None,
        restart: Callable[[], Executor] | None = None,
    ) -> None:
        self.world = world
        self.clock = clock
        self.front_end = FrontEnd(world, source, not_finite, self._send)
        counts: Counter[str] = Counter()
        self._source = source
        self._trace = trace
        self._ends = EngineEnds(world, clock, counts)
        self._restart = restart
        self._contents: Contents = {}
        self._build(executor, counts)
        self._counter = count()
        self._inbound = [(time, next(self._counter), command) for time, command in world.inbound]
        tokens = sum(
            (len(command.request.prompt) + world.limits.max_model_len) * command.request.choices
            for _, command in world.inbound
            if isinstance(command, Admit)
        )
        self._max_steps = (MAX_ENDS + 1) * tokens * (world.limits.max_preemptions + 1) + 100
        """Steps within which everything must end: each computes at least one token, again after each preemption, and in another engine."""

    def _build(self, executor: Executor, counts: Counter[str]) -> None:
        """Makes an engine with all that checks it."""
        world = self.world
        drafter: Drafter | None = None
        if world.info.drafts is not None:
            drafter = WatchedModelDrafter(world.drafts, world.limits.depth > 1, world.info.drafts, self._on_drafts_proposed)
        elif world.drafts:
            drafter = OracleDrafter(world.seed, world.drafts, world.model, self._source, self._on_drafts_proposed)
        self.scheduler = Scheduler(world.limits, world.info.kv, POLICIES[world.policy], drafter, world.pace())
        self._drafted_step = -1
        self._check_preemptions()
        self._check_starts()
        PrefillBudgetChecker(self.scheduler)
        self.coverage = Coverage(world, self.front_end, self.scheduler, counts)
        self._order = OrderChecker(world)
        self._skip_checker = SkippableStepsChecker()
        self.witness = CheckedExecutor(executor, self.scheduler, self.coverage, self._trace)
        store = None
        if world.keeps_blocks and executor.blocks is not None:
            seconds = 4 * world.latency.step_seconds
            store = SimStore(world.seed, world.info.kv, executor.blocks, self._contents, self._send, seconds)
        self.engine = Engine(self.scheduler, self.witness, self.clock, world.limits.depth, store)

    def run(self, max_steps: int) -> None:
        """Runs to the end, or for `max_steps`; raises `LawViolation`, or whatever the engine raises."""
        while self._inbound or not self.engine.idle:
            if self.witness.steps >= max_steps:
                return
            if not self._turn():
                self._wait()
            if self.witness.steps > self._max_steps:
                raise LawViolation(6, f"{self._max_steps} steps were not enough")
        laws.check_full(self.scheduler)
        self.front_end.finish()

    def _turn(self, more: Items[Command] = ()) -> bool:
        """One turn of the engine, to which `more` comes before the commands that are due."""
        due = self._due()
        commands = [self._fetching(each) for each in (*more, *self._ends.pass_on(due))]
        for command in commands:
            self.coverage.on_command(command)
            if isinstance(command, Admit) and (adapter := command.request.adapter) is not None:
                self._send(adapter.digest[0] % 8 * self.world.latency.step_seconds, AdapterReady(adapter.digest))
        if self.scheduler.pace is not None:
            self._order.token_seconds = self.scheduler.pace.seconds.token
        turn = self.engine.turn(commands)
        if self.witness.steps % FULL_CHECK_INTERVAL:
            laws.check(self.scheduler)
        else:
            laws.check_full(self.scheduler)
        self.front_end.on_turn([*commands, *(each for each in due if not isinstance(each, Admit))], self._ends.told(turn))
        self._order.on_turn(commands, turn.events)
        self.coverage.counts["ranks later since it was late"] = len(self._order.late)
        if self.world.seed % SKIP_CHECK_INTERVAL == 0:
            self._skip_checker.on_turn(commands, turn.events, partial(skippable_steps, self.scheduler))
        for event in turn.events:
            self.coverage.on_event(event)
        if self._trace is not None:
            self._trace(turn)
        if self._restart is not None and self._ends.is_due(self.witness.steps):
            self._end_engine(self._restart())
        return turn.progressed

    def _fetching(self, command: Command) -> Command:
        """The command, which waits for tiers where these have blocks of it."""
        store = self.engine.store
        if store is None or not isinstance(command, Admit) or not store.ask(command.request, self.scheduler.cache):
            return command
        return replace(command, fetching=True)

    def _end_engine(self, executor: Executor) -> None:
        """Ends the engine with all that it has in flight; after a while another one goes on."""
        self._inbound = [each for each in self._inbound if not isinstance(each[2], BlocksFetched)]  # its tiers' threads end with it
        heapq.heapify(self._inbound)
        self.clock.advance_to(self.clock.now() + self._ends.end())
        done, left, turn = self._ends.without_engine(self._due())
        self.front_end.on_turn(done, turn)
        for command in left:
            self._send(0.0, command)
        steps, rows = self.witness.steps, self.witness.rows
        self._build(executor, self.coverage.counts)
        self.witness.steps, self.witness.rows = steps, rows
        self._turn(self._ends.go_on())

    def _on_drafts_proposed(self) -> None:
        """Records that drafts are proposed for the next step."""
        self._drafted_step = self.scheduler.step

    def _check_preemptions(self) -> None:
        """Makes preemption raise LawViolation where the steps in flight will free enough blocks, or for a draft."""
        lifecycle, cache, preemptor = self.scheduler.lifecycle, self.scheduler.cache, self.scheduler.preemptor
        preempt, groups = lifecycle.preempt, len(self.world.info.kv.groups)

        def checked_preempt(victim: Sequence, by: Sequence, why: str) -> None:
            needed, pending = groups + cache.count_host_blocks(by), cache.pool.count_pending_free()
            if why == "blocks" and preemptor.available_blocks(by) + pending >= needed:
                raise LawViolation(6, f"sequence {victim.number} is preempted for blocks although {pending} are about to be freed")
            if self._drafted_step == self.scheduler.step:
                raise LawViolation(6, f"sequence {victim.number} is preempted for a draft")
            preempt(victim, by, why)

        lifecycle.preempt = checked_preempt  # type: ignore[method-assign]

    def _check_starts(self) -> None:
        """Makes it a LawViolation that a sequence does not start although blocks suffice in the worst case."""
        lifecycle, preemptor, kv = self.scheduler.lifecycle, self.scheduler.preemptor, self.world.info.kv
        can_start, full = preemptor.can_start, sum(not group.window for group in kv.groups)

        def checked_can_start(sequence: Sequence, builder: PlanBuilder) -> bool:
            if can_start(sequence, builder):
                return True
            sharing = [each for each in lifecycle.running if each not in lifecycle.pinned]
            most = sum(blocks_needed(kv, each.limit - 1) - each.capacity // kv.block_tokens * full for each in [*sharing, sequence])
            most += self.scheduler.cache.count_host_blocks(sequence)
            if preemptor.find_victim(sequence) is None and most <= preemptor.available_blocks(sequence):
                raise LawViolation(6, f"sequence {sequence.number} waits for blocks although {most} are the most that all can still need")
            needed = blocks_needed(kv, len(sequence.known)) - sequence.capacity // kv.block_tokens * full
            alone = not lifecycle.running and not lifecycle.is_pinned(sequence)
            if alone and needed + self.scheduler.cache.count_host_blocks(sequence) <= preemptor.available_blocks(sequence):
                raise LawViolation(6, f"sequence {sequence.number} waits for blocks although none runs and it needs {needed}")
            self.coverage.counts["waits for outputs to come"] += needed <= preemptor.available_blocks(sequence)
            return False

        preemptor.can_start = checked_can_start  # type: ignore[method-assign]

    def _due(self) -> list[Command]:
        now = self.clock.now()
        due: list[Command] = []
        while self._inbound and self._inbound[0][0] <= now:
            due.append(heapq.heappop(self._inbound)[2])
        return due

    def _wait(self) -> None:
        """Advances the clock to the next command: nothing is in flight. Raises LawViolation where none will come."""
        if self._inbound:
            self.clock.advance_to(self._inbound[0][0])
        elif not self.engine.idle:
            raise LawViolation(6, "requests are open, nothing is in flight and nothing is planned")

    def _send(self, delay: float, command: Command) -> None:
        heapq.heappush(self._inbound, (self.clock.now() + delay, next(self._counter), command))


def simulate(world: World, trace: Listener | None = None) -> Simulation:
    """The simulation of a world on the fake model and the KV oracle."""
    clock = VirtualClock()
    executor = SimExecutor(world.info, world.model, clock, world.latency, world.eager)

    def source(request: Admitted, choice: int) -> AnswerSource:
        return ComputedAnswer(request, choice, world.model)

    def restart() -> Executor:
        following = SimExecutor(world.info, world.model, clock, world.latency, world.eager)
        following.not_finite = executor.not_finite
        return following

    return Simulation(world, clock, executor, source, executor.not_finite, trace, restart)


def run_seed(seed: int, max_steps: int, trace: Listener | None = None) -> SeedOutcome:
    """Runs the world of `seed` to its end, to its first violation, or for `max_steps`."""
    world = make_world(seed)
    simulation = simulate(world, trace)
    violation = None
    try:
        simulation.run(max_steps)
    except LawViolation as broken:
        violation = Violation(seed, simulation.witness.steps, broken.law, str(broken))
    except Exception as crash:  # a crash of the engine is a finding of the swarm, reported with its seed
        at = traceback.extract_tb(crash.__traceback__)[-1]
        message = f"{type(crash).__name__}: {crash} ({at.filename.rpartition('/')[2]}:{at.lineno})"
        violation = Violation(seed, simulation.witness.steps, 0, message)
    return SeedOutcome(
        seed=seed,
        steps=simulation.witness.steps,
        rows=simulation.witness.rows,
        groups=len(world.info.kv.groups),
        situation_counts=simulation.coverage.counts,
        violation=violation,
    )
