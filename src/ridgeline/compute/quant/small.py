"""Formats of four bits and less unpacked into integers and scales: the i-quants, ternary weights, MXFP4 and NVFP4 of GGUF files.

Each function takes blocks uint8 [n, bytes of a block] as those of `compute/quant/groups.py` do. Codes are values of small tables, factors
odd numbers, and every product of scale, factor and code is exact: the order in which ggml multiplies does not matter.

Owns `records` too: what all formats of superblocks here have in common, so that one kernel multiplies them.
"""

from collections.abc import Callable
from typing import Final

import numpy as np

from ridgeline.compute.quant.bits import Bytes, Floats, Groups, fields, halves
from ridgeline.compute.quant.codebooks import E2M1_DOUBLED, E8M0_HALVED, EIGHTS, FOURS, TERNARY, UE4M3_HALVED

_MAGNITUDES_2: Final = np.array([8, 25, 43], np.int8)
_MAGNITUDES_3_XXS: Final = np.array([2, 6, 10, 14, 18, 22, 26, 31], np.int8)
"""Half of the file's: all are even."""
_MAGNITUDES_3_S: Final = np.arange(1, 17, 2, dtype=np.int8)


def mxfp4(blocks: Bytes) -> Groups:
    """A power of two in one byte, 32 codes of e2m1 (the low ones are weights 0 … 15): OCP Microscaling Formats 1.0, 2023."""
    return Groups(_doubled(blocks[:, None, 1:]).reshape(-1, 32), E8M0_HALVED[blocks[:, :1]])


def nvfp4(blocks: Bytes) -> Groups:
    """4 scales of e4m3 without a sign, 4 times 16 codes of e2m1: NVIDIA 2025, "Pretraining Large Language Models with NVFP4"."""
    return Groups(_doubled(blocks[:, 4:].reshape(-1, 4, 8)).reshape(-1, 64), UE4M3_HALVED[blocks[:, :4]])


def _doubled(packed: Bytes) -> np.ndarray:
    return E2M1_DOUBLED[fields(np.ascontiguousarray(packed), 4)]


def tq1_0(blocks: Bytes) -> Groups:
    """5 ternary digits in each of 48 bytes, the first of 32 bytes, then of 16; 4 in each of 4 bytes; d: w = (q - 1)·d.

    A byte is the digits as a fraction of 256, rounded up: digit j is 3 times the fraction behind the digits before it.
    """
    parts = []
    for first, last, digits in ((0, 32, 5), (32, 48, 5), (48, 52, 4)):
        powers = np.array([3**j for j in range(digits)], np.uint8)
        shifted = blocks[:, None, first:last] * powers[:, None]
        parts.append(((shifted.astype(np.uint16) * 3) >> 8).astype(np.uint8).reshape(len(blocks), -1))
    return Groups(np.concatenate(parts, axis=1), halves(blocks, 52), zero=1)


def tq2_0(blocks: Bytes) -> Groups:
    """64 bytes of 2-bit codes, d: w = (q - 1)·d."""
    return Groups(fields(np.ascontiguousarray(blocks[:, :64]).reshape(-1, 2, 32), 2).reshape(-1, 256), halves(blocks, 64), zero=1)


def iq1_s(blocks: Bytes) -> Groups:
    """d, 32 lower bytes of places, 8 words of 4 times 3 upper bits, a scale of 3 bits and the sign of 1/8 for 32 weights."""
    upper = blocks[:, 34:50].view("<u2")
    places = blocks[:, 2:34] | _each(upper, (0, 3, 6, 9), 7) << np.uint16(8)
    eighths = np.where(upper >> np.uint16(15), np.int8(-1), np.int8(1)).repeat(4, axis=1)
    factors = (upper >> np.uint16(12) & np.uint16(7)) * np.uint16(2) + np.uint16(1)
    return _of_eighths(places, eighths, halves(blocks, 0), factors)


def iq1_m(blocks: Bytes) -> Groups:
    """32 lower bytes of places, 32 nibbles of 3 upper bits and the sign of 1/8 for a vector, 4 words of 4 scales of 3 bits for 16 weights,
    whose last 4 bits together are d."""
    words = blocks[:, 48:56].view("<u2")
    d = (words[:, :1] >> 12) | (words[:, 1:2] >> 12 << 4) | (words[:, 2:3] >> 12 << 8) | (words[:, 3:] >> 12 << 12)
    upper = _each(blocks[:, 32:48], (0, 4), 15).astype(np.uint16)
    places = blocks[:, :32] | (upper & np.uint16(7)) << np.uint16(8)
    eighths = np.where(upper & np.uint16(8), np.int8(-1), np.int8(1))
    factors = _each(words, (0, 3, 6, 9), 7) * np.uint16(2) + np.uint16(1)
    return _of_eighths(places, eighths, d.astype("<u2").view(np.float16).astype(np.float32), factors)


def _of_eighths(places: np.ndarray, eighths: np.ndarray, d: Floats, factors: np.ndarray) -> Groups:
    codes = (TERNARY.astype(np.int8) * np.int8(8) - np.int8(8))[places] + eighths[..., None]
    return Groups(codes.reshape(-1, 256), d * np.float32(0.125), factors=factors.astype(np.int8))


def iq2_xxs(blocks: Bytes) -> Groups:
    """d; for 32 weights 4 bytes of places, then a word of 4 times 7 signs and a scale of 4 bits."""
    words = blocks[:, 2:66].view("<u4").reshape(-1, 8, 2)
    places = np.ascontiguousarray(words[..., 0]).view(np.uint8)
    return _signed(_MAGNITUDES_2[EIGHTS[256]][places], *_signs_of_words(words[..., 1]), halves(blocks, 0), 0.125)


def iq2_xs(blocks: Bytes) -> Groups:
    """d, 32 words of a place (9 bits) and 7 signs, 16 scales of 4 bits."""
    words = blocks[:, 2:66].view("<u2")
    vectors = _MAGNITUDES_2[EIGHTS[512]][words & np.uint16(511)]
    return _signed(vectors, _with_parity(words >> np.uint16(9)), _nibbles(blocks[:, 66:74]), halves(blocks, 0), 0.125)


def iq2_s(blocks: Bytes) -> Groups:
    """d, 32 lower bytes of places, 32 bytes of signs, 32 upper bits twice, 16 scales of 4 bits."""
    places = blocks[:, 2:34] | _each(blocks[:, 66:74], (0, 2, 4, 6), 3).astype(np.uint16) << np.uint16(8)
    return _signed(_MAGNITUDES_2[EIGHTS[1024]][places], blocks[:, 34:66], _nibbles(blocks[:, 74:82]), halves(blocks, 0), 0.125)


def iq3_xxs(blocks: Bytes) -> Groups:
    """d, 64 places, 8 words of 4 times 7 signs and a scale of 4 bits."""
    vectors = _MAGNITUDES_3_XXS[FOURS[256]][blocks[:, 2:66]]
    return _signed(vectors, *_signs_of_words(blocks[:, 66:98].view("<u4")), halves(blocks, 0), 0.5)


def iq3_s(blocks: Bytes) -> Groups:
    """d, 64 lower bytes of places, 64 upper bits, 32 bytes of signs, 8 scales of 4 bits."""
    upper = np.unpackbits(blocks[:, 66:74], axis=1, bitorder="little").astype(np.uint16)
    vectors = _MAGNITUDES_3_S[FOURS[512]][blocks[:, 2:66] | upper << np.uint16(8)]
    return _signed(vectors, blocks[:, 74:106], _nibbles(blocks[:, 106:110]), halves(blocks, 0), 1.0)


def _each(words: np.ndarray, shifts: tuple[int, ...], mask: int) -> np.ndarray:
    """The fields of every word, lowest first: [n, a] → [n, a · fields]."""
    found: np.ndarray = words[..., None] >> np.array(shifts, words.dtype) & words.dtype.type(mask)
    return found.reshape(len(words), -1)


def _nibbles(packed: Bytes) -> Bytes:
    return _each(packed, (0, 4), 15)


def _with_parity(signs: np.ndarray) -> Bytes:
    """7 signs → 8: their number is even."""
    seven = signs.astype(np.uint8)
    odd = np.unpackbits(seven[..., None], axis=-1).sum(axis=-1, dtype=np.uint8) << np.uint8(7)
    eight: Bytes = seven | odd
    return eight


def _signs_of_words(words: np.ndarray) -> tuple[Bytes, Bytes]:
    """Words [n, 8] of 4 times 7 signs and a scale of 4 bits → signs [n, 32], scales [n, 8]."""
    return _with_parity(_each(words, (0, 7, 14, 21), 127)), (words >> np.uint32(28)).astype(np.uint8)


def _signed(magnitudes: np.ndarray, signs: Bytes, scales: Bytes, d: Floats, unit: float) -> Groups:
    """Magnitudes [n, vectors, …] of 256 weights, a sign bit for each, and for 16 or 32 of them a scale s: d · unit · (2s + 1)."""
    codes = magnitudes.reshape(-1, 256)
    negative = np.unpackbits(np.ascontiguousarray(signs), axis=1, bitorder="little").astype(np.bool_)
    factors = (scales * np.uint8(2) + np.uint8(1)).astype(np.int8)
    return Groups(np.where(negative, -codes, codes), d * np.float32(unit), factors=factors)


SMALL: Final[dict[str, Callable[[Bytes], Groups]]] = {
    "MXFP4": mxfp4,
    "NVFP4": nvfp4,
    "TQ1_0": tq1_0,
    "TQ2_0": tq2_0,
    "IQ1_S": iq1_s,
    "IQ1_M": iq1_m,
    "IQ2_XXS": iq2_xxs,
    "IQ2_XS": iq2_xs,
    "IQ2_S": iq2_s,
    "IQ3_XXS": iq3_xxs,
    "IQ3_S": iq3_s,
}
"""Functions by kind, like `BLOCKS` of `compute/quant/groups.py`."""

RECORD_BYTES: Final = 146
"""Bytes of a superblock in `records`."""


def _both(magnitudes: np.ndarray) -> tuple[int, ...]:
    return tuple(sorted((*(-magnitudes).tolist(), *magnitudes.tolist())))


_VALUES: Final = {
    **dict.fromkeys(("TQ1_0", "TQ2_0"), (-1, 0, 1, 2)),
    **dict.fromkeys(("IQ1_S", "IQ1_M"), (-9, -7, -1, 1, 7, 9)),
    **dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ2_S"), _both(_MAGNITUDES_2)),
    "IQ3_XXS": _both(_MAGNITUDES_3_XXS),
    "IQ3_S": _both(_MAGNITUDES_3_S),
}
"""Values that the codes of a format choose from, ascending: csrc/linear/tables.cpp has them too."""

RECORDED: Final = frozenset(_VALUES)
"""Formats of which native packing takes `records`."""


def records(kind: str, rows: Bytes, block_bytes: int) -> Bytes:
    """rows uint8 [N, K / 256 · block_bytes] of a format among `RECORDED` → uint8 [N, K / 256 · RECORD_BYTES].

    A record is d fp16, 16 factors int8, then for every 32 weights 16 bytes of places in the format's table (low ones: weights 0 … 15).
    """
    blocks = np.ascontiguousarray(rows).reshape(-1, block_bytes)
    # Scales of garbage files overflow, here as in `formats.dequantise`.
    with np.errstate(all="ignore"):
        found = SMALL[kind](blocks)
        d = (found.scales / np.float32(UNITS.get(kind, 1.0))).astype(np.float16)
    place = np.zeros(256, np.uint8)
    values = np.array(_VALUES[kind], np.int8)
    place[values.view(np.uint8)] = np.arange(len(values))
    codes = (found.codes - np.uint8(found.zero)).view(np.uint8) if found.zero else found.codes.view(np.uint8)
    pairs = place[codes].reshape(-1, 8, 2, 16)
    packed = (pairs[:, :, 0] | pairs[:, :, 1] << np.uint8(4)).reshape(-1, 128)
    factors = np.ones((len(blocks), 16), np.int8)
    if found.factors is not None:
        factors[:] = found.factors.repeat(16 // found.factors.shape[1], axis=1)
    made: Bytes = np.concatenate([d.view(np.uint8), factors.view(np.uint8), packed], axis=1).reshape(len(rows), -1)
    return made


UNITS: Final = {"IQ1_S": 0.125, "IQ1_M": 0.125, "IQ2_XXS": 0.125, "IQ2_XS": 0.125, "IQ2_S": 0.125, "IQ3_XXS": 0.5}
"""Factors on d, where it has one."""
