"""Four-bit codes into a table of sixteen unevenly spaced values: IQ4_NL, IQ4_XS. The integers are the table's values."""

import numpy as np

from ridgeline.compute.quant.bits import Bytes, Groups, fields, halves

VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)


def iq4_nl(blocks: Bytes) -> Groups:
    """d fp16, 32 nibbles (the low ones are weights 0 … 15): w = d·VALUES[q]. Blocks uint8 [n, 18] → integers [n, 32]."""
    return Groups(VALUES[fields(np.ascontiguousarray(blocks[:, None, 2:]), 4)].reshape(-1, 32), halves(blocks, 0))


def iq4_xs(blocks: Bytes) -> Groups:
    """d fp16, 8 6-bit scales (2 upper bits each in a uint16, then 4 bytes of nibbles), 128 bytes of nibbles.

    w = (d·(s - 32))·VALUES[q]. Blocks uint8 [n, 136] → integers [n, 256], scaled by groups of 32.
    """
    upper = fields(np.ascontiguousarray(blocks[:, 2:4, None]), 2).reshape(-1, 8)
    small = fields(np.ascontiguousarray(blocks[:, 4:8, None]), 4).reshape(-1, 8)
    small |= upper << np.uint8(4)
    small -= np.uint8(32)
    codes = VALUES[fields(np.ascontiguousarray(blocks[:, 8:]).reshape(-1, 8, 16), 4)].reshape(-1, 256)
    return Groups(codes, halves(blocks, 0) * small.view(np.int8))
