"""Scheduling policies: the order of sequences, and the steps in which waiting ones may start. One entry each in `POLICIES`."""

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
    """Continuous batching: waiting sequences start in any step."""
    return True


def when_empty(running: int) -> bool:
    """Static batching: waiting sequences start when the last batch has ended."""
    return running == 0


@dataclass(frozen=True, slots=True)
class Policy:
    """One scheduling policy.

    rank         orders sequences, smaller first; constant per sequence
    joins        (number of running sequences) → True if waiting ones may start in the step
    max_running  limit of running sequences, if it is below the rows
    """

    name: str
    rank: Callable[[Sequence], Rank]
    joins: Callable[[int], bool] = always
    max_running: int | None = None

    def same_class(self, one: Sequence, other: Sequence) -> bool:
        """True if neither sequence may preempt the other in order to start."""
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
