"""What kernels over packed integers share: codes out of planes, scales and zeros out of heads. `integers.Integers` says how they lie."""

import triton
import triton.language as tl


@triton.jit
def field_of(run, FIELD: tl.constexpr, BITS: tl.constexpr):
    """A field of a run of bytes, one a byte."""
    return (run >> (BITS * (FIELD % (8 // BITS)))) & ((1 << BITS) - 1)


@triton.jit
def _half(word, BYTE: tl.constexpr):
    """The fp16 number in bytes BYTE and BYTE + 1 of a word."""
    return (word >> (8 * BYTE)).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def scale_of(word, base, HEAD: tl.constexpr, BYTE: tl.constexpr):
    """fp32 scales of a group whose head begins in byte BYTE of a word."""
    if HEAD == "byte":
        scale = _half(base, 0) * ((word << (24 - 8 * BYTE)) >> 24).to(tl.float32)
    elif HEAD == "bytes":
        scale = _half(base, 0) * ((word >> (8 * BYTE)) & 0xFF).to(tl.float32)
    elif HEAD == "single" or HEAD == "single, zero":
        scale = word.to(tl.float32, bitcast=True)
    else:
        scale = _half(word, BYTE)
    return scale


@triton.jit
def less_of(word, after, base, HEAD: tl.constexpr, BYTE: tl.constexpr, CENTRE: tl.constexpr):
    """fp32 zeros or mins of a group; `after` is the word that follows."""
    if HEAD == "bytes":
        less = _half(base, 2) * ((word >> (8 * BYTE + 8)) & 0xFF).to(tl.float32)
    elif HEAD == "halves":
        less = _half(word, 2)
    elif HEAD == "half, zero":
        less = ((word >> 16) & 0xFFFF).to(tl.float32)
    elif HEAD == "single, zero":
        less = after.to(tl.float32)
    else:
        less = word.to(tl.float32) * 0.0 + CENTRE
    return less
