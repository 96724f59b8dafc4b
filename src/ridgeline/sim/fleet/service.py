"""A simulated service from its clients' side: who asks when, and where it goes: to one pool, or through prefill, transfer and decode.

Owns the tally of requests; the pools are fleets on one agenda. Also a thin day: of each part of a diurnal cycle a window, simulated at the
rates of its hour, in place of all of it. Windows are the same share of every part, so that each request stands for equally many.
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
from ridgeline.sim.fleet.fleet import Agenda, Fleet, FleetSetting
from ridgeline.sim.fleet.measures import Tally
from ridgeline.sim.fleet.replica import Done
from ridgeline.sim.fleet.traffic import DAY, Arrival, ClosedLoop, Traffic

Progress = Callable[[int], None]
"""Called with the requests that have ended so far."""


@dataclass(frozen=True, slots=True)
class Transferred:
    """Durations of a decode pool: a prompt comes computed over the network, so that its row costs what its last position alone does.

    The transfer's time is the pool's sender's matter.
    """

    whole: Durations

    def seconds(self, plan: Plan) -> float:
        ends = [start + count - 1 for start, count, samples in zip(plan.start, plan.count, plan.sample, strict=True) if samples]
        return self.whole.decode(ends, 0) if ends else 0.0

    def decode(self, positions: Sequence[int], ahead: int) -> float:
        return self.whole.decode(positions, ahead)


@dataclass(frozen=True, slots=True)
class Handover:
    """Prefill on one pool, decode on another: seconds = `latency` + `token` · prompt tokens for the KV between them."""

    decode: FleetSetting
    latency: float
    token: float


class Service:
    """Runs requests to their ends. `watch` sees every turn of the first pool's engines."""

    def __init__(
        self, setting: FleetSetting, seed: int, handover: Handover | None = None, watch: Callable[[Turn], None] | None = None
    ) -> None:
        self.tally = Tally()
        self.ended = 0
        self._handover = handover
        self._agenda = Agenda()
        self._open = 0
        self._more = 0
        self._marks = 0
        self._loop: dict[int, Iterator[Arrival]] = {}
        self.pools = [Fleet(setting, seed, self._agenda, self._finish if handover is None else self._hand_over, watch)]
        self._prefilled: dict[int, Done] = {}
        self._tickets = count(1)
        if handover is not None:
            self.pools.append(Fleet(handover.decode, seed + 1, self._agenda, self._finish))

    def run(self, arrivals: Iterable[Arrival], progress: Progress = lambda ended: None) -> Tally:
        """An open stream, to its last answer."""
        self._next(iter(arrivals))
        return self._run(progress)

    def run_closed(self, loop: ClosedLoop, seed: int, requests: int, progress: Progress = lambda ended: None) -> Tally:
        """Users who wait for their answers, until `requests` have been asked and answered."""
        self._more = requests
        for user in range(loop.users):
            self._loop[user] = loop.requests(seed, user)
            self._ask_again(user, 0.0)
        return self._run(progress)

    def mark(self, moment: float) -> Tally:
        """Sums and gaps as they will be at `moment`: filled when the run gets there."""
        found = Tally()
        self._marks += 1

        def note(time: float) -> None:
            self._marks -= 1
            found.add(self.tally)
            for pool in self.pools:
                found.add(pool.so_far(time))

        self._agenda.at(moment, note)
        return found

    def _run(self, progress: Progress) -> Tally:
        def busy() -> bool:
            progress(self.ended)
            return self._open > 0 or self._more > 0 or self._marks > 0

        self._agenda.run(busy)
        for pool in self.pools:
            pool.end()
            self.tally.add(pool.tally)
        return self.tally

    def _next(self, arrivals: Iterator[Arrival]) -> None:
        arrival = next(arrivals, None)
        self._more = arrival is not None
        if arrival is not None:

            def come(time: float) -> None:
                self._next(arrivals)
                self._ask(arrival, time)

            self._agenda.at(arrival.time, come)

    def _ask_again(self, user: int, now: float) -> None:
        if self._more:
            self._more -= 1
            self._open += 1
            arrival = next(self._loop[user])
            self._agenda.at(now + arrival.time, lambda time: self._ask(arrival, time, opened=True))

    def _ask(self, arrival: Arrival, time: float, opened: bool = False) -> None:
        self._open += not opened
        self.pools[0].send(arrival if self._handover is None else replace(arrival, output=1, remaining=arrival.output - 1), time, time)

    def _hand_over(self, done: Done) -> None:
        """The first token is out; the rest of the answer comes from the other pool."""
        handover = self._handover
        assert handover is not None
        if not done.answered or done.arrival.remaining == 0:
            self._finish(done)
            return
        number = next(self._tickets)
        self._prefilled[number] = done
        rest = replace(done.arrival, prompt=done.arrival.prompt + 1, output=done.arrival.remaining, remaining=0, ticket=number)
        arrives = done.time + handover.latency + handover.token * done.arrival.prompt
        self._agenda.at(arrives, lambda time: self.pools[1].send(rest, time, time))

    def _finish(self, done: Done) -> None:
        self.ended += 1
        self._open -= 1
        before = self._prefilled.pop(done.arrival.ticket, None)
        if not done.answered:
            self.tally.rejected += not done.left
        elif before is None:
            self._count(done, done.arrival.prompt, done.arrival.output)
        else:
            self.tally.gap(done.first - before.first, 1)
            joined = replace(before, time=done.time)
            self._count(joined, before.arrival.prompt, done.arrival.output + 1)
        if done.arrival.user >= 0:
            self._ask_again(done.arrival.user, done.time)

    def _count(self, done: Done, prompt: int, output: int) -> None:
        self.tally.requests.add((done.arrived, done.started, done.first, done.time), (prompt, output, done.cached, done.arrival.level))


PARTS: Final = 12
SETTLE: Final = 30.0
"""Seconds of traffic before a window, in which a fleet fills, and after it, in which what came within it is answered."""


@dataclass(frozen=True, slots=True)
class Sample:
    """So large a share of a cycle of `period` seconds, in a window of each of `parts` equal parts, at a random place within it."""

    share: float
    period: float = DAY
    parts: int = PARTS
    settle: float = SETTLE

    @property
    def seconds(self) -> float:
        """Seconds of the cycle that are measured."""
        return self.share * self.period


def sample_cycle(serve: Callable[[], Service], traffic: Traffic, sample: Sample, seed: int, progress: Progress) -> Tally:
    """Counts the windows of one cycle, each on a service of its own: a stratified estimate with proportional allocation (Cochran 1977).

    Its error shows between seeds, which draw other places and other requests.
    """
    total, before, length = Tally(), 0, sample.period / sample.parts
    for part in range(sample.parts):
        rng = Random(f"{seed}:{part}")
        begins = (part + rng.random() * (1.0 - sample.share)) * length - sample.settle
        service, width = serve(), length * sample.share
        opens, closes = service.mark(sample.settle), service.mark(sample.settle + width)
        tally = service.run(traffic.within(rng.getrandbits(64), begins, width + 2 * sample.settle), partial(_further, progress, before))
        before += service.ended
        closes.add(opens, sign=-1)
        total.add(closes)
        total.requests.extend(tally.requests, sample.settle, sample.settle + width)
    return total


def _further(progress: Progress, before: int, count: int) -> None:
    progress(before + count)
