"""Speculative drafts from a draft model, which the executor runs in front of the step that verifies them.

Owns the model's own KV blocks and how far each row's have been computed, its acceptance, and the price of its passes. The pool decides no
prefix hit, preempts nobody and delays nothing: a row for which it has no block does not draft. A row that begins to decode, or did not
draft for a while, catches up first, in what steps have left of their budget. Published K and V of a prompt are the target's: the draft
model computes prompts itself.
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Final, NamedTuple

from ridgeline.core.drafts.acceptance import Acceptance
from ridgeline.core.drafts.depth import Offer, StepCost, choose_depths
from ridgeline.core.drafts.drafter import Outlook, outlook_of
from ridgeline.core.params import Sampling
from ridgeline.core.plan import DRAFT, LAST, DraftSpan, Plan, Result
from ridgeline.core.sequence import Sequence, State

PRIOR_ACCEPTANCE: Final = 0.7
"""Acceptance of a model of which nothing is known yet."""
MAX_BACKLOG: Final = 2
"""Known ids that a row which drafts has yet to compute, at most: the newest, and a last draft that came true."""
CATCH_UP_PER_ID: Final = 32
"""A row catches up over so many ids at most for each that it may still sample."""
PASS_WEIGHT: Final = 1 / 16
"""Weight of a measured pass in the estimate."""
MAX_RATIO: Final = 4.0
"""A measurement counts as this multiple of its estimate at most."""


class DraftCache(NamedTuple):
    """The draft model as the scheduler sees it.

    groups        KV groups of its cache
    block_tokens  of a block
    blocks        numbered 1 … `blocks`
    positions     that it can compute, of a sequence
    passes        (rows, seconds) of passes that draft an id for each row, measured at the start; empty where they take no time
    vocab         ids of the draft model
    window        positions whose hidden states are kept for heads that draft from these; 0: a model of its own
    tokens        that heads read in a step, at most
    most          ids that they draft one behind the other; 0: any number
    ahead         rows of a step whose next one needs no word of the host about what was accepted, at most (`Drafter.runs_ahead`); 0: none
    """

    groups: int
    block_tokens: int
    blocks: int
    positions: int
    passes: tuple[tuple[int, float], ...] = ()
    vocab: int = 0
    window: int = 0
    tokens: int = 0
    most: int = 0
    ahead: int = 0


class DraftRow:
    """State of a running sequence in the draft model.

    computed     leading positions in its cache, or in that of a step in flight
    blocks       that it holds; `told` of them per group are in the executor's tables
    preemptions  of the sequence when it began: behind another one all begins anew
    is_plain     its ids need nothing but logits, filters and noise: no history, no grammar, no log-probabilities
    """

    __slots__ = ("acceptance", "blocks", "computed", "is_plain", "preemptions", "told", "wants")

    def __init__(self, sequence: Sequence) -> None:
        self.preemptions, request = sequence.preemptions, sequence.request
        others = replace(request.sampling, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
        self.is_plain = not request.min_tokens and others == Sampling()
        self.computed = self.told = 0
        self.blocks: list[tuple[int, ...]] = []
        """One of each group per span of positions."""
        self.acceptance = Acceptance()
        self.wants = False
        """True if it is to catch up in this step."""


class ModelDrafter:
    """Implements `core.drafts.drafter.Drafter`.

    max_depth   drafts per row and step at most
    step_costs  (tokens, samples, seconds) of the target, as measured at start-up
    barrier     without drafts steps run ahead of each other
    """

    def __init__(self, max_depth: int, step_costs: tuple[tuple[int, int, float], ...], barrier: bool, cache: DraftCache) -> None:
        self._max_depth = max_depth
        self._cost = StepCost(step_costs)
        self._barrier = barrier and not cache.ahead
        self._cache = cache
        self._passes = sorted(cache.passes)
        self._scale = 1.0
        step = max(1, cache.groups)
        self._free = [tuple(range(first, first + cache.groups)) for first in range(1, cache.blocks - cache.groups + 2, step)]
        self._rows: dict[Sequence, DraftRow] = {}
        self._overall = Acceptance()
        self._drafting: set[Sequence] = set()
        """Sequences for which this model drafts in the step that is planned."""

    def pass_seconds(self, rows: int) -> float:
        """Estimated seconds of a pass over `rows` rows: linear between those that were measured."""
        passes = self._passes
        if not passes:
            return 0.0
        for (few, less), (many, more) in pairwise(passes):
            if rows <= many:
                return self._scale * (less + (more - less) * max(0, rows - few) / (many - few))
        most, seconds = passes[-1]
        return self._scale * seconds * max(1.0, rows / most)

    def chance(self, sequence: Sequence) -> float:
        """The estimated chance that a draft for this sequence is right."""
        return self._offer(sequence, 0)[0]

    def should_wait(self, running: list[Sequence]) -> bool:
        """Returns True if drafts would be worth it behind the ids in flight, and need them."""
        if all(each.in_flight < 2 for each in running) and self.runs_ahead(running):
            return False  # behind more, the executor has no ids to draft from
        offers = [self._offer(each, each.limit - each.target - 1) for each in running]
        return any(self._depths(len(running), [offer for offer in offers if offer[2] > 0], len(running), len(running) * self._max_depth))

    def runs_ahead(self, sequences: list[Sequence]) -> bool:
        """Returns True where the executor verifies a step with these rows on its device."""
        return len(sequences) <= self._cache.ahead and all(self._row(each).is_plain for each in sequences)

    def propose(self, rows: list[tuple[Sequence, int]], tokens: int, max_drafts: int) -> list[tuple[int, ...]]:
        """Returns DRAFT as often per row as is worth the time of the step; none for a row that is to catch up."""
        self._forget_ended()
        self._drafting.clear()
        offers = [self._offer(*row) for row in rows]
        depths = self._depths(tokens, offers, len(rows), max_drafts)
        found: list[tuple[int, ...]] = []
        for (sequence, _), depth in zip(rows, depths, strict=True):
            row = self._row(sequence)
            backlog = MAX_BACKLOG if sequence.drafted else sequence.scheduled - row.computed
            row.wants = depth > 0 and backlog > MAX_BACKLOG
            if row.wants or not self._allocate(row, sequence.scheduled + sequence.drafted + depth):
                depth = 0
            found.append((DRAFT,) * depth)
            if depth:
                self._drafting.add(sequence)
        return found

    def spans(self, rows: list[tuple[Sequence, int]], tokens: int) -> tuple[DraftSpan, ...]:
        """Spans of the rows that draft, and of those that catch up in the `tokens` that are left."""
        own = {each for each, drafts in rows if drafts and each in self._drafting}
        found = [self._span(each, each.scheduled, drafts) for each, drafts in rows if each in own]
        tokens -= sum([len(span.ids) - 1 for span in found])
        for sequence, _ in rows:
            row = self._rows.get(sequence)
            if row is not None and row.wants and sequence not in own:
                upto = min(len(sequence.known), row.computed + tokens)
                if upto > row.computed and self._allocate(row, upto):
                    tokens -= upto - row.computed
                    found.append(self._span(sequence, upto, 0))
        return tuple(found)

    def outlook(self, running: list[Sequence]) -> Outlook:
        """Returns what it would do with the rows that run, had they caught up."""
        offers = [offer for each in running if (offer := self._offer(each, each.limit - len(each.known) - 1))[2] > 0]
        depths = self._depths(len(running), offers, len(running), len(running) * self._max_depth)
        return outlook_of(self._cost, len(running), offers, depths, self.pass_seconds(1))

    def on_commit(self, sequences: list[Sequence], plan: Plan, result: Result) -> None:
        """Moves each row behind what was accepted, and updates acceptance and costs."""
        by_row = {span.row: span for span in plan.spans}
        for index, sampled in enumerate(result.sampled):
            row, span = self._rows.get(sequences[index]), by_row.get(plan.row[index])
            if row is None:
                continue
            if span is None or not span.drafts:
                row.acceptance.fade()
            elif sampled:
                row.computed = len(sequences[index].known) - len(sampled) + min(span.drafts, len(sampled)) - 1
                for record in (row.acceptance, self._overall):
                    record.record(span.drafts, len(sampled) - 1)
        self._measure(plan, result)

    def _measure(self, plan: Plan, result: Result) -> None:
        run, draft, tokens = result.timings.run, result.timings.draft, len(plan.tokens)
        if run > draft and sum(plan.sample) == tokens:
            self._cost.measured.append((tokens, run - draft))
            if len(self._cost.measured) >= self._cost.wanted:
                self._cost.update()
        depths = [span.drafts for span in plan.spans]
        if draft > 0 and depths and min(depths) > 0:
            expected = sum([self.pass_seconds(sum([depth >= number for depth in depths])) for number in range(1, max(depths) + 1)])
            if expected > 0:
                self._scale *= 1.0 + PASS_WEIGHT * (min(draft / expected, MAX_RATIO) - 1.0)

    def _depths(self, tokens: int, offers: list[Offer], rows: int, max_drafts: int) -> list[int]:
        passes = self.pass_seconds if self._passes else None
        return choose_depths(self._cost, tokens, offers, rows - len(offers), max_drafts, self._barrier, passes)

    def _offer(self, sequence: Sequence, room: int) -> Offer:
        """The drafts that the row would have, had it caught up. 0 drafts where catching up is not worth it, or the model cannot."""
        row = self._rows.get(sequence)
        known, prior = len(sequence.known), self._overall.estimate(PRIOR_ACCEPTANCE)
        computed, chance = (0, prior) if row is None else (row.computed, row.acceptance.estimate(prior))
        count = min(room, self._max_depth, self._cache.positions - max(known, sequence.scheduled) - sequence.drafted)
        if known - computed > CATCH_UP_PER_ID * (sequence.limit - known):
            count = 0
        return chance, chance, max(0, count)

    def _row(self, sequence: Sequence) -> DraftRow:
        row = self._rows.get(sequence)
        if row is None:
            row = self._rows[sequence] = self._new_row(sequence)
        return row

    def _new_row(self, sequence: Sequence) -> DraftRow:
        return DraftRow(sequence)

    def _span(self, sequence: Sequence, upto: int, count: int) -> DraftSpan:
        row = self._rows[sequence]
        new = row.blocks[row.told :]
        blocks = tuple([(group, row.told, ids) for group, ids in enumerate(zip(*new, strict=True))])
        start = upto - 1 if sequence.drafted > count else row.computed  # where steps in flight decide how far it is
        ids = tuple(sequence.known[start:upto])
        span = DraftSpan(sequence.row, start, ids + (LAST,) * (upto - start - len(ids)), count, blocks)
        row.told = len(row.blocks)
        row.computed = upto
        return span

    def _allocate(self, row: DraftRow, positions: int) -> bool:
        """Takes blocks for so many positions; returns False where there are too few."""
        missing = -(-positions // self._cache.block_tokens) - len(row.blocks) if self._cache.groups else 0
        if missing > len(self._free):
            return False
        row.blocks += [self._free.pop() for _ in range(missing)]
        return True

    def _forget_ended(self) -> None:
        """Frees the blocks of sequences that have ended or lost their row. Steps run in order, so that nobody reads them any more when
        another row writes to them."""
        ended = [each for each, row in self._rows.items() if each.state is not State.RUNNING or each.preemptions != row.preemptions]
        self._release(ended)

    def _release(self, sequences: Iterable[Sequence]) -> None:
        for sequence in sequences:
            self._free += self._rows.pop(sequence).blocks
