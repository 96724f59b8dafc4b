"""Sampling on the device, and ids that stay there: what a step samples is what the next one embeds, and the host does not wait for it.

Chooses the ids that `compute/decoding` would. Rows that need history, the host or values of logits (penalties, bias, bans, allowed ids,
log-probabilities, budgets of reasoning) are sampled on the host.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from ridgeline.compute.cuda.device import Device
from ridgeline.compute.cuda.plan import Binding
from ridgeline.compute.cuda.step import ALIGNMENT, COLUMN_DTYPES, SAMPLING_COLUMNS
from ridgeline.compute.cuda.tables import BlockTables, begin, place
from ridgeline.compute.cuda.triton import sampling
from ridgeline.compute.cuda.triton.launch import one_by_one
from ridgeline.compute.cuda.triton.verify import keep, verify
from ridgeline.compute.decoding.edits import EDITS
from ridgeline.compute.graph import Sizes
from ridgeline.core.params import RowParams
from ridgeline.core.plan import LAST, Plan

ALIGNED_IDS: Final = ALIGNMENT // 4
"""Ids of which so many begin where a column may."""


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


def drafted_id(number: int) -> int:
    """Stands among a step's ids for draft `number` of its row, which is on the device, as LAST does for the id that was sampled last."""
    return LAST - 1 - number


class KeptIds:
    """Ids that steps hand to later ones on the device: the runners of a model and of its draft model share them.

    ids        int32 [rows + 1, 1 + drafts + 1]: by permanent row the id that was sampled last, those drafted behind it, and the one before
               it, which steps that verify keep; the last row is padding's
    positions  int32 [rows + 1]: where the id stands that was sampled last, if rows have `drafts`
    """

    def __init__(self, device: Device, rows: int, drafts: int) -> None:
        self.ids = device.zeros(rows + 1, 1 + drafts + 1, dtype=torch.int32)
        self.positions = device.zeros(rows + 1, dtype=torch.int32)
        self.has_drafts = drafts > 0

    @property
    def before_last(self) -> int:
        """Stands among a step's ids for the one before the last of its row."""
        return LAST - self.ids.shape[1] + 1


class SampledIds:
    """Ids on the device, for steps of at most `largest`; the first `vocab` of the logits, which are of `dtype`, may be sampled.

    kept       ids that the next steps take up; drafts: of a draft model, whose ids have no place yet
    logit_ids  int64 [logits]  the id of each logit, of heads that draft some ids alone; None: its number. Others' logits are the lowest
    results    int32 [3, ≥ S]  what the host reads of a step: ids sampled [S]; 1 where the row's final hidden states are finite [R], up to
                               its last id where the step verifies; and then only, how many of a row's ids stand [R]
    token_ids  int32 [T]       ids of a step's tokens, once all are known
    readable   int32           both of these, one behind the other
    """

    def __init__(
        self, device: Device, kept: KeptIds, largest: Sizes, vocab: int, dtype: torch.dtype, *, drafts: bool, logit_ids: torch.Tensor | None
    ) -> None:
        self._vocab, self._logit_ids = vocab, logit_ids
        self._all_logits = device.empty(0 if logit_ids is None else largest.S, vocab, dtype=dtype).fill_(-torch.inf)
        self.kept, self._places = kept, kept.has_drafts and not drafts
        selected = -(-largest.S // ALIGNED_IDS) * ALIGNED_IDS
        self.readable = device.zeros(3 * selected + largest.T, dtype=torch.int32)
        self.results, self.token_ids = self.readable[: 3 * selected].view(3, selected), self.readable[3 * selected :]
        self._finite = device.zeros(largest.S, dtype=torch.int32)  # of positions

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        tensors = (self.kept.ids, self.kept.positions, self.readable, self._finite, self._all_logits)
        return sum(tensor.nbytes for tensor in tensors)

    def logits(self, made: torch.Tensor) -> torch.Tensor:
        """Logits [S, ids] in the order of ids, where a step has put those that its list has made."""
        return made if self._logit_ids is None else self._all_logits[: len(made)]

    def begin(self, binding: Binding, tables: BlockTables) -> Callable[[], None]:
        """The launch that fills the step's ids, those that the host knows, else what is kept for the token's row, and changes block
        tables."""
        inputs = binding.inputs
        ids = inputs["ids"], inputs["source"], self.kept.ids, binding.ids
        return begin(*ids, tables.tables, inputs["changes"], inputs.bucket.tokens, tables.capacity)

    def place(self, binding: Binding, tables: BlockTables) -> list[Callable[[], None]]:
        """The launch that finds the places of rows which the host does not know, behind `begin`; none where it knows all."""
        if not self.kept.has_drafts:
            return []
        inputs, block_tokens = binding.inputs, binding.cache.block_tokens
        columns, places = [inputs[name] for name in ("row_of_token", "kv_len")], inputs["place"] if inputs.bucket.verifies else None
        found = place(
            inputs["positions"], inputs["source"], self.kept.positions, *columns, places, tables.tables, inputs["slots"], block_tokens
        )
        return [found]

    def sampling(
        self, binding: Binding, logits: torch.Tensor, hidden: torch.Tensor, places: torch.Tensor | None = None
    ) -> Callable[[], None]:
        """The launch that samples an id for every selected position from logits [S, V], and checks final hidden states [T, D] for finite
        values: of rows, or where the step verifies of positions. places: int32 [S] of what is sampled; None: behind each row."""
        inputs, bucket = binding.inputs, binding.inputs.bucket
        columns, ids = [inputs[name] for name in SAMPLING_COLUMNS], self.results[0, : bucket.selected]
        place, of, finite = inputs["kv_len"] if places is None else places, inputs["row_of_token"], self.results[1, : bucket.rows]
        if bucket.verifies:
            place, of, finite = inputs["place"], inputs["select"], self._finite[: bucket.tokens]
        sample = sampling.sample(self.logits(logits)[:, : self._vocab], *columns, place, ids, binding.plan.scratch)
        launches = [sample, sampling.finite(hidden, of, finite)]
        if self._logit_ids is not None:
            launches.insert(0, partial(self.logits(logits).index_copy_, 1, self._logit_ids, logits))
        return one_by_one(launches)

    def store_last(self, binding: Binding) -> Callable[[], None]:
        """The launch that keeps what is sampled for permanent rows: where the step verifies, the last id that stands."""
        inputs, rows = binding.inputs, binding.inputs.bucket.rows
        ids, finite, counts = self.results[:, : binding.inputs.bucket.selected]
        if not binding.inputs.bucket.verifies:
            if self._places:
                return keep(ids, inputs["kv_len"], inputs["target"], self.kept.ids, self.kept.positions)
            return partial(self.kept.ids.view(-1).index_copy_, 0, inputs["target"], ids)  # type: ignore[return-value]
        drafts, columns = binding.ids, [inputs[name] for name in ("cu_q", "samples", "kv_len", "target")]
        most = binding.inputs.bucket.max_q
        return verify(ids, drafts, self._finite, *columns, self.kept.ids, self.kept.positions, finite[:rows], counts[:rows], most)
