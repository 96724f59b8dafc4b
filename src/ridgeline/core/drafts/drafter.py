"""The protocol between the scheduler and whoever guesses what a row will sample: ids to verify, and whether they are worth a barrier."""

from typing import Protocol

from ridgeline.core.plan import Plan, Result
from ridgeline.core.sequence import Sequence

Ids = tuple[int, ...]


class Drafter(Protocol):
    """Guesses the next ids of sequences. Pure: what it says follows from what it was told, in the order in which it was told."""

    def should_wait(self, running: list[Sequence]) -> bool:
        """No step shall be planned behind those in flight: their ids are needed for drafts that are worth more than running ahead."""
        ...

    def propose(self, rows: list[tuple[Sequence, int]], tokens: int, most: int) -> list[Ids]:
        """For each row, of which all ids are known, the ids that may follow, at most as many as stand beside it. `tokens`: of the step
        without drafts; `most` drafts can be had by all rows together, the first come first."""
        ...

    def on_commit(self, sequences: list[Sequence], plan: Plan, result: Result) -> None:
        """The oldest step in flight is committed, and what it brought is known to its sequences."""
        ...
