"""A plan being written: columns that grow row by row and are frozen once."""

from array import array

from ridgeline.core.plan import LAST, NewRow, Plan
from ridgeline.core.sequence import Sequence

Ids = tuple[int, ...]
MAX_SCORED = 64
"""Prompt positions that a step scores at most: each costs logits over the whole vocabulary, and everybody else waits for the step."""


class PlanBuilder:
    """One step before it is frozen.

    chunks        row index → (tokens, samples) of the rows that do anything but compute one token and sample once
    score         as in `Plan`
    drafted       ids drafted in all rows, which stand in `tokens` behind the last one of their row
    fresh         sequences whose row is new
    closed        no further waiting sequence may start in this step
    prefill_left  tokens that rows which catch up may still have in this step; None until one asks
    """

    def __init__(self, step: int, budget: int) -> None:
        self.step = step
        self.budget = budget
        self.sequences: list[Sequence] = []
        self.starts: list[int] = []
        self.tokens: list[int] = []
        self.chunks: dict[int, tuple[int, int]] = {}
        self.score: list[tuple[int, int, int]] = []
        self.drafted = 0
        self.new_sequences: list[Sequence] = []
        self.blocks: list[tuple[int, int, int, tuple[int, ...]]] = []
        self.starts_closed = False
        self.prefill_left: int | None = None

    @property
    def budget_left(self) -> int:
        """Tokens that the step may still compute."""
        return self.budget - len(self.tokens)

    @property
    def sample_count(self) -> int:
        """Positions that sample so far."""
        return len(self.sequences) - (sum([not samples for _, samples in self.chunks.values()]) if self.chunks else 0)

    @property
    def scores_left(self) -> int:
        """Prompt positions that the step may still score."""
        return MAX_SCORED - sum([count for _, _, count in self.score])

    def add(self, sequence: Sequence, count: int, is_new: bool = False) -> None:
        """The sequence computes its next `count` tokens; it samples if that brings it to its reach. `fresh`: its row is new."""
        start = sequence.scheduled
        end = start + count
        samples = end == sequence.target
        ids = sequence.known[start:end]
        if is_new:
            self.new_sequences.append(sequence)
        else:
            self.blocks += [(sequence.row, group, first, block_ids) for group, first, block_ids in sequence.new_blocks]
        sequence.new_blocks.clear()
        if count != 1 or not samples:
            self.chunks[len(self.sequences)] = count, int(samples)
            if self.prefill_left is not None:
                self.prefill_left -= count
            if sequence.scored < sequence.to_score:
                self._score(sequence, start, end)
        self.sequences.append(sequence)
        self.starts.append(start)
        self.tokens += ids
        self.tokens += [LAST] * (count - len(ids))
        sequence.scheduled = end
        sequence.target += samples
        sequence.in_flight += 1
        sequence.last_step = self.step

    def add_drafts(self, index: int, end: int, ids: Ids) -> None:
        """Lets a row that computes one known token and samples verify `ids` too. Called in the order of the rows, behind the last `add`.

        end  tokens of all rows up to this one, without drafts
        """
        sequence = self.sequences[index]
        sequence.drafted = drafted = len(ids)
        if sequence.new_blocks:
            self.blocks += [(sequence.row, group, first, block_ids) for group, first, block_ids in sequence.new_blocks]
            sequence.new_blocks.clear()
        self.chunks[index] = 1 + drafted, 1 + drafted
        end += self.drafted
        self.tokens[end:end] = ids
        self.drafted += drafted

    def _score(self, sequence: Sequence, start: int, end: int) -> None:
        """Lets this step score those of positions start … end − 1 that are of a prompt and have no score yet."""
        upto = min(end, sequence.to_score)
        if upto > sequence.scored:
            self.score.append((len(self.sequences), sequence.scored - start, upto - sequence.scored))
            sequence.scored = upto

    def build(self, freed_rows: list[int], copies: list[tuple[int, int]], before: Plan | None) -> Plan:
        """The plan; the builder is spent. `before`: the step before, if it has the same rows, whose column is then shared."""
        rows = len(self.sequences)
        count, sample = array("i", [1]) * rows, bytearray(b"\1") * rows
        for index, chunk in self.chunks.items():
            count[index], sample[index] = chunk
        return Plan(
            step=self.step,
            row=array("i", [sequence.row for sequence in self.sequences]) if before is None else before.row,
            start=array("i", self.starts),
            count=count,
            tokens=array("i", self.tokens),
            sample=sample,
            new_rows=tuple([_new_row(sequence) for sequence in self.new_sequences]),
            freed_rows=tuple(freed_rows),
            blocks=tuple(self.blocks),
            copies=tuple(copies),
            score=tuple(self.score),
        )


def _new_row(sequence: Sequence) -> NewRow:
    params = sequence.request.row_params(sequence.choice)
    return NewRow(sequence.row, sequence.number, params, tuple(sequence.known), tuple(map(tuple, sequence.tables)))
