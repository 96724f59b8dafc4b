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


HEAD_BYTES: Final = {"byte": 1, "bytes": 2, "half": 2, "halves": 4, "half, zero": 4, "single": 4, "single, zero": 8}
"""Bytes of a group's head."""


@dataclass(frozen=True, slots=True)
class Form:
    """How a stored format is held.

    low, high  bits of a code in the first plane (2, 4, 8) and in the second (0, 1, 2)
    size    inputs of a group; 0: all of them
    head    what a group has:
            byte         an integer, signed                  of k-quants and IQ4_XS: times the superblock's scale
            bytes        an integer of the scale, one of the min, unsigned; times the superblock's scale and min
            half         fp16 scale
            halves       fp16 scale, fp16 min
            half, zero   fp16 scale, 8 bits of zero
            single       fp32 scale
            single, zero fp32 scale, 32 bits of zero
    centre  zero of every group, where heads have neither zero nor min
    """

    low: int
    high: int
    size: int
    head: str
    centre: int = 0

    @property
    def base(self) -> int:
        """Inputs of a superblock; 0 where there are none."""
        return 256 if self.head in ("byte", "bytes") else 0

    @property
    def zero(self) -> str:
        """What is taken off: "centre", "zeros" (an integer a group) or "mins" (a number a group)."""
        return "mins" if self.head in ("bytes", "halves") else "zeros" if self.head.endswith("zero") else "centre"


FORMS: Final = {
    "Q4_0": Form(4, 0, 32, "half", 8),
    "Q4_1": Form(4, 0, 32, "halves"),
    "Q5_0": Form(4, 1, 32, "half", 16),
    "Q5_1": Form(4, 1, 32, "halves"),
    "Q8_0": Form(8, 0, 32, "half", 128),
    "Q2_K": Form(2, 0, 16, "bytes"),
    "Q3_K": Form(2, 1, 16, "byte", 4),
    "Q4_K": Form(4, 0, 32, "bytes"),
    "Q5_K": Form(4, 1, 32, "bytes"),
    "Q6_K": Form(4, 2, 16, "byte", 32),
    "IQ4_NL": Form(8, 0, 32, "half", 128),
    "IQ4_XS": Form(8, 0, 32, "byte", 128),
}
"""GGUF's formats. Those of the IQ4 family keep their table's values, which take 8 bits."""


@dataclass(frozen=True, slots=True)
class Integers:
    """A matrix [N, K] of unsigned codes:

        weight[n, order[k]] = scale · (code - zero)     or     scale · code - min

    A tile is `tile` inputs of a row: `fields` runs of `width` inputs. Field f of a plane of b bits stands in byte run f // (8 / b), at the
    bits b · (f % (8 / b)) …, so that a shift and a mask give `width` neighbouring inputs. Inputs beyond K have the code 0.
    What groups have is in words, which lie together for neighbouring rows: copies of four bytes a thread need no registers on their way.

    low, high  uint8 [tiles, N, tile · bits / 8]
    heads      int32 [words, N]: the heads of a row's groups, one after the other, lowest bits first
    bases      int32 [K / 256, N]: fp16 scale of a superblock, above it its fp16 min
    order      int64 [K]: column k of the codes multiplies input order[k]; None where the codes are in the order of the inputs
    """

    kind: str
    form: Form
    shape: tuple[int, int]
    width: int
    low: Tensor
    high: Tensor | None
    heads: Tensor
    bases: Tensor | None = None
    order: Tensor | None = None

    @property
    def parts(self) -> tuple[Tensor, ...]:
        return tuple(part for part in (self.low, self.high, self.heads, self.bases, self.order) if part is not None)

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
        form = FORMS.get(kind) or Form(8 if kind.endswith("8") else 4, 0, group, "single, zero")
        whole = _whole(form, columns)
        codes = whole * (form.low + form.high) // 8
        heads = 4 * _words(form, whole) + (4 * columns // form.base if form.base else 0)
        return rows * (codes + heads) + (8 * columns if kind.startswith("GPTQ") else 0)


def fields(form: Form) -> int:
    """Fields of a tile: as many as the narrowest plane has in a byte, and so many that their groups' heads fill words."""
    planes = max(8 // form.low, 8 // form.high if form.high else 1)
    return max(planes, 4 // HEAD_BYTES[form.head]) if form.size else planes


def pack_blocks(weight: CodedWeight, device: torch.device) -> Integers:
    """A matrix of one of GGUF's formats of integers."""
    form, (rows, columns) = FORMS[weight.kind], weight.shape
    made = []
    step = max(1, CHUNK_ELEMENTS // columns)
    for start in range(0, rows, step):
        blocks = np.ascontiguousarray(weight.codes[start : start + step])
        made.append(_to_device(_block_parts(weight.kind, form, blocks, columns), device))
    return _joined(weight.kind, form, (rows, columns), made)


def pack_grouped(weight: GroupedWeight, device: torch.device) -> Integers:
    """Grouped integers of a checkpoint; where every zero is the middle of the codes none are kept."""
    rows, columns = weight.shape
    middle = 1 << (weight.bits - 1)
    if bool((weight.zeros == middle).all()):
        head, centre = "single", middle
    else:
        head, centre = ("half, zero" if weight.scales.dtype == np.float16 else "single, zero"), 0
    form = Form(weight.bits, 0, 0 if weight.size == columns else weight.size, head, centre)
    made = []
    step = max(1, CHUNK_ELEMENTS // columns)
    for start in range(0, rows, step):
        part = slice(start, min(start + step, rows))
        heads = _grouped_heads(head, weight.scales[part], weight.zeros[part])
        made.append(_to_device(_parts(form, unpacked(weight.codes[part], weight.bits), heads), device))
    order = None if weight.order is None else torch.from_numpy(weight.order.astype(np.int64)).to(device)
    return _joined(f"INT{weight.bits}", form, (rows, columns), made, order)


def merged_integers(weights: Sequence[Integers]) -> Integers | None:
    """The rows of all; None where formats differ or inputs stand in an order."""
    first = weights[0]
    if any(weight.form != first.form or weight.order is not None for weight in weights):
        return None
    shape = sum(weight.shape[0] for weight in weights), first.shape[1]
    names = ("low", "high", "heads", "bases")
    made = [{name: getattr(weight, name) for name in names if getattr(weight, name) is not None} for weight in weights]
    return _joined(first.kind, first.form, shape, made)


def _width(form: Form, columns: int) -> int:
    """Neighbouring inputs of a field: the widest of which whole tiles fill a row; else narrow ones, and the last tile is filled up."""
    able = [width for width in (64, 32, 16) if _fits(form, width)]
    return next((width for width in able if columns % (fields(form) * width) == 0), able[-1])


def _fits(form: Form, width: int) -> bool:
    """Whether a tile of fields of this width is whole groups or a whole part of one, and its groups' heads are whole words."""
    tile, head = fields(form) * width, HEAD_BYTES[form.head]
    if not form.size:
        return True
    if form.size % width or (tile % form.size and form.size % tile):
        return False
    return head >= 4 or tile % (4 // head * form.size) == 0


def _whole(form: Form, columns: int) -> int:
    """Inputs of whole tiles."""
    tile = fields(form) * _width(form, columns)
    return -(-columns // tile) * tile


def _words(form: Form, whole: int) -> int:
    """Words of the heads of a row."""
    groups = -(-whole // form.size) if form.size else 1
    return -(-groups * HEAD_BYTES[form.head] // 4)


def _parts(form: Form, codes: Codes, heads: Codes) -> dict[str, np.ndarray]:
    """codes uint8 [N, K], one a byte, and heads uint8 [N, bytes] → the tensors of `Integers` by name."""
    rows, columns = codes.shape
    padded = np.zeros((rows, 4 * _words(form, _whole(form, columns))), np.uint8)
    padded[:, : heads.shape[1]] = heads
    return _planes(codes, form, _width(form, columns)) | {"heads": padded.view("<i4").T}


def _grouped_heads(head: str, scales: NDArray[np.floating], zeros: Codes) -> Codes:
    """Heads of grouped integers: uint8 [n, bytes]."""
    kind = np.float16 if head.startswith("half") else np.float32
    fields = [("scale", kind)] if head == "single" else [("scale", kind), ("zero", np.uint16 if kind is np.float16 else np.uint32)]
    records = np.zeros(scales.shape, np.dtype(fields))
    records["scale"] = scales
    if head != "single":
        records["zero"] = zeros
    return records.view(np.uint8).reshape(len(scales), -1)


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


def _block_parts(kind: str, form: Form, blocks: Codes, columns: int) -> dict[str, np.ndarray]:
    """Rows of a GGUF format, uint8 [n, bytes of a row] → the tensors of `Integers` by name."""
    bases: dict[str, np.ndarray] = {}
    if form.base:
        superblocks = blocks.reshape(len(blocks) * (columns // form.base), -1).copy()
        both = np.zeros((len(superblocks), 4), np.uint8)
        for number, place in enumerate(_BASES[kind]):
            both[:, 2 * number : 2 * number + 2] = superblocks[:, place : place + 2]
            superblocks[:, place : place + 2] = _ONE
        bases["bases"] = both.view("<i4").reshape(len(blocks), -1).T
        blocks = superblocks.reshape(blocks.shape)
    # With bases of one a group's scale and min are the integers that the file has.
    found = groups(kind, blocks)
    number = {"byte": np.int8, "bytes": np.uint8}.get(form.head, np.float16)
    heads = [part.astype(number) for part in ((found.group_scales, found.group_mins) if form.zero == "mins" else (found.group_scales,))]
    codes = found.codes if found.codes.dtype == np.uint8 else found.codes.view(np.uint8) ^ np.uint8(0x80)
    return _parts(form, codes, np.stack(heads, axis=2).reshape(len(blocks), -1).view(np.uint8)) | bases


_BASES: Final = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_XS": (0,)}
"""Bytes of a superblock where its fp16 scale stands, and its fp16 min."""

_ONE: Final = np.ones(1, np.float16).view(np.uint8)


def _to_device(parts: Mapping[str, np.ndarray], device: torch.device) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.ascontiguousarray(part)).to(device) for name, part in parts.items()}


def _joined(kind: str, form: Form, shape: tuple[int, int], made: Sequence[Mapping[str, Tensor]], order: Tensor | None = None) -> Integers:
    """Pieces of consecutive rows as one matrix; rows are the second dimension of every part."""
    parts = {name: torch.cat([piece[name] for piece in made], dim=1) for name in made[0]}
    return Integers(kind, form, shape, _width(form, shape[1]), parts["low"], parts.get("high"), parts["heads"], parts.get("bases"), order)
