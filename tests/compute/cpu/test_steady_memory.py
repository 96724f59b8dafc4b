"""Ten thousand decode steps of the native runner, and no byte more in use than before: by the allocator's own count, on all threads."""

import ctypes
import gc
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from native import NativeDriver
from tiny import Tiny, open_tiny

from ridgeline.compute.cpu.packing import pack_weights

CONTEXT = 200
"""Positions that a sequence decodes through before it begins anew: steps of all lengths come again and again."""


class _Counts(ctypes.Structure):
    """`struct mallinfo2` of glibc: bytes and counts of all arenas."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    )


LIBRARY = ctypes.CDLL(None)
LIBRARY.mallinfo2.restype = _Counts
LIBRARY.malloc.restype, LIBRARY.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
LIBRARY.free.argtypes = (ctypes.c_void_p,)


def in_use() -> int:
    """Bytes that malloc has given and that are not freed, those of its own mappings included."""
    found = LIBRARY.mallinfo2()
    return int(found.uordblks + found.hblkhd)


def grown(step: Callable[[int], object], steps: int) -> int:
    """Bytes in use behind so many steps, less those before; rounds through all lengths come first, so that caches are full."""
    for number in range(2 * CONTEXT):
        step(number)
    gc.collect()
    gc.disable()
    try:
        before = in_use()
        for number in range(steps):
            step(number)
        return in_use() - before
    finally:
        gc.enable()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("steps", [CONTEXT, pytest.param(10_000, marks=pytest.mark.night)])
def test_decode_steps_leave_no_allocation(tmp_path: Path, threads: int, steps: int) -> None:
    facts, _ = open_tiny(tmp_path / "tiny.gguf", Tiny(layers=2))
    driver = NativeDriver(facts, pack_weights(facts, threads, lambda stage, fraction: None), threads=threads)
    driver.step((0, [5, 6]), (1, [7, 8, 9]), select=[0, 1])
    given = []
    for number in range(CONTEXT):
        driver.computed = {0: 2 + number, 1: 3 + number // 2}
        given.append(driver.inputs([(0, [4 + number % 90]), (1, [5])], select=[0, 1]))
    assert given[-1].kv_len.tolist() == [CONTEXT + 2, CONTEXT // 2 + 3]

    def step(number: int) -> None:
        driver.runner.run(given[number % CONTEXT], driver.kv, keep=np.ones(2, np.int32))

    assert grown(step, steps) == 0
    blocks = sys.getallocatedblocks()
    for number in range(CONTEXT):
        step(number)
    assert abs(sys.getallocatedblocks() - blocks) < CONTEXT // 10, "objects of Python: fewer than one in ten steps"
    driver.runner.close()


def test_one_byte_a_step_is_seen() -> None:
    """What the test above would say of a leak, of the smallest one that there is."""
    leaked: list[int] = [0] * (3 * CONTEXT)

    def step(number: int) -> None:
        leaked[leaked.index(0)] = LIBRARY.malloc(1)

    assert grown(step, CONTEXT) >= CONTEXT
    for address in leaked:
        LIBRARY.free(address)
