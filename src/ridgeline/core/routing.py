"""Which replica a request goes to: pure policies over what a router knows, which is what it has sent and what has come back.

Time, chance and the replicas' loads are passed in. The simulator and a router use the same functions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final


@dataclass(slots=True)
class Load:
    """The router's view of one replica: open requests, their prompt tokens not answered yet, tokens of KV they may hold."""

    number: int
    requests: int = 0
    waiting_tokens: int = 0
    held_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Asked:
    """The router's view of a request: its place in the stream, its prompt's length, and a key that requests with one prefix share."""

    number: int
    prompt_tokens: int
    prefix: bytes


Choose = Callable[[Sequence[Load], Asked, float], Load]
"""(replicas that are up, never empty; the request; a random number in [0, 1)) → where it goes."""

CROWDED: Final = 1.25
"""A prefix' home is passed over while it has this times the mean number of open requests (Mirrokni et al. 2016, bounded loads)."""


def round_robin(loads: Sequence[Load], asked: Asked, chance: float) -> Load:
    """One after the other."""
    return loads[asked.number % len(loads)]


def at_random(loads: Sequence[Load], asked: Asked, chance: float) -> Load:
    """Any, with equal probability."""
    return loads[int(chance * len(loads))]


def least_requests(loads: Sequence[Load], asked: Asked, chance: float) -> Load:
    """The fewest open requests; of equals the first."""
    return min(loads, key=lambda load: load.requests)


def least_tokens(loads: Sequence[Load], asked: Asked, chance: float) -> Load:
    """The fewest tokens still to be prefilled, then the fewest held: prompts differ more than requests do."""
    return min(loads, key=lambda load: (load.waiting_tokens, load.held_tokens))


def two_choices(loads: Sequence[Load], asked: Asked, chance: float) -> Load:
    """The less loaded of two random ones (Mitzenmacher 2001): nearly as good as looking at all, and no herd on stale numbers."""
    first = int(chance * len(loads))
    second = int(chance * len(loads) ** 2) % len(loads)
    return min(loads[first], loads[second], key=lambda load: load.requests)


def by_prefix(loads: Sequence[Load], asked: Asked, chance: float) -> Load:
    """The prefix' home by rendezvous hashing (Thaler and Ravishankar 1998), or the next one while that is crowded."""
    crowded = max(1.0, CROWDED * (sum(load.requests for load in loads) + 1) / len(loads))
    ranked = sorted(loads, key=lambda load: blake2b(asked.prefix + load.number.to_bytes(4, "little"), digest_size=8).digest())
    return next((load for load in ranked if load.requests < crowded), ranked[0])


ROUTING: Final[dict[str, Choose]] = {
    "round-robin": round_robin,
    "random": at_random,
    "least-requests": least_requests,
    "least-tokens": least_tokens,
    "two-choices": two_choices,
    "prefix": by_prefix,
}
"""Policies by the name that a user writes."""
