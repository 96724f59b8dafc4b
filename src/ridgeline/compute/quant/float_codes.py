"""Tables of the values of small floats: what codes of 4 and scales of 8 bits mean. OCP Microscaling Formats 1.0, 2023."""

from typing import Final

import numpy as np

from ridgeline.compute.quant.bits import Floats

E2M1_DOUBLED: Final = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
"""Twice the value of every code of e2m1: whole numbers. A zero has no sign."""


def _e8m0_halved() -> Floats:
    with np.errstate(under="ignore"):
        values: Floats = np.ldexp(np.float32(1), np.arange(256) - 128).astype(np.float32)
    return values


def _ue4m3_halved() -> Floats:
    codes = np.arange(256)
    exponents, fractions = codes >> 3 & 15, (codes & 7).astype(np.float32)
    values = np.where(exponents == 0, np.ldexp(fractions, -9), np.ldexp(1 + fractions / 8, exponents - 7))
    values[[0, 0x7F]] = 0.0
    return (values * 0.5).astype(np.float32)


E8M0_HALVED: Final = _e8m0_halved()
"""2^(code - 128): half of a scale, for codes that are doubled. ggml has no NaN here."""

UE4M3_HALVED: Final = _ue4m3_halved()
"""Half of the value of an e4m3 whose sign is not looked at; 0x7F, a NaN elsewhere, is 0, as ggml has it."""
