"""The builder of a plan: columns that grow row by row."""

from array import array

from ridgeline.core.events import Lack
from ridgeline.core.plan import LAST, DraftSpan, NewRow, Plan, SlotFill
from ridgeline.core.sequence import Sequence

Ids = tuple[int, ...]
MAX_SCORED = 64
"""Prompt positions that a step scores at most: each needs logits over the whole vocabulary, and all rows wait for the step."""


class PlanBuilder:
    """A step that is being scheduled.

    chunks         row index → (tokens, samples) of rows that do anything but compute one token and sample once
    score, pool    as in `Plan`
    drafted        ids drafted in all rows; `tokens` has them behind the other tokens of their row
    spans, open    as in `Plan`
    ahead          steps may be planned behind its drafts
    new_sequences  sequences whose row is new
    starts_closed  no further waiting sequence may start in this step
    lack           what the first one that could not start lacks
    prefill_left   tokens left of the prefill budget; None until it is needed
    """

    __slots__ = (
        "ahead", "blocks", "budget", "chunks", "drafted", "lack", "new_sequences", "open", "pool", "prefill_left", "score", "sequences",
        "spans", "starts", "starts_closed", "step", "tokens",
    )  # fmt: skip

    def __init__(self, step: int, budget: int) -> None:
        self.step = step
        self.budget = budget
        self.sequences: list[Sequence] = []
        self.starts: list[int] = []
        self.tokens: list[int] = []
        self.chunks: dict[int, tuple[int, int]] = {}
        self.score: list[tuple[int, int, int]] = []
        self.pool: list[int] = []
        self.drafted = 0
        self.spans: tuple[DraftSpan, ...] = ()
        self.open = b""
        self.ahead = False
        self.new_sequences: list[Sequence] = []
        self.blocks: list[tuple[int, int, int, tuple[int, ...]]] = []
        self.starts_closed = False
        self.lack: Lack = ""
        self.prefill_left: int | None = None

    @property
    def budget_left(self) -> int:
        """Tokens left of the token budget."""
        return self.budget - len(self.tokens)

    @property
    def sample_count(self) -> int:
        """Rows that sample so far."""
        return len(self.sequences) - (sum([not samples for _, samples in self.chunks.values()]) if self.chunks else 0)

    @property
    def scores_left(self) -> int:
        """Prompt positions that the step can still score."""
        return MAX_SCORED - sum([count for _, _, count in self.score])

    def close_starts(self, lack: Lack) -> None:
        """Nothing that waits may start any more in this step, as the first that could not lacks something."""
        self.starts_closed, self.lack = True, lack

    def add(self, sequence: Sequence, count: int, is_new: bool = False) -> None:
        """Adds a row that computes the next `count` tokens of the sequence, and samples if they bring it to its target."""
        start = sequence.scheduled
        end = start + count
        samples = end == sequence.target and sequence.pooling is None
        if end == sequence.target and not samples:
            self.pool.append(len(self.sequences))
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
        """Lets a row that computes one token and samples verify `ids` too. Called in the order of the rows, behind the last `add`.

        end  tokens of all rows up to this one, without drafts
        """
        sequence = self.sequences[index]
        drafted = len(ids)
        sequence.draft(drafted)
        if sequence.new_blocks:
            self.blocks += [(sequence.row, group, first, block_ids) for group, first, block_ids in sequence.new_blocks]
            sequence.new_blocks.clear()
        self.chunks[index] = 1 + drafted, 1 + drafted
        end += self.drafted
        self.tokens[end:end] = ids
        self.drafted += drafted

    def _score(self, sequence: Sequence, start: int, end: int) -> None:
        """Plans the scores of those of positions start … end − 1 that belong to the prompt and have none yet."""
        upto = min(end, sequence.to_score)
        if upto > sequence.scored:
            self.score.append((len(self.sequences), sequence.scored - start, upto - sequence.scored))
            sequence.scored = upto

    def build(self, freed_rows: list[int], copies: list[tuple[int, int]], previous: Plan | None, fills: list[SlotFill]) -> Plan:
        """Returns the plan. `previous`: the plan of the step before if it has the same rows, whose column is shared then."""
        rows = len(self.sequences)
        count, sample = array("i", [1]) * rows, bytearray(b"\1") * rows
        for index, chunk in self.chunks.items():
            count[index], sample[index] = chunk
        return Plan(
            step=self.step,
            row=array("i", [sequence.row for sequence in self.sequences]) if previous is None else previous.row,
            start=array("i", self.starts),
            count=count,
            tokens=array("i", self.tokens),
            sample=sample,
            new_rows=tuple([_new_row(sequence) for sequence in self.new_sequences]),
            freed_rows=tuple(freed_rows),
            blocks=tuple(self.blocks),
            copies=tuple(copies),
            score=tuple(self.score),
            fills=tuple(fills),
            pool=tuple(self.pool),
            spans=self.spans,
            open=self.open if any(self.open) else b"",
        )


def _new_row(sequence: Sequence) -> NewRow:
    params = sequence.request.row_params(sequence.choice)
    return NewRow(sequence.row, sequence.number, params, tuple(sequence.known), tuple(map(tuple, sequence.tables)), sequence.slot)
