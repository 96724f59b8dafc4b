"""Sampling on the device, and ids that stay there: what a step samples is what the next one embeds, and the host does not wait for it.

Chooses the ids that `compute/decoding` would. Rows that need history, the host or values of logits (penalties, bias, bans, allowed ids,
log-probabilities, budgets of reasoning) are sampled on the host.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ridgeline.compute.cuda.device import Device
from ridgeline.compute.cuda.plan import Binding
from ridgeline.compute.cuda.step import COLUMN_DTYPES, SAMPLING_COLUMNS
from ridgeline.compute.cuda.tables import BlockTables, begin
from ridgeline.compute.cuda.triton import sampling
from ridgeline.compute.cuda.triton.launch import one_by_one
from ridgeline.compute.cuda.triton.verify import verify
from ridgeline.compute.decoding.edits import EDITS
from ridgeline.compute.graph import Sizes
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
    results    int32 [3, S]  what the host reads of a step: ids sampled [S]; 1 where the row's final hidden states are finite [R], up to its
                             last id where the step verifies; and then only, how many of a row's ids stand [R]
    """

    def __init__(self, device: Device, rows: int, largest: Sizes, vocab: int) -> None:
        self._vocab = vocab
        self._last = device.zeros(rows + 1, dtype=torch.int32)  # by permanent row; the last one is padding's
        self.token_ids = device.zeros(largest.T, dtype=torch.int32)
        self.results = device.zeros(3, largest.S, dtype=torch.int32)
        self._finite = device.zeros(largest.S, dtype=torch.int32)  # of positions

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return sum(tensor.nbytes for tensor in (self._last, self.token_ids, self.results, self._finite))

    def begin(self, binding: Binding, tables: BlockTables) -> Callable[[], None]:
        """The launch that fills the step's ids, those that the host knows, else the last one of the token's row, and changes block
        tables."""
        inputs = binding.inputs
        ids = inputs["ids"], inputs["source"], self._last, binding.ids
        return begin(*ids, tables.tables, inputs["changes"], inputs.bucket.tokens, tables.capacity)

    def sampling(self, binding: Binding, logits: torch.Tensor, hidden: torch.Tensor) -> Callable[[], None]:
        """The launch that samples an id for every selected position from logits [S, V], and checks final hidden states [T, D] for finite
        values: of rows, or where the step verifies of positions."""
        inputs, bucket = binding.inputs, binding.inputs.bucket
        columns, ids = [inputs[name] for name in SAMPLING_COLUMNS], self.results[0, : bucket.selected]
        place, of, finite = inputs["kv_len"], inputs["row_of_token"], self.results[1, : bucket.rows]
        if bucket.verifies:
            place, of, finite = inputs["place"], inputs["select"], self._finite[: bucket.tokens]
        sample = sampling.sample(logits[:, : self._vocab], *columns, place, ids, binding.plan.scratch)
        return one_by_one([sample, sampling.finite(hidden, of, finite)])

    def store_last(self, binding: Binding) -> Callable[[], None]:
        """The launch that stores what is sampled as the last ids of permanent rows: where the step verifies, the last that stands."""
        inputs, rows = binding.inputs, binding.inputs.bucket.rows
        ids, finite, counts = self.results[:, : binding.inputs.bucket.selected]
        if not binding.inputs.bucket.verifies:
            return partial(self._last.index_copy_, 0, inputs["target"], ids)  # type: ignore[return-value]
        drafts, columns = binding.ids, [inputs[name] for name in ("cu_q", "samples", "target")]
        most = binding.inputs.bucket.max_q
        return verify(ids, drafts, self._finite, *columns, self._last, finite[:rows], counts[:rows], most)
