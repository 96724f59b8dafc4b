"""Predictions for a row that follows a grammar: the ids of the text that the grammar forces, where it does, else what another predictor
says. The executor tells them with each result (`Result.forced`); how the model splits forced text into ids is all that is uncertain."""

from typing import Final

from ridgeline.core.drafts.acceptance import Acceptance
from ridgeline.core.drafts.ngram import NgramPredictor
from ridgeline.core.drafts.repetition import RepetitionPredictor

PRIOR_ACCEPTANCE: Final = 0.9
"""Acceptance of an id of forced text, before the sequence has a record of its own."""


class ForcedPredictor:
    """A predictor as `core.drafts.ngram.NgramPredictor` is one. `ids` only grow."""

    __slots__ = ("_expected", "_ids", "_other", "_record", "_seen", "acceptance", "due", "match", "reach")

    def __init__(self, ids: list[int], other: NgramPredictor | RepetitionPredictor) -> None:
        self._ids, self._other = ids, other
        self._seen = len(ids)
        self._expected: tuple[int, ...] = ()
        self._record = Acceptance()
        self.due = 0
        self.match, self.acceptance, self.reach = -1, 0.0, other.reach

    def update(self) -> None:
        """Follows the new ids; nothing is forced until `force`."""
        right = 0
        for token, expected in zip(self._ids[self._seen :], self._expected, strict=False):
            if token != expected:
                break
            right += 1
        if self._expected:
            self._record.record(min(len(self._expected), len(self._ids) - self._seen), right)
        self._seen, self._expected, other = len(self._ids), (), self._other
        if self._seen >= other.due:
            other.update()
        self.match, self.acceptance, self.reach = other.match, other.acceptance, other.reach

    def force(self, ids: tuple[int, ...]) -> None:
        """Sets the text that is forced behind the newest id: predicted unless the other one is more certain of what it predicts."""
        self._expected = ids
        chance = self._record.estimate(PRIOR_ACCEPTANCE)
        if self.match < 0 or chance >= self.acceptance:
            self.match, self.acceptance, self.reach = 0, chance, len(ids)

    def propose(self, count: int) -> tuple[int, ...]:
        """Predicted ids, `count` at most."""
        return self._expected[:count] if self.reach == len(self._expected) else self._other.propose(count)
