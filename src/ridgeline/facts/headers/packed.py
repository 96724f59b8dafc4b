"""Bytes of matrices as native kernels read them: what loading allocates, told from headers.

What fills up the last of a matrix's blocks of 16 rows is left out.
"""

from array import array
from itertools import pairwise
from math import prod
from typing import Final

from ridgeline.facts.files.formats import FORMATS
from ridgeline.facts.headers.quantisation import MICROSCALED, NVFP4
from ridgeline.facts.model import QuantisedParts, TensorFacts

LONG_SPAN: Final = 128
SPAN: Final = 32
"""Integers that share a scale of four bytes and a zero, which takes two bytes in a long span."""
NVFP4_BYTES: Final = 9
NVFP4_HEAD: Final = 12
"""Bytes of a group of NVFP4, and of what a row has of its matrix's scale."""


def packed_bytes(tensor: TensorFacts) -> int:
    """Bytes of a tensor; experts with an order of their own are fp32 then."""
    if tensor.experts:
        parts = [each.quantised for each in tensor.experts]
        if any(part is not None and part.bits in (4, 8) and part.order is not None and is_permuted(part) for part in parts):
            return 4 * prod(tensor.shape)
        return sum(packed_bytes(each) for each in tensor.experts)
    stored = tensor.quantised
    if stored is None or stored.layout in MICROSCALED:
        return FORMATS[tensor.kind].packed_bytes(tensor.bytes) if tensor.kind in FORMATS and stored is None else tensor.bytes
    if stored.layout.startswith("e4m3"):
        return tensor.shape[0] * (tensor.shape[1] + 4 * -(-tensor.shape[1] // (stored.group or tensor.shape[1])))
    rows, columns = tensor.shape
    if stored.layout in NVFP4:
        return rows * (columns // stored.group * NVFP4_BYTES + NVFP4_HEAD)
    group = stored.group or columns
    if group % SPAN:
        return 4 * prod(tensor.shape)
    span, shared = (LONG_SPAN, 6) if group % LONG_SPAN == 0 else (SPAN, 5)
    return rows * (columns * stored.bits // 8 + columns // span * shared)


def is_permuted(parts: QuantisedParts) -> bool:
    """True where the order of a matrix's inputs is not that of its groups; its file says, in four bytes an input."""
    assert parts.order is not None
    with parts.order.file.open("rb") as file:
        file.seek(parts.order.offset)
        groups = array("i", file.read(parts.order.bytes))
    return any(after < before for before, after in pairwise(groups))
