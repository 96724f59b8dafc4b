"""A plan being written: columns that grow row by row and are frozen once."""

from array import array
from itertools import accumulate

from ridgeline.core.plan import FROM_ROW, NewRow, Plan
from ridgeline.core.sequence import Sequence


class Draft:
    """One step before it is frozen. `plain` while every row computes one token and samples."""

    def __init__(self, step: int, budget: int) -> None:
        self.step = step
        self.budget = budget
        self.sequences: list[Sequence] = []
        self.starts: list[int] = []
        self.counts: list[int] = []
        self.tokens: list[int] = []
        self.samples: list[int] = []
        self.plain = True
        self.fresh: list[Sequence] = []
        self.blocks: list[tuple[int, int, int, tuple[int, ...]]] = []
        self.closed = False
        """No further waiting sequence may start in this step."""

    def add(self, sequence: Sequence, count: int, fresh: bool = False) -> None:
        """The sequence computes its next `count` tokens; it samples if that brings it to its reach. `fresh`: its row is new."""
        start = sequence.scheduled
        end = start + count
        samples = end == sequence.reach and end < sequence.limit
        ids = sequence.known[start:end]
        if fresh:
            self.fresh.append(sequence)
        else:
            self.blocks += [(sequence.row, group, first, pages) for group, first, pages in sequence.unsent]
        sequence.unsent.clear()
        self.sequences.append(sequence)
        self.starts.append(start)
        self.counts.append(count)
        self.tokens += ids
        self.tokens += [FROM_ROW] * (count - len(ids))
        self.samples.append(int(samples))
        self.plain = self.plain and samples and count == 1 and not sequence.needs_commit
        self.budget -= count
        sequence.scheduled = end
        sequence.reach += samples
        sequence.in_flight += 1
        sequence.last_step = self.step

    def freeze(self, freed_rows: list[int]) -> Plan:
        """The plan; the draft is spent."""
        rows = [sequence.row for sequence in self.sequences]
        if self.plain:
            select, sample, needs_commit = array("i", range(len(rows))), bytearray(b"\1" * len(rows)), bytearray(len(rows))
        else:
            ends = accumulate(self.counts)
            select = array("i", [end - 1 for end, samples in zip(ends, self.samples, strict=True) if samples])
            sample = bytearray(self.samples)
            needs_commit = bytearray([sequence.needs_commit for sequence in self.sequences])
        return Plan(
            step=self.step,
            row=array("i", rows),
            start=array("i", self.starts),
            count=array("i", self.counts),
            tokens=array("i", self.tokens),
            select=select,
            sample=sample,
            needs_commit=needs_commit,
            new_rows=tuple(
                NewRow(s.row, s.number, s.request.row_params(s.choice), tuple(s.known), tuple(map(tuple, s.tables))) for s in self.fresh
            ),
            freed_rows=tuple(freed_rows),
            blocks=tuple(self.blocks),
        )
