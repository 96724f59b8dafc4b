"""Memory of packed matrices: whose it is, and that systems can give it in huge pages."""

import sys
from pathlib import Path

import numpy as np
import pytest

from ridgeline.compute.cpu.packing import ALIGNMENT, PIECE_BYTES, Pieces, allocate


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_private_since_shared_memory_has_no_huge_pages() -> None:
    memory = allocate(3 << 20)
    memory[:] = 1
    at = memory.ctypes.data
    ranges = [line.split()[:2] for line in Path("/proc/self/maps").read_text().splitlines()]
    (rights,) = [rights for span, rights in ranges if (lambda b, e: int(b, 16) <= at < int(e, 16))(*span.split("-"))]
    assert rights == "rw-p"


def test_matrices_of_a_piece_are_aligned_and_apart() -> None:
    pieces = Pieces()
    counts = [1, 63, 64, 65, 5 << 20, 30 << 20, 7, PIECE_BYTES, PIECE_BYTES + 1, 100]
    taken = [pieces.take(count) for count in counts]
    assert [len(each) for each in taken] == counts
    assert all(each.ctypes.data % ALIGNMENT == 0 for each in taken)
    assert not any(each.any() for each in taken)
    for number, each in enumerate(taken):
        each[:] = number + 1
    assert [np.unique(each).tolist() for each in taken] == [[number + 1] for number in range(len(taken))]
