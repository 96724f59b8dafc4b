"""Device functions that several kernels use: activations, rounding, fp8 as bytes, and fields of packed integers (`integers.IntegerMatrix`).

They work on registers; no libdevice, no inline assembly.
"""

import triton
import triton.language as tl


@triton.jit
def tanh(x):
    """tanh(x) to a few units in the last place: an odd series near 0, where 1 - exp(-2x) would cancel."""
    square = x * x
    near = x * (1 + square * (-0.33333333 + square * (0.13333334 + square * (-0.05396825 + square * 0.021869488))))
    decayed = tl.exp(-2 * tl.abs(x))
    far = (1 - decayed) / (1 + decayed)
    return tl.where(tl.abs(x) < 0.25, near, tl.where(x < 0, -far, far))


@triton.jit
def activation(x, KIND: tl.constexpr):
    """silu(x), gelu_tanh(x), gelu(x) or sigmoid(x). Hendrycks and Gimpel 2016, section 2; (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)); the error
    function by Abramowitz and Stegun 1964, 7.1.26."""
    tl.static_assert(KIND == "silu" or KIND == "gelu_tanh" or KIND == "gelu" or KIND == "sigmoid")
    if KIND == "gelu":
        z = tl.abs(x) * 0.70710678118
        t = 1 / (1 + 0.3275911 * z)
        series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
        tail = 0.5 * series * tl.exp(-z * z)
        y = x * tl.where(x < 0, tail, 1 - tail)
    elif KIND == "sigmoid":
        y = 1 / (1 + tl.exp(-x))
    else:
        bent = x if KIND == "silu" else 1.5957691216 * x * (1 + 0.044715 * x * x)
        y = x / (1 + tl.exp(-bent))
    return y


@triton.jit
def gated(gate, up, KIND: tl.constexpr):
    """activation(gate) · up, or gpt-oss's clamped_swish (`ops/elementwise.py`)."""
    if KIND == "clamped_swish":
        limited = tl.where(gate > 7.0, 7.0, gate)
        made = limited / (1 + tl.exp(limited * -1.702)) * (tl.where(up > 7.0, 7.0, tl.where(up < -7.0, -7.0, up)) + 1)
    else:
        made = activation(gate, KIND) * up
    return made


@triton.jit
def round_even(x):
    """Rounds to the nearest whole number, ties to even, for |x| < 2^22: above 1.5 · 2^23 the step of fp32 is 1."""
    return (x + 12582912.0) - 12582912.0


@triton.jit
def to_fp8(x, NATIVE: tl.constexpr):
    """fp32 → bytes of e4m3, to the nearest, ties to even; beyond ±448 saturated, NaN kept. Micikevicius et al. 2022."""
    limited = tl.where(x > 448.0, 448.0, tl.where(x < -448.0, -448.0, x))
    if NATIVE:
        codes = limited.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    else:
        bits = limited.to(tl.uint32, bitcast=True)
        size = bits & 0x7FFFFFFF
        normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - 960  # 8 · (127 - 7): the exponents' offsets
        # The step of fp32 at 2^14 is 2^-9, that of e4m3 below 2^-6.
        small = (tl.abs(limited) + 16384.0).to(tl.uint32, bitcast=True) & 0xF
        code = tl.where(size < 0x3C800000, small, tl.where(size > 0x7F800000, 0x7F, normal))
        codes = (code | ((bits >> 24) & 0x80)).to(tl.uint8)
    return codes


@triton.jit
def from_fp8(codes, NATIVE: tl.constexpr):
    """Bytes of e4m3 → fp32, exactly."""
    if NATIVE:
        numbers = codes.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    else:
        wide = codes.to(tl.uint16)
        # The same bits as fp16, whose exponent is offset by 8 more.
        half = (((wide & 0x80) << 8) | ((wide & 0x7F) << 7)).to(tl.float16, bitcast=True)
        numbers = tl.where((wide & 0x7F) == 0x7F, float("nan"), half.to(tl.float32) * 256.0)
    return numbers


@triton.jit
def fp8_scale(largest):
    """(scale, its inverse) of a row whose largest magnitude is `largest`; both 0 where it is too small to invert."""
    invertible = largest > 1e-36
    return tl.where(invertible, largest / 448.0, 0.0), tl.where(invertible, 448.0 / tl.where(invertible, largest, 1.0), 0.0)


@triton.jit
def field_of(run, FIELD: tl.constexpr, BITS: tl.constexpr):
    """A field of a run of bytes, one per byte."""
    return (run >> (BITS * (FIELD % (8 // BITS)))) & ((1 << BITS) - 1)


@triton.jit
def from_e2m1(codes):
    """Codes of e2m1 → twice their values, plus 12: integers 0 … 24. Magnitudes stand in the nibbles of a constant."""
    size = (0xC8643210 >> ((codes & 7).to(tl.uint32) * 4)) & 15
    return tl.where((codes & 8) != 0, 12 - size, 12 + size).to(tl.uint8)


@triton.jit
def _half(word, BYTE: tl.constexpr):
    """The fp16 number in bytes BYTE and BYTE + 1 of a word."""
    return (word >> (8 * BYTE)).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def scale_of(word, super_scale, SCALE_TYPE: tl.constexpr, BYTE: tl.constexpr):
    """fp32 scales of groups whose scales begin in byte BYTE of a word."""
    if SCALE_TYPE == "i8":
        scale = _half(super_scale, 0) * ((word << (24 - 8 * BYTE)) >> 24).to(tl.float32)
    elif SCALE_TYPE == "u8 + min":
        scale = _half(super_scale, 0) * ((word >> (8 * BYTE)) & 0xFF).to(tl.float32)
    elif SCALE_TYPE == "e8m0":
        exponent = (word >> (8 * BYTE)) & 0xFF
        bits = tl.where(exponent > 1, (exponent - 1) << 23, 0x200000 << exponent)
        scale = bits.to(tl.float32, bitcast=True)
    elif SCALE_TYPE == "fp32" or SCALE_TYPE == "fp32 + zero":
        scale = word.to(tl.float32, bitcast=True)
    else:
        scale = _half(word, BYTE)
    return scale


@triton.jit
def zero_of(word, after, super_scale, SCALE_TYPE: tl.constexpr, BYTE: tl.constexpr, CENTRE: tl.constexpr):
    """fp32 zeros or mins of groups; `after` is the word that follows."""
    if SCALE_TYPE == "u8 + min":
        zero = _half(super_scale, 2) * ((word >> (8 * BYTE + 8)) & 0xFF).to(tl.float32)
    elif SCALE_TYPE == "fp16 + min":
        zero = _half(word, 2)
    elif SCALE_TYPE == "fp16 + zero":
        zero = ((word >> 16) & 0xFFFF).to(tl.float32)
    elif SCALE_TYPE == "fp32 + zero":
        zero = after.to(tl.float32)
    else:
        zero = word.to(tl.float32) * 0.0 + CENTRE
    return zero


@triton.jit
def program_rows(order, tiles, number, rows, columns, SHARED: tl.constexpr, TILE: tl.constexpr, BLOCK_M: tl.constexpr):
    """(rows of the output int64 [BLOCK_M], which of them are there, their rows of x, first row of the matrix, or -1: nothing is to be done)
    of block `number` of a product.

    SHARED 0: consecutive rows. Else rows are choices, of a tile of `ops/sorted_experts.py` with TILE // BLOCK_M blocks; SHARED of them
    read one row of x, and every expert has `columns` rows of the matrix.
    """
    if SHARED > 0:
        place = tiles + number // (TILE // BLOCK_M) * 3
        row, count = number % (TILE // BLOCK_M) * BLOCK_M + tl.arange(0, BLOCK_M), tl.load(place + 2)
        there = row < count
        m = tl.load(order + tl.load(place + 1) + row, mask=there, other=0).to(tl.int64)
        x_row = m // SHARED
        base = tl.where(tl.max(there.to(tl.int32), axis=0) > 0, tl.load(place) * tl.cast(columns, tl.int64), -1)
    else:
        m = (number * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
        there = m < rows
        x_row = m
        base = tl.zeros((), tl.int64)
    return m, there, x_row, base
