"""Stored formats taken apart into integers and scales: what integer kernels multiply, and what their references compute with.

Owns the table of GGUF's block formats that can be. Never rounds what a file holds.
"""

from collections.abc import Callable
from typing import Final

import numpy as np

from ridgeline.compute.quant import groups32, iq4, k_quants
from ridgeline.compute.quant.bits import Bytes, Groups
from ridgeline.facts.files.formats import FORMATS

BLOCKS: Final[dict[str, Callable[[Bytes], Groups]]] = {
    "Q4_0": groups32.q4_0,
    "Q4_1": groups32.q4_1,
    "Q5_0": groups32.q5_0,
    "Q5_1": groups32.q5_1,
    "Q8_0": groups32.q8_0,
    "Q2_K": k_quants.q2_k,
    "Q3_K": k_quants.q3_k,
    "Q4_K": k_quants.q4_k,
    "Q5_K": k_quants.q5_k,
    "Q6_K": k_quants.q6_k,
    "IQ4_NL": iq4.iq4_nl,
    "IQ4_XS": iq4.iq4_xs,
}
"""Kind → what takes its blocks apart: uint8 [n, bytes of a block] → integers of n rows, one a block."""

KINDS = frozenset(BLOCKS)
"""Formats that can be taken apart; the others are floats."""


def groups(kind: str, rows: Bytes) -> Groups:
    """rows uint8 [N, bytes of a row] of a format among `KINDS` → its integers and scales.

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
    """
    form = FORMATS[kind]
    count, width = rows.shape
    if width % form.block_bytes:
        raise ValueError(f"{kind}: a row of {width} bytes is no whole number of {form.block_bytes}-byte blocks")
    with np.errstate(all="ignore"):
        return BLOCKS[kind](np.ascontiguousarray(rows).reshape(-1, form.block_bytes)).reshape(count)
