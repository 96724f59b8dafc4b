"""Routing policies: the choice of a replica for a request, from the requests that the router has sent and the answers it has seen.

Pure functions: loads and random numbers are passed in. The simulator and a router use the same ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final


@dataclass(slots=True)
class ReplicaLoad:
    """The router's view of one replica: open requests, prompt tokens of those without a first token, tokens of KV cache they may hold."""

    number: int
    requests: int = 0
    waiting_tokens: int = 0
    held_tokens: int = 0


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    """The router's view of a request: its number, its prompt length, and a key that requests with the same prefix share."""

    number: int
    prompt_tokens: int
    prefix: bytes


RoutingPolicy = Callable[[Sequence[ReplicaLoad], RoutedRequest, float], ReplicaLoad]
"""(loads of the replicas that are up, never empty; the request; a random number in [0, 1)) → the chosen replica."""

MAX_LOAD_FACTOR: Final = 1.25
"""A replica with more than this multiple of the mean open requests is skipped (Mirrokni et al. 2016, bounded loads)."""


def round_robin(loads: Sequence[ReplicaLoad], request: RoutedRequest, random: float) -> ReplicaLoad:
    """The replicas in turn."""
    return loads[request.number % len(loads)]


def random_replica(loads: Sequence[ReplicaLoad], request: RoutedRequest, random: float) -> ReplicaLoad:
    """Any replica, with equal probability."""
    return loads[int(random * len(loads))]


def least_requests(loads: Sequence[ReplicaLoad], request: RoutedRequest, random: float) -> ReplicaLoad:
    """The fewest open requests; of equals the first."""
    return min(loads, key=lambda load: load.requests)


def least_tokens(loads: Sequence[ReplicaLoad], request: RoutedRequest, random: float) -> ReplicaLoad:
    """The fewest tokens still to be prefilled, then the fewest held: prompts differ more than requests do."""
    return min(loads, key=lambda load: (load.waiting_tokens, load.held_tokens))


def two_choices(loads: Sequence[ReplicaLoad], request: RoutedRequest, random: float) -> ReplicaLoad:
    """The less loaded of two random replicas (Mitzenmacher 2001): nearly as good as the least loaded, without herding on stale loads."""
    first = int(random * len(loads))
    second = int(random * len(loads) ** 2) % len(loads)
    return min(loads[first], loads[second], key=lambda load: load.requests)


def by_prefix(loads: Sequence[ReplicaLoad], request: RoutedRequest, random: float) -> ReplicaLoad:
    """The first replica in the prefix's rendezvous order (Thaler and Ravishankar 1998) that is not overloaded."""
    limit = max(1.0, MAX_LOAD_FACTOR * (sum(load.requests for load in loads) + 1) / len(loads))
    ranked = sorted(loads, key=lambda load: blake2b(request.prefix + load.number.to_bytes(4, "little"), digest_size=8).digest())
    return next((load for load in ranked if load.requests < limit), ranked[0])


ROUTING: Final[dict[str, RoutingPolicy]] = {
    "round-robin": round_robin,
    "random": random_replica,
    "least-requests": least_requests,
    "least-tokens": least_tokens,
    "two-choices": two_choices,
    "prefix": by_prefix,
}
"""Routing policies by the name that users write."""
