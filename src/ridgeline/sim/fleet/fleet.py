"""A fleet of servers behind a router in virtual time: routing, autoscaling on queue depth with a cold start, failures of one and of a zone.

Owns the replicas and the event queue. The router knows of a replica only the requests that it sent and the answers that came back.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from math import inf
from random import Random
from typing import Final

from ridgeline.core.params import Admitted, SamplingParams
from ridgeline.core.policy import POLICIES
from ridgeline.core.routing import ROUTING, PrefixMap, ReplicaLoad, RoutedRequest
from ridgeline.engine.admit import ModelLimits, admit
from ridgeline.engine.engine import Turn
from ridgeline.errors import ConfigError, RequestError, nearest
from ridgeline.sim.fleet.measures import Tally
from ridgeline.sim.fleet.replica import VOCAB_SIZE, FinishedRequest, Replica, ReplicaConfig
from ridgeline.sim.fleet.traffic import CONTENT_BLOCK, Arrival

Callback = Callable[[float], None]
"""Called with its time in seconds."""


class EventQueue:
    """A heap of callbacks by time."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callback]] = []
        self._order = count()

    def at(self, time: float, callback: Callback) -> None:
        """Schedules `callback` at `time`, which is not in the past."""
        heapq.heappush(self._heap, (time, next(self._order), callback))

    def run(self, busy: Callable[[], bool]) -> None:
        """Runs callbacks in order of time while `busy()`: periodic ones (autoscaling) would never end."""
        while self._heap and busy():
            time, _, callback = heapq.heappop(self._heap)
            callback(time)


MOST_PARTS: Final = 1 << 17
"""Parts of prompts that the router remembers."""
FIRST_UNIQUE_ID: Final = 1 << 30
"""Token ids of shared prefixes are below this; ids unique to a request start here."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """Autoscaling: one replica more while more than `up` requests wait per replica, one fewer while fewer than `down` are open per replica.

    Evaluated every `period` seconds, replicas that start included; a new replica takes requests after `cold_start` seconds.
    """

    min_replicas: int
    max_replicas: int
    up: float = 10.0
    down: float = 2.0
    period: float = 30.0
    cold_start: float = 120.0


@dataclass(frozen=True, slots=True)
class Failures:
    """Each replica fails after an exponential time of mean `between` seconds and is back after `repair`; its requests restart elsewhere."""

    between: float
    repair: float = 120.0


@dataclass(frozen=True, slots=True)
class Outage:
    """At `at` seconds a zone with `share` of the replicas fails at once; after `seconds` as many are back, with empty caches."""

    at: float
    seconds: float
    share: float


@dataclass(frozen=True, slots=True)
class FleetConfig:
    """`replicas` identical servers and the routing of requests.

    patience  seconds after which a client aborts a request that is not finished; None: never
    ttft_ms   target for the first token of requests that have an objective, under the slo policy; 0: none
    """

    replica: ReplicaConfig
    replicas: int = 1
    routing: str = "least-requests"
    scaling: Scaling | None = None
    failures: Failures | None = None
    patience: float | None = None
    ttft_ms: int = 0
    outage: Outage | None = None


def _prefix_chain(arrival: Arrival) -> tuple[list[bytes], int]:
    """The parts of a prompt that others may share, as a router knows them, and the tokens of each."""
    if arrival.blocks:
        return [block.to_bytes(8, "little") for block in arrival.blocks], CONTENT_BLOCK
    return ([b"prefix" + arrival.prefix.to_bytes(8, "little")] if arrival.prefix else []), arrival.shared


class Fleet:
    """Identical servers behind one router. `on_done` is called for every finished request; all randomness comes from `seed`."""

    def __init__(
        self,
        config: FleetConfig,
        seed: int,
        agenda: EventQueue,
        on_done: Callable[[FinishedRequest], None],
        on_turn: Callable[[Turn], None] | None = None,
    ) -> None:
        if config.routing not in ROUTING:
            raise ConfigError(
                f"--routing {config.routing!r:.40} is not known; known: {', '.join(ROUTING)}",
                fix={"--routing": nearest(config.routing, ROUTING)},
            )
        self.config = config
        self.tally = Tally()
        self._limits = ModelLimits(VOCAB_SIZE, config.replica.limits.max_model_len, frozenset(), config.replica.kv)
        self._agenda = agenda
        self._on_done = on_done
        self._route = ROUTING[config.routing]
        self._sent = PrefixMap(MOST_PARTS)
        self._rng = Random(seed)
        self._on_turn = on_turn
        self._replica_ids = count()
        self._request_ids = count()
        self._up: dict[int, Replica] = {}
        self._loads: dict[int, ReplicaLoad] = {}
        self._started_at: dict[int, float] = {}
        self._num_starting = 0
        self._next_turn: dict[int, float] = {}
        """Replica → time of its next turn, unless a command comes before."""
        self._draining: set[int] = set()
        self._unrouted: list[tuple[Arrival, float]] = []
        for _ in range(config.replicas):
            self._start(0.0)
        if config.scaling is not None:
            agenda.at(config.scaling.period, self._scale)
        if config.outage is not None:
            agenda.at(config.outage.at, self._on_outage)

    @property
    def replicas(self) -> list[Replica]:
        """Replicas that are up."""
        return list(self._up.values())

    def tally_at(self, time: float) -> Tally:
        """Sums and gaps at `time`, steps in progress included."""
        found = Tally()
        for number, replica in self._up.items():
            replica.catch_up(time)
            self._schedule_turn(replica, time)
            found.busy_seconds += replica.device.busy_seconds
            found.replica_seconds += time - self._started_at[number]
        found.add(self.tally)
        return found

    def end(self) -> None:
        """Ends the run: retires all replicas at the time at which the last of them became idle."""
        for replica in self._up.values():
            replica.catch_up(inf)
        last = max((replica.time for replica in self._up.values()), default=0.0)
        for number in list(self._up):
            self._retire(number, last)

    # ── requests ────────────────────────────────────────────────────────────────────────────────────────────────

    def send(self, arrival: Arrival, arrived: float, time: float) -> None:
        """Routes a request that arrived at `arrived`, before `time` if its replica failed. It waits while no replica is up."""
        loads = [load for number, load in self._loads.items() if number not in self._draining]
        if not loads:
            self._unrouted.append((arrival, arrived))
            return
        number = next(self._request_ids)
        prefix = arrival.prefix.to_bytes(8, "little") if arrival.prefix else number.to_bytes(8, "big")
        chain, part_tokens = _prefix_chain(arrival)
        cached = {replica: parts * part_tokens for replica, parts in self._sent.match(chain).items()}
        load = self._route(loads, RoutedRequest(number, arrival.prompt, prefix, cached), self._rng.random())
        self._sent.learn(chain, load.number)
        load.requests += 1
        waiting = arrival.prompt - cached.get(load.number, 0)
        load.waiting_tokens += waiting
        load.held_tokens += arrival.prompt + arrival.output
        replica = self._up[load.number]
        try:
            request = make_request(arrival, number, self._limits)
            if POLICIES[self.config.replica.policy].has_targets:
                request = replace(request, arrived=arrived, ttft_ms=0 if arrival.level else self.config.ttft_ms)
        except RequestError:

            def reject(at: float) -> None:
                self._on_finished(load.number, FinishedRequest(arrival, arrived, at, at, at, 0, waiting, answered=False))

            self._agenda.at(time, reject)
            return
        replica.send(request, arrival, arrived, time, waiting)
        if self.config.patience is not None:
            self._agenda.at(max(time, arrived + self.config.patience), lambda at: self._abort_impatient(replica, request.request_id, at))
        self._schedule_turn(replica, time)

    def _abort_impatient(self, replica: Replica, request_id: str, time: float) -> None:
        """Aborts a request whose client gave up, unless it has finished or its replica has failed."""
        known = replica.open.get(request_id)
        if known is None or self._up.get(replica.number) is not replica:
            return
        replica.abort(request_id, time)
        times = (known.arrived, known.started, known.first, time)
        self._on_finished(replica.number, FinishedRequest(known.arrival, *times, 0, known.waiting, answered=False, aborted=True))
        self._schedule_turn(replica, time)

    def _on_finished(self, number: int, done: FinishedRequest) -> None:
        load = self._loads.get(number)
        if load is not None:
            load.requests -= 1
            load.waiting_tokens -= done.waiting
            load.held_tokens -= done.arrival.prompt + done.arrival.output
        self._on_done(done)

    # ── replicas ────────────────────────────────────────────────────────────────────────────────────────────────

    def _schedule_turn(self, replica: Replica, time: float) -> None:
        due = max(time, replica.next_turn_time)
        if replica.has_work and self._next_turn.get(replica.number) != due:
            self._next_turn[replica.number] = due
            self._agenda.at(due, lambda at: self._take_turn(replica, at))

    def _take_turn(self, replica: Replica, at: float) -> None:
        """Runs a replica's turn; its answers are delivered when its step ends, and the next turn is scheduled then.

        A request that came since the turn was scheduled has moved it: nothing happens then.
        """
        if self._next_turn.get(replica.number) != at or self._up.get(replica.number) is not replica:
            return
        del self._next_turn[replica.number]
        done, begun = replica.turn(), replica.take_begun()
        if done or begun:
            self._agenda.at(replica.time, lambda at: self._deliver(replica, done, begun))
        self._schedule_turn(replica, replica.time)

    def _deliver(self, replica: Replica, done: list[FinishedRequest], begun: int) -> None:
        """begun: waiting prompt tokens whose answers begin with this step."""
        load = self._loads.get(replica.number)
        if load is not None:
            load.waiting_tokens -= begun
        for each in done:
            self._on_finished(replica.number, each)
        if replica.number in self._draining and not replica.open:
            self._retire(replica.number, replica.time)

    def _start(self, time: float) -> None:
        number = next(self._replica_ids)
        replica = Replica(number, self.config.replica, self.tally, self._on_turn)
        replica.clock.advance_to(time)
        self._up[number], self._loads[number], self._started_at[number] = replica, ReplicaLoad(number), time
        if self.config.failures is not None:
            self._agenda.at(time + self._rng.expovariate(1 / self.config.failures.between), lambda at: self._on_failure(number, at))
        waiting, self._unrouted = self._unrouted, []
        for arrival, arrived in waiting:
            self.send(arrival, arrived, time)

    def _retire(self, number: int, time: float) -> None:
        replica = self._up.pop(number)
        replica.catch_up(time)
        self._loads.pop(number)
        self._sent.forget(number)
        self._draining.discard(number)
        self.tally.busy_seconds += replica.device.busy_seconds
        self.tally.replica_seconds += max(time, replica.time) - self._started_at.pop(number)

    def _on_failure(self, number: int, time: float) -> None:
        if number in self._up and self.config.failures is not None:
            self._fail([number], time, self.config.failures.repair)

    def _on_outage(self, time: float) -> None:
        outage = self.config.outage
        assert outage is not None
        self._fail(list(self._up)[: round(outage.share * len(self._up))], time, outage.seconds)

    def _fail(self, numbers: Sequence[int], time: float, repair: float) -> None:
        """These replicas fail together. Their requests restart elsewhere; their arrival times stay."""
        lost = [(known.arrival, known.arrived) for number in numbers for known in self._up[number].open.values()]
        for number in numbers:
            self._retire(number, time)
            self._num_starting += 1
            self._agenda.at(time + repair, self._on_started)
        for arrival, arrived in lost:
            self.send(arrival, arrived, time)

    def _on_started(self, time: float) -> None:
        self._num_starting -= 1
        self._start(time)

    def _scale(self, time: float) -> None:
        scaling = self.config.scaling
        assert scaling is not None
        active = [number for number in self._up if number not in self._draining]
        num_replicas = len(active) + self._num_starting
        waiting = sum(len(replica.scheduler.lifecycle.waiting) for replica in self._up.values()) + len(self._unrouted)
        num_open = sum(load.requests for load in self._loads.values())
        if waiting > scaling.up * num_replicas and num_replicas < scaling.max_replicas:
            self._num_starting += 1
            self._agenda.at(time + scaling.cold_start, self._on_started)
        elif num_open < scaling.down * num_replicas and num_replicas > scaling.min_replicas and active:
            spare = min(active, key=lambda number: self._loads[number].requests)
            self._draining.add(spare)
            if not self._up[spare].open:
                self._retire(spare, time)
        self._agenda.at(time + scaling.period, self._scale)


@lru_cache(maxsize=4096)
def _make_params(output: int) -> SamplingParams:
    return SamplingParams(max_tokens=output)


def make_request(arrival: Arrival, number: int, limits: ModelLimits) -> Admitted:
    """The request with synthetic ids: ids of shared prefixes are a function of the prefix; then comes an id unique to the request, so that
    every block from there on is unique.

    Raises RequestError where it is longer than the server takes.
    """
    if arrival.blocks:
        shared = [token for block in arrival.blocks for token in (block % FIRST_UNIQUE_ID, *(0,) * (CONTENT_BLOCK - 1))][: arrival.prompt]
    else:
        shared = [each % FIRST_UNIQUE_ID for each in range(arrival.prefix * 8191, arrival.prefix * 8191 + arrival.shared)]
    own = arrival.prompt - len(shared)
    ids = (*shared, FIRST_UNIQUE_ID + number % FIRST_UNIQUE_ID, *(0,) * (own - 1)) if own else tuple(shared)
    return admit(ids, _make_params(arrival.output), limits, request_id=str(number), draw_seed=lambda: 0, priority=arrival.level)
