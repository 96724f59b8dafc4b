"""Predictions from ids alone, of which the likelier counts: what the sequence itself repeats, and what its tenant's outputs repeat."""

from ridgeline.core.drafts.ngram import ENDLESS, NgramPredictor
from ridgeline.core.drafts.suffix import RecentOutputs, SuffixPredictor
from ridgeline.core.sequence import Sequence


class RepetitionPredictor:
    """A predictor as `core.drafts.ngram.NgramPredictor` is one, of two."""

    reach = ENDLESS
    __slots__ = ("_chosen", "_ngram", "_suffix", "acceptance", "due", "match")

    def __init__(self, sequence: Sequence, outputs: RecentOutputs) -> None:
        self._ngram = NgramPredictor(sequence.known)
        self._suffix = SuffixPredictor(sequence.known, sequence.prompt_tokens, outputs)
        self._chosen: NgramPredictor | SuffixPredictor = self._ngram
        self.due = 0
        self.match = -1
        self.acceptance = 0.0

    def update(self) -> None:
        """Follows the new ids, and chooses who predicts."""
        ngram, suffix = self._ngram, self._suffix
        ngram.update()
        suffix.update()
        own = ngram.acceptance if ngram.match >= 0 else 0.0
        self._chosen = suffix if suffix.acceptance > own else ngram
        self.acceptance = max(own, suffix.acceptance)
        self.match = 0 if self.acceptance > 0 else -1

    def propose(self, count: int) -> tuple[int, ...]:
        """Predicted ids, `count` at most."""
        return self._chosen.propose(count)
