"""Matrices of small integers in a device's memory: GGUF's blocks, GPTQ, AWQ and int8 in one form.

Owns the packed layout, its bytes, and its inverse (`unpack`), which tests compare with the files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ridgeline.compute.quant.bits import fields as fields_of
from ridgeline.compute.quant.grouped import GroupedWeight, unpacked
from ridgeline.compute.quant.groups import groups
from ridgeline.compute.quant.weight import CodedWeight

Codes = NDArray[np.uint8]

CHUNK_ELEMENTS: Final = 1 << 22
"""Codes that are unpacked at a time: they stay in a core's cache."""


GROUP_BYTES: Final = {"i8": 1, "e8m0": 1, "u8 + min": 2, "fp16": 2, "fp16 + min": 4, "fp16 + zero": 4, "fp32": 4, "fp32 + zero": 8}
"""Bytes of a group's scales, by their type."""


@dataclass(frozen=True, slots=True)
class IntegerFormat:
    """The layout of a stored format on the device.

    low, high   bits of a code in the first plane (2, 4, 8) and in the second (0, 1, 2)
    size        inputs per group; 0: a group is a row
    scale_type  scales of a group:
                i8           a signed integer, times the superblock's scale: k-quants, IQ4_XS
                e8m0         half of a power of two
                u8 + min     an integer of the scale and one of the min, times the superblock's scale and min
                fp16         a scale
                fp16 + min   a scale and a min
                fp16 + zero  a scale and a zero of 8 bits
                fp32         a scale
                fp32 + zero  a scale and a zero of 32 bits
    centre      zero of every group, where groups have neither zero nor min
    values      "e2m1": codes are those of small floats, which mean twice their value and, with the centre, are integers too
    """

    low: int
    high: int
    size: int
    scale_type: str
    centre: int = 0
    values: str = ""

    @property
    def superblock(self) -> int:
        """Inputs per superblock; 0 where there are none."""
        return 256 if self.scale_type in ("i8", "u8 + min") else 0

    @property
    def offset(self) -> str:
        """Kind of the subtrahend: "centre", "zeros" (an integer per group) or "mins" (a number per group)."""
        return "mins" if self.scale_type in ("u8 + min", "fp16 + min") else "zeros" if self.scale_type.endswith("zero") else "centre"


INTEGER_FORMATS: Final = {
    "Q4_0": IntegerFormat(4, 0, 32, "fp16", 8),
    "Q4_1": IntegerFormat(4, 0, 32, "fp16 + min"),
    "Q5_0": IntegerFormat(4, 1, 32, "fp16", 16),
    "Q5_1": IntegerFormat(4, 1, 32, "fp16 + min"),
    "Q8_0": IntegerFormat(8, 0, 32, "fp16", 128),
    "Q2_K": IntegerFormat(2, 0, 16, "u8 + min"),
    "Q3_K": IntegerFormat(2, 1, 16, "i8", 4),
    "Q4_K": IntegerFormat(4, 0, 32, "u8 + min"),
    "Q5_K": IntegerFormat(4, 1, 32, "u8 + min"),
    "Q6_K": IntegerFormat(4, 2, 16, "i8", 32),
    "IQ4_NL": IntegerFormat(8, 0, 32, "fp16", 128),
    "IQ4_XS": IntegerFormat(8, 0, 32, "i8", 128),
    "MXFP4": IntegerFormat(4, 0, 32, "e8m0", 12, "e2m1"),
}
"""GGUF's formats. IQ4 formats are stored as the values of their table, which take 8 bits."""


@dataclass(frozen=True, slots=True)
class IntegerMatrix:
    """A matrix [N, K] of unsigned codes:

        weight[n, order[k]] = scale · (code - zero)     or     scale · code - min

    A tile is `tile` inputs of a row: `fields` runs of `width` inputs. Field f of a plane of b bits stands in byte run f // (8 / b), at the
    bits b · (f % (8 / b)) …, so that a shift and a mask give `width` neighbouring inputs. Inputs beyond K have the code 0.
    Scales are in words of four bytes, which are contiguous over rows: asynchronous copies of four bytes per thread need no registers.

    low, high     uint8 [tiles, N, tile · bits / 8]
    scale_words   int32 [words, N]: scales of a row's groups with their zeros or mins, one after the other, lowest bits first
    super_scales  int32 [K / 256, N]: fp16 scale of a superblock, above it its fp16 min
    order         int64 [K]: column k of the codes multiplies input order[k]; None where the codes are in the order of the inputs
    """

    kind: str
    form: IntegerFormat
    shape: tuple[int, int]
    width: int
    low: Tensor
    high: Tensor | None
    scale_words: Tensor
    super_scales: Tensor | None = None
    order: Tensor | None = None

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """All tensors of the matrix."""
        return tuple(part for part in (self.low, self.high, self.scale_words, self.super_scales, self.order) if part is not None)

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return sum(part.nbytes for part in self.parts)

    @property
    def fields(self) -> int:
        """Fields of a tile."""
        return fields(self.form)

    @property
    def tile(self) -> int:
        """Inputs per tile."""
        return self.fields * self.width

    @property
    def tiles(self) -> int:
        """Tiles of a row."""
        return self.low.shape[0]

    @staticmethod
    def bytes_of(kind: str, shape: tuple[int, int], group: int = 0) -> int:
        """Bytes of a matrix of the stored format `kind`, before any data is read: at most."""
        rows, columns = shape
        form = INTEGER_FORMATS.get(kind) or IntegerFormat(8 if kind.endswith("8") else 4, 0, group, "fp32 + zero")
        whole = _whole(form, columns)
        codes = whole * (form.low + form.high) // 8
        scale_words = 4 * _words(form, whole) + (4 * columns // form.superblock if form.superblock else 0)
        return rows * (codes + scale_words) + (8 * columns if kind.startswith("GPTQ") else 0)


def fields(form: IntegerFormat) -> int:
    """Fields of a tile: as many as the narrowest plane has in a byte, and so many that the scales of their groups fill words."""
    planes = max(8 // form.low, 8 // form.high if form.high else 1)
    return max(planes, 4 // GROUP_BYTES[form.scale_type]) if form.size else planes


def pack_blocks(weight: CodedWeight, device: torch.device) -> IntegerMatrix:
    """A matrix of one of GGUF's formats of integers."""
    form, (rows, columns) = INTEGER_FORMATS[weight.kind], weight.shape
    made = []
    step = max(1, CHUNK_ELEMENTS // columns)
    for start in range(0, rows, step):
        blocks = np.ascontiguousarray(weight.codes[start : start + step])
        made.append(_to_device(_block_parts(weight.kind, form, blocks, columns), device))
    return _joined(weight.kind, form, (rows, columns), made)


def pack_grouped(weight: GroupedWeight, device: torch.device) -> IntegerMatrix:
    """Grouped integers of a checkpoint; where every zero is the middle of the codes none are kept."""
    rows, columns = weight.shape
    middle = 1 << (weight.bits - 1)
    if bool((weight.zeros == middle).all()):
        scale_type, centre = "fp32", middle
    else:
        scale_type, centre = ("fp16 + zero" if weight.scales.dtype == np.float16 else "fp32 + zero"), 0
    form = IntegerFormat(weight.bits, 0, 0 if weight.size == columns else weight.size, scale_type, centre)
    made = []
    step = max(1, CHUNK_ELEMENTS // columns)
    for start in range(0, rows, step):
        part = slice(start, min(start + step, rows))
        scale_words = _packed_scales(scale_type, weight.scales[part], weight.zeros[part])
        made.append(_to_device(_parts(form, unpacked(weight.codes[part], weight.bits), scale_words), device))
    order = None if weight.order is None else torch.from_numpy(weight.order.astype(np.int64)).to(device)
    return _joined(f"INT{weight.bits}", form, (rows, columns), made, order)


def merged_integers(weights: Sequence[IntegerMatrix]) -> IntegerMatrix | None:
    """The rows of all; None where formats differ or inputs stand in an order."""
    first = weights[0]
    if any(weight.form != first.form or weight.order is not None for weight in weights):
        return None
    shape = sum(weight.shape[0] for weight in weights), first.shape[1]
    names = ("low", "high", "scale_words", "super_scales")
    made = [{name: getattr(weight, name) for name in names if getattr(weight, name) is not None} for weight in weights]
    return _joined(first.kind, first.form, shape, made)


def _width(form: IntegerFormat, columns: int) -> int:
    """Neighbouring inputs of a field: the widest of which whole tiles fill a row; else narrow ones, and the last tile is filled up."""
    fitting = [width for width in (64, 32, 16) if _fits(form, width)]
    return next((width for width in fitting if columns % (fields(form) * width) == 0), fitting[-1])


def _fits(form: IntegerFormat, width: int) -> bool:
    """True where a tile of fields of this width is whole groups or a whole part of one, and the scales of its groups fill words."""
    tile, group_bytes = fields(form) * width, GROUP_BYTES[form.scale_type]
    if not form.size:
        return True
    if form.size % width or (tile % form.size and form.size % tile):
        return False
    return group_bytes >= 4 or tile % (4 // group_bytes * form.size) == 0


def _whole(form: IntegerFormat, columns: int) -> int:
    """Inputs of whole tiles."""
    tile = fields(form) * _width(form, columns)
    return -(-columns // tile) * tile


def _words(form: IntegerFormat, whole: int) -> int:
    """Words of a row's scales."""
    groups = -(-whole // form.size) if form.size else 1
    return -(-groups * GROUP_BYTES[form.scale_type] // 4)


def _parts(form: IntegerFormat, codes: Codes, scale_words: Codes) -> dict[str, np.ndarray]:
    """codes uint8 [N, K], one per byte, and scales uint8 [N, bytes] → the tensors of `IntegerMatrix` by name."""
    rows, columns = codes.shape
    padded = np.zeros((rows, 4 * _words(form, _whole(form, columns))), np.uint8)
    padded[:, : scale_words.shape[1]] = scale_words
    return _planes(codes, form, _width(form, columns)) | {"scale_words": padded.view("<i4").T}


def _packed_scales(scale_type: str, scales: NDArray[np.floating], zeros: Codes) -> Codes:
    """Packed scales of grouped integers, with their zeros: uint8 [n, bytes]."""
    kind = np.float16 if scale_type.startswith("fp16") else np.float32
    fields = [("scale", kind)] if scale_type == "fp32" else [("scale", kind), ("zero", np.uint16 if kind is np.float16 else np.uint32)]
    records = np.zeros(scales.shape, np.dtype(fields))
    records["scale"] = scales
    if scale_type != "fp32":
        records["zero"] = zeros
    return records.view(np.uint8).reshape(len(scales), -1)


def _planes(codes: Codes, form: IntegerFormat, width: int) -> dict[str, np.ndarray]:
    """codes uint8 [N, K], one per byte → `low` and `high` of `IntegerMatrix`."""
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
    per_byte = 8 // bits
    runs = split.reshape(rows, tiles, count // per_byte, per_byte, width)
    out = runs[:, :, :, 0].copy()
    for place in range(1, per_byte):
        out |= runs[:, :, :, place] << np.uint8(bits * place)
    return np.ascontiguousarray(out.reshape(rows, tiles, -1).swapaxes(0, 1))


def _block_parts(kind: str, form: IntegerFormat, blocks: Codes, columns: int) -> dict[str, np.ndarray]:
    """Rows of a GGUF format, uint8 [n, bytes of a row] → the tensors of `IntegerMatrix` by name."""
    super_scales: dict[str, np.ndarray] = {}
    if form.values:
        parts = blocks.reshape(len(blocks), columns // form.size, -1)
        return _parts(form, fields_of(np.ascontiguousarray(parts[:, :, 1:]), 4).reshape(len(blocks), columns), parts[:, :, 0])
    if form.superblock:
        superblocks = blocks.reshape(len(blocks) * (columns // form.superblock), -1).copy()
        both = np.zeros((len(superblocks), 4), np.uint8)
        for number, place in enumerate(_SUPER_SCALES[kind]):
            both[:, 2 * number : 2 * number + 2] = superblocks[:, place : place + 2]
            superblocks[:, place : place + 2] = _ONE
        super_scales["super_scales"] = both.view("<i4").reshape(len(blocks), -1).T
        blocks = superblocks.reshape(blocks.shape)
    # With superblock scales of 1 the scale and min of a group are the integers in the file.
    found = groups(kind, blocks)
    number = {"i8": np.int8, "u8 + min": np.uint8}.get(form.scale_type, np.float16)
    scale_words = [
        part.astype(number) for part in ((found.group_scales, found.group_mins) if form.offset == "mins" else (found.group_scales,))
    ]
    codes = found.codes if found.codes.dtype == np.uint8 else found.codes.view(np.uint8) ^ np.uint8(0x80)
    return _parts(form, codes, np.stack(scale_words, axis=2).reshape(len(blocks), -1).view(np.uint8)) | super_scales


_SUPER_SCALES: Final = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_XS": (0,)}
"""Bytes of a superblock where its fp16 scale stands, and its fp16 min."""

_ONE: Final = np.ones(1, np.float16).view(np.uint8)


def _to_device(parts: Mapping[str, np.ndarray], device: torch.device) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.ascontiguousarray(part)).to(device) for name, part in parts.items()}


def _joined(
    kind: str, form: IntegerFormat, shape: tuple[int, int], made: Sequence[Mapping[str, Tensor]], order: Tensor | None = None
) -> IntegerMatrix:
    """Pieces of consecutive rows as one matrix; rows are the second dimension of every part."""
    parts = {name: torch.cat([piece[name] for piece in made], dim=1) for name in made[0]}
    return IntegerMatrix(
        kind, form, shape, _width(form, shape[1]), parts["low"], parts.get("high"), parts["scale_words"], parts.get("super_scales"), order
    )
