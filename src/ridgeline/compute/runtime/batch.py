"""From a plan and the rows it refers to, the closed set of step inputs. Array operations only: no loop over tokens."""

import numpy as np

from ridgeline.compute.graph import StepInputs
from ridgeline.compute.runtime.rows import Rows
from ridgeline.core.plan import FROM_ROW, Plan


def step_inputs(plan: Plan, rows: Rows, block_tokens: int) -> StepInputs:
    """Resolves what the plan leaves to the rows (where they stand, what they sampled last); advances `rows.computed`.

    Logits are selected where rows sample. Prompt positions that are to be scored get theirs afterwards, few at a time (`runtime.scores`).
    """
    row = np.array(plan.row, np.int32)
    count = np.array(plan.count, np.int32)
    start = np.array(plan.start, np.int64)
    start = np.where(start == FROM_ROW, rows.computed[row], start)
    cu_q = np.concatenate([[0], np.cumsum(count)]).astype(np.int32)
    row_of_token = np.repeat(np.arange(len(row), dtype=np.int32), count)
    positions = np.arange(cu_q[-1], dtype=np.int64) + (start - cu_q[:-1])[row_of_token]
    ids = np.array(plan.tokens, np.int32)
    ids = np.where(ids == FROM_ROW, rows.last[row][row_of_token], ids)
    kv_len = start + count
    blocks = -(-int(kv_len.max()) // block_tokens)
    tables = tuple(table[row, :blocks] for table in rows.tables)
    block, offset = positions // block_tokens, positions % block_tokens
    rows.computed[row] = kv_len
    return StepInputs(
        ids=ids,
        positions=positions.astype(np.int32)[None],
        row_of_token=row_of_token,
        cu_q=cu_q,
        kv_len=kv_len.astype(np.int32),
        tables=tables,
        slots=tuple(table[row_of_token, block] * np.int64(block_tokens) + offset for table in tables),
        adapter=np.zeros(len(ids), np.int32),
        select=(cu_q[1:] - 1)[np.frombuffer(plan.sample, np.bool_)],
    )
