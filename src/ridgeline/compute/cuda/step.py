"""Inputs of a step on their way to the device: one packed host buffer, one copy.

Owns the layout of the packed bytes and the buffers: a ring of pinned ones, so that a step is packed while those before it are still copied,
and one on the device, which kernels read. Changes of block tables come first, columns that depend on tokens next, those of rows last:
columns that depend on fewer sizes then lie at offsets that depend on these alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ridgeline.compute.cuda.adapters import AdapterColumns, put_in_order
from ridgeline.compute.cuda.buckets import Bucket
from ridgeline.compute.cuda.device import Device, Event
from ridgeline.compute.cuda.tables import BlockTables
from ridgeline.compute.cuda.triton.begin import LATE
from ridgeline.compute.graph import StepInputs

ALIGNMENT: Final = 16
"""Bytes: every column begins at a multiple, as kernels are compiled for."""

SAMPLING_COLUMNS: Final = {"temperature": "f64", "top_k": "i32", "top_p": "f64", "min_p": "f64", "seed": "i64", "choice": "i64"}
"""Sampling parameters, one number per row, by their names in `RowParams` and `Sampling`. fp64: a temperature of 0.7 in fp32 would choose
other ids."""

COLUMN_DTYPES: Final = {"i32": (np.int32, torch.int32), "i64": (np.int64, torch.int64), "f64": (np.float64, torch.float64)}


@dataclass(frozen=True, slots=True)
class DeviceSampling:
    """Sampling of a step, in the order of its rows.

    rows       int32 [R]  permanent row of each, which has its block tables, and for which the sampled id is kept
    on_device  bool [R]   the device samples it in this step; of others nothing is kept
    columns    [R] each, by the names of `SAMPLING_COLUMNS`
    samples    uint8 [R]  how many of its last positions sample, for steps that verify; None: one
    entry      of `KeptIds.ids` that a sampled id becomes
    shifts     int32 [R]  of heads: positions that the row lies behind the target's; None: 0
    """

    rows: NDArray[np.int32]
    on_device: NDArray[np.bool_]
    columns: Mapping[str, NDArray[np.generic]]
    samples: NDArray[np.uint8] | None = None
    entry: int = 0
    shifts: NDArray[np.int32] | None = None


class OpenRows(NamedTuple):
    """Rows that may stand farther than a step's inputs say, as drafts of steps in flight are accepted.

    newest  int32 [R]  the least position of the id sampled last; -1: the row stands where the inputs say
    most    int32 [R]  how much farther it may stand
    """

    newest: NDArray[np.int32]
    most: NDArray[np.int32]


NO_SAMPLING: Final = DeviceSampling(np.zeros(0, np.int32), np.zeros(0, np.bool_), {})
"""Nothing is sampled, every id is known, and all rows are on block 0."""


class Column(NamedTuple):
    """A column of the packed buffer."""

    name: str
    kind: str
    shape: tuple[int, ...]


def step_columns(
    bucket: Bucket, groups: int, changes: int, adapters: AdapterColumns | None = None, shifts: bool = False
) -> tuple[Column, ...]:
    """All columns of a step, in their order, which has room for so many changes of block tables. `source`: the permanent row of each token;
    `table_row`: of each row, or the dummy row; `target`: where its id comes in `KeptIds.ids`, or the dummy row's; `count`: tokens that are
    no padding, the first ones. Where it verifies, `place`: where the id stands that a position samples, and `samples`: how many of a row's
    last positions do. adapters: how tokens are put in order by adapter; None: they have none. shifts: tokens have those of their rows."""
    tokens, rows, selected = bucket.tokens, bucket.rows, (bucket.selected,)
    tiles = () if adapters is None else adapters.shape(tokens)
    return (
        Column("changes", "i32", (2, changes)),
        Column("slots", "i64", (groups, tokens)),
        Column("ids", "i32", (tokens,)),
        Column("positions", "i32", (tokens,)),
        Column("row_of_token", "i32", (tokens,)),
        Column("source", "i32", (tokens,)),
        *((Column("shifts", "i32", (tokens,)),) if shifts else ()),
        Column("count", "i32", (1,)),
        *((Column("adapter_tokens", "i32", tiles), Column("adapter_slots", "i32", tiles[:1])) if tiles else ()),
        Column("kv_len", "i32", (rows,)),
        Column("target", "i64", (rows,)),
        Column("table_row", "i32", (rows,)),
        Column("cu_q", "i32", (rows + 1,)),
        Column("select", "i32", selected),
        *(Column(name, kind, selected) for name, kind in SAMPLING_COLUMNS.items()),
        *((Column("place", "i32", selected), Column("samples", "i32", (rows,))) if bucket.verifies else ()),
    )


def layout(
    bucket: Bucket, groups: int, changes: int, adapters: AdapterColumns | None = None, shifts: bool = False
) -> tuple[dict[str, tuple[int, Column]], int]:
    """Offset in bytes of each column by its name, and bytes of all."""
    offsets: dict[str, tuple[int, Column]] = {}
    size = 0
    for column in step_columns(bucket, groups, changes, adapters, shifts):
        offsets[column.name] = (size, column)
        count = int(np.prod(column.shape)) * np.dtype(COLUMN_DTYPES[column.kind][0]).itemsize
        size += -(-count // ALIGNMENT) * ALIGNMENT
    return offsets, size


@dataclass(frozen=True, slots=True)
class DeviceInputs:
    """Columns of a step on the device: views of one buffer, the same for every step of a bucket.

    tables  int32 [permanent rows + 1, blocks] per KV group
    slots   int64 [T] per KV group
    """

    columns: Mapping[str, torch.Tensor]
    bucket: Bucket
    tables: Sequence[torch.Tensor]
    slots: Sequence[torch.Tensor]

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.columns[name]


class StagingViews(NamedTuple):
    """Columns of a pinned buffer as numpy arrays, the bytes that they lie in, and where these go on the device."""

    columns: dict[str, NDArray[Any]]
    host: torch.Tensor
    device: torch.Tensor


LayoutKey = tuple[int, int, bool]
"""Tokens and rows of a bucket, and whether it verifies: its layout depends on nothing else."""

MAX_LAYOUTS: Final = 256
"""Layouts whose views are kept."""


@dataclass(slots=True)
class StepBuffers:
    """Packed inputs of the largest bucket, once on the device and `depth` + 1 times in pinned memory of the host.

    tables        of permanent rows, whose changes travel with the inputs
    largest       the bucket, and the largest of those that verify, if any
    dummy_row     the row of `KeptIds` and of `tables` behind all permanent rows, for padding; `width`: entries of a row of `KeptIds`
    adapters      order of tokens by adapter; None: they have none
    shifts        positions are those of heads; a column says how far they lie behind the target's
    """

    device: Device
    tables: BlockTables
    largest: Sequence[Bucket]
    depth: int
    dummy_row: int
    width: int
    adapters: AdapterColumns | None = None
    shifts: bool = False
    _packed: torch.Tensor = field(init=False)
    _ring: list[torch.Tensor] = field(init=False)
    _copied: list[Event] = field(init=False)
    _next: int = 0
    _staging_views: dict[LayoutKey, list[StagingViews]] = field(default_factory=dict)
    _rows_packed: list[tuple[Bucket, DeviceSampling] | None] = field(init=False)
    """Bucket and sampling whose row columns each buffer of the ring holds already."""

    def __post_init__(self) -> None:
        size = max(self._layout(bucket)[1] for bucket in self.largest)
        self._packed = self.device.empty(size, dtype=torch.uint8)
        self._ring = [self.device.host(size, dtype=torch.uint8) for _ in range(self.depth + 1)]
        self._copied = [self.device.event() for _ in self._ring]
        self._rows_packed = [None] * len(self._ring)

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self._packed.nbytes

    def _layout(self, bucket: Bucket) -> tuple[dict[str, tuple[int, Column]], int]:
        return layout(bucket, len(self.tables.tables), self.tables.capacity, self.adapters, self.shifts)

    def device_views(self, bucket: Bucket) -> DeviceInputs:
        """The columns of a bucket on the device."""
        offsets, _ = self._layout(bucket)
        found: dict[str, torch.Tensor] = {}
        for name, (start, column) in offsets.items():
            dtype = COLUMN_DTYPES[column.kind][1]
            count = int(np.prod(column.shape))
            found[name] = self._packed[start : start + count * dtype.itemsize].view(dtype).view(column.shape)
        return DeviceInputs(found, bucket, self.tables.tables[:, :, : bucket.blocks].unbind(), found["slots"].unbind())

    def send(self, bucket: Bucket, inputs: StepInputs, sampling: DeviceSampling, open: OpenRows | None = None) -> None:
        """Packs a step into the next buffer of the ring and starts its copy; waits only where more than `depth` copies are not done."""
        index, self._next = self._next, (self._next + 1) % len(self._ring)
        columns, host, device = self._staging(bucket)[index]
        self._copied[index].synchronize()
        packed = self._rows_packed[index]
        if packed is None or packed[0] != bucket or packed[1] is not sampling:
            pack_rows(columns, bucket, inputs, sampling, self.dummy_row, self.width)
            self._rows_packed[index] = (bucket, sampling) if bucket.is_decode and len(sampling.rows) else None
        pack_tokens(columns, inputs, open)
        self.tables.pack(columns["changes"])
        device.copy_(host, non_blocking=True)
        self._copied[index].record()

    def _staging(self, bucket: Bucket) -> list[StagingViews]:
        """Views of a bucket, one for each buffer of the ring."""
        key = bucket.tokens, bucket.rows, bucket.verifies
        found = self._staging_views.get(key)
        if found is None:
            if len(self._staging_views) >= MAX_LAYOUTS:
                del self._staging_views[next(iter(self._staging_views))]
            offsets, size = self._layout(bucket)
            found = self._staging_views[key] = []
            for host in self._ring:
                memory = host.numpy()
                columns = {name: _column(memory, start, column) for name, (start, column) in offsets.items()}
                found.append(StagingViews(columns, host[:size], self._packed[:size]))
        return found


def _column(memory: NDArray[np.uint8], start: int, column: Column) -> NDArray[np.generic]:
    dtype = np.dtype(COLUMN_DTYPES[column.kind][0])
    return memory[start : start + int(np.prod(column.shape)) * dtype.itemsize].view(dtype).reshape(column.shape)


def pack_tokens(into: Mapping[str, NDArray[Any]], inputs: StepInputs, open: OpenRows | None) -> None:
    """Fills the columns that differ in every step. Positions of open rows are late (`triton.begin`)."""
    tokens, rows = len(inputs.ids), len(inputs.kv_len)
    into["ids"][:tokens] = inputs.ids
    into["positions"][:tokens] = inputs.positions[0]
    into["kv_len"][:rows] = inputs.kv_len
    into["count"][0] = tokens
    if "place" in into:
        row = inputs.row_of_token
        into["place"][:tokens] = np.arange(1, tokens + 1) + (inputs.kv_len - inputs.cu_q[1:])[row]
    for number, slots in enumerate(inputs.slots):
        into["slots"][number, :tokens] = slots
    if open is not None:
        to_late = np.where(open.newest < 0, 0, int(LATE) - open.newest).astype(np.int32)
        into["kv_len"][:rows] += to_late
        into["positions"][:tokens] += to_late[inputs.row_of_token]


def pack_rows(
    into: Mapping[str, NDArray[Any]], bucket: Bucket, inputs: StepInputs, sampling: DeviceSampling, dummy_row: int, width: int
) -> None:
    """Fills the columns that stay while the same rows decode with the same sampling, and the padding of all columns.

    Padding is on block 0. In a decode step each row of padding has one token. In any other step the tokens of padding belong to the first
    row of padding, whose KV length is 0, so that attention skips them.
    """
    tokens, rows = len(inputs.ids), len(inputs.kv_len)
    for name in ("ids", "positions"):
        into[name][tokens:] = 0
    into["slots"][:, tokens:] = 0
    into["row_of_token"][:tokens] = inputs.row_of_token
    into["cu_q"][: rows + 1] = inputs.cu_q
    if bucket.is_decode:
        into["row_of_token"][tokens:] = np.arange(rows, bucket.rows)
        into["cu_q"][rows + 1 :] = np.arange(rows + 1, bucket.rows + 1)
        into["kv_len"][rows:] = 1
    else:
        into["row_of_token"][tokens:] = min(rows, bucket.rows - 1)
        into["cu_q"][rows + 1 :] = tokens
        into["kv_len"][rows:] = 0
    if bucket.verifies:
        into["select"][:] = np.arange(bucket.tokens)
        into["place"][tokens:] = 0
    else:
        into["select"][: len(inputs.select)], into["select"][len(inputs.select) :] = inputs.select, 0
    samples = len(sampling.rows) > 0
    into["source"][:tokens], into["source"][tokens:] = sampling.rows[inputs.row_of_token] if samples else dummy_row, dummy_row
    into["table_row"][:rows], into["table_row"][rows:] = sampling.rows if samples else dummy_row, dummy_row
    into["target"][:] = dummy_row * width
    if samples:
        into["target"][:rows][sampling.on_device] = sampling.rows[sampling.on_device] * width + sampling.entry
    if "adapter_slots" in into:
        put_in_order(inputs.adapter, into["adapter_tokens"], into["adapter_slots"])
    if "shifts" in into:
        into["shifts"][:tokens], into["shifts"][tokens:] = 0 if sampling.shifts is None else sampling.shifts[inputs.row_of_token], 0
    if "samples" in into:
        into["samples"][:rows], into["samples"][rows:] = (1 if sampling.samples is None else sampling.samples) if samples else 0, 0
    of = inputs.row_of_token if bucket.verifies else slice(rows)
    count = tokens if bucket.verifies else rows
    for name in SAMPLING_COLUMNS:
        into[name][:count], into[name][count:] = sampling.columns[name][of] if samples else 0, 0
