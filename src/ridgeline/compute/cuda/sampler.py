"""Sampling on the device: which rows it serves, the columns that it takes, the launch. It chooses what `compute/decoding` would.

Rows that need history, the host or values of logits (penalties, bias, bans, allowed ids, log-probabilities) are the host's.
"""

from collections.abc import Mapping
from typing import Final

from torch import Tensor

from ridgeline.compute.cuda.triton import sampling
from ridgeline.compute.decoding.edits import EDITS
from ridgeline.core.params import RowParams

COLUMNS: Final = {"temperature": "f64", "top_k": "i32", "top_p": "f64", "min_p": "f64", "seed": "i64", "choice": "i64"}
"""One number a row, by the names that `RowParams` and `Sampling` give it. fp64: a temperature of 0.7 in fp32 would choose other ids."""


def serves(row: RowParams) -> bool:
    """Whether such a row's ids need nothing but its logits, its columns and a position."""
    return row.sampling.logprobs is None and not any(edit.asked(row, 0) for edit in EDITS)


def columns_of(row: RowParams) -> tuple[float, int, float, float, int, int]:
    """The numbers of a row, in the order of `COLUMNS`."""
    asked = row.sampling
    return asked.temperature, asked.top_k, asked.top_p, asked.min_p, row.seed, row.choice


def scratch_bytes(rows: int) -> int:
    """What `sample` needs beside its arguments."""
    return sampling.scratch_bytes(rows)


def sample(logits: Tensor, columns: Mapping[str, Tensor], position: Tensor, ids: Tensor, scratch: Tensor) -> None:
    """logits [R, V] → ids int32 [R], all rows in the same launches.

    columns   by the names of `COLUMNS`, [R] each     position  int32 [R]: absolute position of the token that is sampled
    scratch   uint8, at least `scratch_bytes`, aligned to 8 bytes
    """
    sampling.sample(logits, *(columns[name] for name in COLUMNS), position, ids, scratch)


def finite(x: Tensor, row_of_token: Tensor, flags: Tensor) -> None:
    """Sets flags int32 [R] to 1, or to 0 for rows with a token whose final hidden state in x [T, D] is not finite."""
    flags.fill_(1)
    sampling.finite(x, row_of_token, flags)
