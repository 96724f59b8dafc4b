"""Stored formats taken apart into integers and scales: what integer kernels multiply, and what their references compute with.

Owns the decomposition of GGUF's block formats. Never rounds what a file holds.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ridgeline.compute.quant import groups32, iq4, k_quants
from ridgeline.compute.quant.bits import Bytes, Codes, Floats, Parts
from ridgeline.facts.formats import FORMATS


@dataclass(frozen=True, slots=True)
class Groups:
    """weight[n, k] = scales[n, k // size]·codes[n, k] - mins[n, k // size], both operations in fp32.

    codes  uint8 or int8 [N, K]: the integer that a kernel multiplies
    scales, mins  fp32 [N, K / size]
    """

    codes: Codes
    scales: Floats
    mins: Floats

    @property
    def size(self) -> int:
        """Weights of a group: 16 or 32."""
        size: int = self.codes.shape[1] // self.scales.shape[1]
        return size

    def dense(self) -> Floats:
        """The weights, fp32 [N, K]."""
        grouped = self.codes.reshape(*self.scales.shape, self.size)
        with np.errstate(all="ignore"):
            values = self.scales[..., None] * grouped.astype(np.float32) - self.mins[..., None]
        return values.reshape(self.codes.shape)


_PARTS: dict[str, Callable[[Bytes], Parts]] = {
    "Q4_0": groups32.q4_0_parts,
    "Q4_1": groups32.q4_1_parts,
    "Q5_0": groups32.q5_0_parts,
    "Q5_1": groups32.q5_1_parts,
    "Q8_0": groups32.q8_0_parts,
    "Q2_K": k_quants.q2_k_parts,
    "Q3_K": k_quants.q3_k_parts,
    "Q4_K": k_quants.q4_k_parts,
    "Q5_K": k_quants.q5_k_parts,
    "Q6_K": k_quants.q6_k_parts,
    "IQ4_NL": iq4.iq4_nl_parts,
    "IQ4_XS": iq4.iq4_xs_parts,
}

KINDS = frozenset(_PARTS)
"""Formats that can be taken apart; the others are floats."""


def groups(kind: str, rows: Bytes) -> Groups:
    """rows uint8 [N, bytes of a row] of a format among `KINDS` → its integers, scales and mins.

    Exact where the fields of the file are finite: `dense` equals `formats.dequantise` (a zero may have the other sign), for a scale
    has at most 18 significant bits and a code at most 7, of which Q6_K, the longest, needs 24 together.

    | kind         | codes                  | size | scale       | min        |
    |--------------|------------------------|------|-------------|------------|
    | Q4_0         | uint8 0 … 15           | 32   | d           | 8·scale    |
    | Q5_0         | uint8 0 … 31           | 32   | d           | 16·scale   |
    | Q4_1, Q5_1   | uint8 0 … 15, 0 … 31   | 32   | d           | -m         |
    | Q8_0         | int8                   | 32   | d           | 0          |
    | Q2_K         | uint8 0 … 3            | 16   | d·s         | dmin·m     |
    | Q3_K         | uint8 0 … 7            | 16   | d·(s - 32)  | 4·scale    |
    | Q4_K, Q5_K   | uint8 0 … 15, 0 … 31   | 32   | d·s         | dmin·m     |
    | Q6_K         | uint8 0 … 63           | 16   | d·s         | 32·scale   |
    | IQ4_NL, _XS  | int8, the table's      | 32   | d, d·(s-32) | 0          |
    """
    form = FORMATS[kind]
    count, width = rows.shape
    if width % form.block_bytes:
        raise ValueError(f"{kind}: a row of {width} bytes is no whole number of {form.block_bytes}-byte blocks")
    with np.errstate(all="ignore"):
        codes, scales, mins = _PARTS[kind](np.ascontiguousarray(rows).reshape(-1, form.block_bytes))
    return Groups(np.ascontiguousarray(codes).reshape(count, -1), scales.reshape(count, -1), mins.reshape(count, -1))
