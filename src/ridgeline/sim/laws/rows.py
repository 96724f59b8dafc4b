"""State that the KV oracle keeps for one row: its ids, their stamps, and the blocks of its tables.

Owns the per-sequence half of the oracle; the blocks themselves belong to `sim.laws.executor`.
"""

from collections import deque

from ridgeline.core.plan import LAST, NewRow
from ridgeline.errors import LawViolation
from ridgeline.sim.laws.model import NOT_FINITE, FakeModel, chain_stamps, depends_on_history, next_stamp
from ridgeline.sim.laws.script import RowGrammar


class ResidentRow:
    """One row. `chain[p]` is the stamp of position p; `ends[b]` that of the last position of full block b."""

    __slots__ = (
        "chain",
        "ends",
        "finite",
        "grammar",
        "handed_out",
        "ids",
        "in_flight",
        "last_start",
        "lost",
        "nan_at",
        "origin",
        "params",
        "past",
        "planned",
        "row",
        "sequence",
        "slot",
        "tables",
    )

    def __init__(self, new: NewRow, model: FakeModel, adapter: bytes = b"") -> None:
        """adapter: digest of what lies in the row's slot."""
        self.row = new.row
        self.sequence = new.sequence
        self.params = new.params
        self.slot = new.slot
        self.ids = list(new.ids)
        self.past = self.ids if model.reads_ids or depends_on_history(new.params.sampling) else None
        """All ids, where the model or the row's sampling parameters depend on them (penalties, bad words); None otherwise."""
        self.grammar: RowGrammar | None = None
        self.lost = ""
        """Reason why its grammar cannot go on."""
        self.tables = [list(table) for table in new.tables]
        self.origin = model.origin(new.params, adapter)
        self.nan_at = model.nan_position(new.params)
        self.finite = True
        """NaN spreads to every position that attends to it: once False, always False."""
        self.chain: list[int] = []
        self.ends: list[int] = []
        self.planned: int | None = None
        """Position where the next plan continues: the end of the last one submitted, drafts apart until they are verified. Shared blocks
        may move it ahead."""
        self.last_start = 0
        """First position of the step computed last."""
        self.handed_out = [0] * len(new.tables)
        """Blocks per group that are shared with others, or have been checked to be the row's own."""
        self.in_flight: deque[int] = deque()
        """First positions of the steps in flight, oldest first."""

    def submit(self, start: int, count: int, drafts: int, open: int) -> None:
        """Records a submitted step of `count` tokens, the last `drafts` of them drafts, from position `start`, or from up to `open` behind
        it. Raises LawViolation where it leaves a gap."""
        if count < 1:
            raise LawViolation(4, f"row {self.row} is planned with {count} tokens")
        planned = self.planned
        if planned is not None and not start <= planned <= start + open and (start < planned or self.in_flight):
            raise LawViolation(4, f"row {self.row} stands at {planned} and is planned from {start}, {open} open")
        self.planned = (start if planned is None or not open else planned) + count - drafts
        self.in_flight.append(start)

    def first(self, start: int, open: int) -> int:
        """The position that a submitted step begins at, now that those before it have been computed. Raises LawViolation where its plan did
        not cover that."""
        if not open:
            return start
        if not start <= len(self.chain) <= start + open:
            raise LawViolation(4, f"row {self.row} stands at {len(self.chain)} and is planned from {start}, {open} open")
        return len(self.chain)

    def to_score(self, positions: list[int]) -> list[int]:
        """Checks that `positions` belong to a prompt whose log-probabilities were requested, and returns them."""
        if positions and (self.params.prompt_logprobs is None or positions[-1] >= self.params.prompt_tokens - 1):
            raise LawViolation(8, f"row {self.row} scores positions {positions}, which are none of a prompt that is to be scored")
        return positions

    def advance(self, first: int, tokens: list[int], drafts: int, block_tokens: int) -> None:
        """Extends the stamps by the computed tokens, at positions first, first + 1, …; the last `drafts` of them are drafts."""
        chain = self.chain
        if len(chain) < first:  # blocks in between are shared: another sequence computed them
            self._extend(self.ids[len(chain) : first])
        if len(chain) != first:
            raise LawViolation(4, f"sequence {self.sequence} has computed {len(chain)} tokens, not {first}")
        self.last_start = first
        end = first + len(tokens)
        known = self.ids[first:end]
        newest = len(tokens) - 1 - drafts
        if tokens[newest] == LAST and end - drafts == len(self.ids):
            tokens[newest] = known[-1]
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

    def is_finite_up_to(self, position: int) -> bool:
        """True if hidden states up to `position` are finite. False sticks: all positions before have been verified."""
        if self.last_start <= self.nan_at <= position:
            self.finite = False
        return self.finite

    def cut(self, positions: int, block_tokens: int) -> None:
        """Drops the stamps behind the first `positions`: drafts there were rejected."""
        del self.chain[positions:]
        del self.ends[positions // block_tokens :]

    def accept(self, drafts: int) -> None:
        """So many drafts of the step just computed stand: what is planned next begins behind them."""
        if self.planned is not None:
            self.planned += drafts

    def _extend(self, ids: list[int]) -> None:
        self.chain.extend(chain_stamps(self.chain[-1] if self.chain else self.origin, ids))
