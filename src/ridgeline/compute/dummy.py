"""Dummy steps for warm-up, measurement and graph capture: arrays of the host, made from token counts."""

from collections.abc import Sequence

import numpy as np

from ridgeline.compute.graph import StepInputs


def dummy_step(
    counts: Sequence[int],
    *,
    groups: int,
    block_tokens: int,
    starts: Sequence[int] | None = None,
    samples: Sequence[int] | None = None,
    row_blocks: int = 0,
) -> StepInputs:
    """A step whose rows have so many tokens each, all of them the id 0; recurrent states are those of the first rows.

    starts      positions of the rows' first tokens; None: 0
    samples     number of selected positions of each row, its last ones; None: 1
    row_blocks  blocks that each row has to itself in each KV group, row after row from block 1 on; 0: all is on the reserved block 0

    ValueError where a row needs more blocks.
    """
    count = np.array(counts, np.int32)
    start = np.zeros(len(count), np.int32) if starts is None else np.array(starts, np.int32)
    sample = np.ones(len(count), np.int32) if samples is None else np.array(samples, np.int32)
    cu_q = np.zeros(len(count) + 1, np.int32)
    count.cumsum(out=cu_q[1:])
    row = np.arange(len(count), dtype=np.int32).repeat(count)
    at = np.arange(cu_q[-1], dtype=np.int32) + (start - cu_q[:-1])[row]
    width = -(-int((start + count).max()) // block_tokens)
    if row_blocks and width > row_blocks:
        raise ValueError(f"a row of {width} blocks does not fit {row_blocks} blocks")
    place = np.arange(len(count), dtype=np.int32)[:, None] * (groups * row_blocks) + np.arange(1, 1 + width, dtype=np.int32)
    tables = tuple(place + group * row_blocks if row_blocks else np.zeros_like(place) for group in range(groups))
    return StepInputs(
        ids=np.zeros(len(row), np.int32),
        positions=at[None],
        row_of_token=row,
        cu_q=cu_q,
        kv_len=start + count,
        tables=tables,
        slots=tuple(table[row, at // block_tokens] * np.int64(block_tokens) + at % block_tokens for table in tables),
        select=last_positions(cu_q, sample),
        state_rows=np.arange(len(count), dtype=np.int32),
    )


def last_positions(cu_q: np.ndarray, sample: np.ndarray) -> np.ndarray:
    """int32 [S]: the last `sample[r]` tokens of each row r, ascending."""
    select: np.ndarray = (cu_q[1:] - sample.cumsum(dtype=np.int32)).repeat(sample) + np.arange(sample.sum(), dtype=np.int32)
    return select


def even_counts(tokens: int, rows: int) -> list[int]:
    """Token counts [rows] that divide `tokens` evenly."""
    return np.diff(np.arange(rows + 1) * tokens // rows).tolist()
