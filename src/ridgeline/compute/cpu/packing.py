"""Packed weights: a matrix in the order in which native kernels read it, and all those of a model.

Lossless, `SPLIT` apart: `unpack` gives the file's bytes back. Owns the memory of packed matrices, and the choice between a matrix's own
format, another form of it, and fp32 where no kernel knows the format. The layout is the extension's affair and the same at every ISA
level. A file's codes are read once and never kept.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from threading import Barrier
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.memory import ALIGNMENT, Pieces, Slots, Take, allocate
from ridgeline.compute.graph import OpList, WeightFormat
from ridgeline.compute.load.record import record
from ridgeline.compute.load.weights import each_weight
from ridgeline.compute.ops.definition import Floats, Ints
from ridgeline.compute.ops.table import taken_as_arrays
from ridgeline.compute.quant.bits import Bytes
from ridgeline.compute.quant.grouped import GroupedWeight
from ridgeline.compute.quant.scaled import Nvfp4Weight, ScaledWeight
from ridgeline.compute.quant.small import RECORD_BYTES, RECORDED, records
from ridgeline.compute.quant.weight import CodedWeight, StackedWeight, Weight
from ridgeline.facts.files.formats import FORMATS as STORED
from ridgeline.facts.headers.packed import NVFP4_BYTES, NVFP4_HEAD
from ridgeline.facts.model import ModelFacts

Progress = Callable[[str, float], None]
"""Called with (stage, fraction done)."""

EMBEDDING: Final = "token_embd.weight"
"""A matrix whose rows are read too, not only multiplied: columns in another order would be of no use."""

BLOCK_ROWS: Final = 16
"""Rows that the kernels take together."""

CHUNK_BYTES: Final = 4 << 20
"""Packed bytes that a thread writes at a time."""

FLOATS: Final = ("F32", "F16", "BF16", "FP8", "NVFP4")
"""Formats that are multiplied as floats."""

SCREENED: Final = "Q8_0_SCREENED"
"""A form with the upper 5 bits once more, for a screen (csrc/screen/bounds.cpp)."""

SPLIT: Final = "F32_SPLIT"
"""A form in two halves of bf16, for matrix instructions of many tokens (csrc/linear/split.cpp): 16 bits of 24 stay."""

FORMS: Final = {SCREENED: "Q8_0", SPLIT: "F32"}
"""Other forms in which formats may be packed, by the extension's names."""

FORMATS: Final = tuple(name for name in ext.values("Format") if name not in FORMS)
"""The extension's formats; none without it."""

SUPERBLOCKS: Final = frozenset({"Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"}) | RECORDED

SUPERBLOCK: Final = 256
LONG_SPAN: Final = 128
SPAN: Final = 32
"""Inputs that kernels add up as integers: of `SUPERBLOCKS`; of INT8 and INT4 in groups that are made of whole long spans; of all others."""

INTEGER_BITS: Final = {"INT8": 8, "INT4": 4}
"""Those of grouped integers."""

Recorded = GroupedWeight | ScaledWeight | Nvfp4Weight
"""Matrices that give their rows as packing takes them."""


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A matrix [N, K] in packed form, or one per expert [E, N, K]: packed by themselves, `stride` bytes apart.

    kind   among `FORMATS`; what the file stored
    group  inputs that share a scale, for INT8, INT4, FP8, and NVFP4 with a scale of all; else 0
    data   uint8, aligned to 64 bytes; nothing where experts lie in `slots`
    order  name of the vector that says which input each column multiplies; None: the columns are in the order of the inputs
    form   among `FORMS`, where it is packed in another than its format's own
    slots  of experts that are not all in memory
    place  number of their group in the store, and bytes from the start of a slot
    """

    kind: str
    shape: tuple[int, ...]
    data: Bytes
    group: int = 0
    order: str | None = None
    form: str = ""
    slots: Slots | None = None
    place: tuple[int, int] = (0, 0)

    @property
    def screened(self) -> bool:
        """True if the largest outputs can be told from a part of the bits."""
        return self.form == SCREENED

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    @property
    def experts(self) -> int:
        """Matrices in it."""
        return prod(self.shape[:-2])

    @property
    def stride(self) -> int:
        """Bytes from one expert's matrix to the next one's."""
        return self.data.nbytes // self.experts

    def part(self, number: int) -> "PackedWeight":
        """The matrix of one expert."""
        return replace(self, shape=self.shape[-2:], data=self.data[number * self.stride : (number + 1) * self.stride])

    @property
    def parts(self) -> "list[PackedWeight]":
        """The matrices of it, one by one."""
        return [self.part(number) for number in range(self.experts)] if len(self.shape) > 2 else [self]

    @property
    def blocks(self) -> int:
        """Blocks of 16 rows of a matrix."""
        return -(-self.shape[-2] // BLOCK_ROWS)

    @property
    def span(self) -> int:
        """Inputs that the kernels add up as integers, and whose activations may therefore share a scale."""
        if self.kind in INTEGER_BITS:
            return SPAN if self.group % LONG_SPAN else LONG_SPAN
        return SUPERBLOCK if self.kind in SUPERBLOCKS else SPAN

    @property
    def format(self) -> WeightFormat:
        """The properties that a lowered list depends on."""
        return WeightFormat(self.kind, "f32" if self.kind in FLOATS else "i8", self.span, self.order)

    @property
    def matrix(self) -> tuple[int, int, int, int, int]:
        """A matrix as the extension takes it: number of the format, N, K, group, address; of experts the first one's."""
        rows, columns = self.shape[-2:]
        return ext.values("Format").index(self.form or self.kind), rows, columns, self.group, int(self.data.ctypes.data)

    def unpack(self) -> Bytes:
        """The rows as packing took them, bit for bit but for what `SPLIT` loses: uint8 [rows, `row_bytes`], all experts'."""
        if len(self.shape) > 2:
            return np.concatenate([part.unpack() for part in self.parts])
        rows = np.empty((self.shape[0], row_bytes(self.kind, self.shape[1], self.group)), np.uint8)
        ext.native().unpack(ext.level_number(), *self.matrix, int(rows.ctypes.data), rows.shape[1], 0, self.blocks)
        return rows

    def rows(self, ids: NDArray[np.integer]) -> Floats:
        """fp32 [len(ids), K]: the rows `ids`, equal to what `compute.quant` dequantises."""
        out = np.empty((len(ids), self.shape[1]), np.float32)
        for place, row in enumerate(ids.tolist()):
            if not 0 <= row < self.shape[0]:
                raise IndexError(f"row {row} of a matrix of {self.shape[0]} rows")
            ext.native().packed_row(ext.level_number(), *self.matrix, row, int(out[place].ctypes.data))
        return out


def row_bytes(kind: str, columns: int, group: int = 0) -> int:
    """Bytes of a row of `columns` inputs as packing takes it: stored, `records`, or a record of `Recorded`, `group` inputs a scale."""
    if kind == "FP8":
        return columns + 4 * -(-columns // group)
    if kind == "NVFP4" and group:
        return columns // group * NVFP4_BYTES + NVFP4_HEAD
    if group:
        return columns * INTEGER_BITS[kind] // 8 + 5 * (columns // group)
    return columns // SUPERBLOCK * RECORD_BYTES if kind in RECORDED else STORED[kind].row_bytes(columns)


def packable(kind: str, shape: tuple[int, ...], group: int = 0, *, form: str = "") -> bool:
    """True if this build packs matrices of this format and shape, in the asked form."""
    ranks = (2,) if form else (2, 3)
    known = FORMS[form] == kind if form else kind in FORMATS
    return len(shape) in ranks and known and bool(ext.isa_levels()) and _packed_bytes(form or kind, shape, group) > 0


def pack(kind: str, codes: Bytes, shape: tuple[int, ...], pool: Executor, take: Take | None = None, *, form: str = "") -> PackedWeight:
    """codes uint8 [rows, bytes of a row], contiguous, may be a read-only map of a file → packed, in chunks over the threads of `pool`, in
    memory of its own or that `take` gives. `shape` is (N, K), or (E, N, K) where codes are those of E matrices.

    Raises ValueError where `packable` is false or codes do not fit the shape.
    """
    if not packable(kind, shape, form=form):
        raise ValueError(f"{kind} {shape} cannot be packed by this build")
    width = STORED[kind].row_bytes(shape[-1])
    ext.address(codes, np.uint8, (prod(shape[:-1]), width))
    weight = PackedWeight(kind, tuple(shape), (take or allocate)(_packed_bytes(form or kind, shape)), form=form)
    matrices = codes.reshape(weight.experts, -1, width)
    _finish([job for number, part in enumerate(weight.parts) for job in _begin(part, matrices[number], pool)])
    return weight


def pack_experts(parts: Sequence[Weight], pool: Executor, take: Take | None = None) -> PackedWeight:
    """One matrix [N, K] per expert, all stored alike and each by itself, packed as `pack` and `pack_grouped` pack; else as fp32, for
    instance where each has an order of its own."""
    first = parts[0]
    kind, group, shape = "F32", 0, (len(parts), *first.shape)
    if isinstance(first, CodedWeight) and packable(first.kind, shape):
        kind = first.kind
    elif all(isinstance(part, Recorded) and in_order(part) and part.kind != "F32" for part in parts):
        assert isinstance(first, Recorded)
        if packable(first.kind, shape, first.size):
            kind, group = first.kind, first.size
    weight = PackedWeight(kind, shape, (take or allocate)(_packed_bytes(kind, shape, group)), group)
    jobs: list[Future[None]] = []
    for part, stored in zip(weight.parts, parts, strict=True):
        if isinstance(stored, Recorded) and group:
            jobs += _begin_grouped(part, stored, pool)
        elif isinstance(stored, CodedWeight) and kind == stored.kind:
            jobs += _begin(part, stored.codes, pool)
        else:
            floats = stored.dense()
            _finish(_begin(part, floats.view(np.uint8), pool))
    _finish(jobs)
    return weight


def in_order(weight: Recorded) -> bool:
    """True where columns are in the order of the inputs."""
    return not isinstance(weight, GroupedWeight) or weight.order is None


def pack_grouped(stored: Recorded, pool: Executor, take: Take | None = None) -> PackedWeight:
    """Grouped integers, or small floats under scales → packed, their columns in the order of the codes: inputs are for the caller to bring
    into it. Codes are gathered chunk by chunk, as many at a time as `pool` has threads.

    Raises ValueError where `packable` is false.
    """
    kind, shape = stored.kind, stored.shape
    if not packable(kind, shape, stored.size):
        raise ValueError(f"{kind} {shape} in groups of {stored.size} cannot be packed by this build")
    weight = PackedWeight(kind, shape, (take or allocate)(_packed_bytes(kind, shape, stored.size)), stored.size)
    _finish(_begin_grouped(weight, stored, pool))
    return weight


def _begin(weight: PackedWeight, codes: Bytes, pool: Executor) -> list[Future[None]]:
    """Packs one matrix of codes uint8 [N, bytes of a row], contiguous and alive until all is done."""
    source = codes.ctypes.data

    def chunk(first: int, count: int) -> None:
        start = first * BLOCK_ROWS
        if weight.kind not in RECORDED:
            return _pack(weight, source, first, count)
        made = records(weight.kind, codes[start : start + count * BLOCK_ROWS], STORED[weight.kind].block_bytes)
        return _pack(weight, ext.address(made, np.uint8, made.shape) - start * made.shape[1], first, count)

    return [pool.submit(chunk, first, count) for first, count in _chunks(weight.blocks, weight.nbytes)]


def _begin_grouped(weight: PackedWeight, stored: Recorded, pool: Executor) -> list[Future[None]]:
    """Packs one matrix, gathered chunk by chunk."""
    rows = stored.shape[0]

    def chunk(first: int, count: int) -> None:
        start = first * BLOCK_ROWS
        records = stored.records(slice(start, min(start + count * BLOCK_ROWS, rows)))
        source = ext.address(records, np.uint8, (len(records), stored.record_bytes))
        # Kernels count rows from the matrix's first; those before the chunk's are never touched.
        _pack(weight, source - start * stored.record_bytes, first, count)

    return [pool.submit(chunk, first, count) for first, count in _chunks(weight.blocks, weight.nbytes)]


def _finish(jobs: Sequence[Future[None]]) -> None:
    for job in jobs:
        job.result()


def _pack(weight: PackedWeight, source: int, first: int, count: int) -> None:
    *matrix, target = weight.matrix
    width = row_bytes(weight.kind, weight.shape[1], weight.group)
    ext.native().pack(ext.level_number(), *matrix, source, width, target, first, count)


def _packed_bytes(form: str, shape: tuple[int, ...], group: int = 0) -> int:
    """Bytes of one packed matrix; of experts those of all, each aligned like a matrix by itself."""
    *experts, rows, columns = shape
    each = int(ext.native().packed_bytes(ext.level_number(), ext.values("Format").index(form), rows, columns, group))
    return prod(experts) * (-(-each // ALIGNMENT) * ALIGNMENT) if experts else each


def _chunks(blocks: int, total: int) -> Iterator[tuple[int, int]]:
    """(first block, number of blocks) of about `CHUNK_BYTES` each."""
    step = max(1, blocks * CHUNK_BYTES // total)
    for first in range(0, blocks, step):
        yield first, min(step, blocks - first)


Stored = PackedWeight | Floats | Ints

NONE_APART: Final[Mapping[str, Callable[[str, PackedWeight], None] | None]] = {}


@contextmanager
def packing_pool(threads: int) -> Iterator[ThreadPoolExecutor]:
    """A pool of `threads` that all run before they have work. Its end waits for the work of an interrupted caller, whose memory lives until
    then.

    An executor starts a thread with the work that needs it. Ctrl-C in that moment leaves a thread that the executor does not know, and that
    goes on with addresses of memory which is gone.
    """
    with ThreadPoolExecutor(threads) as pool:
        barrier = Barrier(threads)
        try:
            for started in [pool.submit(barrier.wait) for _ in range(threads)]:
                started.result()
        except BaseException:
            barrier.abort()
            raise
        yield pool


def pack_weights(
    facts: ModelFacts,
    threads: int,
    progress: Progress,
    step: OpList | None = None,
    apart: Mapping[str, Callable[[str, PackedWeight], None] | None] = NONE_APART,
) -> dict[str, Stored]:
    """Every tensor by its canonical name; `threads` pack at the same time, one matrix after the other.

    step   the list that reads them, where it is not that of the architecture
    apart  matrices that are not kept, by name, and who takes them; None: nobody, they are not packed

    Orders of columns stand beside them, each once, under names of their own: matrices that read the same value mostly share theirs.
    """
    step = record(facts)["step"] if step is None else step
    arrays, forms = taken_as_arrays(step), _forms(step, facts)
    total, done = sum(tensor.bytes for tensor in facts.tensors.values()), 0
    ready: dict[str, Stored] = {}
    orders: dict[bytes, str] = {}
    take = Pieces().take
    with packing_pool(threads) as pool:
        for name, weight in each_weight(facts):
            done += facts.tensors[name].bytes
            if name in apart:
                if (keep := apart[name]) is not None:
                    keep(name, _packed(name, weight, pool, None, ""))
                progress("packing weights", done / total)
                continue
            matrix = len(weight.shape) > 1 and name not in arrays
            ready[name] = packed = _packed(name, weight, pool, take, forms.get(name, "")) if matrix else weight.dense()
            if isinstance(packed, PackedWeight) and isinstance(weight, GroupedWeight) and packed.kind != "F32" and weight.order is not None:
                order = weight.order.astype(np.int32)
                known = orders.setdefault(order.tobytes(), f"{name.removesuffix('.weight')}.order")
                ready[name] = replace(packed, order=known)
                ready[known] = order
            progress("packing weights", done / total)
    return ready


def widened(facts: ModelFacts, weights: Mapping[str, Stored]) -> list[str]:
    """Names of matrices that no kernel multiplies as they are stored, and that are kept as fp32 instead."""
    packed = {name: weight.kind for name, weight in weights.items() if isinstance(weight, PackedWeight)}
    return [name for name, kind in packed.items() if kind == "F32" != facts.tensors[name].kind]


def packed_as(weights: Mapping[str, Stored], form: str) -> list[str]:
    """Names of matrices that are packed in this one of `FORMS`."""
    return [name for name, weight in weights.items() if isinstance(weight, PackedWeight) and weight.form == form]


def _forms(step: OpList, facts: ModelFacts) -> dict[str, str]:
    """Forms of matrices by name, for those that can be packed so: heads are screened; encoders, whose steps have many tokens, are split
    where that is faster."""
    last = step.ops[-1]
    if last.name == "linear" and last.weights[0].shape[0] == facts.tokens:
        return {last.weights[0].name: SCREENED}
    if facts.bidirectional and ext.splits():
        return {op.weights[0].name: SPLIT for op in step.ops if op.name == "linear"}
    return {}


def _packed(name: str, weight: Weight, pool: ThreadPoolExecutor, take: Take | None, form: str) -> PackedWeight:
    if isinstance(weight, StackedWeight):
        return pack_experts(weight.parts, pool, take)
    if isinstance(weight, CodedWeight) and packable(weight.kind, weight.shape):
        form = form if form and packable(weight.kind, weight.shape, form=form) else ""
        return pack(weight.kind, weight.codes, weight.shape, pool, take, form=form)
    ordered = isinstance(weight, Recorded) and (name != EMBEDDING or in_order(weight))
    if ordered and weight.kind != "F32" and packable(weight.kind, weight.shape, weight.size):
        return pack_grouped(weight, pool, take)
    return pack("F32", weight.dense().reshape(-1, weight.shape[-1]).view(np.uint8), weight.shape, pool, take)
