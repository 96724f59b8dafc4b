"""Four-bit codes into a table of sixteen unevenly spaced values: IQ4_NL, IQ4_XS."""

import numpy as np

from ridgeline.compute.quant.bits import Bytes, Floats, fields, halves

VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)


def iq4_nl(blocks: Bytes, out: Floats) -> None:
    """d fp16, 32 nibbles (the low ones are weights 0 … 15): w = d·VALUES[q]. out fp32 [n, 32]."""
    out[...] = VALUES[fields(np.ascontiguousarray(blocks[:, None, 2:]), 4)].reshape(-1, 32)
    out *= halves(blocks, 0)


def iq4_xs(blocks: Bytes, out: Floats) -> None:
    """d fp16, 8 6-bit scales (2 upper bits each in a uint16, then 4 bytes of nibbles), 128 bytes of nibbles.

    w = (d·(s - 32))·VALUES[q]; out fp32 [n, 256].
    """
    upper = fields(np.ascontiguousarray(blocks[:, 2:4, None]), 2).reshape(-1, 8)
    scales = fields(np.ascontiguousarray(blocks[:, 4:8, None]), 4).reshape(-1, 8)
    scales |= upper << np.uint8(4)
    scales -= np.uint8(32)
    out[...] = VALUES[fields(np.ascontiguousarray(blocks[:, 8:]).reshape(-1, 8, 16), 4)].reshape(-1, 256)
    out.reshape(-1, 8, 32)[...] *= (halves(blocks, 0) * scales.view(np.int8))[..., None]
