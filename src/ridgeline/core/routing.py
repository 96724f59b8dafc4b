"""Routing policies: the choice of a replica for a request, from the requests that the router has sent and the answers it has seen.

Pure functions: loads and random numbers are passed in. The simulator and a router use the same ones.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import inf
from types import MappingProxyType
from typing import Final, NamedTuple


@dataclass(slots=True)
class ReplicaLoad:
    """The router's view of one replica: open requests, prompt tokens of those without a first token, tokens of KV cache they may hold.
    `weight`: what it can do beside others; `names`: of models and adapters that it answers to, as far as it has told; `unloaded`: those of
    them that it would have to load first."""

    number: int
    requests: int = 0
    waiting_tokens: int = 0
    held_tokens: int = 0
    weight: float = 1.0
    names: frozenset[str] = frozenset()
    unloaded: frozenset[str] = frozenset()


class RoutedRequest(NamedTuple):
    """The router's view of a request: its number, its prompt length, a key that requests with the same prefix share, and per replica the
    tokens of the prompt that its prefix cache has, as far as the router knows. `session`: a key that binds it to others, b"" for none;
    `model`: as it was asked for."""

    number: int
    prompt_tokens: int
    prefix: bytes
    cached: Mapping[int, int] = MappingProxyType({})
    session: bytes = b""
    model: str = ""


RoutingPolicy = Callable[[Sequence[ReplicaLoad], RoutedRequest, float], ReplicaLoad]
"""(loads of the replicas that are up, never empty; the request; a random number in [0, 1)) → the chosen replica."""

MAX_LOAD_FACTOR: Final = 1.25
"""A replica with more than this multiple of the mean open requests is skipped (Mirrokni et al. 2016, bounded loads)."""
SESSION_LOAD_FACTOR: Final = 2.0
SESSION_REQUESTS: Final = 8
"""A replica that has more open requests than this multiple of the mean, and so many beside, gives sessions away, and models that others
would have to load."""


def round_robin(loads: Sequence[ReplicaLoad], request: RoutedRequest, random: float) -> ReplicaLoad:
    """The replicas in turn."""
    return loads[request.number % len(loads)]


def random_replica(loads: Sequence[ReplicaLoad], request: RoutedRequest, random: float) -> ReplicaLoad:
    """Any replica, with equal probability."""
    return loads[int(random * len(loads))]


def least_requests(loads: Sequence[ReplicaLoad], request: RoutedRequest, random: float) -> ReplicaLoad:
    """The fewest open requests; of equals the first."""
    return min(loads, key=lambda load: load.requests / load.weight)


def least_tokens(loads: Sequence[ReplicaLoad], request: RoutedRequest, random: float) -> ReplicaLoad:
    """The fewest tokens still to be prefilled, then the fewest held: prompts differ more than requests do."""
    return min(loads, key=lambda load: (load.waiting_tokens / load.weight, load.held_tokens / load.weight))


def cache_aware(loads: Sequence[ReplicaLoad], request: RoutedRequest, random: float) -> ReplicaLoad:
    """The fewest tokens to prefill until this request's first token: those that wait, and of its prompt those that are not cached there.
    So a prefix keeps its replica until others would be faster without it. Of equals the fewest held."""
    chosen, least, held = loads[0], inf, inf
    for load in loads:
        price = (load.waiting_tokens + request.prompt_tokens - request.cached.get(load.number, 0)) / load.weight
        if price < least or (price == least and load.held_tokens / load.weight < held):
            chosen, least, held = load, price, load.held_tokens / load.weight
    return chosen


def two_choices(loads: Sequence[ReplicaLoad], request: RoutedRequest, random: float) -> ReplicaLoad:
    """The less loaded of two random replicas (Mitzenmacher 2001): nearly as good as the least loaded, without herding on stale loads."""
    first = int(random * len(loads))
    second = int(random * len(loads) ** 2) % len(loads)
    return min(loads[first], loads[second], key=lambda load: load.requests / load.weight)


def by_prefix(loads: Sequence[ReplicaLoad], request: RoutedRequest, random: float) -> ReplicaLoad:
    """The first replica in the prefix's rendezvous order (Thaler and Ravishankar 1998) that is not overloaded."""
    return _rendezvous(loads, request.prefix, max(1.0, MAX_LOAD_FACTOR * (sum(load.requests for load in loads) + 1) / len(loads)))


def _rendezvous(loads: Sequence[ReplicaLoad], key: bytes, limit: float) -> ReplicaLoad:
    """The first replica in the key's order with fewer open requests than `limit`; one that goes moves no other's keys."""
    ranked = sorted(loads, key=lambda load: blake2b(key + load.number.to_bytes(4, "little"), digest_size=8).digest())
    return next((load for load in ranked if load.requests < limit), ranked[0])


def with_affinity(policy: RoutingPolicy) -> RoutingPolicy:
    """`policy` among the replicas that have the request's model or adapter, if some have told so, and of these the ones that have loaded
    it, while one of them is not overloaded. A request of a session goes where that one's others go, while its replica is not: it has to
    bear more than a prefix would ask of it, as what it keeps is worth more."""

    def choose(loads: Sequence[ReplicaLoad], request: RoutedRequest, random: float) -> ReplicaLoad:
        names = (request.model, request.model.rpartition(":")[2])
        if told := [load for load in loads if load.names and not load.names.isdisjoint(names)]:
            loads = told
        loads = _loaded(loads, names)
        if not request.session:
            return policy(loads, request, random)
        mean = sum(load.requests for load in loads) / len(loads)
        return _rendezvous(loads, request.session, SESSION_LOAD_FACTOR * mean + SESSION_REQUESTS)

    return choose


def _loaded(loads: Sequence[ReplicaLoad], names: Collection[str]) -> Sequence[ReplicaLoad]:
    """Those that need not load it, if there is one that has not too much to do; else all."""
    ready = [load for load in loads if not load.unloaded or load.unloaded.isdisjoint(names)]
    if len(ready) == len(loads):
        return loads
    limit = SESSION_LOAD_FACTOR * sum(load.requests for load in loads) / len(loads) + SESSION_REQUESTS
    return [load for load in ready if load.requests < limit] or loads


ROUTING: Final[dict[str, RoutingPolicy]] = {
    "round-robin": round_robin,
    "random": random_replica,
    "least-requests": least_requests,
    "least-tokens": least_tokens,
    "two-choices": two_choices,
    "prefix": by_prefix,
    "cache-aware": cache_aware,
}
"""Routing policies by the name that users write."""


class PrefixMap:
    """Prefixes that replicas were sent, so that their prefix caches may have them. Prefixes are chains of digests, one per part of a
    prompt, each of all parts so far. Bounded; the least recently sent are forgotten first, as caches do."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._holders: OrderedDict[bytes, set[int]] = OrderedDict()

    def match(self, chain: Sequence[bytes]) -> dict[int, int]:
        """Replica → number of leading parts that it was sent, at least one."""
        found: dict[int, int] = {}
        for depth, digest in enumerate(chain):
            reached = [number for number in self._holders.get(digest, ()) if found.get(number, 0) == depth]
            if not reached:
                break
            found.update(dict.fromkeys(reached, depth + 1))
        return found

    def learn(self, chain: Sequence[bytes], number: int) -> None:
        """Notes that the replica was sent these parts. The first part becomes the most recent one, as the last part of a prefix is of no
        use without those before it."""
        for digest in reversed(chain):
            self._holders.setdefault(digest, set()).add(number)
            self._holders.move_to_end(digest)
        while len(self._holders) > self._most:
            self._holders.popitem(last=False)

    def forget(self, number: int) -> None:
        """Notes that the replica has lost its cache."""
        for holders in self._holders.values():
            holders.discard(number)
