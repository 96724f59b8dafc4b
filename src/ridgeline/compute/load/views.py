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


@dataclass(frozen=True, slots=True)
class MicroscaledRows:
    """Rows in GGUF's blocks of MXFP4: codes uint8 [N, G, 16], of which the lower bits of byte j are weight 2j and the upper ones 2j + 1,
    scales uint8 [N, G]; neither contiguous."""

    codes: Bytes
    scales: Bytes

    def __getitem__(self, part: slice) -> Bytes:
        pairs, scales = self.codes[part], self.scales[part]
        even, odd = pairs & np.uint8(15), pairs >> np.uint8(4)
        blocks = np.empty((*scales.shape, 17), np.uint8)
        blocks[..., 0] = scales
        # Weights 0, 2 … 30 and 1, 3 … 31; a block has 0 … 15 in the lower bits of its bytes and 16 … 31 in the upper.
        blocks[..., 1::2] = even[..., :8] | even[..., 8:] << np.uint8(4)
        blocks[..., 2::2] = odd[..., :8] | odd[..., 8:] << np.uint8(4)
        return blocks.reshape(len(scales), -1)


def microscaled_rows(tensor: TensorFacts, codes: Bytes, scales: Bytes) -> MicroscaledRows:
    """Those of a matrix: `codes` [E, N, G, 16] and `scales` [E, N, G] are what the file holds, or [N, G · 16] and [N, G]."""
    parts = tensor.quantised
    assert parts is not None
    own = slice(parts.first, parts.first + parts.step * tensor.shape[0], parts.step)
    groups = scales.shape[-1]
    return MicroscaledRows(codes.reshape(-1, groups, 16)[own], scales.reshape(-1, groups)[own])


def stored_rows(tensor: TensorFacts, mapped: Bytes, head_dim: int) -> Bytes | Permuted | Transposed:
    """The tensor's rows of codes in the map of its file, those of experts one matrix behind the other; a vector is one row. Only matrices
    are seen through a view."""
    matrix = len(tensor.shape) > 1
    count = prod(tensor.shape[:-1])
    if matrix and tensor.transform == "transposed":
        size = FORMATS[tensor.kind].block_bytes
        elements: NDArray[np.unsignedinteger] = np.ndarray(
            tensor.shape, f"<u{size}", buffer=mapped.data, offset=tensor.offset, strides=(tensor.row_stride or size, tensor.stride)
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
