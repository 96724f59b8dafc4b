"""Slots of adapters as native kernels read them: a record for each matrix and slot, changed between two steps."""

from collections.abc import Mapping
from itertools import chain
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.adapters.rests import Rest, no_rest
from ridgeline.compute.adapters.slots import AdapterSlots, LoadedAdapter
from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.memory import ALIGNMENT, allocate
from ridgeline.compute.ops.lora import Pair

A_COLUMNS: Final = 16
B_COLUMNS: Final = 32
"""Columns of a block, in which the rows of a matrix lie one behind the other; see LoraPair in csrc/runtime/ops.def."""


class NativeAdapterSlots(AdapterSlots):
    """`records`: [slots] of csrc/runtime/ops.def's LoraPair, by the names of their pairs."""

    def __init__(self, matrices: Mapping[str, tuple[int, int]], slots: int) -> None:
        super().__init__(matrices, slots)
        self.records = {name: np.zeros(slots, ext.struct("LoraPair")) for name in matrices}
        self._filled: list[LoadedAdapter | None] = [None] * slots
        """Keeps alive what records point to."""

    def pack(self, pairs: Mapping[str, Pair], rest: Rest = no_rest) -> LoadedAdapter:
        """See `AdapterSlots.pack`. All matrices lie in one piece of memory, in the order in which a step reads them."""
        pairs = {name: pairs[name] for name in self.records if name in pairs}
        blocks = {name: (_blocks(pair.a, A_COLUMNS), _blocks(pair.b, B_COLUMNS)) for name, pair in pairs.items()}
        sizes = [-(-each.nbytes // ALIGNMENT) * ALIGNMENT for each in chain.from_iterable(blocks.values())]
        memory = allocate(max(sum(sizes), 1))
        places = iter(np.cumsum([0, *sizes]).tolist())
        records = {}
        for name, pair in pairs.items():
            a, b = (_put(memory, next(places), each) for each in blocks[name])
            records[name] = ext.values("Format").index(pair.kind), pair.scale, len(pair.a), a, b
            rest()
        return LoadedAdapter(records, memory, memory.nbytes)

    def fill(self, slot: int, adapter: LoadedAdapter) -> None:
        """Puts an adapter into a slot, in the place of what was there."""
        self._filled[slot] = adapter
        for name, records in self.records.items():
            records[slot] = adapter.pairs.get(name, 0)


def _blocks(matrix: NDArray[Any], columns: int) -> NDArray[Any]:
    """[rank, K] as [K / columns, rank, columns], padded with zeros; a view where nothing is to be padded."""
    rank, width = matrix.shape
    padded = matrix if width % columns == 0 else np.pad(matrix, ((0, 0), (0, -width % columns)))
    return padded.reshape(rank, -1, columns).transpose(1, 0, 2)


def _put(memory: NDArray[np.uint8], place: int, blocks: NDArray[Any]) -> int:
    """Copies to a place in memory; its address."""
    target = memory[place : place + blocks.nbytes]
    target.view(blocks.dtype).reshape(blocks.shape)[...] = blocks
    return int(target.ctypes.data)
