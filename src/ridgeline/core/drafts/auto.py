"""Repetition and a draft model beside each other: a row's drafts come from whoever brings it more ids per second."""

from ridgeline.core.drafts.depth import StepCost
from ridgeline.core.drafts.drafter import Outlook
from ridgeline.core.drafts.model import ModelDrafter
from ridgeline.core.drafts.prompt_lookup import PromptLookupDrafter
from ridgeline.core.plan import DraftSpan, Plan, Result
from ridgeline.core.sequence import Sequence


class AutoDrafter:
    """Implements `core.drafts.drafter.Drafter`.

    Repetition costs the device nothing and is asked first. The model drafts for the rows that it leaves, and for those where its passes are
    worth more than what repetition promises.
    """

    def __init__(self, repetition: PromptLookupDrafter, model: ModelDrafter, price: tuple[tuple[int, int, float], ...]) -> None:
        self._repetition, self._model = repetition, model
        self._cost = StepCost(price)

    def should_wait(self, running: list[Sequence]) -> bool:
        """Returns True if either's drafts would be worth it behind the ids in flight."""
        return self._repetition.should_wait(running) or self._model.should_wait(running)

    def runs_ahead(self, sequences: list[Sequence]) -> bool:
        """False: repetition needs ids."""
        return False

    def propose(self, rows: list[tuple[Sequence, int]], tokens: int, max_drafts: int) -> list[tuple[int, ...]]:
        """Returns the drafts of each row: ids, or DRAFT for those of the model."""
        found = self._repetition.propose(rows, tokens, max_drafts)
        better = [index for index, (sequence, _) in enumerate(rows) if self._is_better(sequence, len(found[index]))]
        left = max_drafts - sum([len(ids) for index, ids in enumerate(found) if index not in better])
        drafted = self._model.propose([rows[index] for index in better], tokens + max_drafts - left, left)
        for index, ids in zip(better, drafted, strict=True):
            found[index] = ids or found[index]
        return found

    def spans(self, rows: list[tuple[Sequence, int]], tokens: int) -> tuple[DraftSpan, ...]:
        """Spans that the draft model computes."""
        return self._model.spans(rows, tokens)

    def outlook(self, running: list[Sequence]) -> Outlook:
        """The outlook of whoever would draft more."""
        each = self._repetition.outlook(running), self._model.outlook(running)
        return max(each, key=lambda found: found.depth * found.offers)

    def on_commit(self, sequences: list[Sequence], plan: Plan, result: Result) -> None:
        """Tells both what came."""
        self._repetition.on_commit(sequences, plan, result)
        self._model.on_commit(sequences, plan, result)

    def _is_better(self, sequence: Sequence, depth: int) -> bool:
        """True if the model promises more ids per second than `depth` drafts of repetition."""
        if not depth:
            return True
        chance, step = sequence.draft_state.acceptance, self._cost.seconds(1 + depth)
        own = self._model.chance(sequence)
        return _expected(own, depth) / (step + depth * self._model.pass_seconds(1)) > _expected(chance, depth) / step


def _expected(chance: float, depth: int) -> float:
    """Ids of a step whose drafts are right with `chance` each, if those before them are."""
    return 1.0 + sum([chance**number for number in range(1, depth + 1)])
