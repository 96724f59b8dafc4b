"""Superblocks of 256 weights with quantised scales of 16 or 32 weights: Q2_K, Q3_K, Q4_K, Q5_K, Q6_K.

Each function takes blocks uint8 [n, block bytes] apart, into integers [n, 256] that one fp32 scale spans. The order of operations is part
of the format: the group's scale is d times an integer, then times the code, minus the group's minimum where there is one.
"""

import numpy as np

from ridgeline.compute.quant.bits import Bytes, Groups, fields, halves


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
