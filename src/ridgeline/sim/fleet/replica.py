"""One server in virtual time: the real engine and scheduler over a device that only takes time.

Owns what is known of its open requests, the device, and the jump over steps in which nothing is decided. Such steps bring no answer, so
that nobody needs to see them: they are taken when they are over, or when a command comes, as far as they have begun by then.
"""

from array import array
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Final

from ridgeline.core import events
from ridgeline.core.commands import Abort, Admit, Command
from ridgeline.core.drafts.depth import StepCost, choose_depths
from ridgeline.core.events import Finish
from ridgeline.core.fast_forward import skip_steps, skippable_steps
from ridgeline.core.params import Admitted, Limits
from ridgeline.core.plan import KVShape, Plan, Result
from ridgeline.core.policy import POLICIES
from ridgeline.core.scheduler import Scheduler
from ridgeline.core.sequence import Sequence as CoreSequence
from ridgeline.engine.engine import Engine, Turn
from ridgeline.engine.executor import ExecutorInfo, Ticket
from ridgeline.errors import LawViolation
from ridgeline.sim.clock import VirtualClock
from ridgeline.sim.fleet.durations import Durations
from ridgeline.sim.fleet.measures import Tally
from ridgeline.sim.fleet.traffic import Arrival

TOKEN: Final = 7
"""The id that every row samples; a draft that is wrong has another one sampled in its place."""
VERIFIED: Final = (1, 2, 3, 4, 6, 8, 12, 16, 32)
"""Tokens of the rows whose verification is priced."""


def price(durations: Durations) -> tuple[tuple[int, int, float], ...]:
    """Measures that an engine takes at its start: (tokens, samples, seconds) of steps in which one row verifies drafts."""
    found = []
    for tokens in VERIFIED:
        nothing, several = array("i", [0]), array("i", [tokens])
        plan = Plan(0, nothing, nothing, several, array("i", [TOKEN]) * tokens, bytearray([tokens]))
        found.append((tokens, tokens, durations.seconds(plan)))
    return tuple(found)


class Assumed:
    """Implements `core.drafts.drafter.Drafter`: `most` ids per row, each right with the chance `right` where those before it are."""

    def __init__(self, most: int, right: float, price: tuple[tuple[int, int, float], ...], barrier: bool) -> None:
        self._chances = [right**place for place in range(1, most + 1)]
        self._price = StepCost(price)
        self._barrier = barrier

    def should_wait(self, running: list[CoreSequence]) -> bool:
        """Drafts are worth more than running ahead."""
        rows = [self._chances[: sequence.limit - sequence.target - 1] for sequence in running if sequence.target < sequence.limit]
        return bool(rows) and any(choose_depths(self._price, len(rows), rows, 0, len(rows) * len(self._chances), self._barrier))

    def propose(self, rows: list[tuple[CoreSequence, int]], tokens: int, most: int) -> list[tuple[int, ...]]:
        """Proposes as many as are worth it."""
        chosen = choose_depths(self._price, tokens, [self._chances[:room] for _, room in rows], 0, most, self._barrier)
        return [(TOKEN,) * depth for depth in chosen]

    def on_commit(self, sequences: list[CoreSequence], plan: Plan, result: Result) -> None:
        """Nothing is learnt: chances and seconds are given."""


class Walks:
    """Samples of rows that draft: a function of sequence and position, so that no batch changes it."""

    def __init__(self, right: float) -> None:
        self._right = round(right * (1 << 32))
        self._sequences: dict[int, int] = {}

    def submit(self, plan: Plan) -> None:
        """Takes note of whose rows are whose."""
        for new in plan.new_rows:
            self._sequences[new.row] = new.sequence

    def sampled(self, plan: Plan, index: int) -> tuple[int, ...]:
        """The ids of a row: its drafts up to the first that is wrong, and what comes in its place."""
        sequence, start, drafts = self._sequences[plan.row[index]], plan.start[index] + plan.count[index], plan.sample[index] - 1
        for right in range(drafts):
            if hash((sequence, start - drafts + right, 13)) & 0xFFFFFFFF >= self._right:
                return (*(TOKEN,) * right, TOKEN + 1)
        return (TOKEN,) * (drafts + 1)


class Device:
    """Implements `engine.executor.Executor`: steps run one after the other, each as long as `durations` says. A draft is right with the
    chance `acceptance`."""

    def __init__(self, info: ExecutorInfo, clock: VirtualClock, durations: Durations, acceptance: float = 0.0) -> None:
        self._info = info
        self._clock = clock
        self._durations = durations
        self._walks = Walks(acceptance)
        self._queue: deque[tuple[Ticket, float]] = deque()
        self.busy = 0.0
        """Seconds of all steps so far."""
        self._free_at = 0.0
        self._all_sample: dict[int, tuple[tuple[tuple[int, ...], ...], bytearray]] = {}

    @property
    def info(self) -> ExecutorInfo:
        return self._info

    def submit(self, plan: Plan) -> Ticket:
        """Queues a plan behind those in flight."""
        ticket = Ticket(plan)
        self._walks.submit(plan)
        seconds = self._durations.seconds(plan)
        self.busy += seconds
        self._free_at = max(self._clock.now(), self._free_at) + seconds
        self._queue.append((ticket, self._free_at))
        return ticket

    def collect(self, ticket: Ticket) -> Result:
        """Lets the step's time pass."""
        _, done_at = self._queue.popleft()
        self._clock.advance_to(done_at)
        plan = ticket.plan
        rows = len(plan.row)
        if plan.sample.count(1) == rows:
            if rows not in self._all_sample:
                self._all_sample[rows] = ((TOKEN,),) * rows, bytearray(b"\1") * rows
            return Result(plan.step, *self._all_sample[rows])
        sampled: list[tuple[int, ...]] = [(TOKEN,) if samples else () for samples in plan.sample]
        if plan.drafts:
            sampled = [self._walks.sampled(plan, index) if samples > 1 else sampled[index] for index, samples in enumerate(plan.sample)]
        return Result(plan.step, tuple(sampled), bytearray(b"\1") * rows)

    def pass_until(self, moment: float) -> None:
        """Steps that were jumped over took until then."""
        self.busy += moment - self._clock.now()
        self._free_at = moment
        self._clock.advance_to(moment)

    def close(self) -> None:
        """Drops steps in flight."""
        self._queue.clear()


VOCABULARY: Final = 1 << 31
FARTHEST: Final = 64
"""Steps that are looked ahead at most: a command may come, and their times would be for nothing."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Settings of one replica: the scheduler's limits and policy, the KV cache, and how long a step takes.

    jump        whether steps in which nothing is decided are jumped over; the answer is the same
    drafts      ids drafted per row and step at most; 0: none, else no step can be jumped over
    acceptance  the chance that a draft is right
    """

    limits: Limits
    kv: KVShape
    durations: Durations
    policy: str = "fcfs"
    jump: bool = True
    drafts: int = 0
    acceptance: float = 0.0

    def drafter(self) -> Assumed | None:
        """One for a replica of its own; None where nothing is drafted."""
        if not self.drafts:
            return None
        return Assumed(self.drafts, self.acceptance, price(self.durations), barrier=self.limits.depth > 1)


@dataclass(slots=True)
class Open:
    """A request that the replica has not answered. `last` is when its newest token came."""

    arrival: Arrival
    arrived: float
    started: float = -1.0
    first: float = -1.0
    last: float = -1.0


@dataclass(frozen=True, slots=True)
class Done:
    """A request that ended at `time`: where `answered` is false it was refused, or its client `left`. Moments in seconds, `cached`
    prompt tokens were not computed.
    """

    arrival: Arrival
    arrived: float
    started: float
    first: float
    time: float
    cached: int
    answered: bool = True
    left: bool = False


class Replica:
    """Turns the engine. `time` is where it stands: the end of its last step, or the last command's moment while it idles."""

    def __init__(self, number: int, setting: Setting, tally: Tally, watch: Callable[[Turn], None] | None = None) -> None:
        self.number = number
        self.setting = setting
        self.clock = VirtualClock()
        info = ExecutorInfo(
            kv=setting.kv, vocab=VOCABULARY, max_model_len=setting.limits.max_model_len, rows=setting.limits.rows,
            runner="simulated", weights_bytes=0, kv_bytes=0,
        )  # fmt: skip
        self.device = Device(info, self.clock, setting.durations, setting.acceptance)
        self.scheduler = Scheduler(setting.limits, setting.kv, POLICIES[setting.policy], setting.drafter())
        self.engine = Engine(self.scheduler, self.device, self.clock, setting.limits.depth)
        self.open: dict[str, Open] = {}
        self._inbox: deque[Command] = deque()
        self._tally = tally
        self._watch = watch
        self._measured = 0.0
        self._held = 0
        self._quiet: list[float] = []
        """When each of the steps ends that will be jumped over if no command comes."""
        self._ahead = 1

    def send(self, request: Admitted, arrival: Arrival, arrived: float, time: float) -> None:
        """A request that came at `arrived` gets here; the engine hears of it at its next turn."""
        self.catch_up(time)
        self.open[request.request_id] = Open(arrival, arrived)
        self._inbox.append(Admit(request))

    def abort(self, request_id: str, time: float) -> None:
        """The client has gone."""
        if request_id in self.open:
            self.catch_up(time)
            del self.open[request_id]
            self._inbox.append(Abort(request_id))
            self._tally.aborted += 1

    @property
    def time(self) -> float:
        """The replica's time, seconds."""
        return self.clock.now()

    @property
    def has_work(self) -> bool:
        """True if a turn would do anything."""
        return bool(self._inbox) or not self.engine.idle

    @property
    def due(self) -> float:
        """The moment at which its next turn is due, if no command comes before."""
        return self._quiet[-1] if self._quiet else self.time

    def catch_up(self, time: float) -> None:
        """Stands where it can hear of something at `time`: at the end of the last step that begins before, or there if it idles."""
        self._pass_quiet(time)
        if self.engine.idle and self.time < time < inf:
            self.clock.advance_to(time)
            self.measure()

    def turn(self) -> list[Done]:
        """A jump over the quiet steps that were looked ahead at; then, where no more of them follow, a turn of the engine."""
        self._pass_quiet(inf)
        if not self._inbox and self._look_ahead():
            return []
        commands = tuple(self._inbox)
        self._inbox.clear()
        turn = self.engine.turn(commands)
        if not turn.progressed and not commands and not self.engine.idle:
            raise LawViolation(6, f"replica {self.number}: requests are open and nothing runs")
        if self._watch is not None:
            self._watch(turn)
        done = self._take(turn)
        self.measure(ended=len(done))
        self._look_ahead()
        return done

    def measure(self, ended: int = 0) -> None:
        """Adds the time since the last call to the means over time: at what holds now and the rows that `ended` with the step, for pages
        at the mean of then and now."""
        seconds = self.time - self._measured
        if seconds > 0:
            self._measured = self.time
            life, pool = self.scheduler.lifecycle, self.scheduler.cache.pool
            self._tally.kv_seconds += seconds * (self._held + pool.held) / 2 / pool.count
            self._tally.row_seconds += seconds * (len(life.running) + ended)
            self._tally.waiting_seconds += seconds * len(life.waiting)
            self._held = pool.held

    def _look_ahead(self) -> bool:
        """Notes when each of the coming quiet steps would end; whether there is any."""
        if not self.setting.jump or self.engine.in_flight:
            return False
        positions, now = [sequence.scheduled for sequence in self.scheduler.lifecycle.running], self.time
        for step in range(skippable_steps(self.scheduler, self._ahead)):
            now += self.setting.durations.decode(positions, step)
            self._quiet.append(now)
        return bool(self._quiet)

    def _pass_quiet(self, until: float) -> None:
        """Jumps over the quiet steps that begin before `until`; a command comes then, so that the others are not quiet any more."""
        ends, self._quiet = self._quiet, []
        if not ends or until <= self.time:
            return
        steps = min(len(ends), 1 + bisect_left(ends, until))
        self._ahead = min(FARTHEST, 2 * steps) if steps == len(ends) else steps
        running = self.scheduler.lifecycle.running
        known = [self.open[sequence.request.request_id] for sequence in running]
        self._tokens(known, ends[0])  # which may be a row's first, or its first after others had the budget
        for before, after in pairwise(ends[:steps]):
            self._tally.gap(after - before, len(running))
        self.device.pass_until(ends[steps - 1])
        skip_steps(self.scheduler, steps, TOKEN)
        for each in known:
            each.last = self.time
        self.measure()

    def _take(self, turn: Turn) -> list[Done]:
        known = self.open
        receiving = [(known[output.request_id], len(output.ids)) for output in turn.outputs if output.request_id in known]
        self._tokens([each for each, _ in receiving], turn.time, [ids for _, ids in receiving] if self.setting.drafts else ())
        done: list[Done] = []
        for event in turn.events:
            kind = type(event)
            if kind is events.Started:
                self._started(event)  # type: ignore[arg-type]
            elif kind is events.Closed or kind is events.Rejected:
                ended = self._ended(event)  # type: ignore[arg-type]
                if ended is not None:
                    done.append(ended)
            elif kind is events.Preempted:
                self._tally.preemptions += 1
        return done

    def _tokens(self, receiving: Sequence[Open], now: float, several: Sequence[int] = ()) -> None:
        """Each gets a token, or `several`. Most got their last one at the same moment: gaps are counted by it."""
        since = Counter([known.last for known in receiving])
        for known, ids in zip(receiving, several, strict=False):
            if ids > 1 and known.last >= 0:
                since[known.last] -= 1
                self._tally.gap((now - known.last) / ids, ids)
        if since.pop(-1.0, 0):
            for known in receiving:
                if known.first < 0:
                    known.first = now
        for known in receiving:
            known.last = now
        for last, count in since.items():
            if count:
                self._tally.gap(now - last, count)

    def _started(self, event: events.Started) -> None:
        known = self.open.get(event.request_id)
        if known is not None and known.started < 0:
            known.started = event.time

    def _ended(self, event: events.Closed | events.Rejected) -> Done | None:
        known = self.open.pop(event.request_id, None)
        if known is None:
            return None
        if isinstance(event, events.Rejected) or event.reason is not Finish.LENGTH:
            return Done(known.arrival, known.arrived, known.started, known.first, self.time, 0, answered=False)
        return Done(known.arrival, known.arrived, known.started, known.first, event.time, event.usage.cached_tokens)
