"""Pieces that several formats share: half-precision fields and small integers packed into bytes.

Owns no format.
"""

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Codes = NDArray[np.uint8 | np.int8]

Parts = tuple[Codes, Floats, Floats]
"""Blocks taken apart: codes [n, elements of a block], scales and mins [n, groups of a block]; see `groups.py`."""


def halves(blocks: Bytes, start: int) -> Floats:
    """The fp16 field at byte `start` of every block: blocks [n, bytes] → fp32 [n, 1]."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view(np.float16).astype(np.float32)


def fields(packed: Bytes, width: int) -> Bytes:
    """Little fields of `width` bits: packed [n, a, b] → [n, a, 8 / width, b]; field j is bits width·j … of a byte.

    What formats store next to each other is b bytes whose first fields are b consecutive weights, then b whose second
    fields are, and so on.
    """
    n, a, b = packed.shape
    count = 8 // width
    split = np.empty((n, a, count, b), np.uint8)
    for j in range(count):
        np.right_shift(packed, np.uint8(width * j), out=split[:, :, j])
    split &= np.uint8((1 << width) - 1)
    return split
