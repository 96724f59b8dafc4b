"""Device state of resident sequences: one permanent row each, from `new_rows` to `freed_rows`.

Owns per row the sampling parameters, the last id sampled, how far it is computed, its block tables, and its ids where the sampler looks
back. All of it is made from `NewRow`, the request as a value. Plans change it in the order of their steps; nothing here decides anything.
"""

from collections.abc import Sequence

import numpy as np

from ridgeline.compute.decoding.edits import History, history_of
from ridgeline.core.params import RowParams
from ridgeline.core.plan import NewRow, Plan


class Rows:
    """`rows` permanent rows; a table has room for `blocks` blocks in each of `groups` KV groups.

    last      int32 [rows]          the last id known for the row: the end of its ids, then what it sampled
    tables    int32 [rows, blocks]  a KV group each: the page of every block; 0 where there is none
    """

    def __init__(self, rows: int, groups: int, blocks: int) -> None:
        self.last = np.zeros(rows, np.int32)
        self.tables = tuple(np.zeros((rows, blocks), np.int32) for _ in range(groups))
        self._params: list[RowParams | None] = [None] * rows
        self.histories: list[History | None] = [None] * rows
        """None for rows that do not look back."""

    def apply(self, plan: Plan) -> None:
        """Takes over the plan's delta. Frees come first: a row may be given away in the step that frees it."""
        for row in plan.freed_rows:
            self._params[row] = self.histories[row] = None
        for new in plan.new_rows:
            self._occupy(new)
        for row, group, first, pages in plan.blocks:
            self.tables[group][row, first : first + len(pages)] = pages

    def params(self, row: int) -> RowParams:
        """Sampling parameters of a resident row."""
        params = self._params[row]
        if params is None:
            raise RuntimeError(f"row {row} is planned and not resident")
        return params

    def prompt_token(self, row: int, position: int) -> int:
        """An id of the prompt of a row whose prompt is scored."""
        history = self.histories[row]
        if history is None:
            raise RuntimeError(f"row {row} is scored at position {position} and did not ask for it")
        return history.ids[position]

    def sampled(self, rows: Sequence[int], ids: Sequence[int]) -> None:
        """Remembers what rows sampled in the step that has just run."""
        for row, token in zip(rows, ids, strict=True):
            self.last[row] = token
            history = self.histories[row]
            if history is not None:
                history.push(token)

    def _occupy(self, new: NewRow) -> None:
        if self._params[new.row] is not None:
            raise RuntimeError(f"row {new.row} is given to two sequences")
        self._params[new.row] = new.params
        self.histories[new.row] = history_of(new.params, new.ids)
        self.last[new.row] = new.ids[-1]
        for table, pages in zip(self.tables, new.tables, strict=True):
            table[new.row] = 0
            table[new.row, : len(pages)] = pages
