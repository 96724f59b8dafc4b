"""Speculative drafts from the sequence's own ids (prompt lookup), with a depth that adapts to their acceptance; and from what a grammar
forces, where the sequence follows one.

New ids are compared with the ids that were predicted, whether these were drafted or not. So a sequence that begins, or ceases, to repeat
itself is noticed without spending a step on it.
"""

from typing import Final

from ridgeline.core.drafts.depth import Offer, StepCost, choose_depth, choose_depths
from ridgeline.core.drafts.drafter import Outlook, outlook_of
from ridgeline.core.drafts.forced import ForcedPredictor
from ridgeline.core.drafts.ngram import NgramPredictor
from ridgeline.core.drafts.repetition import RepetitionPredictor
from ridgeline.core.drafts.suffix import OutputStore
from ridgeline.core.plan import DraftSpan, Plan, Result
from ridgeline.core.sequence import Sequence, State

RUNNING: Final = State.RUNNING
"""Looked up once: Python finds members of enumerations by a call."""
MAX_BACKOFF_STEPS: Final = 64
"""Steps without waiting, at most, behind a wait that brought no draft."""


class PromptLookupDrafter:
    """Implements `core.drafts.drafter.Drafter`. A step's weights drive all of it out of the caches, so that each object and each line of
    code that a step meets is fetched from memory: what one row needs in every step is short.

    max_depth   drafts per row and step at most
    step_costs  (tokens, samples, seconds) as measured at start-up
    barrier     without drafts steps run ahead of each other, so that a step that drafts makes the device wait for the host
    outputs     recent ones, which predict beside the sequence's own ids; None: these alone do
    """

    __slots__ = ("_backoff", "_backoff_left", "_barrier", "_cost", "_has_waited", "_max_depth", "_outputs")

    def __init__(
        self, max_depth: int, step_costs: tuple[tuple[int, int, float], ...], barrier: bool, outputs: OutputStore | None = None
    ) -> None:
        self._max_depth = max_depth
        self._outputs = outputs
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
                acceptance = predictor.acceptance if in_flight < predictor.reach else 0.0
                offers.append((acceptance ** (1 + in_flight), acceptance, min(max_depth, count)))
        if not offers:
            return False
        rows = len(running)
        worth = any(choose_depths(self._cost, rows, offers, rows - len(offers), len(offers) * max_depth, self._barrier))
        self._has_waited = self._has_waited or worth
        return worth

    def runs_ahead(self, sequences: list[Sequence]) -> bool:
        """False: it continues ids that it knows."""
        return False

    def propose(self, rows: list[tuple[Sequence, int]], tokens: int, max_drafts: int) -> list[tuple[int, ...]]:
        """Returns per row the continuation of its match, as deep as is worth the time of the step."""
        found: list[tuple[int, ...]]
        if len(rows) == 1:
            sequence, count = rows[0]
            found, drafts, predictor = [()], 0, sequence.draft_state
            if predictor is not None and predictor.match >= 0:
                if count > self._max_depth:
                    count = self._max_depth
                if count > max_drafts:
                    count = max_drafts
                acceptance = predictor.acceptance
                drafts = choose_depth(self._cost, tokens, acceptance, acceptance, count, self._barrier)
                if drafts:
                    found = [predictor.propose(drafts)]
        else:
            found, drafts = self._propose_together(rows, tokens, max_drafts)
        if drafts:
            self._backoff = 0
        elif self._has_waited:
            self._backoff = self._backoff_left = min(MAX_BACKOFF_STEPS, 2 * self._backoff + 1)
        self._has_waited = False
        return found

    def _propose_together(self, rows: list[tuple[Sequence, int]], tokens: int, max_drafts: int) -> tuple[list[tuple[int, ...]], int]:
        """Returns the drafts of several rows, and their number."""
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
        drafts = 0
        if offers:
            depths = choose_depths(self._cost, tokens, offers, len(rows) - len(offers), max_drafts, self._barrier)
            for index, depth in zip(indices, depths, strict=True):
                if depth:
                    found[index] = rows[index][0].draft_state.propose(depth)
                    drafts += depth
        return found, drafts

    def outlook(self, running: list[Sequence]) -> Outlook:
        """Returns what it would do with the rows that run."""
        found = [each.draft_state for each in running if each.draft_state is not None and each.draft_state.match >= 0]
        most = self._max_depth
        offers = [(each.acceptance, each.acceptance, most if each.reach > most else each.reach) for each in found]
        rows = len(running)
        depths = choose_depths(self._cost, rows, offers, rows - len(offers), len(offers) * most, self._barrier)
        return outlook_of(self._cost, rows, offers, depths)

    def spans(self, rows: list[tuple[Sequence, int]], tokens: int) -> tuple[DraftSpan, ...]:
        """Empty: there is no draft model."""
        return ()

    def on_commit(self, sequences: list[Sequence], plan: Plan, result: Result) -> None:
        """Compares what each row sampled with what was predicted, and updates the cost of a step whose tokens all sampled."""
        if self._backoff_left:
            self._backoff_left -= 1
        running = RUNNING
        for index, ids in enumerate(result.sampled):
            sequence = sequences[index]
            if ids and sequence.state is running:
                predictor = sequence.draft_state
                if predictor is None:
                    predictor = sequence.draft_state = self._new_predictor(sequence)
                if len(sequence.known) >= predictor.due:
                    predictor.update()
        for index, ids in result.forced:
            sequence = sequences[index]
            if sequence.state is running and isinstance(sequence.draft_state, ForcedPredictor):
                sequence.draft_state.force(ids)
        seconds, tokens = result.timings.run - result.timings.draft, len(plan.tokens)
        if seconds > 0 and sum(plan.sample) == tokens:
            cost = self._cost
            cost.measured.append((tokens, seconds))
            if len(cost.measured) >= cost.wanted:
                cost.update()

    def _new_predictor(self, sequence: Sequence) -> NgramPredictor | RepetitionPredictor | ForcedPredictor:
        made: NgramPredictor | RepetitionPredictor
        if self._outputs is None:
            made = NgramPredictor(sequence.known)
        else:
            made = RepetitionPredictor(sequence, self._outputs.of(sequence.request.domain))
        return made if sequence.request.sampling.grammar is None else ForcedPredictor(sequence.known, made)
