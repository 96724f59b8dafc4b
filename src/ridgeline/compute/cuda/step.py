"""A step's inputs on their way to the device: one packed buffer of the host, one copy.

Owns the layout of the packed bytes and the buffers: a ring of pinned ones, so that a step is packed while those before it are still copied,
and one of the device, which a step's kernels read. Columns that depend on tokens come first, those of rows next, tables last: what depends
on fewer sizes lies at places that depend on these alone. Decides nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ridgeline.compute.cuda.buckets import Bucket
from ridgeline.compute.cuda.device import Device, Event
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


NO_SAMPLING: Final = Sampled(np.zeros(0, np.int32), np.zeros(0, np.bool_), {})
"""Nothing is sampled, and every id is known."""


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


class StagingViews(NamedTuple):
    """The columns of a buffer of the host as numpy sees them, the bytes that they lie in, and where these go on the device."""

    columns: dict[str, NDArray[Any]]
    host: torch.Tensor
    device: torch.Tensor


Extent = tuple[int, int, int]
"""Tokens, rows and blocks of a bucket: all that its layout depends on."""

MOST_KNOWN: Final = 256
"""Layouts that are kept; each is some views."""


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
    _copied: list[Event] = field(init=False)
    _turn: int = 0
    _known: dict[Extent, list[StagingViews]] = field(default_factory=dict)
    _held: list[tuple[Bucket, Sampled] | None] = field(init=False)
    """Whose columns each buffer of the ring has."""

    def __post_init__(self) -> None:
        _, size = layout(self.largest, self.groups)
        self._packed = self.device.empty(size, dtype=torch.uint8)
        self._ring = [self.device.host(size, dtype=torch.uint8) for _ in range(self.depth + 1)]
        self._copied = [self.device.event() for _ in self._ring]
        self._held = [None] * len(self._ring)

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
        """Packs a step into the next buffer of the ring and starts its copy; waits only where more than `depth` copies are not done.
        Returns the packed columns, padding included."""
        turn, self._turn = self._turn, (self._turn + 1) % len(self._ring)
        columns, host, device = self._staging(bucket)[turn]
        self._copied[turn].synchronize()
        held = self._held[turn]
        if held is None or held[0] != bucket or held[1] is not sampled:
            pack_rows(columns, bucket, inputs, sampled, self.nobody)
            self._held[turn] = (bucket, sampled) if bucket.single and len(sampled.place) else None
        pack_tokens(columns, inputs)
        device.copy_(host, non_blocking=True)
        self._copied[turn].record()
        return columns

    def _staging(self, bucket: Bucket) -> list[StagingViews]:
        """Views of a bucket in each buffer of the ring."""
        extent = bucket.tokens, bucket.rows, bucket.blocks
        found = self._known.get(extent)
        if found is None:
            if len(self._known) >= MOST_KNOWN:
                del self._known[next(iter(self._known))]
            places, size = layout(bucket, self.groups)
            found = self._known[extent] = []
            for host in self._ring:
                memory = host.numpy()
                columns = {name: _column(memory, start, column) for name, (start, column) in places.items()}
                found.append(StagingViews(columns, host[:size], self._packed[:size]))
        return found


def _column(memory: NDArray[np.uint8], start: int, column: Column) -> NDArray[np.generic]:
    dtype = np.dtype(KINDS[column.kind][0])
    return memory[start : start + int(np.prod(column.shape)) * dtype.itemsize].view(dtype).reshape(column.shape)


def pack_tokens(into: Mapping[str, NDArray[Any]], inputs: StepInputs) -> None:
    """Fills the columns that are others in every step."""
    tokens, rows = len(inputs.ids), len(inputs.kv_len)
    into["ids"][:tokens] = inputs.ids
    into["positions"][:tokens] = inputs.positions[0]
    into["kv_len"][:rows] = inputs.kv_len
    places, tables = into["slots"], into["tables"]
    for number, (slots, table) in enumerate(zip(inputs.slots, inputs.tables, strict=True)):
        places[number, :tokens] = slots
        tables[number, :rows, : table.shape[1]] = table


def pack_rows(into: Mapping[str, NDArray[Any]], bucket: Bucket, inputs: StepInputs, sampled: Sampled, nobody: int) -> None:
    """Fills the columns that stay while the same rows compute one token each and sample alike, and the padding of all. That names block 0.
    In a step of single tokens each row of padding has one token; in any other its tokens belong to the first row of padding, which says
    that it has none: no attention looks at them. Tables only grow while the rows are the same."""
    tokens, rows = len(inputs.ids), len(inputs.kv_len)
    for name in ("ids", "positions"):
        into[name][tokens:] = 0
    into["slots"][:, tokens:], into["tables"][:] = 0, 0
    into["row_of_token"][:tokens] = inputs.row_of_token
    into["cu_q"][: rows + 1] = inputs.cu_q
    if bucket.single:
        into["row_of_token"][tokens:] = np.arange(rows, bucket.rows)
        into["cu_q"][rows + 1 :] = np.arange(rows + 1, bucket.rows + 1)
        into["kv_len"][rows:] = 1
    else:
        into["row_of_token"][tokens:] = min(rows, bucket.rows - 1)
        into["cu_q"][rows + 1 :] = tokens
        into["kv_len"][rows:] = 0
    into["select"][: len(inputs.select)], into["select"][len(inputs.select) :] = inputs.select, 0
    some = len(sampled.place) > 0
    into["source"][:tokens], into["source"][tokens:] = sampled.place[inputs.row_of_token] if some else nobody, nobody
    into["target"][:rows], into["target"][rows:] = np.where(sampled.device, sampled.place, nobody) if some else nobody, nobody
    for name in COLUMNS:
        into[name][:rows], into[name][rows:] = sampled.columns[name] if some else 0, 0
