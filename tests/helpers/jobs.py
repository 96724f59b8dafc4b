"""Requests through the real engine over a device that only takes time: when each had its tokens."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ridgeline.core import events
from ridgeline.core.commands import Abort, Admit, Close, Command
from ridgeline.core.events import Finish
from ridgeline.core.pace import Pace
from ridgeline.core.params import Admitted, Limits
from ridgeline.core.plan import KVShape
from ridgeline.core.policy import POLICIES
from ridgeline.core.scheduler import Scheduler
from ridgeline.core.step_time import StepSeconds
from ridgeline.engine.engine import Engine
from ridgeline.engine.executor import ExecutorInfo
from ridgeline.errors import OverloadedError
from ridgeline.server.keys import Caller
from ridgeline.server.targets import Targets
from ridgeline.server.waiting_room import WaitingRoom
from ridgeline.sim.clock import VirtualClock
from ridgeline.sim.fleet.durations import Durations
from ridgeline.sim.fleet.replica import SimulatedDevice


@dataclass
class Job:
    """A request of `prompt` tokens that comes at `at` and stops by itself after `output` tokens. Filled in: when it had its first and its
    last token, and seconds between two of them; whether it has had a row, and whether it was refused, before or behind that it waited."""

    at: float
    prompt: int
    output: int
    kind: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    first: float = -1.0
    last: float = -1.0
    gaps: list[float] = field(default_factory=list)
    is_started: bool = False
    is_refused: bool = False

    @property
    def ttft(self) -> float:
        return self.first - self.at

    @property
    def itl(self) -> float:
        """The 95th percentile of the seconds between two tokens."""
        return sorted(self.gaps)[int(0.95 * len(self.gaps))] if self.gaps else 0.0


@dataclass(frozen=True)
class Served:
    """seconds: until the last token. counts: events by name. running: sequences of a step, on average."""

    seconds: float
    counts: Counter[str]
    running: float
    tokens_per_second: float


def serve(
    jobs: Sequence[Job],
    limits: Limits,
    kv: KVShape,
    durations: Durations,
    policy: str = "fcfs",
    pace: Pace | None = None,
    max_tokens: int | None = None,
    is_admitted: Callable[[Job, int, float], bool] = lambda job, open_, now: True,
    on_ended: Callable[[int, float, bool], None] = lambda open_, now, had_row: None,
    last_start: Callable[[Job], float] = lambda job: math.inf,
) -> Served:
    """Serves jobs in order of `at`. max_tokens: of every request; None: its output. is_admitted: the front end's word on a job, given how
    many are open; on_ended: called with those that still are, and whether the one that has ended had a row; last_start: seconds behind
    which a job without a row is refused."""
    clock = VirtualClock()
    info = ExecutorInfo(kv=kv, vocab=1 << 31, max_model_len=limits.max_model_len, rows=limits.rows, runner="", weights_bytes=0, kv_bytes=0)
    scheduler = Scheduler(limits, kv, POLICIES[policy], None, pace)
    engine = Engine(scheduler, SimulatedDevice(info, clock, durations), clock, limits.depth)
    waiting, open_, had, counts = sorted(jobs, key=lambda job: -job.at), dict[str, Job](), Counter[str](), Counter[str]()
    closes: list[Command] = []
    steps = rows = 0
    while waiting or not engine.idle:
        if engine.idle:
            clock.advance_to(max(clock.now(), waiting[-1].at))
        commands, closes = closes, []
        while waiting and waiting[-1].at <= clock.now():
            job = waiting.pop()
            if not is_admitted(job, len(open_), job.at):
                job.is_refused = True
                continue
            name = f"r{len(waiting)}"
            open_[name] = job
            ids = (len(waiting) + 100_000, *range(1, job.prompt))
            commands.append(Admit(Admitted(name, ids, max_tokens or job.output, 1, arrived=job.at, **job.fields)))
        for name, job in open_.items():
            if not (job.is_started or job.is_refused) and clock.now() >= job.at + last_start(job):
                job.is_refused = True
                commands.append(Abort(name))
        turn = engine.turn(engine.prepare(commands))
        steps, rows = steps + turn.progressed, rows + len(scheduler.lifecycle.running)
        for output in turn.outputs:
            if output.request_id in open_:
                job = open_[output.request_id]
                if job.first < 0:
                    job.first = turn.time
                else:
                    job.gaps.append(turn.time - job.last)
                job.last = turn.time
                had[output.request_id] += len(output.ids)
                if had[output.request_id] == job.output and output.end is None:
                    closes.append(Close(output.request_id, 0, job.output, Finish.STOP))
        for event in turn.events:
            counts[type(event).__name__] += 1
            if isinstance(event, events.Started):
                open_[event.request_id].is_started = True
            elif isinstance(event, events.Closed):
                job = open_.pop(event.request_id)
                on_ended(len(open_), turn.time, job.is_started)
    return Served(clock.now(), counts, rows / steps, sum(had.values()) / clock.now())


def front_end(rows: int, max_waiting: int = 256, ttft_target: float | None = None, cost: StepSeconds | None = None) -> dict[str, Any]:
    """What `serve` asks of a front end: its word on a job with its target, or that of all in seconds, and to hear of ends."""
    room = WaitingRoom(max_waiting)

    def targets(job: Job) -> Targets:
        return Targets(ttft_ms=job.fields.get("ttft_ms", 0)).or_target(ttft_target)

    def is_admitted(job: Job, open_: int, now: float) -> bool:
        try:
            room.check(Caller(), 1, rows, {"": open_} if open_ else {}, now, targets(job).patience(has_targets=True))
        except OverloadedError:
            return False
        return True

    def last_start(job: Job) -> float:
        return math.inf if ttft_target is None else targets(job).last_start_ms(job.prompt, rows, cost) / 1e3

    def on_ended(open_: int, now: float, had_row: bool) -> None:
        room.on_ended(int(had_row), rows, open_, now, int(not had_row))

    return {"is_admitted": is_admitted, "on_ended": on_ended, "last_start": last_start}
