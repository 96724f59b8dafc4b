"""Resident rows as plans change them, and the step inputs of a plan. Array operations only: no loop over tokens.

Owns the sampling parameters and block tables of each row, from `new_rows` to `freed_rows`; all of it comes from `NewRow`. Decides nothing.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.backend import StepRows, Work
from ridgeline.compute.decoding.edits import needed
from ridgeline.compute.dummy import last_positions
from ridgeline.compute.graph import StepInputs
from ridgeline.core.params import RowParams
from ridgeline.core.plan import LAST, IntColumn, NewRow, Plan

LATE: Final = 1 << 62
"""An output number behind the end of every edit."""
MOST_SHARED: Final = 16
"""Steps of the same rows, by what these sample, whose inputs are remembered."""


class ResidentRows:
    """`rows` permanent rows; a table has room for `blocks` blocks in each of `groups` KV groups.

    tables       int32 [rows, blocks] per KV group: block ids; 0 where there is none
    prompt       int32 [rows]  tokens of the prompt
    keep_first   int32 [rows]  `Work.keep` of the first outputs
    keep_rest    int32 [rows]  `Work.keep` of the others
    slots        int32 [rows]  slot of the adapter; -1: none
    first_count  int32 [rows]  number of outputs that need `keep_first`; 0 where both are the same
    """

    def __init__(self, rows: int, groups: int, blocks: int) -> None:
        self.tables = tuple(np.zeros((rows, blocks), np.int32) for _ in range(groups))
        self.prompt, self.keep_first, self.keep_rest, self.first_count = np.zeros((4, rows), np.int32)
        self.slots = np.full(rows, -1, np.int32)
        self._params: list[RowParams | None] = [None] * rows

    def apply(self, plan: Plan) -> None:
        """Applies the plan's changes. Frees come first: a row may be given away in the step that frees it."""
        for row in plan.freed_rows:
            self._params[row] = None
        for new in plan.new_rows:
            self._add(new)
        for row, group, first, blocks in plan.blocks:
            self.tables[group][row, first : first + len(blocks)] = blocks

    def params(self, row: int) -> RowParams:
        """Sampling parameters of a resident row. RuntimeError where the row is not resident."""
        params = self._params[row]
        if params is None:
            raise RuntimeError(f"row {row} is planned and not resident")
        return params

    def _add(self, new: NewRow) -> None:
        if self._params[new.row] is not None:
            raise RuntimeError(f"row {new.row} is given to two sequences")
        row, params = new.row, new.params
        self._params[row], self.prompt[row], self.slots[row] = params, params.prompt_tokens, new.slot
        self.keep_first[row], self.keep_rest[row] = first, rest = needed(params, 0), needed(params, LATE)
        self.first_count[row] = params.min_tokens if first != rest else 0  # no other edit ends
        for table, blocks in zip(self.tables, new.tables, strict=True):
            table[row] = 0
            table[row, : len(blocks)] = blocks


class _Columns(NamedTuple):
    """Inputs that steps share whose rows have as many tokens and samples each: see `StepInputs`, and `Work.keep`; None where that changes
    from step to step. `ahead`, int64 [T]: a token's position less that of its row's first one."""

    counts: NDArray[np.int32]
    cu_q: NDArray[np.int32]
    row_of_token: NDArray[np.int32]
    ahead: NDArray[np.int64]
    select: NDArray[np.int32]
    keep: NDArray[np.int32] | None


class Inputs:
    """Makes the work of plans, one after the other, over `rows`; a block has `block_tokens` tokens. tables: inputs have block tables;
    recurrent: they name the rows' recurrent states."""

    def __init__(self, rows: ResidentRows, block_tokens: int, *, tables: bool = True, recurrent: bool = False) -> None:
        self._rows, self._block_tokens, self._tables, self._recurrent = rows, block_tokens, tables, recurrent
        self._row: IntColumn | None = None
        self._shared: dict[bytes, tuple[StepRows, _Columns | None]] = {}
        """Rows and columns of steps by what the rows in `_row` sample."""

    def make_work(self, plan: Plan) -> Work:
        """The work of a plan that has been applied to the rows. Selects the positions that sample; prompt positions to be scored get their
        logits behind the step, a few at a time."""
        rows, columns = self._shared_by(plan)
        ids, start = np.array(plan.tokens, np.int32), np.array(plan.start, np.int64)
        counts, cu_q, tokens, ahead, select, keep = columns
        positions, kv_len = start if len(ids) == len(start) else start[tokens] + ahead, start + counts
        size = self._block_tokens
        blocks = -(-int(kv_len.max()) // size)
        block, row_ids = positions // size, rows.row_ids[tokens]
        offset = positions - block * size
        inputs = StepInputs(
            ids=ids,
            positions=positions.astype(np.int32)[None],
            row_of_token=tokens,
            cu_q=cu_q,
            kv_len=kv_len.astype(np.int32),
            tables=tuple([table[rows.row_ids, :blocks] for table in self._rows.tables]) if self._tables else (),
            slots=tuple([table[row_ids, block] * np.int64(size) + offset for table in self._rows.tables]),
            select=select,
            adapter=None if rows.slots is None else rows.slots[tokens],
            state_rows=rows.row_ids if self._recurrent else None,
        )
        (unknown,) = (ids == LAST).nonzero()
        if keep is None:
            keep = self._keep(rows.row_ids[tokens[select]], positions[select])
        drafts = _drafts(plan, cu_q) if rows.has_drafts else ((),) * len(rows.sampling)
        return Work(plan, rows, inputs, unknown, rows.row_ids[tokens[unknown]], keep, drafts)

    def _shared_by(self, plan: Plan) -> tuple[StepRows, _Columns]:
        """Rows and columns of the plan, shared with others of the same samples: drafts vary in number, and the device waits meanwhile."""
        if plan.row is not self._row or plan.new_rows or len(self._shared) >= MOST_SHARED:
            self._row, self._shared = plan.row, {}
        samples, tokens = bytes(plan.sample), len(plan.tokens)
        rows, columns = self._shared.get(samples) or (step_rows(plan, self._rows), None)
        if columns is None or len(columns.ahead) != tokens:
            columns = self._columns_of(plan, rows)
            # Steps that decode or verify drafts, as most do: their counts follow from their samples.
            self._shared[samples] = rows, columns if tokens in (len(plan.row), len(columns.select)) else None
        return rows, columns

    def _columns_of(self, plan: Plan, rows: StepRows) -> _Columns:
        counts = np.array(plan.count, np.int32)
        cu_q = np.zeros(len(counts) + 1, np.int32)
        counts.cumsum(out=cu_q[1:])
        tokens = np.arange(len(counts), dtype=np.int32).repeat(counts)
        ahead, select = np.arange(len(tokens)) - cu_q[tokens], last_positions(cu_q, np.frombuffer(plan.sample, np.uint8))
        keep = None if self._rows.first_count[rows.sampling_ids].any() else self._rows.keep_rest[rows.row_ids[tokens[select]]]
        return _Columns(counts, cu_q, tokens, ahead, select, keep)

    def _keep(self, row_ids: NDArray[np.int32], positions: NDArray[np.int64]) -> NDArray[np.int32]:
        """`Work.keep` of sampling positions, given the permanent row of each."""
        rows = self._rows
        found: NDArray[np.int32] = np.where(
            positions + 1 - rows.prompt[row_ids] < rows.first_count[row_ids], rows.keep_first[row_ids], rows.keep_rest[row_ids]
        )
        return found


def step_rows(plan: Plan, rows: ResidentRows) -> StepRows:
    """The part of a plan that plans of the same rows share."""
    row_ids, params = np.array(plan.row, np.int32), [rows.params(row) for row in plan.row]
    sampling = [index for index, samples in enumerate(plan.sample) if samples]
    asked = [params[index] for index in sampling]
    grammars = any(each.sampling.grammar is not None for each in asked)
    budgets = any(each.sampling.thinking is not None for each in asked)
    pooled = [index for index, each in enumerate(params) if each.pooling is not None]
    slots = rows.slots[row_ids]
    own = slots if (slots >= 0).any() else None
    return StepRows(plan.row, plan.sample, row_ids, params, sampling, asked, row_ids[sampling], plan.drafts, grammars, budgets, pooled, own)


def _drafts(plan: Plan, cu_q: NDArray[np.int32]) -> list[list[int]]:
    """`Work.drafts`: of each row that samples the ids of its sampled positions but the first."""
    columns = zip(cu_q[1:].tolist(), plan.sample, strict=True)
    return [plan.tokens[end - samples + 1 : end].tolist() for end, samples in columns if samples]
