"""Slots of adapters as native kernels read them: a record for each matrix and slot, changed between two steps."""

from collections.abc import Collection, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.adapters.rests import Rest, no_rest
from ridgeline.compute.adapters.slots import AdapterSlots, LoadedAdapter
from ridgeline.compute.cpu import adapter_codes, ext
from ridgeline.compute.cpu.adapter_codes import Bytes
from ridgeline.compute.cpu.memory import ALIGNMENT, allocate
from ridgeline.compute.ops.lora import Pair, in_codes
from ridgeline.compute.ops.lora_codes import CodedMatrix, CodedPair

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

    coded     pairs of matrices that are codes themselves. They lie in codes of 8 bits, but for those of so few rows that padding would make
              codes no smaller
    """

    def __init__(self, matrices: Mapping[str, tuple[int, int]], slots: int, coded: Collection[str] = ()) -> None:
        super().__init__(matrices, slots)
        self.records = {name: np.zeros(slots, ext.struct("LoraPair")) for name in matrices}
        self._coded = frozenset(coded)
        self._filled: list[LoadedAdapter | None] = [None] * slots
        """Keeps alive what records point to."""

    def pack(self, pairs: Mapping[str, Pair | CodedPair], rest: Rest = no_rest) -> LoadedAdapter:
        """See `AdapterSlots.pack`. All matrices lie in one piece of memory, in the order in which a step reads them."""
        stored: dict[str, Pair | CodedPair] = {}
        for name in (name for name in self.records if name in pairs):
            pair = pairs[name]
            stored[name] = in_codes(pair) if isinstance(pair, Pair) and name in self._coded and len(pair.a) > A_NARROW else pair
            rest()
        sizes = [size for pair in stored.values() for size in (_a_bytes(pair.a), _b_bytes(pair.b))]
        bounds = np.cumsum([0, *(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)])
        memory = allocate(max(int(bounds[-1]), 1))
        targets = [memory[place : place + size] for place, size in zip(bounds, sizes, strict=False)]
        records = {}
        for (name, pair), a, b in zip(stored.items(), targets[::2], targets[1::2], strict=True):
            _put_a(a, pair.a)
            _put_b(b, pair.b)
            kind = pair.kind if isinstance(pair, Pair) else "INT8"
            records[name] = ext.values("Format").index(kind), pair.scale, pair.a.shape[0], int(a.ctypes.data), int(b.ctypes.data)
            rest()
        return LoadedAdapter(records, memory, memory.nbytes)

    def fill(self, slot: int, adapter: LoadedAdapter) -> None:
        """Puts an adapter into a slot, in the place of what was there."""
        self._filled[slot] = adapter
        for name, records in self.records.items():
            records[slot] = adapter.pairs.get(name, 0)


def _a_bytes(a: NDArray[Any] | CodedMatrix) -> int:
    rank, width = a.shape
    if isinstance(a, CodedMatrix):
        return adapter_codes.a_bytes(rank, width)
    return (_blocks_size(a, A_COLUMNS) if rank <= A_NARROW else -(-rank // LANES) * LANES * width) * a.itemsize


def _b_bytes(b: NDArray[Any] | CodedMatrix) -> int:
    return adapter_codes.b_bytes(*b.shape) if isinstance(b, CodedMatrix) else _blocks_size(b, B_COLUMNS) * b.itemsize


def _put_a(memory: Bytes, a: NDArray[Any] | CodedMatrix) -> None:
    """[rank, K] as panels of rows, [K, rows of the panel] each, one behind the other, or with few rows as blocks; the memory is zero."""
    if isinstance(a, CodedMatrix):
        adapter_codes.put_a(memory, a)
        return
    (rank, width), target = a.shape, memory.view(a.dtype)
    if rank <= A_NARROW:
        _put_blocks(target, a, A_COLUMNS)
        return
    for first in range(0, rank, A_PANEL):
        part = a[first : first + A_PANEL]
        size = -(-len(part) // LANES) * LANES * width
        target[:size].reshape(width, -1)[:, : len(part)] = part.T
        target = target[size:]


def _put_b(memory: Bytes, b: NDArray[Any] | CodedMatrix) -> None:
    if isinstance(b, CodedMatrix):
        adapter_codes.put_b(memory, b)
    else:
        _put_blocks(memory.view(b.dtype), b, B_COLUMNS)


def _blocks_size(matrix: NDArray[Any], columns: int) -> int:
    return len(matrix) * -(-matrix.shape[1] // columns) * columns


def _put_blocks(target: NDArray[Any], matrix: NDArray[Any], columns: int) -> None:
    """[rank, N] as [N / columns, rank, columns]; the target is zero."""
    rank, width = matrix.shape
    blocks, whole = target.reshape(-1, rank, columns), width // columns
    blocks[:whole] = matrix[:, : whole * columns].reshape(rank, whole, columns).transpose(1, 0, 2)
    if whole < len(blocks):
        blocks[whole, :, : width % columns] = matrix[:, whole * columns :]
