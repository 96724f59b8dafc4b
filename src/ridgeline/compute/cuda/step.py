"""A step's inputs on their way to the device: one packed buffer of the host, one copy.

Owns the layout of the packed bytes and the buffers: a ring of pinned ones, so that a step is packed while those before it are still copied,
and one of the device, which a step's kernels read. Columns that depend on tokens come first, so that they lie at places that depend on the
number of tokens alone. Decides nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ridgeline.compute.cuda.buckets import Bucket
from ridgeline.compute.cuda.device import Device
from ridgeline.compute.cuda.sampler import COLUMNS
from ridgeline.compute.graph import StepInputs

ALIGNMENT: Final = 16
"""Bytes: every column begins as kernels were compiled for."""

KINDS: Final = {"i32": (np.int32, torch.int32), "i64": (np.int64, torch.int64), "f64": (np.float64, torch.float64)}


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a step samples, row for row; rows are those of the step.

    place    int32 [R]  permanent row of each, where its next token finds the id
    device   bool [R]   the device samples it now; others keep their last id
    columns  one number a row, as `sampler.COLUMNS` names them
    """

    place: NDArray[np.int32]
    device: NDArray[np.bool_]
    columns: Mapping[str, NDArray[np.generic]]


NOBODY: Final = Sampled(np.zeros(0, np.int32), np.zeros(0, np.bool_), {})
"""Nothing is sampled, and every id is known."""

_NONE: Final = np.zeros(0, np.int32)
NOTHING: Final = StepInputs(
    ids=_NONE, positions=_NONE[None], row_of_token=_NONE, cu_q=np.zeros(1, np.int32), kv_len=_NONE, tables=(), slots=(), adapter=_NONE,
    select=_NONE,
)  # fmt: skip
"""A step without tokens: all of its bucket is padding."""


class Column(NamedTuple):
    """A column of the packed buffer."""

    name: str
    kind: str
    shape: tuple[int, ...]


def columns_of(bucket: Bucket, groups: int) -> tuple[Column, ...]:
    """All columns of a step, in their order. `source`: the permanent row of each token; `target`: of each row, or nobody."""
    tokens, rows = bucket.tokens, bucket.rows
    return (
        Column("slots", "i64", (groups, tokens)),
        Column("ids", "i32", (tokens,)),
        Column("positions", "i32", (tokens,)),
        Column("row_of_token", "i32", (tokens,)),
        Column("source", "i32", (tokens,)),
        Column("target", "i64", (rows,)),
        Column("cu_q", "i32", (rows + 1,)),
        Column("kv_len", "i32", (rows,)),
        Column("select", "i32", (rows,)),
        *(Column(name, kind, (rows,)) for name, kind in COLUMNS.items()),
        Column("tables", "i32", (groups, rows, bucket.blocks)),
    )


def layout(bucket: Bucket, groups: int) -> tuple[dict[str, tuple[int, Column]], int]:
    """Where each column begins, in bytes, and how many bytes there are."""
    places: dict[str, tuple[int, Column]] = {}
    size = 0
    for column in columns_of(bucket, groups):
        places[column.name] = (size, column)
        taken = int(np.prod(column.shape)) * np.dtype(KINDS[column.kind][0]).itemsize
        size += -(-taken // ALIGNMENT) * ALIGNMENT
    return places, size


@dataclass(frozen=True, slots=True)
class DeviceInputs:
    """A step's columns as the device has them: views of one buffer, the same for every step of a bucket."""

    columns: Mapping[str, torch.Tensor]
    bucket: Bucket
    tables: Sequence[torch.Tensor]
    slots: Sequence[torch.Tensor]

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.columns[name]


@dataclass(slots=True)
class StepBuffers:
    """Room for the largest bucket on the device and, `depth` + 1 times, in pinned memory of the host."""

    device: Device
    groups: int
    largest: Bucket
    depth: int
    nobody: int
    """The row of `last` that nobody reads."""
    _packed: torch.Tensor = field(init=False)
    _ring: list[torch.Tensor] = field(init=False)
    _turn: int = 0
    _layouts: dict[Bucket, tuple[dict[str, NDArray[np.generic]], ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _, size = layout(self.largest, self.groups)
        self._packed = self.device.empty(size, dtype=torch.uint8)
        self._ring = [self.device.host(size, dtype=torch.uint8) for _ in range(self.depth + 1)]

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self._packed.nbytes

    def views(self, bucket: Bucket) -> DeviceInputs:
        """The columns of a bucket on the device."""
        places, _ = layout(bucket, self.groups)
        found: dict[str, torch.Tensor] = {}
        for name, (start, column) in places.items():
            dtype = KINDS[column.kind][1]
            count = int(np.prod(column.shape))
            found[name] = self._packed[start : start + count * dtype.itemsize].view(dtype).view(column.shape)
        return DeviceInputs(found, bucket, found["tables"].unbind(), found["slots"].unbind())

    def send(self, bucket: Bucket, inputs: StepInputs, sampled: Sampled) -> Mapping[str, NDArray[Any]]:
        """Packs a step into the next buffer of the ring and starts its copy. The step that used it before must have been read. Returns
        the packed columns, padding included."""
        turn, self._turn = self._turn, (self._turn + 1) % len(self._ring)
        _, size = layout(bucket, self.groups)
        columns = self._columns(bucket, turn)
        pack(columns, bucket, inputs, sampled, self.nobody)
        self._packed[:size].copy_(self._ring[turn][:size], non_blocking=True)
        return columns

    def _columns(self, bucket: Bucket, turn: int) -> dict[str, NDArray[np.generic]]:
        """Columns of a bucket in a buffer of the ring, as numpy sees it."""
        if bucket not in self._layouts:
            places, _ = layout(bucket, self.groups)
            made = []
            for host in self._ring:
                memory = host.numpy()
                made.append({name: _column(memory, start, column) for name, (start, column) in places.items()})
            self._layouts[bucket] = tuple(made)
        return self._layouts[bucket][turn]


def _column(memory: NDArray[np.uint8], start: int, column: Column) -> NDArray[np.generic]:
    dtype = np.dtype(KINDS[column.kind][0])
    return memory[start : start + int(np.prod(column.shape)) * dtype.itemsize].view(dtype).reshape(column.shape)


def pack(into: Mapping[str, NDArray[np.generic]], bucket: Bucket, inputs: StepInputs, sampled: Sampled, nobody: int) -> None:
    """Fills the columns of a bucket with a step and its padding: rows on page 0, where a step of single tokens gives each one token and
    another gives one row all of them."""
    sizes = inputs.sizes
    tokens, rows = sizes.T, sizes.R
    padding = bucket.tokens - tokens
    some = len(sampled.place) > 0
    into["ids"][:tokens], into["ids"][tokens:] = inputs.ids, 0
    into["positions"][:tokens] = inputs.positions[0]
    into["row_of_token"][:tokens] = inputs.row_of_token
    into["source"][:tokens], into["source"][tokens:] = sampled.place[inputs.row_of_token] if some else nobody, nobody
    into["cu_q"][: rows + 1] = inputs.cu_q
    into["kv_len"][:rows] = inputs.kv_len
    into["slots"][:, tokens:], into["tables"][:, rows:] = 0, 0
    for number, (slots, table) in enumerate(zip(inputs.slots, inputs.tables, strict=True)):
        width = table.shape[1]
        into["slots"][number, :tokens] = slots
        into["tables"][number, :rows, :width], into["tables"][number, :rows, width:] = table, 0
    if bucket.single:
        into["positions"][tokens:] = 0
        into["row_of_token"][tokens:] = np.arange(rows, bucket.rows)
        into["cu_q"][rows + 1 :] = np.arange(rows + 1, bucket.rows + 1)
        into["kv_len"][rows:] = 1
    else:
        into["positions"][tokens:] = np.arange(padding)
        into["row_of_token"][tokens:] = min(rows, bucket.rows - 1)
        into["cu_q"][rows + 1 :] = bucket.tokens
        into["kv_len"][rows:] = 0
        into["kv_len"][rows : rows + 1] = padding
    into["select"][: sizes.S], into["select"][sizes.S :] = inputs.select, 0
    into["target"][:rows], into["target"][rows:] = np.where(sampled.device, sampled.place, nobody) if some else nobody, nobody
    for name in COLUMNS:
        into[name][:rows], into[name][rows:] = sampled.columns[name] if some else 0, 0
