"""Views of stored bytes in the canonical order of rows: bytes are read when rows are, and no more than these need."""

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.quant.bits import Bytes
from ridgeline.compute.quant.formats import CHUNK_ELEMENTS, Rows
from ridgeline.facts.files.formats import FORMATS
from ridgeline.facts.model import TensorFacts


@dataclass(frozen=True, slots=True)
class Permuted:
    """Row i is row `order[i]` of codes uint8 [N, bytes of a row]."""

    codes: Bytes
    order: NDArray[np.intp]

    def __getitem__(self, part: slice) -> Bytes:
        return self.codes[self.order[part]]


@dataclass(frozen=True, slots=True)
class Transposed:
    """Row i is column i of what is stored: `elements` [N, K], unsigned integers of the element's size, rows not contiguous."""

    elements: NDArray[np.unsignedinteger]

    def __getitem__(self, part: slice) -> Bytes:
        return np.ascontiguousarray(self.elements[part]).view(np.uint8)


def stored_rows(tensor: TensorFacts, mapped: Bytes, head_dim: int) -> Bytes | Permuted | Transposed:
    """The tensor's rows of codes in the map of its file, those of experts one matrix behind the other; a vector is one row. Only matrices
    are seen through a view."""
    matrix = len(tensor.shape) > 1
    count = prod(tensor.shape[:-1])
    if matrix and tensor.transform == "transposed":
        size = FORMATS[tensor.kind].block_bytes
        elements: NDArray[np.unsignedinteger] = np.ndarray(
            tensor.shape, f"<u{size}", buffer=mapped.data, offset=tensor.offset, strides=(size, tensor.stride)
        )
        return Transposed(elements)
    codes = np.asarray(mapped[tensor.offset : tensor.offset + tensor.bytes]).reshape(count, tensor.bytes // count)
    return Permuted(codes, halves_order(count, head_dim)) if matrix and tensor.transform == "interleaved" else codes


def halves_order(rows: int, head_dim: int) -> NDArray[np.intp]:
    """The place of each row in a file of pairwise RoPE: of every head first the even rows, then the odd ones."""
    order: NDArray[np.intp] = np.arange(rows, dtype=np.intp).reshape(-1, head_dim // 2, 2).swapaxes(1, 2).reshape(-1)
    return order


def gather_rows(rows: Rows, count: int, row_bytes: int) -> Bytes:
    """All rows gathered into memory, a piece at a time: uint8 [count, row_bytes]."""
    out = np.empty((count, row_bytes), np.uint8)
    step = max(1, CHUNK_ELEMENTS // row_bytes)
    for start in range(0, count, step):
        out[start : start + step] = rows[start : start + step]
    return out
