"""One server in virtual time: the real engine and scheduler over a device whose steps only take time.

Owns its open requests, the simulated device, assumed drafts, and skipped steps: steps in which nothing is decided end no request, so they
are applied together when they are over, or when a command comes, as far as they have begun by then.
"""

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Final

from ridgeline.core import events
from ridgeline.core.commands import Abort, Admit, Command
from ridgeline.core.events import Finish
from ridgeline.core.fast_forward import skip_steps, skippable_steps
from ridgeline.core.pace import Pace
from ridgeline.core.params import Admitted, Limits
from ridgeline.core.plan import KVShape, Plan, Result, Timings
from ridgeline.core.policy import POLICIES
from ridgeline.core.scheduler import Scheduler
from ridgeline.core.step_time import StepSeconds
from ridgeline.engine.engine import Engine, Turn
from ridgeline.engine.executor import ExecutorInfo, Ticket
from ridgeline.errors import LawViolation
from ridgeline.sim.clock import VirtualClock
from ridgeline.sim.fleet.drafts import SAMPLED_TOKEN, AssumedAcceptance, AssumedDrafter, DraftPrices
from ridgeline.sim.fleet.durations import Durations, verification_prices
from ridgeline.sim.fleet.measures import Tally
from ridgeline.sim.fleet.traffic import Arrival


class SimulatedDevice:
    """Implements `engine.executor.Executor`: steps run in order and take the seconds of `durations`, behind what `drafting` takes for
    their drafts; these are right with probability `acceptance`."""

    grammars = None
    trace = None
    adapters = None
    blocks = None

    def __init__(
        self, info: ExecutorInfo, clock: VirtualClock, durations: Durations, acceptance: float = 0.0, drafting: DraftPrices | None = None
    ) -> None:
        self._info = info
        self._clock = clock
        self._durations = durations
        self._acceptance = AssumedAcceptance(acceptance)
        self._drafting = drafting
        self._queue: deque[tuple[float, Timings]] = deque()
        self.busy_seconds = 0.0
        """Seconds of all steps so far."""
        self._free_at = 0.0
        self._all_sample: dict[int, tuple[tuple[tuple[int, ...], ...], bytearray]] = {}

    @property
    def info(self) -> ExecutorInfo:
        return self._info

    def submit(self, plan: Plan) -> Ticket:
        """Queues a plan behind those in flight."""
        ticket = Ticket(plan)
        self._acceptance.submit(plan)
        drafting = 0.0 if self._drafting is None else self._drafting.seconds(plan)
        seconds = self._durations.seconds(plan) + drafting
        self.busy_seconds += seconds
        self._free_at = max(self._clock.now(), self._free_at) + seconds
        self._queue.append((self._free_at, Timings(run=seconds, draft=drafting)))
        return ticket

    def collect(self, ticket: Ticket) -> Result:
        """Advances the clock to the end of the step."""
        done_at, timings = self._queue.popleft()
        self._clock.advance_to(done_at)
        plan = ticket.plan
        rows = len(plan.row)
        if plan.sample.count(1) == rows:
            if rows not in self._all_sample:
                self._all_sample[rows] = ((SAMPLED_TOKEN,),) * rows, bytearray(b"\1") * rows
            return Result(plan.step, *self._all_sample[rows], None, timings)
        sampled: list[tuple[int, ...]] = [(SAMPLED_TOKEN,) if samples else () for samples in plan.sample]
        if plan.drafts:
            for index in [index for index, samples in enumerate(plan.sample) if samples > 1]:
                sampled[index] = self._acceptance.sampled(plan, index)
        return Result(plan.step, tuple(sampled), bytearray(b"\1") * rows, None, timings)

    def skip_until(self, moment: float) -> None:
        """Accounts for skipped steps, which took until `moment`."""
        self.busy_seconds += moment - self._clock.now()
        self._free_at = moment
        self._clock.advance_to(moment)

    def beat(self) -> int:
        """Always 0: nobody watches it."""
        return 0

    def close(self) -> None:
        """Drops steps in flight."""
        self._queue.clear()


VOCAB_SIZE: Final = 1 << 31
MAX_LOOK_AHEAD: Final = 64
"""Most steps of one look-ahead: a command may come and void it."""


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """Settings of one replica: the scheduler's limits and policy, the KV cache, the durations of steps.

    skips_steps  skip steps in which nothing is decided; results are the same
    drafts      most drafted ids per row and step; with 0, no drafts, steps can be skipped
    acceptance  probability that a draft is right
    drafting    seconds of drafts; None: they cost nothing
    seconds     of steps, as an engine measures them at its start: the prefill budget then follows what steps take, up to `step_ms`
    front_end_seconds  between a client and its step, there and back: tokens and answers come later by these
    """

    limits: Limits
    kv: KVShape
    durations: Durations
    policy: str = "fcfs"
    skips_steps: bool = True
    drafts: int = 0
    acceptance: float = 0.0
    drafting: DraftPrices | None = None
    seconds: StepSeconds | None = None
    step_ms: int = 60
    front_end_seconds: float = 0.0

    def pace(self) -> Pace | None:
        """A pace for one replica; None where the prefill budget of `limits` stays."""
        return None if self.seconds is None else Pace(self.seconds, self.step_ms / 1e3)

    def drafter(self) -> AssumedDrafter | None:
        """A drafter for one replica; None without drafts."""
        if not self.drafts:
            return None
        prices, barrier = verification_prices(self.durations), self.limits.depth > 1
        return AssumedDrafter(self.drafts, self.acceptance, prices, barrier, self.drafting)


@dataclass(slots=True)
class OpenRequest:
    """A request in progress. Times in seconds, −1 before; `last` is the time of its newest token, `waiting` the prompt tokens that the
    router counts until the first one."""

    arrival: Arrival
    arrived: float
    waiting: int
    started: float = -1.0
    first: float = -1.0
    last: float = -1.0


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """A request that ended at `time`; not `answered`: it was rejected, or `aborted` by its client. Times in seconds; `cached` prompt
    tokens came from the prefix cache.
    """

    arrival: Arrival
    arrived: float
    started: float
    first: float
    time: float
    cached: int
    waiting: int = 0
    answered: bool = True
    aborted: bool = False


class Replica:
    """Runs the engine's turns. `time` is the end of its last step, or the time of the last command while it is idle."""

    def __init__(self, number: int, config: ReplicaConfig, tally: Tally, on_turn: Callable[[Turn], None] | None = None) -> None:
        self.number = number
        self.config = config
        self.clock = VirtualClock()
        info = ExecutorInfo(
            kv=config.kv, vocab=VOCAB_SIZE, max_model_len=config.limits.max_model_len, rows=config.limits.rows,
            runner="simulated", weights_bytes=0, kv_bytes=0,
        )  # fmt: skip
        self.device = SimulatedDevice(info, self.clock, config.durations, config.acceptance, config.drafting)
        self.scheduler = Scheduler(config.limits, config.kv, POLICIES[config.policy], config.drafter(), config.pace())
        self.engine = Engine(self.scheduler, self.device, self.clock, config.limits.depth)
        self.open: dict[str, OpenRequest] = {}
        self._begun_tokens = 0
        self._inbox: deque[Command] = deque()
        self._tally = tally
        self._on_turn = on_turn
        self._measured_until = 0.0
        self._held_blocks = 0
        self._lack = ""
        """Lack of the first waiting request when the last step was planned."""
        self._skippable_ends: list[float] = []
        """End times of the steps that will be skipped if no command comes."""
        self._skippable_seconds: list[float] = []
        self._look_ahead_steps = 1

    def send(self, request: Admitted, arrival: Arrival, arrived: float, time: float, waiting: int = 0) -> None:
        """Queues a request, which arrived at `arrived`, for the engine's next turn. waiting: its prompt tokens that the router counts."""
        self.catch_up(time)
        self.open[request.request_id] = OpenRequest(arrival, arrived, waiting)
        self._inbox.append(Admit(request))

    def abort(self, request_id: str, time: float) -> None:
        """Aborts a request."""
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
        """True if a command is queued or a request is open."""
        return bool(self._inbox) or not self.engine.idle

    @property
    def next_turn_time(self) -> float:
        """Time of the next turn, if no command comes before."""
        return self._skippable_ends[-1] if self._skippable_ends else self.time

    def catch_up(self, time: float) -> None:
        """Advances to `time`: to the end of the last step that begins before it, or to `time` itself while idle."""
        self._skip_until(time)
        if self.engine.idle and self.time < time < inf:
            self.clock.advance_to(time)
            self.measure()

    def turn(self) -> list[FinishedRequest]:
        """Applies the skipped steps; then, unless more can be skipped, runs a turn of the engine. Returns the finished requests."""
        self._skip_until(inf)
        if not self._inbox and self._look_ahead():
            return []
        commands = tuple(self._inbox)
        self._inbox.clear()
        turn = self.engine.turn(commands)
        if not turn.progressed and not commands and not self.engine.idle:
            raise LawViolation(6, f"replica {self.number}: requests are open and nothing runs")
        if self._on_turn is not None:
            self._on_turn(turn)
        done = self._process_turn(turn)
        self.measure(ended=len(done))
        self._look_ahead()
        return done

    def take_begun(self) -> int:
        """Waiting prompt tokens of the requests whose first token has come since the last call."""
        begun, self._begun_tokens = self._begun_tokens, 0
        return begun

    def measure(self, ended: int = 0) -> None:
        """Adds the time since the last call to the time-weighted sums: running rows with those that `ended` with the step, waiting
        sequences, and held blocks at the mean of then and now."""
        seconds = self.time - self._measured_until
        if seconds > 0:
            self._measured_until = self.time
            life, pool = self.scheduler.lifecycle, self.scheduler.cache.pool
            self._tally.kv_seconds += seconds * (self._held_blocks + pool.held) / 2 / pool.count
            self._tally.row_seconds += seconds * (len(life.running) + ended)
            self._tally.add_waiting(seconds, len(life.waiting), self._lack)
            self._held_blocks = pool.held

    def _look_ahead(self) -> bool:
        """Computes the end times of the coming skippable steps. True if there are any."""
        if not self.config.skips_steps or self.engine.in_flight:
            return False
        running = self.scheduler.lifecycle.running
        if any(self.open[sequence.request.request_id].first < 0 for sequence in running):
            return False  # the router hears of a first token when it comes
        positions, now = [sequence.scheduled for sequence in running], self.time
        self._skippable_seconds.clear()
        for step in range(skippable_steps(self.scheduler, self._look_ahead_steps)):
            seconds = self.config.durations.decode(positions, step)
            now += seconds
            self._skippable_ends.append(now)
            self._skippable_seconds.append(seconds)
        return bool(self._skippable_ends)

    def _skip_until(self, until: float) -> None:
        """Applies the skippable steps that begin before `until`, when a command comes and voids the others."""
        ends, self._skippable_ends = self._skippable_ends, []
        if not ends or until <= self.time:
            return
        steps = min(len(ends), 1 + bisect_left(ends, until))
        self._look_ahead_steps = min(MAX_LOOK_AHEAD, 2 * steps) if steps == len(ends) else steps
        running = self.scheduler.lifecycle.running
        known = [self.open[sequence.request.request_id] for sequence in running]
        self._record_tokens(known, ends[0])  # a row may have had none for some steps, while others had the budget
        for before, after in pairwise(ends[:steps]):
            self._tally.add_gap(after - before, len(running))
        self.device.skip_until(ends[steps - 1])
        skip_steps(self.scheduler, steps, SAMPLED_TOKEN, self._skippable_seconds[:steps])
        for each in known:
            each.last = self.time
        self.measure()

    def _process_turn(self, turn: Turn) -> list[FinishedRequest]:
        known = self.open
        receiving = [(known[output.request_id], len(output.ids)) for output in turn.outputs if output.request_id in known]
        self._record_tokens([each for each, _ in receiving], turn.time, [ids for _, ids in receiving] if self.config.drafts else ())
        done: list[FinishedRequest] = []
        for event in turn.events:
            kind = type(event)
            if kind is events.Scheduled:
                self._lack = event.lack  # type: ignore[union-attr]
            elif kind is events.Started:
                self._on_started(event)  # type: ignore[arg-type]
            elif kind is events.Closed or kind is events.Rejected:
                ended = self._on_ended(event)  # type: ignore[arg-type]
                if ended is not None:
                    done.append(ended)
            elif kind is events.Preempted:
                self._tally.preemptions += 1
        return done

    def _record_tokens(self, receiving: Sequence[OpenRequest], now: float, token_counts: Sequence[int] = ()) -> None:
        """Records one token per request, or `token_counts`. Most requests share the time of their last token, so gaps are grouped by it."""
        since = Counter([known.last for known in receiving])
        for known, ids in zip(receiving, token_counts, strict=False):
            if ids > 1 and known.last >= 0:
                since[known.last] -= 1
                self._tally.add_gap((now - known.last) / ids, ids)
        if since.pop(-1.0, 0):
            for known in receiving:
                if known.first < 0:
                    known.first = now
                    self._begun_tokens += known.waiting
                    known.waiting = 0
        for known in receiving:
            known.last = now
        for last, count in since.items():
            if count:
                self._tally.add_gap(now - last, count)

    def _on_started(self, event: events.Started) -> None:
        known = self.open.get(event.request_id)
        if known is not None and known.started < 0:
            known.started = event.time

    def _on_ended(self, event: events.Closed | events.Rejected) -> FinishedRequest | None:
        known = self.open.pop(event.request_id, None)
        if known is None:
            return None
        later = self.config.front_end_seconds
        first, start = known.first if known.first < 0 else known.first + later, (known.arrival, known.arrived, known.started)
        if isinstance(event, events.Rejected) or event.reason is not Finish.LENGTH:
            return FinishedRequest(*start, first, self.time + later, 0, known.waiting, answered=False)
        return FinishedRequest(*start, first, event.time + later, event.usage.cached_tokens)
