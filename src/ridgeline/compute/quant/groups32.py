"""Formats with one scale for 32 weights: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.

Each function takes blocks uint8 [n, block bytes] apart, into integers [n, 32].
"""

import numpy as np

from ridgeline.compute.quant.bits import Bytes, Floats, Groups, fields, halves


def q8_0(blocks: Bytes) -> Groups:
    """d fp16, 32 int8 codes: w = q·d."""
    return Groups(blocks[:, 2:].view(np.int8), halves(blocks, 0))


def q4_0(blocks: Bytes) -> Groups:
    """d fp16, 32 nibbles (the low ones are weights 0 … 15): w = (q - 8)·d."""
    return Groups(_nibbles(blocks, 2), halves(blocks, 0), zero=8)


def q4_1(blocks: Bytes) -> Groups:
    """d, m fp16, 32 nibbles: w = q·d + m."""
    return Groups(_nibbles(blocks, 4), halves(blocks, 0), mins=_minus(halves(blocks, 2)))


def q5_0(blocks: Bytes) -> Groups:
    """d fp16, 32 fifth bits, 32 nibbles: w = (q - 16)·d."""
    return Groups(_nibbles(blocks, 6) | _fifth_bits(blocks, 2), halves(blocks, 0), zero=16)


def q5_1(blocks: Bytes) -> Groups:
    """d, m fp16, 32 fifth bits, 32 nibbles: w = q·d + m."""
    return Groups(_nibbles(blocks, 8) | _fifth_bits(blocks, 4), halves(blocks, 0), mins=_minus(halves(blocks, 2)))


def _minus(m: Floats) -> Floats:
    """-m, but for the sign of a NaN: taken off again it is the file's."""
    return m * np.float32(-1)


def _nibbles(blocks: Bytes, start: int) -> Bytes:
    return fields(np.ascontiguousarray(blocks[:, None, start:]), 4).reshape(-1, 32)


def _fifth_bits(blocks: Bytes, start: int) -> Bytes:
    bits = np.unpackbits(blocks[:, start : start + 4], axis=1, bitorder="little")
    bits <<= np.uint8(4)
    return bits
