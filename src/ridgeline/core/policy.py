"""Scheduling policies: the order of sequences, and the steps in which waiting ones may start. One entry each in `POLICIES`."""

from collections.abc import Callable
from dataclasses import dataclass

from ridgeline.core.sequence import Sequence

Rank = tuple[int, ...]


def fcfs(sequence: Sequence) -> Rank:
    """First come, first served, tenants by their fair shares."""
    return (sequence.tag, sequence.number)


def priority(sequence: Sequence) -> Rank:
    """Smaller `priority` first, then as `fcfs`."""
    return (sequence.request.priority, sequence.tag, sequence.number)


def slo(sequence: Sequence) -> Rank:
    """Least slack first (`core.slack`), then as `fcfs`."""
    return (sequence.latest_start, sequence.tag, sequence.number)


def always(running: int) -> bool:
    """Continuous batching: waiting sequences start in any step."""
    return True


def when_empty(running: int) -> bool:
    """Static batching: waiting sequences start when the last batch has ended."""
    return running == 0


@dataclass(frozen=True, slots=True)
class Policy:
    """One scheduling policy.

    rank         orders sequences, smaller first; constant per sequence, but where `has_targets`
    classes      numbers at the beginning of a rank that make its class
    joins        (number of running sequences) → True if waiting ones may start in the step
    max_running  limit of running sequences, if it is below the rows
    has_targets  it needs latest starts, and ranks later what has missed its own
    """

    name: str
    rank: Callable[[Sequence], Rank]
    classes: int = 0
    joins: Callable[[int], bool] = always
    max_running: int | None = None
    has_targets: bool = False

    def same_class(self, one: Sequence, other: Sequence) -> bool:
        """True if neither sequence may preempt the other in order to start."""
        return one.rank[: self.classes] == other.rank[: self.classes]


POLICIES = {
    policy.name: policy
    for policy in (
        Policy("fcfs", fcfs),
        Policy("priority", priority, classes=1),
        Policy("slo", slo, has_targets=True),
        Policy("static", fcfs, joins=when_empty),
        Policy("one", fcfs, joins=when_empty, max_running=1),
    )
}
