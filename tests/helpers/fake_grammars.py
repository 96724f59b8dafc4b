"""A library of grammars that allow given ids, for the native runner and sampler: what they call, what they write, what was asked."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from ridgeline.compute.cpu import ext

BLOCK = 256


def packed_mask(bits: np.ndarray) -> np.ndarray:
    """bool [N] → uint32 [1, W]."""
    padded = np.zeros((1, -(-len(bits) // BLOCK) * BLOCK), bool)
    padded[0, : len(bits)] = bits
    return np.packbits(padded, axis=1, bitorder="little").view(np.uint32)


class FakeGrammars:
    """A library of which matcher i + 1 takes `allowed[i]` next, whatever comes before; those of `lost` make no masks."""

    def __init__(self, allowed: np.ndarray, lost: Sequence[int] = ()) -> None:
        self.allowed, self.lost = allowed, lost
        self.consumed: list[tuple[int, int]] = []
        self.asked: list[int] = []
        address, number = ctypes.c_void_p, ctypes.c_int32
        ids = ctypes.POINTER(ctypes.c_uint32)
        self._functions = (
            ctypes.CFUNCTYPE(number, address, ids, ctypes.c_size_t)(self._consume),
            ctypes.CFUNCTYPE(number, address, ids, ctypes.c_size_t)(self._validate),
            ctypes.CFUNCTYPE(number, address, address, ctypes.c_size_t)(self._mask),
            ctypes.CFUNCTYPE(ctypes.c_bool, address)(lambda matcher: matcher == 2),
        )
        outputs, self.words = allowed.shape[1], packed_mask(allowed[0]).shape[1]
        pointers = [ctypes.cast(function, address).value or 0 for function in self._functions]
        self.calls = np.array([*pointers, outputs, -(-outputs // 32) * 4, self.words * 4], np.int64)

    def _consume(self, matcher: int, ids: Any, count: int) -> int:
        self.consumed += [(matcher - 1, ids[i]) for i in range(count)]
        return 0

    def _validate(self, matcher: int, ids: Any, count: int) -> int:
        self.asked.append(matcher - 1)
        return int(count == 1 and self.allowed[matcher - 1, ids[0]])

    def _mask(self, matcher: int, mask: int, size: int) -> int:
        if matcher - 1 in self.lost:
            return -1
        made = packed_mask(self.allowed[matcher - 1])
        ctypes.memmove(mask, made.ctypes.data, size)
        return 0

    def records(self, count: int, free: Sequence[int] = ()) -> tuple[np.ndarray, np.ndarray]:
        """Masks with anything in them, and records of rows, of which those of `free` follow nothing."""
        masks = np.full((count, self.words), 0xABABABAB, np.uint32)
        records = np.zeros((count, ext.native().FOLLOWER), np.int64)
        records[:, 2] = -1
        for row in set(range(count)) - set(free):
            records[row, :2] = row + 1, masks[row].ctypes.data
        return masks, records
