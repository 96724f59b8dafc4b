"""Formats with one scale for 32 weights: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.

Each function takes blocks uint8 [n, block bytes] and writes out fp32 [n, 32] whole. The order of operations is part of
the format: codes to fp32, times d, plus m.
"""

import numpy as np

from ridgeline.compute.quant.bits import Bytes, Floats, Parts, fields, halves


def q8_0(blocks: Bytes, out: Floats) -> None:
    """d fp16, 32 int8 codes: w = q·d."""
    out[...] = blocks[:, 2:].view(np.int8)
    out *= halves(blocks, 0)


def q8_0_parts(blocks: Bytes) -> Parts:
    """Codes -128 … 127."""
    scales = halves(blocks, 0)
    return blocks[:, 2:].view(np.int8), scales, np.zeros_like(scales)


def q4_0(blocks: Bytes, out: Floats) -> None:
    """d fp16, 32 nibbles (the low ones are weights 0 … 15): w = (q - 8)·d."""
    _centred(q4_0_parts(blocks), 8, out)


def q4_0_parts(blocks: Bytes) -> Parts:
    """Codes 0 … 15."""
    scales = halves(blocks, 0)
    return _nibbles(blocks, 2), scales, np.float32(8) * scales


def q4_1(blocks: Bytes, out: Floats) -> None:
    """d, m fp16, 32 nibbles: w = q·d + m."""
    _shifted(_nibbles(blocks, 4), blocks, out)


def q4_1_parts(blocks: Bytes) -> Parts:
    """Codes 0 … 15."""
    return _nibbles(blocks, 4), halves(blocks, 0), -halves(blocks, 2)


def q5_0(blocks: Bytes, out: Floats) -> None:
    """d fp16, 32 fifth bits, 32 nibbles: w = (q - 16)·d."""
    _centred(q5_0_parts(blocks), 16, out)


def q5_0_parts(blocks: Bytes) -> Parts:
    """Codes 0 … 31."""
    scales = halves(blocks, 0)
    return _nibbles(blocks, 6) | _fifth_bits(blocks, 2), scales, np.float32(16) * scales


def q5_1(blocks: Bytes, out: Floats) -> None:
    """d, m fp16, 32 fifth bits, 32 nibbles: w = q·d + m."""
    _shifted(_nibbles(blocks, 8) | _fifth_bits(blocks, 4), blocks, out)


def q5_1_parts(blocks: Bytes) -> Parts:
    """Codes 0 … 31."""
    return _nibbles(blocks, 8) | _fifth_bits(blocks, 4), halves(blocks, 0), -halves(blocks, 2)


def _nibbles(blocks: Bytes, start: int) -> Bytes:
    return fields(np.ascontiguousarray(blocks[:, None, start:]), 4).reshape(-1, 32)


def _fifth_bits(blocks: Bytes, start: int) -> Bytes:
    bits = np.unpackbits(blocks[:, start : start + 4], axis=1, bitorder="little")
    bits <<= np.uint8(4)
    return bits


def _centred(parts: Parts, centre: int, out: Floats) -> None:
    """The centre is taken from the codes, as the format has it: a code of zero is zero whatever the scale's sign."""
    codes, d, _ = parts
    codes -= np.uint8(centre)
    out[...] = codes.view(np.int8)
    out *= d


def _shifted(codes: Bytes, blocks: Bytes, out: Floats) -> None:
    out[...] = codes
    out *= halves(blocks, 0)
    out += halves(blocks, 2)
