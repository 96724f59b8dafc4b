"""Adapters on a device: slots at addresses that never change, filled from the host between two steps, and the order of a step's tokens.

Owns the layout of a slot: a head with rank, scale and places of every matrix, then the numbers of those that the adapter changes, one
behind the other, each at its own rank. So a slot is filled by one copy of what the adapter has.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ridgeline.compute.adapters.rests import Rest, no_rest
from ridgeline.compute.adapters.slots import AdapterSlots, LoadedAdapter
from ridgeline.compute.cuda.device import Device
from ridgeline.compute.cuda.triton.lora import PLACE_BYTES, WORDS, Slots, most_tiles, tile_height
from ridgeline.compute.graph import Op, OpList
from ridgeline.compute.lowering.adapters import CHANGES, changed_matrices
from ridgeline.compute.ops.lora import Pair

_STORED: Final = {"F32": (np.int32, torch.float32), "F16": (np.int16, torch.float16), "BF16": (np.int16, torch.bfloat16)}


class AdapterColumns(NamedTuple):
    """Values on which the columns depend in which a step's tokens are put in order: slots, and `triton.lora.tile_height`'s `invariant`."""

    slots: int
    invariant: bool

    def shape(self, tokens: int) -> tuple[int, int]:
        """Tiles, and tokens of each, in a step of so many tokens."""
        return most_tiles(tokens, self.slots, invariant=self.invariant), tile_height(tokens, invariant=self.invariant)


class DeviceAdapterSlots(AdapterSlots):
    """`count` slots for adapters of rank `most_rank` at most, of the matrices that `oplist` changes, in the type of activations."""

    def __init__(self, oplist: OpList, count: int, most_rank: int, dtype: torch.dtype, device: Device) -> None:
        matrices = changed_matrices(oplist)
        super().__init__(matrices, count)
        self.count = count
        self._entries = {name: number for number, name in enumerate(matrices)}
        self._head = _aligned(4 * WORDS * len(matrices))
        self._dtype, self._device = dtype, device
        size = slot_bytes(matrices, most_rank, dtype)
        self.slots = Slots(device.zeros(count, size, dtype=torch.uint8), most_rank)
        self._filled: list[LoadedAdapter | None] = [None] * count
        """Keeps alive what is copied."""

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self.slots.memory.nbytes

    def entry(self, op: Op) -> int:
        """Number of the first matrix of a change in the head of a slot; its others follow."""
        return self._entries[op.weights[0].name]

    def pack(self, pairs: Mapping[str, Pair], rest: Rest = no_rest) -> LoadedAdapter:
        """See `AdapterSlots.pack`: a slot's contents in pinned memory. Numbers are rounded to the type of activations."""
        sizes = [_aligned(matrix.size * self._dtype.itemsize) for pair in pairs.values() for matrix in (pair.a, pair.b)]
        memory = self._device.host(self._head + sum(sizes), dtype=torch.uint8)
        head = memory[: self._head].view(torch.int32)
        places: Iterator[int] = iter(np.cumsum([self._head, *sizes]).tolist())
        for name, pair in pairs.items():
            a, b = next(places), next(places)
            said = torch.tensor([pair.scale], dtype=torch.float32).view(torch.int32)
            head[WORDS * self._entries[name] :][:WORDS] = torch.tensor([len(pair.a), int(said), a // PLACE_BYTES, b // PLACE_BYTES])
            for place, matrix in ((a, pair.a), (b, pair.b)):
                integers, kind = _STORED[pair.kind]
                numbers = torch.from_numpy(np.array(matrix, order="C").view(integers)).view(kind)
                memory[place : place + matrix.size * self._dtype.itemsize].view(self._dtype).view(matrix.shape).copy_(numbers)
            rest()
        return LoadedAdapter(dict.fromkeys(pairs), memory, memory.nbytes)

    def fill(self, slot: int, adapter: LoadedAdapter) -> None:
        """Starts the copy of an adapter into a slot, behind the steps that have been launched and before those that will be."""
        self._filled[slot] = adapter
        self.slots.memory[slot, : len(adapter.memory)].copy_(adapter.memory, non_blocking=True)


def slot_bytes(matrices: Mapping[str, tuple[int, int]], most_rank: int, dtype: torch.dtype) -> int:
    """Bytes of a slot for adapters of these matrices [N, K] of rank `most_rank` at most."""
    numbers = sum(_aligned(most_rank * size * dtype.itemsize) for shape in matrices.values() for size in shape)
    return -(-(_aligned(4 * WORDS * len(matrices)) + numbers) // 256) * 256


def change_widths(op: Op) -> tuple[int, ...]:
    """Outputs of each matrix of a change."""
    return tuple(weight.shape[0] for weight in op.weights)


def is_change(op: Op) -> bool:
    """True of an op that adds adapters' changes to products where these lie."""
    return op.name in CHANGES.values()


def put_in_order(adapter: NDArray[np.int32] | None, tokens: NDArray[Any], slots: NDArray[Any]) -> None:
    """Fills the columns of `triton.lora.Tiles`.

    adapter  int32 [T]: slot of each token, -1 for none; None where no token has one
    tokens   int32 [tiles, height]: written
    slots    int32 [tiles]: written
    """
    tokens[...], slots[...] = -1, -1
    if adapter is None:
        return
    number, height = 0, tokens.shape[1]
    for slot in np.unique(adapter[adapter >= 0]).tolist():
        (own,) = (adapter == slot).nonzero()
        tiles = -(-len(own) // height)
        tokens[number : number + tiles].reshape(-1)[: len(own)] = own
        slots[number : number + tiles] = slot
        number += tiles


def _aligned(count: int) -> int:
    return -(-count // PLACE_BYTES) * PLACE_BYTES
