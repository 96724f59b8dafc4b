"""From a plan and the rows it refers to, the closed set of step inputs. Array operations only: no loop over tokens."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.graph import StepInputs
from ridgeline.compute.runtime.rows import Rows
from ridgeline.core.plan import LAST, Plan


@dataclass(frozen=True, slots=True)
class Batch:
    """The inputs of a step that waits for its turn: complete but for the ids that steps before it are yet to sample.

    open  int64 [O]  tokens whose id is not known
    rows  int32 [O]  the permanent row of each: its id is the one that the row sampled last
    """

    inputs: StepInputs
    open: NDArray[np.int64]
    rows: NDArray[np.int32]

    def complete(self, last: NDArray[np.int32]) -> StepInputs:
        """The inputs with every id, when all steps before this one have sampled: `last` as in `Rows`."""
        self.inputs.ids[self.open] = last[self.rows]
        return self.inputs


def step_inputs(plan: Plan, rows: Rows, block_tokens: int) -> Batch:
    """The inputs of a plan; what a row sampled last is left open.

    Logits are selected where rows sample. Prompt positions that are to be scored get theirs afterwards, few at a time (`runtime.scores`).
    """
    row, ids = np.frombuffer(plan.row, np.int32), np.array(plan.tokens, np.int32)
    start = np.array(plan.start, np.int64)
    if len(ids) == len(row):  # one token a row: most steps, and there is little time between them
        cu_q = np.arange(len(row) + 1, dtype=np.int32)
        row_of_token, positions, kv_len = cu_q[:-1], start, start + 1
    else:
        count = np.frombuffer(plan.count, np.int32)
        cu_q = np.zeros(len(row) + 1, np.int32)
        count.cumsum(out=cu_q[1:])
        row_of_token = np.arange(len(row), dtype=np.int32).repeat(count)
        positions, kv_len = np.arange(len(ids)) + (start - cu_q[:-1])[row_of_token], start + count
    (unknown,) = (ids == LAST).nonzero()
    blocks = -(-int(kv_len.max()) // block_tokens)
    tables = tuple(table[row, :blocks] for table in rows.tables)
    block = positions // block_tokens
    offset = positions - block * block_tokens
    inputs = StepInputs(
        ids=ids,
        positions=positions.astype(np.int32)[None],
        row_of_token=row_of_token,
        cu_q=cu_q,
        kv_len=kv_len.astype(np.int32),
        tables=tables,
        slots=tuple(table[row_of_token, block] * np.int64(block_tokens) + offset for table in tables),
        select=(cu_q[1:] - 1)[np.frombuffer(plan.sample, np.bool_)],
    )
    return Batch(inputs, unknown, row[row_of_token[unknown]])
