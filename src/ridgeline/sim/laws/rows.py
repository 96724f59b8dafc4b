"""Memory of the KV oracle for a resident sequence: its ids, their stamps, and the blocks that its tables name.

Owns the per-sequence half of the oracle; the blocks themselves belong to `sim.laws.executor`.
"""

from collections import deque

from ridgeline.core.plan import LAST, NewRow
from ridgeline.errors import LawViolation
from ridgeline.sim.laws.model import NOT_FINITE, FakeModel, extend, looks_back, next_stamp


class Resident:
    """One row. `chain[p]` is the stamp of position p; `ends[b]` that of the last position of full block b."""

    __slots__ = (
        "begun",
        "chain",
        "ends",
        "finite",
        "handed_out",
        "ids",
        "in_flight",
        "nan_at",
        "origin",
        "params",
        "past",
        "planned",
        "row",
        "sequence",
        "tables",
    )

    def __init__(self, new: NewRow, model: FakeModel) -> None:
        self.row = new.row
        self.sequence = new.sequence
        self.params = new.params
        self.ids = list(new.ids)
        self.past = self.ids if looks_back(new.params.sampling) else None
        """Ids that the model is given beside the stamp, where what the row asks for depends on them."""
        self.tables = [list(table) for table in new.tables]
        self.origin = model.origin(new.params)
        self.nan_at = model.nan_position(new.params)
        self.finite = True
        """NaN spreads to all that attends to it: once False, False for ever."""
        self.chain: list[int] = []
        self.ends: list[int] = []
        self.planned: int | None = None
        """Position at which the next plan continues, or jumps ahead from over shared blocks: the end of the last one submitted."""
        self.begun = 0
        """First position of the step computed last."""
        self.handed_out = [0] * len(new.tables)
        """Blocks per group that are shared with others, or have been checked to be the row's own."""
        self.in_flight: deque[int] = deque()
        """First positions of the steps in flight, oldest first."""

    def submit(self, start: int, count: int) -> None:
        """Takes note of a step submitted."""
        if count < 1:
            raise LawViolation(4, f"row {self.row} is planned for {count} tokens")
        if self.planned is not None and start != self.planned and (start < self.planned or self.in_flight):
            raise LawViolation(4, f"row {self.row} stands at {self.planned} and is planned from {start}")
        self.planned = start + count
        self.in_flight.append(start)

    def to_score(self, positions: list[int]) -> list[int]:
        """These positions, which must be of a prompt that is to be scored."""
        if positions and (self.params.prompt_logprobs is None or positions[-1] >= self.params.prompt_tokens - 1):
            raise LawViolation(8, f"row {self.row} scores positions {positions}, which are none of a prompt that is to be scored")
        return positions

    def advance(self, first: int, tokens: list[int], drafts: int, block_tokens: int) -> None:
        """Extends the stamps by the tokens that are computed now, at positions first, first + 1, …; the last `drafts` are guesses."""
        chain = self.chain
        if len(chain) < first:  # what lies between is shared: others computed it, clean
            self._extend(self.ids[len(chain) : first])
        if len(chain) != first:
            raise LawViolation(4, f"sequence {self.sequence} has computed {len(chain)} tokens, not {first}")
        self.begun = first
        end = first + len(tokens)
        known = self.ids[first:end]
        if tokens[-1] == LAST and end == len(self.ids):
            tokens[-1] = known[-1]
        if known != tokens[: len(tokens) - drafts] or (drafts and LAST in tokens):
            raise LawViolation(8, f"sequence {self.sequence} computes ids {tokens} at {first}, {drafts} drafted; its ids there are {known}")
        known = tokens
        if first <= self.nan_at < end:
            if self.nan_at < end - drafts:
                self.finite = False
            self._extend(known[: self.nan_at - first])
            chain.append(hash((NOT_FINITE, chain[-1] if chain else self.origin)))
            known = known[self.nan_at - first + 1 :]
        if len(known) == 1:
            chain.append(next_stamp(chain[-1] if chain else self.origin, known[0]))
        else:
            self._extend(known)
        last = (len(self.ends) + 1) * block_tokens - 1
        if last < end:
            self.ends.extend(chain[last::block_tokens])

    def finite_up_to(self, position: int) -> bool:
        """True if the row's numbers are finite up to there; if not, they never are again: whoever asks has verified all before."""
        if self.begun <= self.nan_at <= position:
            self.finite = False
        return self.finite

    def cut(self, positions: int, block_tokens: int) -> None:
        """Only the first `positions` stamps stand for what the row knows: drafts behind were wrong."""
        del self.chain[positions:]
        del self.ends[positions // block_tokens :]
        self.planned = positions

    def _extend(self, ids: list[int]) -> None:
        self.chain.extend(extend(self.chain[-1] if self.chain else self.origin, ids))
