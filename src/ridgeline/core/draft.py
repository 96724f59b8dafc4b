"""A plan being written: columns that grow row by row and are frozen once."""

from array import array
from itertools import accumulate

from ridgeline.core.plan import FROM_ROW, NewRow, Plan
from ridgeline.core.sequence import Sequence

MOST_SCORED = 64
"""Prompt positions that a step scores at most: each costs logits over the whole vocabulary, and everybody else waits for the step."""


class Draft:
    """One step before it is frozen.

    odd        row index → (tokens, whether it samples) of the rows that do anything but compute one token and sample
    scored     row index → which of its tokens are prompt positions to be scored
    bound      indices of the rows that need their commit before they go on
    fresh      sequences whose row is new
    closed     no further waiting sequence may start in this step
    beside     tokens that rows which catch up may still have in this step; None until one asks
    """

    def __init__(self, step: int, budget: int) -> None:
        self.step = step
        self.budget = budget
        self.sequences: list[Sequence] = []
        self.starts: list[int] = []
        self.tokens: list[int] = []
        self.odd: dict[int, tuple[int, bool]] = {}
        self.scored: dict[int, range] = {}
        self.bound: list[int] = []
        self.fresh: list[Sequence] = []
        self.blocks: list[tuple[int, int, int, tuple[int, ...]]] = []
        self.closed = False
        self.beside: int | None = None

    @property
    def left(self) -> int:
        """Tokens that the step may still compute."""
        return self.budget - len(self.tokens)

    @property
    def scores_left(self) -> int:
        """Prompt positions that the step may still score."""
        return MOST_SCORED - sum(map(len, self.scored.values()))

    def add(self, sequence: Sequence, count: int, fresh: bool = False) -> None:
        """The sequence computes its next `count` tokens; it samples if that brings it to its reach. `fresh`: its row is new."""
        start = sequence.scheduled
        end = start + count
        samples = end == sequence.reach
        ids = sequence.known[start:end]
        if fresh:
            self.fresh.append(sequence)
        else:
            self.blocks += [(sequence.row, group, first, pages) for group, first, pages in sequence.unsent]
        sequence.unsent.clear()
        if count != 1 or not samples:
            self.odd[len(self.sequences)] = count, samples
            if self.beside is not None:
                self.beside -= count
            if sequence.scored < sequence.to_score:
                self._score(sequence, start, end)
        if sequence.needs_commit:
            self.bound.append(len(self.sequences))
        self.sequences.append(sequence)
        self.starts.append(start)
        self.tokens += ids
        self.tokens += [FROM_ROW] * (count - len(ids))
        sequence.scheduled = end
        sequence.reach += samples
        sequence.in_flight += 1
        sequence.last_step = self.step

    def _score(self, sequence: Sequence, start: int, end: int) -> None:
        """What of start … end − 1 is a prompt position without its score gets it in this step."""
        upto = min(end, sequence.to_score)
        if upto > sequence.scored:
            self.scored[len(self.sequences)] = range(sequence.scored - start, upto - start)
            sequence.scored = upto

    def freeze(self, freed_rows: list[int], copies: list[tuple[int, int]], alike: Plan | None) -> Plan:
        """The plan; the draft is spent. `alike`: the step before, if it has the same rows; columns that do not change are shared."""
        rows = len(self.sequences)
        count, sample, needs_commit = array("i", [1]) * rows, bytearray(b"\1") * rows, bytearray(rows)
        for index, (tokens, samples) in self.odd.items():
            count[index], sample[index] = tokens, samples
        for index in self.bound:
            needs_commit[index] = 1
        if self.odd:
            ends = list(accumulate(count))
            select = array("i", [end - 1 for end, samples in zip(ends, sample, strict=True) if samples])
            for index, places in self.scored.items():
                select.extend([ends[index] - count[index] + place for place in places])
            if self.scored:
                select = array("i", sorted(select))
        elif alike is not None and len(alike.select) == rows == len(alike.tokens):
            select = alike.select
        else:
            select = array("i", range(rows))
        return Plan(
            step=self.step,
            row=array("i", [sequence.row for sequence in self.sequences]) if alike is None else alike.row,
            start=array("i", self.starts),
            count=count,
            tokens=array("i", self.tokens),
            select=select,
            sample=sample,
            needs_commit=needs_commit,
            new_rows=tuple([_new_row(sequence) for sequence in self.fresh]),
            freed_rows=tuple(freed_rows),
            blocks=tuple(self.blocks),
            copies=tuple(copies),
        )


def _new_row(sequence: Sequence) -> NewRow:
    params = sequence.request.row_params(sequence.choice)
    return NewRow(sequence.row, sequence.number, params, tuple(sequence.known), tuple(map(tuple, sequence.tables)))
