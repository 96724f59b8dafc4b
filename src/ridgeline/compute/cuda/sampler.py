"""Sampling on the device, and ids that stay there: what a step samples is what the next one embeds, and the host does not wait for it.

Chooses the ids that `compute/decoding` would. Rows that need history, the host or values of logits (penalties, bias, bans, allowed ids,
log-probabilities, budgets of reasoning) are sampled on the host.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ridgeline.compute.cuda.buckets import Bucket
from ridgeline.compute.cuda.device import Device
from ridgeline.compute.cuda.plan import Binding
from ridgeline.compute.cuda.step import COLUMN_DTYPES, SAMPLING_COLUMNS
from ridgeline.compute.cuda.tables import BlockTables, begin
from ridgeline.compute.cuda.triton import sampling
from ridgeline.compute.cuda.triton.launch import one_by_one
from ridgeline.compute.decoding.edits import EDITS
from ridgeline.core.params import RowParams
from ridgeline.core.plan import Plan


def is_sampled_on_device(row: RowParams) -> bool:
    """True where a row's ids need nothing but its logits, its sampling columns and a position."""
    return row.sampling.logprobs is None and row.sampling.thinking is None and not any(edit.asked(row, 0) for edit in EDITS)


def columns_of(row: RowParams) -> tuple[float, int, float, float, int, int]:
    """The numbers of a row, in the order of `SAMPLING_COLUMNS`."""
    params = row.sampling
    return params.temperature, params.top_k, params.top_p, params.min_p, row.seed, row.choice


class SamplingColumns:
    """Sampling parameters of permanent rows as columns of numpy, written when a row becomes resident.

    on_device  bool [rows]  the device samples for the row
    """

    def __init__(self, rows: int) -> None:
        self.on_device = np.zeros(rows, np.bool_)
        self._columns: dict[str, NDArray[Any]] = {name: np.zeros(rows, COLUMN_DTYPES[kind][0]) for name, kind in SAMPLING_COLUMNS.items()}

    def apply(self, plan: Plan) -> None:
        """Takes over the parameters of new rows."""
        for new in plan.new_rows:
            self.on_device[new.row] = is_sampled_on_device(new.params)
            for name, number in zip(SAMPLING_COLUMNS, columns_of(new.params), strict=True):
                self._columns[name][new.row] = number

    def of(self, rows: NDArray[np.int32]) -> dict[str, NDArray[Any]]:
        """The columns of some rows, [len(rows)] each, by the names of `SAMPLING_COLUMNS`."""
        return {name: column[rows] for name, column in self._columns.items()}


class SampledIds:
    """Ids on the device, for `rows` permanent rows and steps of at most `largest`; the first `vocab` of the logits may be sampled.

    token_ids  int32 [T]     ids of a step's tokens, once all are known
    results    int32 [2, R]  ids sampled, then 1 where the row's final hidden states are finite: what the host reads of a step
    """

    def __init__(self, device: Device, rows: int, largest: Bucket, vocab: int) -> None:
        self._vocab = vocab
        self._last = device.zeros(rows + 1, dtype=torch.int32)  # by permanent row; the last one is padding's
        self.token_ids = device.zeros(largest.tokens, dtype=torch.int32)
        self.results = device.zeros(2, largest.rows, dtype=torch.int32)

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return sum(tensor.nbytes for tensor in (self._last, self.token_ids, self.results))

    def begin(self, binding: Binding, tables: BlockTables) -> Callable[[], None]:
        """The launch that fills the step's ids, those that the host knows, else the last one of the token's row, and changes block
        tables."""
        inputs = binding.inputs
        ids = inputs["ids"], inputs["source"], self._last, binding.ids
        return begin(*ids, tables.tables, inputs["changes"], inputs.bucket.tokens, tables.capacity)

    def sampling(self, binding: Binding, logits: torch.Tensor, hidden: torch.Tensor) -> Callable[[], None]:
        """The launch that samples an id for every row from logits [R, V], and checks its final hidden states [T, D] for finite values."""
        inputs, rows = binding.inputs, binding.inputs.bucket.rows
        columns = [inputs[name] for name in SAMPLING_COLUMNS]
        ids, finite = self.results[0, :rows], self.results[1, :rows]
        sample = sampling.sample(logits[:, : self._vocab], *columns, inputs["kv_len"], ids, binding.plan.scratch)
        return one_by_one([sample, sampling.finite(hidden, inputs["row_of_token"], finite)])

    def store_last(self, binding: Binding) -> None:
        """Stores the sampled ids as the last ids of their permanent rows."""
        self._last.index_copy_(0, binding.inputs["target"], self.results[0, : binding.inputs.bucket.rows])
