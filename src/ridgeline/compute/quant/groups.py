"""GGUF's block formats unpacked into integers and scales: what integer kernels multiply, and what their references compute with.

Each function takes blocks uint8 [n, bytes of a block], and gives integers [n, 32] or [n, 256] under one fp32 scale. The order of operations
is part of the k-quants' formats: the group's scale is d times an integer, then times the code, minus the group's minimum where there is
one. Never rounds what a file holds.
"""

from collections.abc import Callable
from typing import Final

import numpy as np

from ridgeline.compute.quant.bits import Bytes, Floats, Groups, fields, halves
from ridgeline.compute.quant.small import SMALL
from ridgeline.facts.files.formats import FORMATS

IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
"""Values of the 4-bit codes of IQ4_NL and IQ4_XS."""


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


def q2_k(blocks: Bytes) -> Groups:
    """16 bytes of 4-bit scale and minimum, 64 bytes of 2-bit codes, d, dmin: w = (d·s)·q - dmin·m."""
    both = blocks[:, :16]
    codes = fields(np.ascontiguousarray(blocks[:, 16:80]).reshape(-1, 2, 32), 2).reshape(-1, 256)
    return Groups(codes, halves(blocks, 80), 0, both & np.uint8(15), halves(blocks, 82), both >> np.uint8(4))


def q3_k(blocks: Bytes) -> Groups:
    """32 bytes of third bits (set: no offset), 64 bytes of 2-bit codes, 16 6-bit scales in 12 bytes, d: w = (d·(s - 32))·(q - 4)."""
    codes = fields(np.ascontiguousarray(blocks[:, 32:96]).reshape(-1, 2, 32), 2).reshape(-1, 256)
    codes |= fields(np.ascontiguousarray(blocks[:, None, :32]), 1).reshape(-1, 256) << np.uint8(2)
    low = fields(np.ascontiguousarray(blocks[:, None, 96:104]), 4).reshape(-1, 16)
    low |= fields(np.ascontiguousarray(blocks[:, None, 104:108]), 2).reshape(-1, 16) << np.uint8(4)
    low -= np.uint8(32)
    return Groups(codes, halves(blocks, 108), 4, low.view(np.int8))


def q4_k(blocks: Bytes) -> Groups:
    """d, dmin, 8 6-bit scales and minima in 12 bytes, 128 bytes of nibbles: w = (d·s)·q - dmin·m."""
    codes = fields(np.ascontiguousarray(blocks[:, 16:144]).reshape(-1, 4, 32), 4).reshape(-1, 256)
    return _affine(codes, blocks)


def q5_k(blocks: Bytes) -> Groups:
    """Q4_K with 32 bytes of fifth bits before the nibbles; bit j of a byte belongs to group j."""
    codes = fields(np.ascontiguousarray(blocks[:, 48:176]).reshape(-1, 4, 32), 4).reshape(-1, 256)
    codes |= fields(np.ascontiguousarray(blocks[:, None, 16:48]), 1).reshape(-1, 256) << np.uint8(4)
    return _affine(codes, blocks)


def q6_k(blocks: Bytes) -> Groups:
    """128 bytes of nibbles, 64 bytes of 2-bit upper parts, 16 int8 scales, d: w = (d·s)·(q - 32)."""
    codes = fields(np.ascontiguousarray(blocks[:, :128]).reshape(-1, 2, 64), 4).reshape(-1, 256)
    codes |= fields(np.ascontiguousarray(blocks[:, 128:192]).reshape(-1, 2, 32), 2).reshape(-1, 256) << np.uint8(4)
    return Groups(codes, halves(blocks, 208), 32, blocks[:, 192:208].view(np.int8))


def _affine(codes: Bytes, blocks: Bytes) -> Groups:
    """Q4_K and Q5_K: 8 scales and 8 minima of 6 bits behind d and dmin."""
    packed = blocks[:, 4:16].reshape(-1, 3, 4)
    first, second, third = packed[:, 0], packed[:, 1], packed[:, 2]
    low, upper = np.uint8(0x3F), np.uint8(0x30)
    scales = np.concatenate([first & low, (third & np.uint8(15)) | ((first >> np.uint8(2)) & upper)], axis=1)
    minima = np.concatenate([second & low, (third >> np.uint8(4)) | ((second >> np.uint8(2)) & upper)], axis=1)
    return Groups(codes, halves(blocks, 0), 0, scales, halves(blocks, 2), minima)


def iq4_nl(blocks: Bytes) -> Groups:
    """d fp16, 32 nibbles (the low ones are weights 0 … 15): w = d·IQ4_VALUES[q]. Blocks uint8 [n, 18] → integers [n, 32]."""
    return Groups(IQ4_VALUES[fields(np.ascontiguousarray(blocks[:, None, 2:]), 4)].reshape(-1, 32), halves(blocks, 0))


def iq4_xs(blocks: Bytes) -> Groups:
    """d fp16, 8 6-bit scales (2 upper bits each in a uint16, then 4 bytes of nibbles), 128 bytes of nibbles.

    w = (d·(s - 32))·IQ4_VALUES[q]. Blocks uint8 [n, 136] → integers [n, 256], scaled by groups of 32.
    """
    upper = fields(np.ascontiguousarray(blocks[:, 2:4, None]), 2).reshape(-1, 8)
    small = fields(np.ascontiguousarray(blocks[:, 4:8, None]), 4).reshape(-1, 8)
    small |= upper << np.uint8(4)
    small -= np.uint8(32)
    codes = IQ4_VALUES[fields(np.ascontiguousarray(blocks[:, 8:]).reshape(-1, 8, 16), 4)].reshape(-1, 256)
    return Groups(codes, halves(blocks, 0) * small.view(np.int8))


BLOCKS: Final[dict[str, Callable[[Bytes], Groups]]] = {
    "Q4_0": q4_0,
    "Q4_1": q4_1,
    "Q5_0": q5_0,
    "Q5_1": q5_1,
    "Q8_0": q8_0,
    "Q2_K": q2_k,
    "Q3_K": q3_k,
    "Q4_K": q4_k,
    "Q5_K": q5_k,
    "Q6_K": q6_k,
    "IQ4_NL": iq4_nl,
    "IQ4_XS": iq4_xs,
    **SMALL,
}
"""Kind → the function that unpacks its blocks: uint8 [n, bytes of a block] → integers of n rows, one per block. Other kinds are floats."""


def groups(kind: str, rows: Bytes) -> Groups:
    """rows uint8 [N, bytes of a row] of a format among `BLOCKS` → its integers and scales.

    Exact where the fields of the file are finite: what they write is what `formats.dequantise` gives, for a scale has at most 18
    significant bits and a code at most 7, of which Q6_K, the longest, needs 24 together.

    | kind         | codes                | zero  | span | scale    | size | factor | min, offset |
    |--------------|----------------------|-------|------|----------|------|--------|-------------|
    | Q4_0, Q5_0   | uint8 0 … 15, 0 … 31 | 8, 16 | 32   | d        |      |        |             |
    | Q4_1, Q5_1   | uint8 0 … 15, 0 … 31 | 0     | 32   | d        |      |        | -m          |
    | Q8_0         | int8                 | 0     | 32   | d        |      |        |             |
    | Q2_K         | uint8 0 … 3          | 0     | 256  | d        | 16   | s      | dmin, m     |
    | Q3_K         | uint8 0 … 7          | 4     | 256  | d        | 16   | s - 32 |             |
    | Q4_K, Q5_K   | uint8 0 … 15, 0 … 31 | 0     | 256  | d        | 32   | s      | dmin, m     |
    | Q6_K         | uint8 0 … 63         | 32    | 256  | d        | 16   | s      |             |
    | IQ4_NL       | int8, the table's    | 0     | 32   | d        |      |        |             |
    | IQ4_XS       | int8, the table's    | 0     | 32   | d·(s-32) |      |        |             |
    | MXFP4        | int8, doubled        | 0     | 32   | half     |      |        |             |
    | NVFP4        | int8, doubled        | 0     | 16   | half     |      |        |             |
    | TQ1_0, TQ2_0 | uint8 0 … 2          | 1     | 256  | d        |      |        |             |
    | IQ1, 2, 3    | int8, the table's    | 0     | 256  | d·unit   | 16, 32 | 2s + 1 |           |
    """
    form = FORMATS[kind]
    count, width = rows.shape
    if width % form.block_bytes:
        raise ValueError(f"{kind}: a row of {width} bytes is no whole number of {form.block_bytes}-byte blocks")
    with np.errstate(all="ignore"):
        return BLOCKS[kind](np.ascontiguousarray(rows).reshape(-1, form.block_bytes)).reshape(count)
