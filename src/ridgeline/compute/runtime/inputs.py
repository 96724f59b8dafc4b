"""Resident rows as plans change them, and from a plan the closed set of step inputs. Array operations only: no loop over tokens.

Owns per row the sampling parameters and the block tables, from `new_rows` to `freed_rows`; all of it is made from `NewRow`, the request as
a value. Decides nothing.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.backend import StepRows, Work
from ridgeline.compute.decoding.edits import needed
from ridgeline.compute.dummy import last_of_each
from ridgeline.compute.graph import StepInputs
from ridgeline.core.params import RowParams
from ridgeline.core.plan import LAST, NewRow, Plan

LATE: Final = 1 << 62
"""The number of an output before which every edit that ends has ended."""


class Rows:
    """`rows` permanent rows; a table has room for `blocks` blocks in each of `groups` KV groups.

    tables  int32 [rows, blocks] per KV group: the id of every block; 0 where there is none
    prompt  int32 [rows]         tokens of the prompt
    early, late  int32 [rows]    how many of the largest logits its outputs need: see `Work.keep`
    border  int32 [rows]         number of the first output that needs `late`; 0 where both are the same
    """

    def __init__(self, rows: int, groups: int, blocks: int) -> None:
        self.tables = tuple(np.zeros((rows, blocks), np.int32) for _ in range(groups))
        self.prompt, self.early, self.late, self.border = np.zeros((4, rows), np.int32)
        self._params: list[RowParams | None] = [None] * rows

    def apply(self, plan: Plan) -> None:
        """Takes over the plan's delta. Frees come first: a row may be given away in the step that frees it."""
        for row in plan.freed_rows:
            self._params[row] = None
        for new in plan.new_rows:
            self._occupy(new)
        for row, group, first, blocks in plan.blocks:
            self.tables[group][row, first : first + len(blocks)] = blocks

    def params(self, row: int) -> RowParams:
        """Sampling parameters of a resident row."""
        params = self._params[row]
        if params is None:
            raise RuntimeError(f"row {row} is planned and not resident")
        return params

    def _occupy(self, new: NewRow) -> None:
        if self._params[new.row] is not None:
            raise RuntimeError(f"row {new.row} is given to two sequences")
        row, params = new.row, new.params
        self._params[row], self.prompt[row] = params, params.prompt_tokens
        self.early[row], self.late[row] = early, late = needed(params, 0), needed(params, LATE)
        self.border[row] = params.min_tokens if early != late else 0  # no other edit ends
        for table, blocks in zip(self.tables, new.tables, strict=True):
            table[row] = 0
            table[row, : len(blocks)] = blocks


class _Singles(NamedTuple):
    """What steps of the same rows have in common where each has one token: see `StepInputs`, and `Work.keep`; None where that changes."""

    cu_q: NDArray[np.int32]
    row_of_token: NDArray[np.int32]
    select: NDArray[np.int32]
    keep: NDArray[np.int32] | None


class Inputs:
    """Makes the work of one plan after the other over `rows`, whose tables name blocks of `block_tokens` tokens."""

    def __init__(self, rows: Rows, block_tokens: int) -> None:
        self._rows, self._block_tokens = rows, block_tokens
        self._same: StepRows | None = None
        self._singles: _Singles | None = None

    def work(self, plan: Plan) -> Work:
        """The step of a plan whose delta has been applied. Logits are selected where rows sample; those of prompt positions that are to be
        scored are made behind the step, few at a time."""
        rows = self._same
        if rows is None or not rows.serve(plan):
            rows = self._same = step_rows(plan, self._rows)
            self._singles = None
        ids, start, keep = np.array(plan.tokens, np.int32), np.array(plan.start, np.int64), None
        if len(ids) == len(start):  # one token per row: most steps, and there is little time between them
            if self._singles is None:
                self._singles = self._of_singles(rows)
            cu_q, tokens, select, keep = self._singles
            positions, kv_len = start, start + 1
        else:
            count = np.frombuffer(plan.count, np.int32)
            cu_q = np.zeros(len(count) + 1, np.int32)
            count.cumsum(out=cu_q[1:])
            tokens = np.arange(len(count), dtype=np.int32).repeat(count)
            positions, kv_len = np.arange(len(ids)) + (start - cu_q[:-1])[tokens], start + count
            select = last_of_each(cu_q, np.frombuffer(plan.sample, np.uint8))
        size = self._block_tokens
        blocks = -(-int(kv_len.max()) // size)
        tables = tuple([table[rows.place, :blocks] for table in self._rows.tables])
        block = positions // size
        offset = positions - block * size
        inputs = StepInputs(
            ids=ids,
            positions=positions.astype(np.int32)[None],
            row_of_token=tokens,
            cu_q=cu_q,
            kv_len=kv_len.astype(np.int32),
            tables=tables,
            slots=tuple([table[tokens, block] * np.int64(size) + offset for table in tables]),
            select=select,
        )
        (unknown,) = (ids == LAST).nonzero()
        if keep is None:
            keep = self._kept(rows.place[tokens[select]], positions[select])
        drafts = _drafts(plan, cu_q) if rows.drafted else ((),) * len(rows.chosen)
        return Work(plan, rows, inputs, unknown, rows.place[tokens[unknown]], keep, drafts)

    def _of_singles(self, rows: StepRows) -> _Singles:
        cu_q = np.arange(len(rows.place) + 1, dtype=np.int32)
        keep = None if self._rows.border[rows.taking].any() else self._rows.late[rows.taking]
        return _Singles(cu_q, cu_q[:-1], np.array(rows.chosen, np.int32), keep)

    def _kept(self, place: NDArray[np.int32], positions: NDArray[np.int64]) -> NDArray[np.int32]:
        """See `Work.keep`, for positions of permanent rows that sample what comes next."""
        rows = self._rows
        found: NDArray[np.int32] = np.where(positions + 1 - rows.prompt[place] < rows.border[place], rows.early[place], rows.late[place])
        return found


def step_rows(plan: Plan, rows: Rows) -> StepRows:
    """What the plan has in common with others of the same rows."""
    place, params = np.array(plan.row, np.int32), [rows.params(row) for row in plan.row]
    chosen = [index for index, samples in enumerate(plan.sample) if samples]
    return StepRows(plan.row, plan.sample, place, params, chosen, [params[index] for index in chosen], place[chosen], plan.drafts)


def _drafts(plan: Plan, cu_q: NDArray[np.int32]) -> list[list[int]]:
    """Of each row that samples the ids of all its sampled positions but the first."""
    columns = zip(cu_q[1:].tolist(), plan.sample, strict=True)
    return [plan.tokens[end - samples + 1 : end].tolist() for end, samples in columns if samples]
