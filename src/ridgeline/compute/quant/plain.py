"""Stored floats: F32, F16, BF16. Every value is exact in fp32."""

import numpy as np

from ridgeline.compute.quant.bits import Bytes, Floats


def f32(blocks: Bytes, out: Floats) -> None:
    """4 bytes an element, little-endian."""
    out[...] = blocks.view(np.float32)


def f16(blocks: Bytes, out: Floats) -> None:
    """2 bytes an element, IEEE half."""
    out[...] = blocks.view(np.float16)


def bf16(blocks: Bytes, out: Floats) -> None:
    """2 bytes an element: the upper half of an fp32."""
    bits = out.view(np.uint32)
    bits[...] = blocks.view(np.uint16)
    bits <<= np.uint32(16)
