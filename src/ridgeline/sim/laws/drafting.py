"""The draft model of the simulated executor: its own blocks, checked as the target's are, and drafts of which some are right.

A slot holds the stamp of its token. A span must continue behind stamps of the very ids that its row has, so a pointer that was not cut, or
a block that two rows have, is found in the step that would read it.
"""

from collections.abc import Sequence

from ridgeline.core.drafts.model import DraftCache
from ridgeline.core.plan import LAST, DraftSpan
from ridgeline.errors import LawViolation
from ridgeline.sim.laws.model import FakeModel, chain_stamps, next_stamp
from ridgeline.sim.laws.rows import ResidentRow

Drafted = tuple[tuple[int, ...], ...]
WRONG_PERCENT = 30
"""Drafts that are wrong, of 100."""


class SimDrafts:
    """Computes spans over `cache`, which rows have tables in."""

    def __init__(self, cache: DraftCache, model: FakeModel, rows: int) -> None:
        self._cache, self._model, self.runs_ahead = cache, model, cache.ahead > 0
        self._tables: list[list[list[int]]] = [[[] for _ in range(cache.groups)] for _ in range(rows)]
        self._stamps: dict[tuple[int, int], tuple[int, int]] = {}
        """(block, offset) → (group, stamp)."""

    def run(self, spans: Sequence[DraftSpan], rows: Sequence[tuple[ResidentRow, int, list[int], int, list[int]]], open: bytes) -> Drafted:
        """Computes the spans of a plan, whose rows are `sim.laws.executor.Span`, with its column `open`: the ids drafted come in the place
        of DRAFT, and are returned. Raises LawViolation."""
        columns = zip(rows, open or bytes(len(rows)), strict=True)
        tokens_of = {resident.row: (resident, tokens, open) for (resident, _, tokens, _, _), open in columns} if spans else {}
        found = []
        for span in spans:
            resident, tokens, is_open = tokens_of[span.row]
            found.append(self._draft(span, resident, is_open))
            if span.drafts:
                tokens[-span.drafts :] = found[-1]
        return tuple(found)

    def _draft(self, span: DraftSpan, resident: ResidentRow, open: int) -> tuple[int, ...]:
        ids, name = resident.ids, f"the draft model, row {span.row}"
        self._extend(span)
        start, own = (len(ids) - 2, ids[-2:]) if open else (span.start, list(span.ids))
        if own[-1] == LAST and self.runs_ahead:
            own[-1] = ids[-1]
        if own != ids[start : start + len(own)] or (span.drafts and start + len(own) != len(ids)):
            raise LawViolation(8, f"{name}: computes {span.ids} at {span.start}; the row has {ids[span.start :]}")
        known = chain_stamps(resident.origin, ids[:start])
        self._check(span.row, known)
        self._write(span.row, start, chain_stamps(known[-1] if known else resident.origin, own))
        drafts: list[int] = []
        stamp = chain_stamps(resident.origin, ids)[-1]
        while len(drafts) < span.drafts:
            position = len(ids) + len(drafts)
            if drafts:
                self._write(span.row, position - 1, [stamp])
            past = [*ids, *drafts] if resident.past is not None else None
            token = self._model.sample(stamp, resident.params, position, past)
            if hash((stamp, position, 17)) % 100 < WRONG_PERCENT:
                token = self._model.alphabet[hash((stamp, 19)) % len(self._model.alphabet)]
            drafts.append(token)
            stamp = next_stamp(stamp, token)
        return tuple(drafts)

    def _extend(self, span: DraftSpan) -> None:
        for group, first, blocks in span.blocks:
            table = self._tables[span.row][group]
            if first > len(table) or (blocks and not 1 <= min(blocks) <= max(blocks) <= self._cache.blocks):
                raise LawViolation(5, f"the draft model, row {span.row}: blocks {blocks} from {first} on, behind {len(table)}")
            table[first:] = blocks

    def _slot(self, row: int, group: int, position: int) -> tuple[int, int]:
        block, offset = divmod(position, self._cache.block_tokens)
        table = self._tables[row][group]
        if block >= len(table):
            raise LawViolation(2, f"the draft model, row {row}: position {position} has no block")
        return table[block], offset

    def _write(self, row: int, first: int, stamps: list[int]) -> None:
        for group in range(self._cache.groups):
            for position, stamp in enumerate(stamps, first):
                self._stamps[self._slot(row, group, position)] = group, stamp

    def _check(self, row: int, stamps: list[int]) -> None:
        for group in range(self._cache.groups):
            for position, stamp in enumerate(stamps):
                if self._stamps.get(self._slot(row, group, position)) != (group, stamp):
                    raise LawViolation(3, f"the draft model, row {row}: position {position} is stale or another's")
