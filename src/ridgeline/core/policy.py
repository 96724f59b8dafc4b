"""Policies: the order in which sequences are served, and when waiting ones may join. Single functions, one row each in a table."""

from collections.abc import Callable
from dataclasses import dataclass

from ridgeline.core.sequence import Sequence

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
    """`rank` orders sequences, smaller first, and never changes; `joins` tells whether waiting ones may start in a step, from the number
    that runs before it; `max_running` bounds that number below the rows."""

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
