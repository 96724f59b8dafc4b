"""Experts of a model in a file as kernels read them, and the slots of memory that hold those in use.

The file is written once, beside other caches, and read again at the next start: it belongs to the model's files as they are, and to this
build. Its end, under a SHA-256, says what lies where, with a sum of each expert. A file that is cut short or of other weights is written
again; one that is damaged is removed when what is damaged is read, and written at the next start. Owns the file and the memory of the
slots; which experts lie in them is the extension's affair (csrc/runtime/expert_store.h).
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np

from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.memory import Slots, allocate
from ridgeline.compute.cpu.packing import PackedWeight, Progress, Stored, pack_weights
from ridgeline.compute.graph import OpList
from ridgeline.config.values import GIB
from ridgeline.errors import ConfigError
from ridgeline.facts.model import ModelFacts

PAGE: Final = 4096
"""Bytes that reads past the page cache are aligned to, in the file and in memory."""

READERS: Final = 4
"""Threads that read, so that a disk has several requests at a time."""

TAIL_BYTES: Final = 40
"""Size of a file's end: the SHA-256 of its table, and the length of that, 8 bytes little-endian."""


@dataclass(frozen=True, slots=True)
class FiledTensor:
    """A tensor [E, N, K] of the file: expert e at `offset` + e · `stride` bytes. `sums`: of each expert's bytes, 16 hexadecimal digits."""

    kind: str
    shape: tuple[int, ...]
    group: int
    offset: int
    stride: int
    sums: str

    @property
    def nbytes(self) -> int:
        return self.shape[0] * self.stride

    @property
    def experts_sums(self) -> list[int]:
        """The sums as numbers."""
        return [int(self.sums[at : at + 16], 16) for at in range(0, len(self.sums), 16)]


def expert_groups(step: OpList) -> list[tuple[str, ...]]:
    """Names of the matrices that a choice of experts multiplies, for each choice of a recorded list."""
    groups: dict[str, dict[str, None]] = {}
    for op in step.ops:
        if op.name == "linear_experts":
            groups.setdefault(op.inputs[1], {})[op.weights[0].name] = None
    return [tuple(names) for names in groups.values()]


def file_key(facts: ModelFacts) -> str:
    """Names the contents: the model's files as they are now, and this build's packed layout. Hexadecimal."""
    digest = hashlib.sha256(facts.fingerprint)
    for path in _files(facts):
        stat = path.stat()
        digest.update(f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    digest.update(Path(str(ext.native().__file__)).read_bytes())
    return digest.hexdigest()


def file_path(facts: ModelFacts, directory: Path) -> Path:
    """Path of the experts of a model: one file for each place of a model, so that another version takes the place of the last."""
    names = "\n".join(str(path.resolve()) for path in _files(facts))
    return directory / "experts" / f"{facts.architecture}-{hashlib.sha256(names.encode()).hexdigest()[:16]}.packed"


def _files(facts: ModelFacts) -> list[Path]:
    return sorted({path for tensor in facts.tensors.values() for path in tensor.files})


def read_table(path: Path, key: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, FiledTensor] | None:
    """Tensors of a file by name; None where it is not there, cut short, of another key, or has not all of these with their shapes.

    Reads its end alone: an expert's sum is compared when it is read for the first time.
    """
    try:
        with path.open("rb") as file:
            end = file.seek(-TAIL_BYTES, 2)
            tail = file.read()
            length = int.from_bytes(tail[32:], "little")
            if length > end:
                return None
            file.seek(end - length)
            table = file.read(length)
        if hashlib.sha256(table).digest() != tail[:32]:
            return None
        said: dict[str, Any] = json.loads(table)
        if said["key"] != key:
            return None
        found = {name: FiledTensor(kind, tuple(shape), *rest) for name, (kind, shape, *rest) in said["tensors"].items()}
        return found if all(_is_whole(found[name], shape, end - length) for name, shape in shapes.items()) else None
    except (OSError, ValueError, TypeError, LookupError, AttributeError):  # not there, shorter than its table, or made by somebody else
        return None


def _is_whole(tensor: FiledTensor, shape: tuple[int, ...], end: int) -> bool:
    """True where a tensor lies in front of `end` as kernels will read it, whoever wrote the table."""
    if tensor.shape != shape:
        return False
    number, level = ext.values("Format").index(tensor.kind), ext.level_number()
    needed = int(ext.native().packed_bytes(level, number, *tensor.shape[1:], tensor.group))
    on_pages = tensor.offset % PAGE == 0 == tensor.stride % PAGE
    within = 0 <= tensor.offset <= end - tensor.nbytes and 0 < needed <= tensor.stride
    return on_pages and within and len(tensor.experts_sums) == shape[0]


def _forget(descriptor: int, offset: int, count: int) -> None:
    """Takes a part of a file out of the page cache: memory is for slots."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, offset, count, os.POSIX_FADV_DONTNEED)


class ExpertWriter:
    """Writes a file, tensor by tensor. `table` has what it was given."""

    def __init__(self, file: BinaryIO, key: str) -> None:
        self.table: dict[str, FiledTensor] = {}
        self._file, self._key = file, key

    def write(self, name: str, weight: PackedWeight) -> None:
        """Adds a tensor [E, N, K], each expert on pages of its own."""
        sums, offset = [], self._file.tell()
        room = np.zeros(-(-weight.stride // PAGE) * PAGE, np.uint8)
        for part in weight.parts:
            room[: weight.stride] = part.data
            self._file.write(room)
            sums.append(f"{ext.native().sum_bytes(int(room.ctypes.data), room.nbytes):016x}")
        self.table[name] = FiledTensor(weight.kind, weight.shape, weight.group, offset, room.nbytes, "".join(sums))

    def finish(self) -> None:
        """Writes the table; all of it is on the disk then, and no longer in the page cache."""
        tensors = {name: (each.kind, each.shape, each.group, each.offset, each.stride, each.sums) for name, each in self.table.items()}
        table = json.dumps({"key": self._key, "tensors": tensors}).encode()
        self._file.write(table + hashlib.sha256(table).digest() + len(table).to_bytes(8, "little"))
        self._file.flush()
        os.fsync(self._file.fileno())
        _forget(self._file.fileno(), 0, 0)


@contextmanager
def writing(path: Path, key: str) -> Iterator[ExpertWriter]:
    """A writer of a file that stands at `path` when all is written, readable by this user alone. Raises ConfigError where the folder or the
    disk does not take it."""
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _clear(path)
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            writer = ExpertWriter(file, key)
            yield writer
            writer.finish()
        part.replace(path)
    except OSError as error:
        raise ConfigError(
            f"--expert-memory: experts cannot be written to {path}: {error.strerror}; make room there, or let XDG_CACHE_HOME name a folder "
            "that can be written",
            fix={"--expert-memory": None},
        ) from None
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _clear(path: Path) -> None:
    """Removes what writers left that were killed."""
    for left in path.parent.glob(f"{path.stem}.*.part"):
        number = left.name.split(".")[-2]
        if number.isdecimal() and not Path(f"/proc/{number}").exists():
            with suppress(OSError):
                left.unlink()


@dataclass(frozen=True, slots=True)
class ExpertMemory:
    """Bytes for experts, and the folder of caches that the others lie in."""

    nbytes: int
    directory: Path


def pack_with_slots(
    facts: ModelFacts, threads: int, progress: Progress, step: OpList, memory: ExpertMemory
) -> tuple[dict[str, Stored], Slots]:
    """Weights as `pack_weights` gives them, of `step`; experts lie in slots and in a file, written where this model has none yet.

    Raises ConfigError where the model has no experts, a layer's do not fit, or the file cannot be written.
    """
    groups = expert_groups(step)
    if not groups:
        raise ConfigError(f"--expert-memory: {facts.architecture} has no experts; leave it out", fix={"--expert-memory": None})
    path, key, names = file_path(facts, memory.directory), file_key(facts), [name for group in groups for name in group]
    table = read_table(path, key, {name: facts.tensors[name].shape for name in names})
    if table is None:
        with writing(path, key) as writer:
            rest = pack_weights(facts, threads, progress, step, dict.fromkeys(names, writer.write))
        table = writer.table
    else:
        rest = pack_weights(facts, threads, progress, step, dict.fromkeys(names))
    experts, slots = in_slots(path, table, groups, memory)
    return rest | experts, slots


def in_slots(
    path: Path, tensors: Mapping[str, FiledTensor], groups: list[tuple[str, ...]], memory: ExpertMemory
) -> tuple[dict[str, PackedWeight], Slots]:
    """Weights of a model's experts, which lie in slots and in the file. Raises ConfigError where a layer's do not fit."""
    slot_bytes = max(sum(tensors[name].stride for name in names) for names in groups)
    counts = [tensors[names[0]].shape[0] for names in groups]
    most, total = max(counts), sum(counts)
    count = min(memory.nbytes // slot_bytes, total)
    if count < most:
        least = -(-most * slot_bytes * 100 // GIB) / 100
        raise ConfigError(
            f"--expert-memory {memory.nbytes / GIB:.4g} GiB holds {count} experts of {slot_bytes} bytes, and a step may choose "
            f"all {most} of a layer; set --expert-memory {least:g} or more",
            fix={"--expert-memory": f"{least:g}"},
        )
    data = allocate(count * slot_bytes)
    try:
        store = ext.native().ExpertStore(str(path), int(data.ctypes.data), slot_bytes, count, READERS)
    except RuntimeError as error:
        raise ConfigError(f"--expert-memory: {error}", fix={"--expert-memory": None}) from None
    slots, found = Slots(store, data, slot_bytes, total, path), {}
    for names in groups:
        places = np.cumsum([0, *(tensors[name].stride for name in names)]).tolist()
        pieces = [
            (tensors[name].offset, tensors[name].stride, place, tensors[name].experts_sums)
            for name, place in zip(names, places, strict=False)
        ]
        number = store.add(pieces, tensors[names[0]].shape[0])
        for name, place in zip(names, places, strict=False):
            each = tensors[name]
            found[name] = PackedWeight(each.kind, each.shape, data[:0], each.group, slots=slots, place=(number, place))
    return found, slots
