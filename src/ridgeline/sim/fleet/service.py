"""Simulated service as clients see it: requests go to one pool, or through prefill, KV transfer and decode.

Owns the tally of requests; the pools are fleets on one event queue. Also samples of a day: one window from each part of a diurnal cycle, at
the rates of its hour, in place of all of it. Windows are the same share of every part, so that all requests have the same weight.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from random import Random
from typing import Final

from ridgeline.core.plan import Plan
from ridgeline.engine.engine import Turn
from ridgeline.sim.fleet.durations import Durations
from ridgeline.sim.fleet.fleet import EventQueue, Fleet, FleetConfig
from ridgeline.sim.fleet.measures import Tally
from ridgeline.sim.fleet.replica import FinishedRequest
from ridgeline.sim.fleet.traffic import DAY_SECONDS, Arrival, ClosedLoop, Traffic

Progress = Callable[[int], None]
"""Called with the number of requests that have ended."""


@dataclass(frozen=True, slots=True)
class DecodePoolDurations:
    """Durations of a decode pool: a prompt arrives computed, so its row costs what its last position alone does.

    The time of the transfer is in `KVTransfer`.
    """

    whole: Durations

    def seconds(self, plan: Plan) -> float:
        ends = [start + count - 1 for start, count, samples in zip(plan.start, plan.count, plan.sample, strict=True) if samples]
        return self.whole.decode(ends, 0) if ends else 0.0

    def decode(self, positions: Sequence[int], ahead: int) -> float:
        return self.whole.decode(positions, ahead)


@dataclass(frozen=True, slots=True)
class KVTransfer:
    """Transfer of KV from a prefill pool to a decode pool: `latency` + `token` · prompt tokens seconds."""

    decode: FleetConfig
    latency: float
    token: float


class Service:
    """Runs requests to their ends. on_turn: called with every turn of the first pool's engines."""

    def __init__(
        self, config: FleetConfig, seed: int, kv_transfer: KVTransfer | None = None, on_turn: Callable[[Turn], None] | None = None
    ) -> None:
        self.tally = Tally()
        self.ended = 0
        self._kv_transfer = kv_transfer
        self._agenda = EventQueue()
        self._open = 0
        self._remaining = 0
        self._pending_marks = 0
        self._user_requests: dict[int, Iterator[Arrival]] = {}
        self.pools = [Fleet(config, seed, self._agenda, self._on_finished if kv_transfer is None else self._start_decode, on_turn)]
        self._prefilled: dict[int, FinishedRequest] = {}
        self._prefill_ids = count(1)
        if kv_transfer is not None:
            self.pools.append(Fleet(kv_transfer.decode, seed + 1, self._agenda, self._on_finished))

    def run(self, arrivals: Iterable[Arrival], progress: Progress = lambda ended: None) -> Tally:
        """Runs an open stream to its last answer."""
        self._schedule_next(iter(arrivals))
        return self._run(progress)

    def run_closed(self, loop: ClosedLoop, seed: int, requests: int, progress: Progress = lambda ended: None) -> Tally:
        """Runs a closed loop until `requests` have been sent and answered."""
        self._remaining = requests
        for user in range(loop.users):
            self._user_requests[user] = loop.requests(seed, user)
            self._send_next(user, 0.0)
        return self._run(progress)

    def tally_at(self, moment: float) -> Tally:
        """Sums and gaps at `moment`: an empty tally that is filled when the run gets there."""
        found = Tally()
        self._pending_marks += 1

        def note(time: float) -> None:
            self._pending_marks -= 1
            found.add(self.tally)
            for pool in self.pools:
                found.add(pool.tally_at(time))

        self._agenda.at(moment, note)
        return found

    def _run(self, progress: Progress) -> Tally:
        def busy() -> bool:
            progress(self.ended)
            return self._open > 0 or self._remaining > 0 or self._pending_marks > 0

        self._agenda.run(busy)
        for pool in self.pools:
            pool.end()
            self.tally.add(pool.tally)
        return self.tally

    def _schedule_next(self, arrivals: Iterator[Arrival]) -> None:
        arrival = next(arrivals, None)
        self._remaining = arrival is not None
        if arrival is not None:

            def arrive(time: float) -> None:
                self._schedule_next(arrivals)
                self._send(arrival, time)

            self._agenda.at(arrival.time, arrive)

    def _send_next(self, user: int, now: float) -> None:
        if self._remaining:
            self._remaining -= 1
            self._open += 1
            arrival = next(self._user_requests[user])
            self._agenda.at(now + arrival.time, lambda time: self._send(arrival, time, opened=True))

    def _send(self, arrival: Arrival, time: float, opened: bool = False) -> None:
        self._open += not opened
        if self._kv_transfer is not None:
            arrival = replace(arrival, output=1, decode_tokens=arrival.output - 1)
        self.pools[0].send(arrival, time, time)

    def _start_decode(self, done: FinishedRequest) -> None:
        """Sends the rest of an answer to the decode pool after the first token."""
        kv_transfer = self._kv_transfer
        assert kv_transfer is not None
        if not done.answered or done.arrival.decode_tokens == 0:
            self._on_finished(done)
            return
        number = next(self._prefill_ids)
        self._prefilled[number] = done
        rest = replace(done.arrival, prompt=done.arrival.prompt + 1, output=done.arrival.decode_tokens, decode_tokens=0, prefill_id=number)
        arrives = done.time + kv_transfer.latency + kv_transfer.token * done.arrival.prompt
        self._agenda.at(arrives, lambda time: self.pools[1].send(rest, time, time))

    def _on_finished(self, done: FinishedRequest) -> None:
        self.ended += 1
        self._open -= 1
        before = self._prefilled.pop(done.arrival.prefill_id, None)
        if not done.answered:
            self.tally.rejected += not done.aborted
        elif before is None:
            self._count(done, done.arrival.prompt, done.arrival.output)
        else:
            self.tally.add_gap(done.first - before.first, 1)
            joined = replace(before, time=done.time)
            self._count(joined, before.arrival.prompt, done.arrival.output + 1)
        if done.arrival.user >= 0:
            self._send_next(done.arrival.user, done.time)

    def _count(self, done: FinishedRequest, prompt: int, output: int) -> None:
        self.tally.requests.add((done.arrived, done.started, done.first, done.time), (prompt, output, done.cached, done.arrival.level))


WINDOWS_PER_DAY: Final = 12
SETTLE_SECONDS: Final = 30.0
"""Seconds of traffic before a window, in which a fleet fills, and after it, in which its requests are answered."""


@dataclass(frozen=True, slots=True)
class DaySample:
    """Sample of a cycle of `period` seconds: a window at a random place in each of `parts` equal parts, `settle` seconds around it."""

    share: float
    period: float = DAY_SECONDS
    parts: int = WINDOWS_PER_DAY
    settle: float = SETTLE_SECONDS

    @property
    def seconds(self) -> float:
        """Seconds of the cycle that are measured."""
        return self.share * self.period


def simulate_sample(serve: Callable[[], Service], traffic: Traffic, sample: DaySample, seed: int, progress: Progress) -> Tally:
    """Counts the windows of one cycle, each on a service of its own: a stratified estimate with proportional allocation (Cochran 1977).

    Its error is the variation between seeds, which draw other windows and requests.
    """
    total, before, length = Tally(), 0, sample.period / sample.parts
    for part in range(sample.parts):
        rng = Random(f"{seed}:{part}")
        begins = (part + rng.random() * (1.0 - sample.share)) * length - sample.settle
        service, width = serve(), length * sample.share
        opens, closes = service.tally_at(sample.settle), service.tally_at(sample.settle + width)
        arrivals = traffic.arrivals_within(rng.getrandbits(64), begins, width + 2 * sample.settle)
        tally = service.run(arrivals, partial(_report_progress, progress, before))
        before += service.ended
        closes.add(opens, sign=-1)
        total.add(closes)
        total.requests.extend(tally.requests, sample.settle, sample.settle + width, begins)
    return total


def _report_progress(progress: Progress, before: int, count: int) -> None:
    progress(before + count)
