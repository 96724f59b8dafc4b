"""Slots of adapters as native kernels read them: a record for each matrix and slot, changed between two steps."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.adapters.rests import Rest, no_rest
from ridgeline.compute.adapters.slots import AdapterSlots, LoadedAdapter
from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.memory import ALIGNMENT, allocate
from ridgeline.compute.ops.lora import Pair, widened

A_NARROW: Final = 8
A_COLUMNS: Final = 16
B_COLUMNS: Final = 32
"""Columns of a block, in which the rows of a matrix lie one behind the other, of A with few rows and of B; see LoraPair in
csrc/runtime/ops.def."""
A_PANEL: Final = 64
"""Rows of a panel of any other A, which lies column by column; the last one has a multiple of LANES."""
LANES: Final = 16


class NativeAdapterSlots(AdapterSlots):
    """`records`: [slots] of csrc/runtime/ops.def's LoraPair, by the names of their pairs.

    coded  pairs of matrices that are codes themselves: they lie in codes of 8 bits. Those of few rows, which would be padded, do not
    """

    def __init__(self, matrices: Mapping[str, tuple[int, int]], slots: int, coded: Collection[str] = ()) -> None:
        super().__init__(matrices, slots)
        self._coded = frozenset(coded)
        self.records = {name: np.zeros(slots, ext.struct("LoraPair")) for name in matrices}
        self._filled: list[LoadedAdapter | None] = [None] * slots
        """Keeps alive what records point to."""

    def pack(self, pairs: Mapping[str, Pair], rest: Rest = no_rest) -> LoadedAdapter:
        """See `AdapterSlots.pack`. All matrices lie in one piece of memory, in the order in which a step reads them."""
        own = {name: self._stored(name, pairs[name]) for name in self.records if name in pairs}
        sizes = [size for pair in own.values() for size in (_a_bytes(pair), _b_bytes(pair))]
        bounds = np.cumsum([0, *(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)])
        memory = allocate(max(int(bounds[-1]), 1))
        targets = [memory[place : place + size] for place, size in zip(bounds, sizes, strict=False)]
        records = {}
        for (name, pair), a, b in zip(own.items(), targets[::2], targets[1::2], strict=True):
            _put_pair(a, b, pair)
            kind = "INT8" if pair.coded else pair.kind
            records[name] = ext.values("Format").index(kind), pair.scale, len(pair.a), int(a.ctypes.data), int(b.ctypes.data)
            rest()
        return LoadedAdapter(records, memory, memory.nbytes)

    def _stored(self, name: str, pair: Pair) -> Pair:
        return replace(pair, coded=True) if name in self._coded and len(pair.a) > A_NARROW else pair

    def fill(self, slot: int, adapter: LoadedAdapter) -> None:
        """Puts an adapter into a slot, in the place of what was there."""
        self._filled[slot] = adapter
        for name, records in self.records.items():
            records[slot] = adapter.pairs.get(name, 0)


def _a_bytes(pair: Pair) -> int:
    rank, width = pair.a.shape
    if pair.coded:
        return ext.native().packed_codes_bytes(rank, width, False)
    return (_blocks_size(pair.a, A_COLUMNS) if rank <= A_NARROW else -(-rank // LANES) * LANES * width) * pair.a.itemsize


def _b_bytes(pair: Pair) -> int:
    return ext.native().packed_codes_bytes(*pair.b.shape, True) if pair.coded else _blocks_size(pair.b, B_COLUMNS) * pair.b.itemsize


def _put_pair(a: NDArray[np.uint8], b: NDArray[np.uint8], pair: Pair) -> None:
    """Both matrices to where they lie; the memory is zero."""
    if not pair.coded:
        _put_a(a.view(pair.a.dtype), pair.a)
        _put_blocks(b.view(pair.b.dtype), pair.b, B_COLUMNS)
        return
    for target, stored, is_b in ((a, pair.a, False), (b, pair.b, True)):
        matrix = widened(pair.kind, stored)
        strides = [stride // matrix.itemsize for stride in matrix.strides]
        ext.native().pack_codes(matrix.ctypes.data, *matrix.shape, *strides, is_b, target.ctypes.data)


def _put_a(target: NDArray[Any], a: NDArray[Any]) -> None:
    """[rank, K] as panels of rows, [K, rows of the panel] each, one behind the other, or with few rows as blocks; the target is zero."""
    rank, width = a.shape
    if rank <= A_NARROW:
        _put_blocks(target, a, A_COLUMNS)
        return
    for first in range(0, rank, A_PANEL):
        part = a[first : first + A_PANEL]
        size = -(-len(part) // LANES) * LANES * width
        target[:size].reshape(width, -1)[:, : len(part)] = part.T
        target = target[size:]


def _blocks_size(matrix: NDArray[Any], columns: int) -> int:
    return len(matrix) * -(-matrix.shape[1] // columns) * columns


def _put_blocks(target: NDArray[Any], matrix: NDArray[Any], columns: int) -> None:
    """[rank, N] as [N / columns, rank, columns]; the target is zero."""
    rank, width = matrix.shape
    blocks, whole = target.reshape(-1, rank, columns), width // columns
    blocks[:whole] = matrix[:, : whole * columns].reshape(rank, whole, columns).transpose(1, 0, 2)
    if whole < len(blocks):
        blocks[whole, :, : width % columns] = matrix[:, whole * columns :]
