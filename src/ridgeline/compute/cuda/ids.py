"""Ids that stay on the device from step to step: what a step samples is what the next one embeds, and nobody waits for it.

Owns the last id of every permanent row, the ids of a step's tokens once all are known, and what a step has for the host: an id a row, and
whether the row's final hidden states are finite.
"""

from collections.abc import Callable
from functools import partial

import torch

from ridgeline.compute.cuda import sampler
from ridgeline.compute.cuda.buckets import Bucket
from ridgeline.compute.cuda.device import Device
from ridgeline.compute.cuda.plan import Binding


class Ids:
    """For `rows` permanent rows, and steps of at most `largest`; `vocab` ids may be sampled, the first ones of the logits.

    of_tokens  int32 [T]     the ids of a step
    out        int32 [2, R]  ids sampled, then 1 where finite
    """

    def __init__(self, device: Device, rows: int, largest: Bucket, vocab: int) -> None:
        self._vocab = vocab
        self._last = device.zeros(rows + 1, dtype=torch.int32)  # and one that nobody reads
        self._taken, self.of_tokens = device.zeros(2, largest.tokens, dtype=torch.int32)
        self._unknown = device.zeros(largest.tokens, dtype=torch.bool)
        self.out = device.zeros(2, largest.rows, dtype=torch.int32)

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return sum(tensor.nbytes for tensor in (self._last, self._taken, self.of_tokens, self._unknown, self.out))

    def resolve(self, binding: Binding) -> None:
        """Ids of the step: those that the host knows, else the last one of the token's row."""
        tokens = binding.inputs.bucket.tokens
        known, taken, unknown = binding.inputs["ids"], self._taken[:tokens], self._unknown[:tokens]
        torch.index_select(self._last, 0, binding.inputs["source"], out=taken)
        torch.lt(known, 0, out=unknown)
        torch.where(unknown, taken, known, out=binding.ids)

    def sampling(self, binding: Binding, logits: torch.Tensor, hidden: torch.Tensor) -> Callable[[], None]:
        """What samples an id for every row from logits [R, V], and looks whether its hidden states [T, D] are finite."""
        inputs, rows = binding.inputs, binding.inputs.bucket.rows
        columns = {name: inputs[name] for name in sampler.COLUMNS}
        choose = partial(sampler.sample, logits[:, : self._vocab], columns, inputs["kv_len"], self.out[0, :rows], binding.plan.scratch)
        look = partial(sampler.finite, hidden, inputs["row_of_token"], self.out[1, :rows])

        def run() -> None:
            choose()
            look()

        return run

    def remember(self, binding: Binding) -> None:
        """The sampled ids to the rows that take them."""
        self._last.index_copy_(0, binding.inputs["target"], self.out[0, : binding.inputs.bucket.rows])
