"""Superblocks of 256 weights with quantised scales of 16 or 32 weights: Q2_K, Q3_K, Q4_K, Q5_K, Q6_K.

Each function takes blocks uint8 [n, block bytes] and writes out fp32 [n, 256] whole. The order of operations is part of
the format: the group's scale is d times an integer, then times the code, minus the group's minimum where there is one.
"""

import numpy as np

from ridgeline.compute.quant.bits import Bytes, Floats, Parts, fields, halves


def q2_k(blocks: Bytes, out: Floats) -> None:
    """16 bytes of 4-bit scale and minimum, 64 bytes of 2-bit codes, d, dmin."""
    _affine(q2_k_parts(blocks), out)


def q2_k_parts(blocks: Bytes) -> Parts:
    """Codes 0 … 3, groups of 16."""
    scales = blocks[:, :16]
    codes = fields(np.ascontiguousarray(blocks[:, 16:80]).reshape(-1, 2, 32), 2).reshape(-1, 256)
    return codes, halves(blocks, 80) * (scales & np.uint8(15)), halves(blocks, 82) * (scales >> np.uint8(4))


def q3_k(blocks: Bytes, out: Floats) -> None:
    """32 bytes of third bits (set: no offset), 64 bytes of 2-bit codes, 16 6-bit scales in 12 bytes, d: w = (d·(s - 32))·(q - 4)."""
    _centred(q3_k_parts(blocks), 4, out)


def q3_k_parts(blocks: Bytes) -> Parts:
    """Codes 0 … 7, groups of 16."""
    codes = fields(np.ascontiguousarray(blocks[:, 32:96]).reshape(-1, 2, 32), 2).reshape(-1, 256)
    codes |= fields(np.ascontiguousarray(blocks[:, None, :32]), 1).reshape(-1, 256) << np.uint8(2)
    low = fields(np.ascontiguousarray(blocks[:, None, 96:104]), 4).reshape(-1, 16)
    low |= fields(np.ascontiguousarray(blocks[:, None, 104:108]), 2).reshape(-1, 16) << np.uint8(4)
    low -= np.uint8(32)
    scales = halves(blocks, 108) * low.view(np.int8)
    return codes, scales, np.float32(4) * scales


def q4_k(blocks: Bytes, out: Floats) -> None:
    """d, dmin, 8 6-bit scales and minima in 12 bytes, 128 bytes of nibbles: w = (d·s)·q - dmin·m."""
    _affine(q4_k_parts(blocks), out)


def q4_k_parts(blocks: Bytes) -> Parts:
    """Codes 0 … 15, groups of 32."""
    codes = fields(np.ascontiguousarray(blocks[:, 16:144]).reshape(-1, 4, 32), 4).reshape(-1, 256)
    return codes, *_six_bits(blocks)


def q5_k(blocks: Bytes, out: Floats) -> None:
    """As Q4_K with 32 bytes of fifth bits before the nibbles; bit j of a byte belongs to group j."""
    _affine(q5_k_parts(blocks), out)


def q5_k_parts(blocks: Bytes) -> Parts:
    """Codes 0 … 31, groups of 32."""
    codes = fields(np.ascontiguousarray(blocks[:, 48:176]).reshape(-1, 4, 32), 4).reshape(-1, 256)
    codes |= fields(np.ascontiguousarray(blocks[:, None, 16:48]), 1).reshape(-1, 256) << np.uint8(4)
    return codes, *_six_bits(blocks)


def q6_k(blocks: Bytes, out: Floats) -> None:
    """128 bytes of nibbles, 64 bytes of 2-bit upper parts, 16 int8 scales, d: w = (d·s)·(q - 32)."""
    _centred(q6_k_parts(blocks), 32, out)


def q6_k_parts(blocks: Bytes) -> Parts:
    """Codes 0 … 63, groups of 16."""
    codes = fields(np.ascontiguousarray(blocks[:, :128]).reshape(-1, 2, 64), 4).reshape(-1, 256)
    codes |= fields(np.ascontiguousarray(blocks[:, 128:192]).reshape(-1, 2, 32), 2).reshape(-1, 256) << np.uint8(4)
    scales = halves(blocks, 208) * blocks[:, 192:208].view(np.int8)
    return codes, scales, np.float32(32) * scales


def _six_bits(blocks: Bytes) -> tuple[Floats, Floats]:
    """Scales and minima of Q4_K and Q5_K: fp32 [n, 8] each."""
    packed = blocks[:, 4:16].reshape(-1, 3, 4)
    first, second, third = packed[:, 0], packed[:, 1], packed[:, 2]
    low, upper = np.uint8(0x3F), np.uint8(0x30)
    scales = np.concatenate([first & low, (third & np.uint8(15)) | ((first >> np.uint8(2)) & upper)], axis=1)
    minima = np.concatenate([second & low, (third >> np.uint8(4)) | ((second >> np.uint8(2)) & upper)], axis=1)
    return halves(blocks, 0) * scales, halves(blocks, 2) * minima


def _groups(out: Floats, count: int) -> Floats:
    return out.reshape(out.shape[0], count, 256 // count)


def _affine(parts: Parts, out: Floats) -> None:
    codes, scales, minima = parts
    out[...] = codes
    _groups(out, scales.shape[1])[...] *= scales[..., None]
    _groups(out, scales.shape[1])[...] -= minima[..., None]


def _centred(parts: Parts, centre: int, out: Floats) -> None:
    """The centre is taken from the codes, as the format has it: a code of zero is zero whatever the scale's sign."""
    codes, scales, _ = parts
    codes -= np.uint8(centre)
    out[...] = codes.view(np.int8)
    _groups(out, scales.shape[1])[...] *= scales[..., None]
