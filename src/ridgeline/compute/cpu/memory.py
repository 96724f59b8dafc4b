"""Memory of packed matrices: pieces that small ones share, and slots of experts that are not all in memory."""

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from ridgeline.compute.quant.bits import Bytes

PIECE_BYTES: Final = 32 << 20
"""Bytes of a piece of memory that matrices share."""

HUGE_PAGE: Final = 2 << 20
"""Bytes of a huge page."""
ALIGNMENT: Final = 64
"""Alignment of a matrix in bytes: a cache line."""

Take = Callable[[int], Bytes]
"""Gives so many bytes of zeroed memory."""


def allocate(count: int) -> Bytes:
    """Zeroed memory of its own, aligned to pages, huge ones where the system gives them: uint8 [count]."""
    # Private: Python's default is shared memory, which systems do not give in huge pages. Those begin at multiples of their size alone.
    memory = mmap.mmap(-1, count + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    found = np.frombuffer(memory, np.uint8)
    return found[-found.ctypes.data % HUGE_PAGE :][:count]


class Pieces:
    """Memory for many matrices, cut from large pieces: a small one by itself would lie in small pages, and be read the slower for it."""

    def __init__(self) -> None:
        self._left: Bytes = np.empty(0, np.uint8)

    def take(self, count: int) -> Bytes:
        """Zeroed memory, aligned to 64 bytes: uint8 [count]. What is left of a piece is never touched, and costs nothing."""
        if count > PIECE_BYTES:
            return allocate(count)
        if count > len(self._left):
            self._left = allocate(PIECE_BYTES)
        taken, self._left = self._left[:count], self._left[-(-count // ALIGNMENT) * ALIGNMENT :]
        return taken


@dataclass(frozen=True, slots=True)
class Slots:
    """Memory of experts that are not all in it.

    store       the extension's `ExpertStore`, which fills it
    data        uint8: slots of `slot_bytes`, aligned to pages
    experts     of the model, in slots or not
    path        of the file that the others lie in
    """

    store: Any
    data: Bytes
    slot_bytes: int
    experts: int
    path: Path

    @property
    def count(self) -> int:
        """Experts that fit."""
        return self.data.nbytes // self.slot_bytes
