"""Policies: the order in which sequences are served, and when waiting ones may join. Single functions, one row each in a table."""

from collections.abc import Callable
from dataclasses import dataclass

from ridgeline.core.sequence import Sequence
from ridgeline.errors import ConfigError

Rank = tuple[int, ...]


def fcfs(sequence: Sequence) -> Rank:
    """First come, first served."""
    return (sequence.number,)


def priority(sequence: Sequence) -> Rank:
    """Smaller `priority` first, then first come, first served."""
    return (sequence.request.priority, sequence.number)


def always(running: int) -> bool:
    """Waiting sequences join at every step: continuous batching."""
    return True


def when_empty(running: int) -> bool:
    """Waiting sequences join when the last batch has ended: static batching."""
    return running == 0


@dataclass(frozen=True, slots=True)
class Policy:
    """`rank` orders sequences, smaller first; `joins` tells from the number running at the start of a step whether others may start in it."""

    name: str
    rank: Callable[[Sequence], Rank]
    joins: Callable[[int], bool] = always
    max_running: int | None = None

    def same_class(self, one: Sequence, other: Sequence) -> bool:
        """Neither may push the other out."""
        return self.rank(one)[:-1] == self.rank(other)[:-1]


POLICIES = {
    policy.name: policy
    for policy in (
        Policy("fcfs", fcfs),
        Policy("priority", priority),
        Policy("static", fcfs, joins=when_empty),
        Policy("one", fcfs, joins=when_empty, max_running=1),
    )
}


def policy_named(name: str) -> Policy:
    """The policy of that name. Raises ConfigError that lists the known ones."""
    if name not in POLICIES:
        raise ConfigError(f"there is no scheduling policy {name!r}; choose one of: {', '.join(POLICIES)}")
    return POLICIES[name]
