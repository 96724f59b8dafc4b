"""Matrices of small integers in a device's memory: GGUF's blocks, GPTQ, AWQ and int8 in one form.

Owns the packed layout, its bytes, and the way back (`unpack`), which tests hold against the files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ridgeline.compute.quant.grouped import GroupedWeight, unpacked
from ridgeline.compute.quant.groups import groups
from ridgeline.compute.quant.weight import CodedWeight

Codes = NDArray[np.uint8]

CHUNK_ELEMENTS: Final = 1 << 22
"""Codes that are taken apart at a time: they stay in a core's cache."""


@dataclass(frozen=True, slots=True)
class Form:
    """How a stored format is held.

    low, high  bits of a code in the first plane (2, 4, 8) and in the second (0, 1, 2)
    size       inputs of a group; 0: all of them
    base       inputs that share an entry of `scales`, where a group's scale is that entry times an integer; else 0
    centre     zero of every group, where that is a constant
    zero       what is taken off: "centre", "zeros" (an integer a group) or "mins" (a number a group)
    """

    low: int
    high: int
    size: int
    base: int = 0
    centre: int = 0
    zero: str = "centre"


FORMS: Final = {
    "Q4_0": Form(4, 0, 32, centre=8),
    "Q4_1": Form(4, 0, 32, zero="mins"),
    "Q5_0": Form(4, 1, 32, centre=16),
    "Q5_1": Form(4, 1, 32, zero="mins"),
    "Q8_0": Form(8, 0, 32, centre=128),
    "Q2_K": Form(2, 0, 16, 256, zero="mins"),
    "Q3_K": Form(2, 1, 16, 256, centre=4),
    "Q4_K": Form(4, 0, 32, 256, zero="mins"),
    "Q5_K": Form(4, 1, 32, 256, zero="mins"),
    "Q6_K": Form(4, 2, 16, 256, centre=32),
    "IQ4_NL": Form(8, 0, 32, centre=128),
    "IQ4_XS": Form(8, 0, 32, 256, centre=128),
}
"""GGUF's formats. Those of the IQ4 family keep their table's values, which take 8 bits."""


@dataclass(frozen=True, slots=True)
class Integers:
    """A matrix [N, K] of unsigned codes:

        weight[n, order[k]] = scale · (code - zero)     or     scale · code - min

    A group's scale is scales[k // span, n], or scales[k // base, n] · fine[k // size, n]; its min alike, of `mins` and `fine_mins`.
    A tile is `tile` inputs of a row: `fields` runs of `width` inputs. Field f of a plane of b bits stands in byte run f // (8 / b), at the
    bits b · (f % (8 / b)) …, so that a shift and a mask give `width` neighbouring inputs. Inputs beyond K have the code 0.

    low, high  uint8 [tiles, N, tile · bits / 8]
    scales, mins  fp16 or fp32 [G, N], by group or by base     fine int8, fine_mins, zeros uint8 [K / size, N]
    order      int64 [K]: column k of the codes multiplies input order[k]; None where the codes are in the order of the inputs
    """

    kind: str
    form: Form
    shape: tuple[int, int]
    width: int
    low: Tensor
    high: Tensor | None
    scales: Tensor
    fine: Tensor | None = None
    mins: Tensor | None = None
    fine_mins: Tensor | None = None
    zeros: Tensor | None = None
    order: Tensor | None = None

    @property
    def parts(self) -> tuple[Tensor, ...]:
        all_parts = (self.low, self.high, self.scales, self.fine, self.mins, self.fine_mins, self.zeros, self.order)
        return tuple(part for part in all_parts if part is not None)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    @property
    def fields(self) -> int:
        return fields(self.form)

    @property
    def tile(self) -> int:
        return self.fields * self.width

    @property
    def tiles(self) -> int:
        return self.low.shape[0]

    @staticmethod
    def bytes_of(kind: str, shape: tuple[int, int], group: int = 0) -> int:
        """Bytes of a matrix of the stored format `kind`, before any data is read: the most that it can take."""
        rows, columns = shape
        form = FORMS.get(kind) or Form(8 if kind.endswith("8") else 4, 0, group, zero="zeros")
        size = form.size or columns
        tile = fields(form) * _width(form, columns)
        codes = -(-columns // tile) * tile * (form.low + form.high) // 8
        entries = columns // (form.base or size) * (2 if kind in FORMS else 4) * (2 if form.zero == "mins" else 1)
        small = columns // size * ((form.base > 0) * (2 if form.zero == "mins" else 1) + (form.zero == "zeros"))
        return rows * (codes + entries + small) + (8 * columns if kind.startswith("GPTQ") else 0)


def fields(form: Form) -> int:
    """Fields of a tile: as many as the narrowest plane has in a byte."""
    return max(8 // form.low, 8 // form.high if form.high else 1)


def pack_blocks(weight: CodedWeight, device: torch.device) -> Integers:
    """A matrix of one of GGUF's formats of integers."""
    form, (rows, columns) = FORMS[weight.kind], weight.shape
    made = []
    step = max(1, CHUNK_ELEMENTS // columns)
    for start in range(0, rows, step):
        blocks = np.ascontiguousarray(weight.codes[start : start + step])
        made.append(_to_device(_block_parts(weight.kind, form, blocks, columns), device))
    return _joined(weight.kind, form, (rows, columns), _width(form, columns), made)


def pack_grouped(weight: GroupedWeight, device: torch.device) -> Integers:
    """Grouped integers of a checkpoint; where every zero is the middle of the codes none are kept."""
    rows, columns = weight.shape
    middle = 1 << (weight.bits - 1)
    size = 0 if weight.size == columns else weight.size
    symmetric = bool((weight.zeros == middle).all())
    form = Form(weight.bits, 0, size, centre=middle if symmetric else 0, zero="centre" if symmetric else "zeros")
    width = _width(form, columns)
    made = []
    step = max(1, CHUNK_ELEMENTS // columns)
    for start in range(0, rows, step):
        part = slice(start, min(start + step, rows))
        parts = _planes(unpacked(weight.codes[part], weight.bits), form, width)
        parts["scales"] = weight.scales[part].T
        if not symmetric:
            parts["zeros"] = weight.zeros[part].T
        made.append(_to_device(parts, device))
    order = None if weight.order is None else torch.from_numpy(weight.order.astype(np.int64)).to(device)
    return _joined(f"INT{weight.bits}", form, (rows, columns), width, made, order)


def merged_integers(weights: Sequence[Integers]) -> Integers | None:
    """The rows of all; None where formats differ or inputs stand in an order."""
    first = weights[0]
    like = (first.form, first.width, first.scales.dtype)
    if any((weight.form, weight.width, weight.scales.dtype) != like or weight.order is not None for weight in weights):
        return None
    shape = sum(weight.shape[0] for weight in weights), first.shape[1]
    names = ("low", "high", "scales", "fine", "mins", "fine_mins", "zeros")
    made = [{name: getattr(weight, name) for name in names if getattr(weight, name) is not None} for weight in weights]
    return _joined(first.kind, first.form, shape, first.width, made)


def unpack(weight: Integers) -> NDArray[np.float32]:
    """The weights as fp32 [N, K], in the order of the inputs: for tests."""
    rows, columns = weight.shape
    size = weight.form.size or columns
    codes = _unplane(weight.low, weight.form.low, weight)
    if weight.high is not None:
        codes |= _unplane(weight.high, weight.form.high, weight) << weight.form.low
    values = codes[:, :columns].reshape(rows, -1, size).astype(np.float32)
    scales = _factor(weight.scales, weight.fine)[..., None]
    if weight.mins is not None:
        dense = scales * values - _factor(weight.mins, weight.fine_mins)[..., None]
    elif weight.zeros is not None:
        dense = scales * (values - weight.zeros.cpu().numpy().T[..., None].astype(np.float32))
    else:
        dense = scales * (values - np.float32(weight.form.centre))
    dense = dense.reshape(rows, columns)
    return dense if weight.order is None else dense[:, np.argsort(weight.order.cpu().numpy())]


def _width(form: Form, columns: int) -> int:
    """Neighbouring inputs of a field: the widest of which whole tiles fill a row; else narrow ones, and the last tile is filled up."""
    size = form.size or columns
    for width in (64, 32, 16):
        if columns % (fields(form) * width) == 0 and size % width == 0:
            return width
    return 16


def _planes(codes: Codes, form: Form, width: int) -> dict[str, np.ndarray]:
    """codes uint8 [N, K], one a byte → `low` and `high` of `Integers`."""
    rows, columns = codes.shape
    count = fields(form)
    tiles = -(-columns // (count * width))
    if tiles * count * width != columns:
        codes = np.pad(codes, ((0, 0), (0, tiles * count * width - columns)))
    split = codes.reshape(rows, tiles, count, width)
    made: dict[str, np.ndarray] = {"low": _plane(split & np.uint8((1 << form.low) - 1), form.low)}
    if form.high:
        made["high"] = _plane(split >> np.uint8(form.low), form.high)
    return made


def _plane(split: Codes, bits: int) -> Codes:
    """[N, tiles, fields, width] of `bits` bits each → [tiles, N, bytes of a tile]."""
    rows, tiles, count, width = split.shape
    a_byte = 8 // bits
    runs = split.reshape(rows, tiles, count // a_byte, a_byte, width)
    out = runs[:, :, :, 0].copy()
    for place in range(1, a_byte):
        out |= runs[:, :, :, place] << np.uint8(bits * place)
    return np.ascontiguousarray(out.reshape(rows, tiles, -1).swapaxes(0, 1))


def _unplane(plane: Tensor, bits: int, weight: Integers) -> Codes:
    """The inverse of `_plane`: uint8 [N, tiles · tile]."""
    packed = plane.cpu().numpy()
    tiles, rows, _ = packed.shape
    runs = packed.reshape(tiles, rows, -1, 1, weight.width)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    codes: Codes = (runs >> shifts) & np.uint8((1 << bits) - 1)
    return codes.reshape(tiles, rows, -1).swapaxes(0, 1).reshape(rows, -1)


def _factor(scales: Tensor, fine: Tensor | None) -> NDArray[np.float32]:
    """fp32 [N, groups]."""
    wide = scales.cpu().numpy().astype(np.float32).T
    if fine is None:
        return wide
    small = fine.cpu().numpy().astype(np.float32).T
    return np.repeat(wide, small.shape[1] // wide.shape[1], axis=1) * small


def _block_parts(kind: str, form: Form, blocks: Codes, columns: int) -> dict[str, np.ndarray]:
    """Rows of a GGUF format, uint8 [n, bytes of a row] → the tensors of `Integers` by name."""
    if not form.base:
        found = groups(kind, blocks)
        scales, mins, small = found.scales, found.mins, {}
    else:
        superblocks = blocks.reshape(len(blocks) * (columns // form.base), -1)
        places = _BASES[kind]
        bases = [superblocks[:, place : place + 2].copy().view(np.float16).reshape(len(blocks), -1) for place in places]
        superblocks = superblocks.copy()
        for place in places:
            superblocks[:, place : place + 2] = _ONE
        # With bases of one a group's scale and min are the integers that the file has.
        found = groups(kind, superblocks.reshape(blocks.shape))
        scales, mins = bases[0], bases[-1]
        small = {"fine": found.scales.astype(np.int8).T}
        if form.zero == "mins":
            small["fine_mins"] = found.mins.astype(np.uint8).T
    codes = found.codes if found.codes.dtype == np.uint8 else found.codes.view(np.uint8) ^ np.uint8(0x80)
    parts = _planes(codes, form, _width(form, columns)) | small | {"scales": scales.astype(np.float16).T}
    if form.zero == "mins":
        parts["mins"] = mins.astype(np.float16).T
    return parts


_BASES: Final = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_XS": (0,)}
"""Bytes of a superblock where its fp16 scale stands, and its fp16 min."""

_ONE: Final = np.ones(1, np.float16).view(np.uint8)


def _to_device(parts: Mapping[str, np.ndarray], device: torch.device) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.ascontiguousarray(part)).to(device) for name, part in parts.items()}


def _joined(
    kind: str, form: Form, shape: tuple[int, int], width: int, made: Sequence[Mapping[str, Tensor]], order: Tensor | None = None
) -> Integers:
    """Pieces of consecutive rows as one matrix; rows are the second dimension of every part."""
    parts = {name: torch.cat([piece[name] for piece in made], dim=1) for name in made[0]}
    return Integers(kind, form, shape, width, parts.pop("low"), parts.pop("high", None), order=order, **parts)
