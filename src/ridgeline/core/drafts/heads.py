"""Speculative drafts from heads that read hidden states of the target (EAGLE, Medusa, MTP), in front of the step that verifies them.

The executor keeps the last hidden states of each row, of steps in which it sampled; a prefix hit and chunks before the last bring none. So
a row's context for the heads begins where they do, and where it did not draft for longer than they are kept it begins anew: a row never
waits for hidden states, and nothing is computed again for them. Positions of spans count from there.

Behind drafts in flight heads with keys compute all ids that these may add, as nobody knows yet how many do: some once more.
"""

from ridgeline.core.drafts.depth import Offer
from ridgeline.core.drafts.model import PRIOR_ACCEPTANCE, DraftCache, DraftRow, ModelDrafter
from ridgeline.core.plan import DRAFT, LAST, DraftSpan, Plan, Result
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
            newest, unsure = sequence.scheduled - 1, sequence.drafted if self._cache.groups else 0
            if not unsure:
                self._begin_where_kept(row, newest)
            backlog = 1 + unsure if unsure else newest - row.base - row.computed
            has_room = backlog <= left and newest - row.base > unsure
            if has_room and self._allocate(row, newest - row.base + sequence.drafted + depth):
                left -= backlog
                self._drafting.add(sequence)
            else:
                depth = 0
            found.append((DRAFT,) * depth)
        return found

    def spans(self, rows: list[tuple[Sequence, int]], tokens: int) -> tuple[DraftSpan, ...]:
        """Spans of the rows that draft: they read all hidden states that they have not read yet."""
        return tuple([self._span_of(each, drafts) for each, drafts in rows if drafts and each in self._drafting])

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
            end = len(sequence.known) - 1
            start = end - (plan.count[index] - plan.sample[index] + len(sampled))
            if row.end != start:
                row.first, row.base, row.computed = start, start, 0
            row.end = end
            span = by_row.get(plan.row[index])
            if span is None or not span.drafts:
                row.acceptance.fade()
                continue
            row.computed = max(row.computed, end - len(sampled) - row.base)
            for record in (row.acceptance, self._overall):
                record.record(span.drafts, len(sampled) - 1)
        self._measure(plan, result)

    def _begin_where_kept(self, row: HeadRow, end: int) -> None:
        """Lets a row's context begin anew where hidden states behind what it has read are gone, of those that end in front of `end`."""
        kept = max(row.first, end - self._cache.window)
        if row.base + row.computed < kept:
            row.base, row.computed = kept, 0

    def _new_row(self, sequence: Sequence) -> DraftRow:
        return HeadRow(sequence)

    def _span_of(self, sequence: Sequence, drafts: int) -> DraftSpan:
        row = self._rows[sequence]
        assert isinstance(row, HeadRow)
        newest = sequence.scheduled - 1
        start = newest - row.base - 1 if sequence.drafted > drafts and self._cache.groups else row.computed
        ids = tuple(sequence.known[row.base + start + 1 : newest + 1])
        count = newest - row.base - start
        new = row.blocks[row.told :]
        blocks = tuple([(group, row.told, ids) for group, ids in enumerate(zip(*new, strict=True))])
        span = DraftSpan(sequence.row, start, ids + (LAST,) * (count - len(ids)), drafts, blocks)
        row.told = len(row.blocks)
        row.computed = start + count
        return span

    def _offer(self, sequence: Sequence, room: int) -> Offer:
        row = self._rows.get(sequence)
        prior = self._overall.estimate(PRIOR_ACCEPTANCE)
        chance = prior if row is None else row.acceptance.estimate(prior)
        left = self._cache.positions - max(len(sequence.known), sequence.scheduled) - sequence.drafted
        return chance, chance, max(0, min(room, self._max_depth, left))
