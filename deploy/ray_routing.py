"""The choice of an engine in Ray Serve, and how many engines there are: what `ray_serve` gives Serve beside its applications."""

from collections.abc import Sequence
from itertools import count
from typing import Any

from ray.serve.config import AutoscalingContext
from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from ridgeline.core.routing import ROUTING, ReplicaLoad
from ridgeline.router.chooser import Chooser, LoadShare
from ridgeline.router.prompts import Prompt

REQUESTS_PER_REPLICA = 16
LATE_SHARE = 0.1
"""Share of generated tokens outside the objective (`RIDGELINE_GOODPUT`) from which on a replica more is wanted."""


class Going:
    """A request on its way to an engine, as the ingress and its router know it: two threads of one process.

    load   of the replica that has it, or is to have it; share  its part of that; tried  numbers of the replicas that have had it
    """

    def __init__(self, tried: set[int]) -> None:
        self.load: ReplicaLoad | None = None
        self.share, self.tried = LoadShare(), tried
        self._is_over = False

    def give(self, load: ReplicaLoad, tokens: int, cached: int) -> None:
        """Counts it where it is given to, as a router does with its choice: the next one is made before a replica has said that it takes
        it."""
        self.share.end()
        self.load = load
        self.share.begin(load, tokens, cached)
        if self._is_over:  # meanwhile
            self.share.end()

    def end(self) -> None:
        """Counts it nowhere any more."""
        self._is_over = True
        self.share.end()


GOING: dict[int, Going] = {}
"""Requests of this process by their tickets: what crosses the handle is a number."""


class PolicyRouter(RequestRouter):
    """Serve's request router around the choice of `ridgeline route`. `policy` is a name of `core.routing`.

    The first two arguments of a request are its prompt and its ticket. The ingress ends it: Serve tells of no end where a replica dies.
    """

    def initialize_state(self, policy: str = "cache-aware") -> None:
        self._chooser = Chooser(ROUTING[policy])
        self._loads: dict[ReplicaID, ReplicaLoad] = {}
        self._numbers = count()

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> Sequence[list[RunningReplica]]:
        """The replica of the policy, then the others: Serve asks the next one where one is full."""
        if not candidate_replicas:
            return []
        for each in candidate_replicas:
            if each.replica_id not in self._loads:
                self._loads[each.replica_id] = ReplicaLoad(next(self._numbers))
            load = self._loads[each.replica_id]
            load.names, load.unloaded = (frozenset(each.routing_stats.get(told, ())) for told in ("names", "unloaded"))
        if pending_request is None:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True
        loads = sorted((self._loads[each.replica_id] for each in candidate_replicas), key=lambda load: load.number)
        chosen = self._choose(loads, pending_request)
        return [[each] for each in sorted(candidate_replicas, key=lambda each: self._loads[each.replica_id] is not chosen)]

    def _choose(self, loads: list[ReplicaLoad], pending_request: PendingRequest) -> ReplicaLoad:
        prompt, going = Prompt(*pending_request.args[0]), _going(pending_request)
        going.share.end()  # of a choice that Serve did not follow
        number, cached = self._chooser.choose([load for load in loads if load.number not in going.tried] or loads, prompt)
        chosen = next(load for load in loads if load.number == number)
        going.give(chosen, prompt.tokens, cached)
        return chosen

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Notes which replica has taken a request: not the chosen one, where that was full."""
        going, load = _going(pending_request), self._loads.get(replica_id)
        if load is None:  # it has died since
            return
        going.tried.add(load.number)
        if going.load is not load:
            going.give(load, pending_request.args[0][0], 0)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Forgets a replica and its cache."""
        super().on_replica_actor_died(replica_id)
        if (load := self._loads.pop(replica_id, None)) is not None:
            self._chooser.forget(load.number)


def _going(pending_request: PendingRequest) -> Going:
    """The request of a ticket; one that has ended meanwhile counts nowhere."""
    if (found := GOING.get(pending_request.args[1])) is None:
        found = Going(set())
        found.end()
    return found


def scale(context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
    """(replicas that are wanted, nothing to remember): as many as requests, running or queued, need; one more than there are where much
    comes too late, while there is somebody to take a part of it."""
    told = context.aggregated_metrics or {}
    good, all_tokens, waiting = (sum(told.get(name, {}).values()) for name in ("good", "tokens", "waiting"))
    wanted = max(context.total_num_requests, waiting) / REQUESTS_PER_REPLICA
    is_late = all_tokens > 0 and good < (1 - LATE_SHARE) * all_tokens
    if is_late and context.total_num_requests > context.current_num_replicas:
        wanted = max(wanted, context.current_num_replicas + 1)
    return wanted, {}
