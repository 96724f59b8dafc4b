"""Many servers behind a router in one virtual time: routing, scaling on queue depth with a cold start, failures.

Owns the replicas, and the agenda of what happens when. A replica is turned when its turn comes; what the router knows of it is what it has
sent and what has come back.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from math import inf
from random import Random
from typing import Final

from ridgeline.core.params import Admitted, SamplingParams
from ridgeline.core.routing import ROUTING, ReplicaLoad, RoutedRequest
from ridgeline.engine.admit import ModelLimits, admit
from ridgeline.engine.engine import Turn
from ridgeline.errors import ConfigError, RequestError
from ridgeline.sim.fleet.measures import Tally
from ridgeline.sim.fleet.replica import VOCABULARY, Done, Replica, Setting
from ridgeline.sim.fleet.traffic import CONTENT_BLOCK, Arrival

Event = Callable[[float], None]
"""Called with its moment, seconds."""


class Agenda:
    """A heap of events."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Event]] = []
        self._order = count()

    def at(self, time: float, happen: Event) -> None:
        """`happen` will be called at `time`, which is not in the past."""
        heapq.heappush(self._heap, (time, next(self._order), happen))

    def run(self, busy: Callable[[], bool]) -> None:
        """Lets everything happen, as long as `busy`: what only repeats itself (a look at the load) would never end."""
        while self._heap and busy():
            time, _, happen = heapq.heappop(self._heap)
            happen(time)


IDS: Final = 1 << 30
"""Token ids of shared prefixes lie below this, those that are a request's own begin here."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """Another replica while more than `up` requests wait for each that is up or coming; one less while fewer than `down` are open for each.

    Looked at every `period` seconds; a new replica takes requests after `cold_start` seconds.
    """

    least: int
    most: int
    up: float = 10.0
    down: float = 2.0
    period: float = 30.0
    cold_start: float = 120.0


@dataclass(frozen=True, slots=True)
class Failures:
    """Each replica fails after an exponential time of mean `between` seconds, is back after `repair`; its requests begin anew elsewhere."""

    between: float
    repair: float = 120.0


@dataclass(frozen=True, slots=True)
class FleetSetting:
    """`replicas` alike servers and how requests are spread over them.

    patience  seconds after which a client who has not got all of its answer leaves; None: never
    """

    replica: Setting
    replicas: int = 1
    routing: str = "least-requests"
    scaling: Scaling | None = None
    failures: Failures | None = None
    patience: float | None = None


class Fleet:
    """Alike servers that share a router. `tell` hears of every request that ends; all chance comes from `seed`."""

    def __init__(
        self, setting: FleetSetting, seed: int, agenda: Agenda, tell: Callable[[Done], None], watch: Callable[[Turn], None] | None = None
    ) -> None:
        if setting.routing not in ROUTING:
            raise ConfigError(f"--routing {setting.routing!r:.40} is not known; known: {', '.join(ROUTING)}")
        self.setting = setting
        self.tally = Tally()
        self._limits = ModelLimits(VOCABULARY, setting.replica.limits.max_model_len, frozenset(), setting.replica.kv)
        self._agenda = agenda
        self._tell = tell
        self._choose = ROUTING[setting.routing]
        self._rng = Random(seed)
        self._watch = watch
        self._numbers = count()
        self._sent = count()
        self._up: dict[int, Replica] = {}
        self._loads: dict[int, ReplicaLoad] = {}
        self._born: dict[int, float] = {}
        self._coming = 0
        self._due: dict[int, float] = {}
        """Replica → the moment of its next turn, as it looks now."""
        self._draining: set[int] = set()
        self._homeless: list[tuple[Arrival, float]] = []
        for _ in range(setting.replicas):
            self._start(0.0)
        if setting.scaling is not None:
            agenda.at(setting.scaling.period, self._scale)

    @property
    def replicas(self) -> list[Replica]:
        """Those that are up."""
        return list(self._up.values())

    def so_far(self, time: float) -> Tally:
        """Sums and gaps at `time`, with those of steps that have begun."""
        found = Tally()
        for number, replica in self._up.items():
            replica.catch_up(time)
            self._wake(replica, time)
            found.busy_seconds += replica.device.busy
            found.replica_seconds += time - self._born[number]
        found.add(self.tally)
        return found

    def end(self) -> None:
        """Ends the run, as nothing will come any more: counts what the replicas did until the last of them stood still."""
        for replica in self._up.values():
            replica.catch_up(inf)
        last = max((replica.time for replica in self._up.values()), default=0.0)
        for number in list(self._up):
            self._retire(number, last)

    # ── requests ────────────────────────────────────────────────────────────────────────────────────────────────

    def send(self, arrival: Arrival, arrived: float, time: float) -> None:
        """Routes a request that came at `arrived`, earlier than `time` if a replica failed under it. Without any replica up it waits."""
        loads = [load for number, load in self._loads.items() if number not in self._draining]
        if not loads:
            self._homeless.append((arrival, arrived))
            return
        number = next(self._sent)
        prefix = arrival.prefix.to_bytes(8, "little") if arrival.prefix else number.to_bytes(8, "big")
        load = self._choose(loads, RoutedRequest(number, arrival.prompt, prefix), self._rng.random())
        load.requests += 1
        load.waiting_tokens += arrival.prompt
        load.held_tokens += arrival.prompt + arrival.output
        replica = self._up[load.number]
        try:
            request = as_request(arrival, number, self._limits)
        except RequestError:
            self._agenda.at(time, lambda at: self._finished(load.number, Done(arrival, arrived, at, at, at, 0, answered=False)))
            return
        replica.send(request, arrival, arrived, time)
        if self.setting.patience is not None:
            self._agenda.at(max(time, arrived + self.setting.patience), lambda at: self._leave(replica, request.request_id, at))
        self._wake(replica, time)

    def _leave(self, replica: Replica, request_id: str, time: float) -> None:
        """The client's patience has ended; nothing to do where its request has, or is answered by a step under way."""
        known = replica.open.get(request_id)
        if known is None or self._up.get(replica.number) is not replica:
            return
        replica.abort(request_id, time)
        self._finished(replica.number, Done(known.arrival, known.arrived, known.started, known.first, time, 0, answered=False, left=True))
        self._wake(replica, time)

    def _finished(self, number: int, done: Done) -> None:
        load = self._loads.get(number)
        if load is not None:
            load.requests -= 1
            load.waiting_tokens -= done.arrival.prompt
            load.held_tokens -= done.arrival.prompt + done.arrival.output
        self._tell(done)

    # ── replicas ────────────────────────────────────────────────────────────────────────────────────────────────

    def _wake(self, replica: Replica, time: float) -> None:
        due = max(time, replica.due)
        if replica.has_work and self._due.get(replica.number) != due:
            self._due[replica.number] = due
            self._agenda.at(due, lambda at: self._turn(replica, at))

    def _turn(self, replica: Replica, at: float) -> None:
        """Takes a replica's turn. What it brings is known when its step ends: then its answers come back, and the next turn begins.

        A request that came since this turn was noted has moved it.
        """
        if self._due.get(replica.number) != at or self._up.get(replica.number) is not replica:
            return
        del self._due[replica.number]
        done = replica.turn()
        if done:
            self._agenda.at(replica.time, lambda at: self._deliver(replica, done))
        self._wake(replica, replica.time)

    def _deliver(self, replica: Replica, done: list[Done]) -> None:
        for each in done:
            self._finished(replica.number, each)
        if replica.number in self._draining and not replica.open:
            self._retire(replica.number, replica.time)

    def _start(self, time: float) -> None:
        number = next(self._numbers)
        replica = Replica(number, self.setting.replica, self.tally, self._watch)
        replica.clock.advance_to(time)
        self._up[number], self._loads[number], self._born[number] = replica, ReplicaLoad(number), time
        if self.setting.failures is not None:
            self._agenda.at(time + self._rng.expovariate(1 / self.setting.failures.between), lambda at: self._fail(number, at))
        waiting, self._homeless = self._homeless, []
        for arrival, arrived in waiting:
            self.send(arrival, arrived, time)

    def _retire(self, number: int, time: float) -> None:
        replica = self._up.pop(number)
        replica.catch_up(time)
        self._loads.pop(number)
        self._draining.discard(number)
        self.tally.busy_seconds += replica.device.busy
        self.tally.replica_seconds += max(time, replica.time) - self._born.pop(number)

    def _fail(self, number: int, time: float) -> None:
        """Its requests begin anew elsewhere: nothing of them survives. They arrived when they first came."""
        replica = self._up.get(number)
        if replica is None or self.setting.failures is None:
            return
        lost = [(known.arrival, known.arrived) for known in replica.open.values()]
        self._retire(number, time)
        self._coming += 1
        self._agenda.at(time + self.setting.failures.repair, self._arrive)
        for arrival, arrived in lost:
            self.send(arrival, arrived, time)

    def _arrive(self, time: float) -> None:
        self._coming -= 1
        self._start(time)

    def _scale(self, time: float) -> None:
        scaling = self.setting.scaling
        assert scaling is not None
        taking = [number for number in self._up if number not in self._draining]
        there = len(taking) + self._coming
        waiting = sum(len(replica.scheduler.lifecycle.waiting) for replica in self._up.values()) + len(self._homeless)
        opened = sum(load.requests for load in self._loads.values())
        if waiting > scaling.up * there and there < scaling.most:
            self._coming += 1
            self._agenda.at(time + scaling.cold_start, self._arrive)
        elif opened < scaling.down * there and there > scaling.least and taking:
            spare = min(taking, key=lambda number: self._loads[number].requests)
            self._draining.add(spare)
            if not self._up[spare].open:
                self._retire(spare, time)
        self._agenda.at(time + scaling.period, self._scale)


@lru_cache(maxsize=4096)
def _asked(output: int) -> SamplingParams:
    return SamplingParams(max_tokens=output)


def as_request(arrival: Arrival, number: int, limits: ModelLimits) -> Admitted:
    """The request with made-up ids: those that others may have, too, are a function of their names. Of the rest the first is the request's
    own, which makes a block of its own of every one from there on.

    Raises RequestError where it is longer than the server takes.
    """
    if arrival.blocks:
        shared = [token for block in arrival.blocks for token in (block % IDS, *(0,) * (CONTENT_BLOCK - 1))][: arrival.prompt]
    else:
        shared = [each % IDS for each in range(arrival.prefix * 8191, arrival.prefix * 8191 + arrival.shared)]
    own = arrival.prompt - len(shared)
    ids = (*shared, IDS + number % IDS, *(0,) * (own - 1)) if own else tuple(shared)
    return admit(ids, _asked(arrival.output), limits, request_id=str(number), draw_seed=lambda: 0, priority=arrival.level)
