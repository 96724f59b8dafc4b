"""Integers and small floats from the tensors of quantised checkpoints: words as rows of codes, gathered when they are read; scales now.

Owns the layouts of `facts.model.QuantisedParts` and the checks of what only the data says: orders, zeros and stated shapes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.quant.bits import Bytes
from ridgeline.compute.quant.grouped import GroupedWeight, Scales, packed, unpacked
from ridgeline.compute.quant.scaled import Nvfp4Weight, ScaledWeight
from ridgeline.errors import ModelFormatError
from ridgeline.facts.model import QuantisedParts, TensorFacts

Maps = Mapping[Path, Bytes]
Words = NDArray[np.integer]

AWQ_OUTPUTS = (0, 2, 4, 6, 1, 3, 5, 7)
"""Field i of a word of AWQ, from the lowest bits, is the output `AWQ_OUTPUTS[i]` of eight."""

_ELEMENTS = {"I8": "<i1", "I32": "<i4", "I64": "<i8", "F16": "<f2", "BF16": "<u2", "F32": "<f4", "F8_E4M3": "u1", "U8": "u1"}


@dataclass(frozen=True, slots=True)
class StoredCodes:
    """Rows of codes as `GroupedWeight` has them, gathered from the stored matrix: rows `first` … of it, `count` in all."""

    layout: str
    bits: int
    stored: NDArray[np.integer]
    first: int
    count: int
    order: NDArray[np.intp] | None

    def __getitem__(self, part: slice) -> Bytes:
        start, end, _ = part.indices(self.count)
        codes = _ROWS[self.layout](self.stored, self.first + start, self.first + max(start, end))
        if self.order is None:
            return codes
        return packed(unpacked(codes, self.bits).take(self.order, axis=1), self.bits)


def grouped_weight(tensor: TensorFacts, maps: Maps) -> GroupedWeight:
    """The matrix that `tensor` describes; `maps` are its files, uint8. Scales, zeros and order are read now, codes when they are read.

    Raises ModelFormatError where the data contradict the header.
    """
    integers = tensor.quantised
    assert integers is not None
    rows, columns = tensor.shape
    _check_shape(tensor, integers, maps)
    order = _order(integers, columns, maps)
    stored = elements(integers.codes, maps)
    codes = StoredCodes(integers.layout, integers.bits, stored, integers.first, rows, order)
    own = slice(integers.first, integers.first + rows)
    scales = _scales(integers, own, columns // integers.group, maps)
    return GroupedWeight((rows, columns), integers.bits, integers.group, codes, scales, _zeros(integers, own, scales.shape, maps), order)


def elements(tensor: TensorFacts, maps: Maps) -> NDArray[np.integer]:
    """The tensor in its file; a file's numbers may stand at any byte."""
    return np.ndarray(tensor.shape, _ELEMENTS[tensor.kind], buffer=maps[tensor.file].data, offset=tensor.offset)


def scaled_weight(tensor: TensorFacts, maps: Maps) -> ScaledWeight:
    """The matrix that `tensor` describes; `maps` are its files, uint8.

    Raises ModelFormatError where a projection that is stored with others begins inside a block.
    """
    parts = tensor.quantised
    assert parts is not None
    (rows, columns), group_rows, group = tensor.shape, parts.group_rows, parts.group
    whole = group_rows >= parts.rows
    if parts.first % group_rows and not whole:
        raise ModelFormatError(f"{tensor.name} begins with row {parts.first} inside a block of {group_rows} rows, which is not supported")
    stored = elements(parts.scales, maps).reshape(-1, -(-columns // group))
    scales = (stored.astype(np.uint32) << np.uint32(16)).view(np.float32) if parts.scales.kind == "BF16" else stored.astype(np.float32)
    mine = scales if whole else scales[parts.first // group_rows : -(-(parts.first + rows) // group_rows)]
    codes = elements(parts.codes, maps)[parts.first : parts.first + rows]
    return ScaledWeight(codes, np.ascontiguousarray(mine), (rows if whole else group_rows, group))


def nvfp4_weight(tensor: TensorFacts, maps: Maps) -> Nvfp4Weight:
    """The matrix that `tensor` describes; `maps` are its files, uint8.

    Raises ModelFormatError where its scale of all is no positive number.
    """
    parts = tensor.quantised
    assert parts is not None and parts.factor is not None
    own = slice(parts.first, parts.first + tensor.shape[0])
    factor = np.float32(elements(parts.factor, maps).reshape(-1)[0])
    if not 0 < factor < np.inf:
        raise ModelFormatError(f"{parts.factor.name} is {factor}, a positive number was expected; download the file again")
    divides = parts.layout == "nvfp4 divided"
    return Nvfp4Weight(elements(parts.codes, maps)[own], elements(parts.scales, maps)[own], factor, divides)


def _check_shape(tensor: TensorFacts, integers: QuantisedParts, maps: Maps) -> None:
    if integers.shape_tensor is not None:
        stated, expected = elements(integers.shape_tensor, maps).tolist(), [integers.rows, tensor.shape[1]]
        if stated != expected:
            raise ModelFormatError(f"{integers.shape_tensor.name} says {stated}, the codes are {expected}; download the file again")


def _gptq_rows(words: Words, start: int, end: int) -> Bytes:
    """Words [K·bits / 32, N] along the inputs, first input lowest: a column's bytes are a row of codes."""
    return np.ascontiguousarray(words[:, start:end].T).view(np.uint8)


def _awq_rows(words: Words, start: int, end: int) -> Bytes:
    return packed(_awq_fields(words, start, end), 4)


def _packed_rows(words: Words, start: int, end: int) -> Bytes:
    """Words [N, K·bits / 32] along the inputs: the bytes are the codes."""
    return np.ascontiguousarray(words[start:end]).view(np.uint8)


def _byte_rows(signed: NDArray[np.int8], start: int, end: int) -> Bytes:
    """int8 [N, K], stored + 128."""
    return signed[start:end].view(np.uint8) ^ np.uint8(0x80)


def _awq_fields(words: Words, start: int, end: int) -> Bytes:
    """Words [I, N / 8] along the outputs → uint8 [end - start, I], one field per byte, of the outputs `start` … `end` - 1."""
    first = start // 8
    columns = np.ascontiguousarray(words[:, first : -(-end // 8)].T).view(np.uint32)
    fields = np.empty((len(columns), 8, columns.shape[1]), np.uint8)
    for place, output in enumerate(AWQ_OUTPUTS):
        fields[:, output] = (columns >> np.uint32(4 * place)) & np.uint32(15)
    return fields.reshape(-1, columns.shape[1])[start - 8 * first : end - 8 * first]


_ROWS: dict[str, Callable[..., Bytes]] = {"gptq": _gptq_rows, "awq": _awq_rows, "packed": _packed_rows, "bytes": _byte_rows}


def _scales(integers: QuantisedParts, own: slice, groups: int, maps: Maps) -> Scales:
    """fp16 as stored, or fp32: [N, groups] contiguous."""
    stored = elements(integers.scales, maps)
    mine = stored[:, own].T if integers.layout in ("gptq", "awq") else stored.reshape(-1, groups)[own]
    if integers.scales.kind == "BF16":
        return (mine.astype(np.uint32, order="C") << np.uint32(16)).view(np.float32)
    return np.array(mine, np.float16 if integers.scales.kind == "F16" else np.float32, order="C")


def _zeros(integers: QuantisedParts, own: slice, shape: tuple[int, ...], maps: Maps) -> Bytes:
    """uint8 [N, groups] contiguous."""
    middle = 1 << (integers.bits - 1)
    if integers.zeros is None:
        return np.full(shape, middle, np.uint8)
    stored = elements(integers.zeros, maps)
    if integers.zeros.kind == "I8":
        zeros = stored.reshape(-1, shape[1])[own].astype(np.int16) + middle
        if zeros.min(initial=0) < 0 or zeros.max(initial=0) >= 2 * middle:
            raise ModelFormatError(f"{integers.zeros.name} holds zeros beyond {integers.bits} bits; download the file again")
        return zeros.astype(np.uint8)
    if integers.layout == "awq":
        return _awq_fields(stored, own.start, own.stop).copy()
    along = np.ascontiguousarray(stored.T if integers.layout == "packed" else stored).view(np.uint32)
    # GPTQ's first format was written as words less 0x11…1, with a borrow from field to field: only whole words give the zeros back.
    ones = sum(1 << shift for shift in range(0, 32, integers.bits))
    along = along + np.uint32(integers.zero_offset * ones)
    return np.ascontiguousarray(unpacked(along.view(np.uint8), integers.bits)[:, own].T)


def _order(integers: QuantisedParts, columns: int, maps: Maps) -> NDArray[np.intp] | None:
    """Inputs sorted by their group; None where that changes nothing, or the file says no groups at all (-1 everywhere)."""
    if integers.order is None:
        return None
    groups = elements(integers.order, maps)
    if (groups == -1).all():
        return None
    count = columns // integers.group
    if groups.min() < 0 or groups.max() >= count or not (np.bincount(groups, minlength=count) == integers.group).all():
        raise ModelFormatError(
            f"{integers.order.name} does not give {count} groups {integers.group} inputs each, which is not supported; "
            "download the file again, or give a checkpoint without act-order (desc_act false)"
        )
    order = np.argsort(groups, kind="stable")
    return None if np.array_equal(order, np.arange(columns)) else order
