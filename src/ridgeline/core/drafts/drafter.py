"""The protocol between the scheduler and a drafter: what is proposed for a row, and when drafts are worth a barrier."""

from collections.abc import Sequence as Items
from typing import NamedTuple, Protocol

from ridgeline.core.drafts.depth import Offer, StepCost
from ridgeline.core.plan import DraftSpan, Plan, Result
from ridgeline.core.sequence import Sequence

Ids = tuple[int, ...]


class Outlook(NamedTuple):
    """A drafter's intention with rows: fields of `core.events.Drafting`."""

    rows: int
    offers: int
    chance: float
    depth: float
    token_cost: float


def outlook_of(cost: StepCost, rows: int, offers: Items[Offer], depths: Items[int], draft_seconds: float = 0.0) -> Outlook:
    """The outlook on so many `rows`, given the `depths` chosen for `offers`. draft_seconds: that a draft takes to be made."""
    plain, count = cost.seconds(rows), max(1, len(offers))
    more = (cost.seconds(rows + 1) + draft_seconds) / plain - 1.0
    return Outlook(rows, len(offers), sum([offer[0] for offer in offers]) / count, sum(depths) / count, max(0.0, more))


class Drafter(Protocol):
    """Proposes the next ids of sequences (vLLM: proposer). Deterministic: its answers follow from its calls and their order alone."""

    def should_wait(self, running: list[Sequence]) -> bool:
        """Returns True if no step shall be planned behind those in flight: drafts that need their ids are worth more than running ahead."""
        ...

    def runs_ahead(self, sequences: list[Sequence]) -> bool:
        """Returns True if drafts of a step with rows of these sequences need no ids that are in flight, nor a barrier behind them: who
        computes the next step finds out by itself what was accepted."""
        ...

    def propose(self, rows: list[tuple[Sequence, int]], tokens: int, max_drafts: int) -> list[Ids]:
        """Returns the drafts of each row; all of them DRAFT where the draft model makes them.

        rows        (sequence, most drafts) of rows whose ids are all known, but where it runs ahead
        tokens      of the step without drafts
        max_drafts  of all rows together; the first rows are served first
        """
        ...

    def outlook(self, running: list[Sequence]) -> Outlook | None:
        """Returns what it would do with the rows that run, were their ids all known; None where it does not weigh that."""
        ...

    def spans(self, rows: list[tuple[Sequence, int]], tokens: int) -> tuple[DraftSpan, ...]:
        """Returns what the draft model computes in the step that `propose` was asked about; empty without such a model.

        rows    of the step that `propose` was given, with as many drafts as they got
        tokens  that the step has left
        """
        ...

    def on_commit(self, sequences: list[Sequence], plan: Plan, result: Result) -> None:
        """Called when the oldest step in flight has been committed and its sequences know its ids."""
        ...
