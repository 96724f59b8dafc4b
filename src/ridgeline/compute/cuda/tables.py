"""Block tables of permanent rows, which stay on the device: a step brings what has changed of them, and nothing else.

Owns the tables, and pinned memory for changes that are too many to travel with a step's inputs: those of long rows that come.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from ridgeline.compute.cuda.device import Device
from ridgeline.compute.cuda.triton.begin import BLOCK, begin_kernel, place_kernel
from ridgeline.compute.cuda.triton.launch import BoundLaunch, ceil_div
from ridgeline.core.plan import Plan

MOST_SENT: Final = 1 << 15
"""Changes that go to the device at once ahead of a step."""


class BlockTables:
    """Tables int32 [groups, rows + 1, blocks]; the last row is padding's, on block 0. Entries behind a row's own are never read.

    depth     steps that may be in flight
    capacity  changes that travel with a step's inputs: a block for each row and group, as decoding rows need at most
    """

    def __init__(self, device: Device, groups: int, rows: int, blocks: int, depth: int) -> None:
        self.tables = device.zeros(groups, rows + 1, blocks, dtype=torch.int32)
        self.capacity = groups * rows
        self._rows, self._blocks = rows, blocks
        self._pending: list[tuple[int, Sequence[int]]] = []
        self._sent = device.empty(2, MOST_SENT, dtype=torch.int64)
        self._ring = [(device.host(2, MOST_SENT, dtype=torch.int64), device.event()) for _ in range(depth + 1)]
        self._next = 0

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self.tables.nbytes + self._sent.nbytes

    def apply(self, plan: Plan) -> None:
        """Takes note of a plan's changes."""
        for new in plan.new_rows:
            for group, ids in enumerate(new.tables):
                self.change(group, new.row, 0, ids)
        for row, group, first, ids in plan.blocks:
            self.change(group, row, first, ids)

    def write(self, rows: Sequence[int], tables: Sequence[NDArray[np.int32]]) -> None:
        """Takes note of whole tables [R, P] per group, of steps that no plan made."""
        for group, table in enumerate(tables):
            for row, ids in zip(rows, table.tolist(), strict=True):
                self.change(group, row, 0, ids)

    def pack(self, changes: NDArray[np.int32]) -> None:
        """Writes what has changed to a step's column [2, capacity]; what does not fit goes to the device at once, ahead of the step."""
        places = [place for first, ids in self._pending for place in range(first, first + len(ids))]
        values = [block for _, ids in self._pending for block in ids]
        self._pending.clear()
        ahead = max(0, len(places) - self.capacity)
        for first in range(0, ahead, MOST_SENT):
            self._send(places[first : min(first + MOST_SENT, ahead)], values[first : min(first + MOST_SENT, ahead)])
        count = len(places) - ahead
        if count:
            changes[:, :count] = places[ahead:], values[ahead:]
        changes[0, count:], changes[1, count:] = self._rows * self._blocks, 0  # padding's row keeps its block 0

    def change(self, group: int, row: int, first: int, ids: Sequence[int]) -> None:
        """Takes note of the ids of a row's blocks from `first` on."""
        self._pending.append(((group * (self._rows + 1) + row) * self._blocks + first, ids))

    def _send(self, places: list[int], values: list[int]) -> None:
        """Steps before have read the tables when these change, as the stream keeps order."""
        host, sent = self._ring[self._next]
        self._next = (self._next + 1) % len(self._ring)
        sent.synchronize()
        count = len(places)
        host.numpy()[:, :count] = places, values
        self._sent.copy_(host, non_blocking=True)
        sent.record()
        place, value = self._sent[:, :count]
        self.tables.view(-1).index_copy_(0, place, value.view(torch.int32)[::2])


def begin(
    known: torch.Tensor, source: torch.Tensor, handed: torch.Tensor, ids: torch.Tensor, tables: torch.Tensor, changes: torch.Tensor,
    tokens: int, count: int,
) -> BoundLaunch:  # fmt: skip
    """The launch of `begin_kernel` for so many tokens and changes."""
    grid = (max(1, ceil_div(max(tokens, count), BLOCK)),)
    arguments = (known, source, handed, ids, tables, changes, tokens, count, handed.stride(0), changes.stride(0))
    return BoundLaunch(begin_kernel, grid, arguments, {"BLOCK": BLOCK})


def place(
    positions: torch.Tensor, source: torch.Tensor, newest: torch.Tensor, row_of_token: torch.Tensor, kv_len: torch.Tensor,
    places: torch.Tensor | None, tables: torch.Tensor, slots: torch.Tensor, block_tokens: int,
) -> BoundLaunch:  # fmt: skip
    """The launch of `place_kernel` for a step's tokens. places: None where it does not verify."""
    groups, tokens = slots.shape
    arguments = (positions, source, newest, row_of_token, kv_len, positions if places is None else places, tables, slots, tokens)
    constants = {"GROUPS": groups, "BLOCK_TOKENS": block_tokens, "VERIFIES": places is not None, "BLOCK": BLOCK}
    return BoundLaunch(place_kernel, (ceil_div(tokens, BLOCK),), (*arguments, tables.stride(0), tables.stride(1)), constants)
