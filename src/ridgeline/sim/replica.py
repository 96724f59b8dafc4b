"""One server in virtual time: the real engine and scheduler over a device that only takes time.

Owns what is known of its open requests, and the jump over steps in which nothing is decided. Never looks beyond the horizon that it gets.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ridgeline.core import events
from ridgeline.core.commands import Abort, Admit, Command, Output
from ridgeline.core.events import Finish
from ridgeline.core.params import Admitted, Limits
from ridgeline.core.plan import KVShape
from ridgeline.core.policy import POLICIES
from ridgeline.core.quiet import advance, quiet_steps
from ridgeline.core.scheduler import Scheduler
from ridgeline.engine.engine import Engine, Turn
from ridgeline.engine.executor import ExecutorInfo
from ridgeline.errors import LawViolation
from ridgeline.sim.clock import VirtualClock
from ridgeline.sim.device import TOKEN, Device
from ridgeline.sim.durations import Durations
from ridgeline.sim.measures import Tally
from ridgeline.sim.traffic import Arrival

VOCABULARY: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class Setting:
    """What one replica is: the scheduler's limits and policy, the KV cache, and how long a step takes.

    jump  whether steps in which nothing is decided are jumped over; the answer is the same
    """

    limits: Limits
    kv: KVShape
    durations: Durations
    policy: str = "fcfs"
    jump: bool = True


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
    """A request that ended at `time`; refused where `answered` is false. Moments in seconds, `cached` prompt tokens were not computed."""

    arrival: Arrival
    arrived: float
    started: float
    first: float
    time: float
    cached: int
    answered: bool = True


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
        self.device = Device(info, self.clock, setting.durations)
        self.scheduler = Scheduler(setting.limits, setting.kv, POLICIES[setting.policy])
        self.engine = Engine(self.scheduler, self.device, self.clock, setting.limits.depth)
        self.open: dict[str, Open] = {}
        self._inbox: deque[Command] = deque()
        self._tally = tally
        self._watch = watch
        self._measured = 0.0

    def send(self, request: Admitted, arrival: Arrival, arrived: float, time: float) -> None:
        """A request that came at `arrived` gets here; the engine hears of it at its next turn."""
        self.open[request.request_id] = Open(arrival, arrived)
        self._inbox.append(Admit(request))
        self._idle_until(time)

    def abort(self, request_id: str, time: float) -> None:
        """The client has gone."""
        if self.open.pop(request_id, None) is not None:
            self._inbox.append(Abort(request_id))
            self._tally.aborted += 1
            self._idle_until(time)

    @property
    def time(self) -> float:
        """Where it stands, seconds."""
        return self.clock.now()

    @property
    def has_work(self) -> bool:
        """Whether a turn would do anything."""
        return bool(self._inbox) or not self.engine.idle

    def turn(self, horizon: float) -> list[Done]:
        """One turn, and a jump over quiet steps that begin before `horizon`, the earliest moment at which a command may come."""
        commands = tuple(self._inbox)
        self._inbox.clear()
        turn = self.engine.turn(commands)
        if not turn.progressed and not commands and not self.engine.idle:
            raise LawViolation(6, f"replica {self.number}: requests are open and nothing runs")
        if self._watch is not None:
            self._watch(turn)
        done = self._take(turn)
        if self.setting.jump and not done and self.time < horizon and not self.engine.in_flight:  # an answer may bring the next request
            self._jump(horizon)
        self.measure()
        return done

    def measure(self) -> None:
        """Adds the time since the last call, at what holds now, to the means over time."""
        seconds = self.time - self._measured
        if seconds > 0:
            self._measured = self.time
            life, pages = self.scheduler.life, self.scheduler.cache.pages
            self._tally.kv_seconds += seconds * pages.held / pages.count
            self._tally.row_seconds += seconds * len(life.running)
            self._tally.waiting_seconds += seconds * len(life.waiting)

    def _idle_until(self, time: float) -> None:
        if self.engine.idle and self.time < time:
            self.measure()
            self.clock.advance_to(time)

    def _jump(self, horizon: float) -> None:
        most = quiet_steps(self.scheduler)
        if not most:
            return
        running = self.scheduler.life.running
        known = [self.open[sequence.request.request_id] for sequence in running]
        positions = [sequence.scheduled for sequence in running]
        steps = 0
        while steps < most and self.time < horizon:
            before = self.time
            self.device.pass_over(self.setting.durations.decode(positions, steps))
            # The last token of a prompt may have been left over by a chunk: its first output has no gap before it.
            firsts = [each for each in known if each.first < 0] if steps == 0 else []
            for each in firsts:
                each.first = self.time
            self._tally.gap(self.time - before, len(running) - len(firsts))
            steps += 1
        advance(self.scheduler, steps, TOKEN)
        for each in known:
            each.last = self.time

    def _take(self, turn: Turn) -> list[Done]:
        self._outputs(turn.outputs, turn.time)
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

    def _outputs(self, outputs: Sequence[Output], now: float) -> None:
        """Most sequences got their last token at the same moment: gaps are counted by it."""
        since: dict[float, int] = {}
        for output in outputs:
            known = self.open.get(output.request_id)
            if known is not None:
                since[known.last] = since.get(known.last, 0) + 1
                if known.first < 0:
                    known.first = now
                known.last = now
        since.pop(-1.0, None)
        for last, count in since.items():
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
