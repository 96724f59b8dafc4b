"""The table of stored formats that can be computed, and dequantisation of whole tensors.

Sizes come from `facts.files.formats`, the header reader's table. Bit-equal to the `gguf` package.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from ridgeline.compute.quant.bits import Bytes, Floats, Groups
from ridgeline.compute.quant.groups import BLOCKS
from ridgeline.facts.files.formats import FORMATS as STORED

TILE_ELEMENTS = 1 << 16
"""Weights dequantised at a time: 256 KB of fp32 and their scratch stay in a core's cache."""

CHUNK_ELEMENTS = 1 << 21
"""Weights handed to a thread at a time."""


@dataclass(frozen=True, slots=True)
class Format:
    """`dequantise(blocks, out)`: uint8 [n, block_bytes] contiguous → fp32 [n, block_elements] contiguous, written whole."""

    name: str
    block_elements: int
    block_bytes: int
    dequantise: Callable[[Bytes, Floats], None]


def _f32(blocks: Bytes, out: Floats) -> None:
    """4 bytes per element, little-endian."""
    out[...] = blocks.view(np.float32)


def _f16(blocks: Bytes, out: Floats) -> None:
    """2 bytes per element, IEEE half."""
    out[...] = blocks.view(np.float16)


def _bf16(blocks: Bytes, out: Floats) -> None:
    """2 bytes per element: the upper half of an fp32."""
    bits = out.view(np.uint32)
    bits[...] = blocks.view(np.uint16)
    bits <<= np.uint32(16)


_FLOATS: dict[str, Callable[[Bytes, Floats], None]] = {"F32": _f32, "F16": _f16, "BF16": _bf16}


def _write(blocks: Bytes, out: Floats, *, unpack: Callable[[Bytes], Groups]) -> None:
    unpack(blocks).write(out)


_DEQUANTISE = _FLOATS | {kind: partial(_write, unpack=unpack) for kind, unpack in BLOCKS.items()}

FORMATS = {name: Format(name, stored.block_elements, stored.block_bytes, _DEQUANTISE[name]) for name, stored in STORED.items()}


def dequantise(kind: str, rows: Bytes, out: Floats | None = None) -> Floats:
    """rows uint8 [N, bytes of a row] contiguous → fp32 [N, elements of a row], into `out` when given (contiguous)."""
    form = FORMATS[kind]
    count, width = rows.shape
    if width % form.block_bytes:
        raise ValueError(f"{kind}: a row of {width} bytes is no whole number of {form.block_bytes}-byte blocks")
    columns = width // form.block_bytes * form.block_elements
    if out is None:
        out = np.empty((count, columns), np.float32)
    if out.shape != (count, columns) or not (out.flags.c_contiguous and rows.flags.c_contiguous):
        raise ValueError(f"{kind}: rows must be contiguous and out a contiguous {(count, columns)}, got {out.shape}")
    blocks, values = rows.reshape(-1, form.block_bytes), out.reshape(-1, form.block_elements)
    step = max(1, TILE_ELEMENTS // form.block_elements)
    # Scales of garbage files overflow: infinities and NaN are values here, found in the results.
    with np.errstate(all="ignore"):
        for start in range(0, blocks.shape[0], step):
            form.dequantise(blocks[start : start + step], values[start : start + step])
    return out


class Rows(Protocol):
    """Rows of codes that may have to be gathered: `rows[start:end]` is uint8 [rows, bytes of a row], contiguous."""

    def __getitem__(self, part: slice) -> Bytes: ...


class StoredMatrix(Protocol):
    """A stored matrix that can be dequantised a part of its rows at a time."""

    def write(self, part: slice, out: Floats) -> int:
        """The rows `part` as fp32 into `out`, contiguous; returns the stored bytes that were read."""
        ...


@dataclass(frozen=True, slots=True)
class Coded:
    """Rows of blocks of one of the `FORMATS`."""

    kind: str
    rows: Rows

    def write(self, part: slice, out: Floats) -> int:
        """Writes as `StoredMatrix` says. Codes are gathered here, so that only the parts in work are in memory."""
        codes = self.rows[part]
        dequantise(self.kind, codes, out)
        return codes.nbytes


def dequantise_all(
    tensors: Iterable[tuple[StoredMatrix, Floats]], pool: Executor, done: Callable[[int], None] = lambda stored: None
) -> None:
    """(source, out) of many tensors, in chunks over the threads of `pool`; returns when all are written.

    `done` is called with the stored bytes of each chunk, in order, when it is written.
    """
    chunks = []
    for source, out in tensors:
        step = max(1, CHUNK_ELEMENTS // max(1, out.shape[1]))
        parts = (slice(start, start + step) for start in range(0, out.shape[0], step))
        chunks += [pool.submit(source.write, part, out[part]) for part in parts]
    for chunk in chunks:
        done(chunk.result())
