"""Speculative drafts from heads that read hidden states of the target (EAGLE, Medusa, MTP), in front of the step that verifies them.

The executor keeps the last hidden states of each row, of steps in which it sampled; a prefix hit and chunks before the last bring none. So
a row's context for the heads begins where they do, and where it did not draft for longer than they are kept it begins anew: a row never
waits for hidden states, and nothing is computed again for them. Positions of spans count from there.
"""

from ridgeline.core.drafts.depth import Offer
from ridgeline.core.drafts.model import PRIOR_ACCEPTANCE, DraftCache, DraftRow, ModelDrafter
from ridgeline.core.plan import DRAFT, DraftSpan, Plan, Result
from ridgeline.core.sequence import Sequence, State


class HeadRow(DraftRow):
    """State of a running sequence: hidden states of positions `first` … `end` have been made without a gap, `base` is where its context
    begins; `computed` counts from there."""

    __slots__ = ("base", "end", "first")

    def __init__(self, sequence: Sequence) -> None:
        super().__init__(sequence)
        self.base = self.first = self.end = 0


class HeadDrafter(ModelDrafter):
    """Implements `core.drafts.drafter.Drafter` for heads: see `ModelDrafter`."""

    def __init__(self, max_depth: int, step_costs: tuple[tuple[int, int, float], ...], barrier: bool, cache: DraftCache) -> None:
        super().__init__(min(max_depth, cache.most or max_depth), step_costs, barrier, cache)

    def propose(self, rows: list[tuple[Sequence, int]], tokens: int, max_drafts: int) -> list[tuple[int, ...]]:
        """Returns DRAFT as often per row as is worth the time of the step; none for rows whose hidden states are too many for it."""
        self._forget_ended()
        self._drafting.clear()
        depths = self._depths(tokens, [self._offer(*row) for row in rows], len(rows), max_drafts)
        found: list[tuple[int, ...]] = []
        left = self._cache.tokens
        for (sequence, _), depth in zip(rows, depths, strict=True):
            row = self._rows.get(sequence)
            if not depth or not isinstance(row, HeadRow) or row.end != len(sequence.known) - 1:
                found.append(())
                continue
            self._begin_where_kept(row)
            backlog = row.end - row.base - row.computed
            if backlog > left or not self._allocate(row, row.computed + backlog + depth):
                depth = 0
            else:
                left -= backlog
                self._drafting.add(sequence)
            found.append((DRAFT,) * depth)
        return found

    def spans(self, rows: list[tuple[Sequence, int]], tokens: int) -> tuple[DraftSpan, ...]:
        """Spans of the rows that draft: they read all hidden states that they have not read yet."""
        return tuple([self._span_of(each) for each, drafts in rows if drafts and each in self._drafting])

    def on_commit(self, sequences: list[Sequence], plan: Plan, result: Result) -> None:
        """Notes which hidden states there are, and updates acceptance and costs."""
        by_row = {span.row: span for span in plan.spans}
        for index, sampled in enumerate(result.sampled):
            sequence = sequences[index]
            if not sampled or sequence.state is not State.RUNNING:
                continue
            row = self._row(sequence)
            assert isinstance(row, HeadRow)
            if row.preemptions != sequence.preemptions:
                self._release([sequence])
                row = self._row(sequence)
                assert isinstance(row, HeadRow)
            start = plan.start[index]
            if row.end != start:
                row.first, row.base, row.computed = start, start, 0
            row.end = start + plan.count[index] - plan.sample[index] + len(sampled)
            span = by_row.get(plan.row[index])
            if span is None or not span.drafts:
                row.acceptance.fade()
                continue
            for record in (row.acceptance, self._overall):
                record.record(span.drafts, len(sampled) - 1)
        self._measure(plan, result)

    def _begin_where_kept(self, row: HeadRow) -> None:
        """Lets a row's context begin anew where hidden states behind what it has read are gone."""
        kept = max(row.first, row.end - self._cache.window)
        if row.base + row.computed < kept:
            row.base, row.computed = kept, 0

    def _new_row(self, sequence: Sequence) -> DraftRow:
        return HeadRow(sequence)

    def _span_of(self, sequence: Sequence) -> DraftSpan:
        row = self._rows[sequence]
        assert isinstance(row, HeadRow)
        count = row.end - row.base - row.computed
        new = row.blocks[row.told :]
        blocks = tuple([(group, row.told, ids) for group, ids in enumerate(zip(*new, strict=True))])
        span = DraftSpan(sequence.row, row.computed, tuple(sequence.known[-count:]), sequence.drafted, blocks)
        row.told = len(row.blocks)
        row.computed += count
        return span

    def _offer(self, sequence: Sequence, room: int) -> Offer:
        row = self._rows.get(sequence)
        prior = self._overall.estimate(PRIOR_ACCEPTANCE)
        chance = prior if row is None else row.acceptance.estimate(prior)
        return chance, chance, max(0, min(room, self._max_depth, self._cache.positions - len(sequence.known)))
