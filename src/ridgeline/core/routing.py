"""Which replica a request goes to: pure policies over what a router knows, which is what it has sent and what has come back.

Time, chance and the replicas' loads are passed in. The simulator and a router use the same functions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final


@dataclass(slots=True)
class ReplicaLoad:
    """The router's view of one replica: open requests, their prompt tokens not answered yet, tokens of KV they may hold."""

    number: int
    requests: int = 0
    waiting_tokens: int = 0
    held_tokens: int = 0


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    """The router's view of a request: its place in the stream, its prompt's length, and a key that requests with one prefix share."""

    number: int
    prompt_tokens: int
    prefix: bytes


RoutingPolicy = Callable[[Sequence[ReplicaLoad], RoutedRequest, float], ReplicaLoad]
"""(replicas that are up, never empty; the request; a random number in [0, 1)) → where it goes."""

MAX_LOAD_FACTOR: Final = 1.25
"""A prefix' home is passed over while it has this times the mean number of open requests (Mirrokni et al. 2016, bounded loads)."""


def round_robin(loads: Sequence[ReplicaLoad], asked: RoutedRequest, chance: float) -> ReplicaLoad:
    """One after the other."""
    return loads[asked.number % len(loads)]


def random_replica(loads: Sequence[ReplicaLoad], asked: RoutedRequest, chance: float) -> ReplicaLoad:
    """Any, with equal probability."""
    return loads[int(chance * len(loads))]


def least_requests(loads: Sequence[ReplicaLoad], asked: RoutedRequest, chance: float) -> ReplicaLoad:
    """The fewest open requests; of equals the first."""
    return min(loads, key=lambda load: load.requests)


def least_tokens(loads: Sequence[ReplicaLoad], asked: RoutedRequest, chance: float) -> ReplicaLoad:
    """The fewest tokens still to be prefilled, then the fewest held: prompts differ more than requests do."""
    return min(loads, key=lambda load: (load.waiting_tokens, load.held_tokens))


def two_choices(loads: Sequence[ReplicaLoad], asked: RoutedRequest, chance: float) -> ReplicaLoad:
    """The less loaded of two random ones (Mitzenmacher 2001): nearly as good as looking at all, and no herd on stale numbers."""
    first = int(chance * len(loads))
    second = int(chance * len(loads) ** 2) % len(loads)
    return min(loads[first], loads[second], key=lambda load: load.requests)


def by_prefix(loads: Sequence[ReplicaLoad], asked: RoutedRequest, chance: float) -> ReplicaLoad:
    """The prefix' home by rendezvous hashing (Thaler and Ravishankar 1998), or the next one while that is crowded."""
    crowded = max(1.0, MAX_LOAD_FACTOR * (sum(load.requests for load in loads) + 1) / len(loads))
    ranked = sorted(loads, key=lambda load: blake2b(asked.prefix + load.number.to_bytes(4, "little"), digest_size=8).digest())
    return next((load for load in ranked if load.requests < crowded), ranked[0])


ROUTING: Final[dict[str, RoutingPolicy]] = {
    "round-robin": round_robin,
    "random": random_replica,
    "least-requests": least_requests,
    "least-tokens": least_tokens,
    "two-choices": two_choices,
    "prefix": by_prefix,
}
"""Policies by the name that a user writes."""
