"""Speculative drafts from the sequence's own ids (prompt lookup), with a depth that adapts to their acceptance.

New ids are compared with the ids that were predicted, whether these were drafted or not. So a sequence that begins, or ceases, to repeat
itself is noticed without spending a step on it.
"""

from typing import Final

from ridgeline.core.drafts.depth import Offer, StepCost, choose_depths
from ridgeline.core.drafts.ngram import MAX_MATCH_LENGTH, NgramIndex
from ridgeline.core.plan import Plan, Result
from ridgeline.core.sequence import Sequence, State

PRIOR_ACCEPTANCE: Final = (0.0, 0.0, 0.35, 0.45, 0.6, 0.7, 0.8, 0.85, 0.92)
"""Acceptance of a first draft by the length of its match, before the sequence has a record of its own: from edits and stories."""
PRIOR_WEIGHT: Final = 6.0
"""Comparisons that the prior counts for."""
COMPARISON_DECAY: Final = 0.93
"""Factor of a comparison's weight per further comparison."""
MAX_BACKOFF_STEPS: Final = 64
"""Steps without waiting, at most, behind a wait that brought no draft."""
assert len(PRIOR_ACCEPTANCE) == MAX_MATCH_LENGTH + 1


class _Predictor(NgramIndex):
    """The index of one sequence with the record of its predictions, kept in `Sequence.draft_state`.

    right, compared  predictions that came true, of so many, with exponential decay
    acceptance       the estimated chance that a prediction is right if those before it are; 0 without a match
    """

    __slots__ = ("acceptance", "compared", "right")

    def __init__(self, ids: list[int]) -> None:
        super().__init__(ids)
        self.right = 0.0
        self.compared = 0.0
        self.acceptance = 0.0

    def compare(self) -> None:
        """Indexes the ids that came since the last call and compares them with the predicted ones, up to the first that differs."""
        self.update()
        right, compared, new = self.right, self.compared, self.new
        if new:
            weight = COMPARISON_DECAY**self.continued
            came_true = (1.0 - weight) / (1.0 - COMPARISON_DECAY)  # the weight of so many comparisons, the newest counting 1
            right, compared = weight * right + came_true, weight * compared + came_true
            if self.continued < new:
                right, compared = COMPARISON_DECAY * right, COMPARISON_DECAY * compared + 1.0
            self.right, self.compared = right, compared
        prior = PRIOR_ACCEPTANCE[self.match_length]
        self.acceptance = (right + PRIOR_WEIGHT * prior) / (compared + PRIOR_WEIGHT)


class PromptLookupDrafter:
    """Implements `core.drafts.drafter.Drafter`.

    max_depth   drafts per row and step at most
    step_costs  (tokens, samples, seconds) as measured at start-up
    barrier     without drafts steps run ahead of each other, so that a step that drafts makes the device wait for the host
    """

    def __init__(self, max_depth: int, step_costs: tuple[tuple[int, int, float], ...], barrier: bool) -> None:
        self._max_depth = max_depth
        self._cost = StepCost(step_costs)
        self._barrier = barrier
        self._has_waited = False
        self._backoff = 0
        """Steps without waiting behind the last wait in vain; doubles until a draft is made."""
        self._backoff_left = 0

    def should_wait(self, running: list[Sequence]) -> bool:
        """Returns True if drafts would be worth it behind the ids in flight, should these come as predicted."""
        if self._backoff_left:
            return False
        offers, max_depth = [], self._max_depth
        for sequence in running:
            predictor, count = sequence.draft_state, sequence.limit - sequence.target - 1
            if predictor is not None and predictor.match >= 0 and count > 0:
                in_flight = sequence.promised
                acceptance = predictor.acceptance
                offers.append((acceptance ** (1 + in_flight), acceptance, min(max_depth, count)))
        if not offers:
            return False
        rows = len(running)
        worth = any(choose_depths(self._cost, rows, offers, rows - len(offers), len(offers) * max_depth, self._barrier))
        self._has_waited = self._has_waited or worth
        return worth

    def propose(self, rows: list[tuple[Sequence, int]], tokens: int, max_drafts: int) -> list[tuple[int, ...]]:
        """Returns per row the continuation of its match, as deep as is worth the time of the step."""
        indices: list[int] = []
        offers: list[Offer] = []
        max_depth = self._max_depth
        for index, (sequence, count) in enumerate(rows):
            predictor = sequence.draft_state
            if predictor is not None and predictor.match >= 0:
                indices.append(index)
                acceptance = predictor.acceptance
                offers.append((acceptance, acceptance, count if count < max_depth else max_depth))
        found: list[tuple[int, ...]] = [()] * len(rows)
        drafts = False
        if offers:
            depths = choose_depths(self._cost, tokens, offers, len(rows) - len(offers), max_drafts, self._barrier)
            for index, depth in zip(indices, depths, strict=True):
                if depth:
                    found[index] = rows[index][0].draft_state.propose(depth)
                    drafts = True
        if drafts:
            self._backoff = 0
        elif self._has_waited:
            self._backoff = self._backoff_left = min(MAX_BACKOFF_STEPS, 2 * self._backoff + 1)
        self._has_waited = False
        return found

    def on_commit(self, sequences: list[Sequence], plan: Plan, result: Result) -> None:
        """Compares what each row sampled with what was predicted, and updates the cost of a step whose tokens all sampled."""
        if self._backoff_left:
            self._backoff_left -= 1
        running = State.RUNNING
        for sequence, ids in zip(sequences, result.sampled, strict=True):
            if ids and sequence.state is running:
                predictor = sequence.draft_state
                if predictor is None:
                    predictor = sequence.draft_state = _Predictor(sequence.known)
                predictor.compare()
        if result.timings.run > 0 and sum(plan.sample) == len(plan.tokens):
            self._cost.measure(len(plan.tokens), result.timings.run)
