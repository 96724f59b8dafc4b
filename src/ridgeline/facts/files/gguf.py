"""Reader of GGUF headers (versions 2 and 3). Reads no weights; allocates no more than the file's size justifies.

Owns the checks of a file's structure: every number is bounded before it is used.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import mmap
import re
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import prod
from pathlib import Path

from ridgeline.errors import ModelFormatError
from ridgeline.facts.files.formats import BY_ID, UNSUPPORTED
from ridgeline.facts.files.gguf_values import MAX_HEADER_BYTES, Cursor, StringArray, TruncatedHeaderError, Value
from ridgeline.facts.files.values import bounded_integer, bounded_number, open_file, quoted
from ridgeline.facts.model import TensorFacts

MAX_PAIRS = 65_536
MAX_TENSORS = 100_000
MAX_DIMENSIONS = 4
MAX_ELEMENTS = 1 << 48
MAX_ALIGNMENT = 4_096
MAX_PARTS = 1_024
_MAGIC = b"GGUF"
_PART = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")


@dataclass(frozen=True, slots=True)
class Header:
    """Metadata and tensor table of a model, over all files of a split."""

    metadata: dict[str, Value]
    tensors: dict[str, TensorFacts]
    files: tuple[Path, ...]

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """The integer at `key`, within [low, high]; `default` where the key is absent, an error where there is none."""
        return bounded_integer(self.metadata.get(key), key, low, high, default)

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """The finite number at `key`, within [low, high]."""
        return bounded_number(self.metadata.get(key), key, low, high, default)

    def text(self, key: str, default: str | None = None) -> str:
        """The string at `key`."""
        value = self._present(key, default)
        if not isinstance(value, str):
            raise ModelFormatError(f"{key} is {type(value).__name__}, a string was expected")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """The boolean at `key`."""
        value = self.metadata.get(key, default)
        if not isinstance(value, bool):
            raise ModelFormatError(f"{key} is {type(value).__name__}, a boolean was expected")
        return value

    def strings(self, key: str) -> StringArray:
        """The array of strings at `key`."""
        value = self._present(key, None)
        if not isinstance(value, StringArray):
            raise ModelFormatError(f"{key} is not an array of strings")
        return value

    def numbers(self, key: str, codes: str) -> "array[int] | array[float]":
        """The scalar array at `key`, whose element type is one of the `array` type codes in `codes`."""
        value = self._present(key, None)
        if not isinstance(value, array) or value.typecode not in codes:
            raise ModelFormatError(f"{key} is not an array of the expected number type")
        return value

    def _present(self, key: str, default: Value | None) -> Value:
        value = self.metadata.get(key, default)
        if value is None:
            raise ModelFormatError(f"{key} is missing; give the whole file of the model")
        return value


_kept: ContextVar[dict[Path, Header] | None] = ContextVar("headers", default=None)


@contextmanager
def headers_kept() -> Iterator[None]:
    """Within it, in its thread, each header is read once: that of a large vocabulary is long, and several ask for it."""
    token = _kept.set({})
    try:
        yield
    finally:
        _kept.reset(token)


def read_header(path: Path) -> Header:
    """Reads and checks the header of a GGUF file, or of all files of a split whose first file is `path`.

    Raises ModelFormatError for anything malformed, ModelNotFoundError for a missing file.
    """
    kept = _kept.get()
    if kept is None:
        return _read_header(path)
    if path not in kept:
        kept[path] = _read_header(path)
    return kept[path]


def _read_header(path: Path) -> Header:
    first = _read_file(path)
    count = first.integer("split.count", 0, MAX_PARTS, default=0)
    if count <= 1:
        return first
    return _join(path, first, count)


def _join(path: Path, first: Header, count: int) -> Header:
    named = _PART.match(path.name)
    if named is None or int(named["count"]) != count or int(named["number"]) != 1:
        raise ModelFormatError(
            f"{path.name} is part of a model split into {count} files; give the first, named …-00001-of-{count:05d}.gguf"
        )
    if first.integer("split.no", 0, MAX_PARTS) != 0:
        raise ModelFormatError(f"{path.name} states that it is part {first.metadata['split.no']}, the first (0) was expected")
    tensors, files = dict(first.tensors), [path]
    for number in range(2, count + 1):
        part_path = path.with_name(f"{named['stem']}-{number:05d}-of-{count:05d}.gguf")
        part = _read_file(part_path)
        if part.integer("split.no", 0, MAX_PARTS) != number - 1 or part.integer("split.count", 0, MAX_PARTS) != count:
            raise ModelFormatError(f"{part_path.name} does not belong to this split; download all {count} parts again")
        for name, tensor in part.tensors.items():
            if name in tensors:
                raise ModelFormatError(f"tensor {name!r} is in two parts of the split")
            tensors[name] = tensor
        files.append(part_path)
    expected = first.integer("split.tensors.count", 0, MAX_TENSORS, default=len(tensors))
    if expected != len(tensors):
        raise ModelFormatError(f"the split should hold {expected} tensors and holds {len(tensors)}; a part is missing or damaged")
    return Header(first.metadata, tensors, tuple(files))


def _read_file(path: Path) -> Header:
    with open_file(path) as file:
        size = file.seek(0, 2)
        if size < 24:
            raise ModelFormatError(f"{path.name} has {size} bytes; a GGUF file has at least 24")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as data:
            try:
                return _parse(path, data, size)
            except ModelFormatError as error:
                raise ModelFormatError(f"{path.name}: {error}") from None


def has_whole_header(data: bytes, file_bytes: int) -> bool:
    """True if `data`, the first bytes of a GGUF file of `file_bytes`, holds its header. Raises ModelFormatError where it is malformed."""
    try:
        _parse(Path(), memoryview(data), file_bytes)
    except TruncatedHeaderError:
        if len(data) >= min(file_bytes, MAX_HEADER_BYTES):
            raise
        return False
    return True


def _parse(path: Path, data: memoryview, file_bytes: int) -> Header:
    cursor = Cursor(data)
    tensor_count, pair_count = _preamble(cursor)
    metadata: dict[str, Value] = {}
    for _ in range(pair_count):
        key = cursor.string(limit=65_535)
        if key in metadata:
            raise ModelFormatError(f"metadata key {quoted(key)} appears twice; the file is damaged")
        metadata[key] = cursor.value(cursor.u32())
    header = Header(metadata, {}, (path,))
    alignment = header.integer("general.alignment", 1, MAX_ALIGNMENT, default=32)
    if alignment & (alignment - 1):
        raise ModelFormatError(f"general.alignment is {alignment}, a power of two was expected")
    declared = [_tensor(cursor) for _ in range(tensor_count)]
    start = -(-cursor.position // alignment) * alignment
    for name, _, kind, _ in declared:
        if kind not in BY_ID:
            architecture, stored = quoted(metadata.get("general.architecture")), UNSUPPORTED.get(kind, f"type {kind}")
            raise ModelFormatError(f"architecture {architecture}: tensor {name!r} is stored as {stored}, which is not supported")
    return Header(metadata, _place(path, declared, start, alignment, file_bytes), (path,))


def _preamble(cursor: Cursor) -> tuple[int, int]:
    magic = bytes(cursor.data[:4])
    cursor.take(4)
    if magic != _MAGIC:
        raise ModelFormatError(f"the file starts with {magic!r}, a GGUF file starts with {_MAGIC!r}; only GGUF model files are accepted")
    version = cursor.u32()
    if version in (2 << 24, 3 << 24):
        raise ModelFormatError("the file is big-endian; convert it to little-endian GGUF")
    if version not in (2, 3):
        raise ModelFormatError(f"GGUF version {version} is not supported (2 and 3 are); convert the model again with a current converter")
    tensor_count, pair_count = cursor.u64(), cursor.u64()
    if tensor_count > MAX_TENSORS or pair_count > MAX_PAIRS:
        raise ModelFormatError(f"{tensor_count} tensors and {pair_count} metadata pairs exceed the limits of {MAX_TENSORS} and {MAX_PAIRS}")
    return tensor_count, pair_count


def _tensor(cursor: Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """(name, shape innermost first, type id, offset in the data section), each bounded."""
    name = cursor.string(limit=256)
    dimensions = cursor.u32()
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise ModelFormatError(f"tensor {name!r} has {dimensions} dimensions, 1 … {MAX_DIMENSIONS} were expected")
    shape = tuple(cursor.u64() for _ in range(dimensions))
    if 0 in shape or prod(shape) > MAX_ELEMENTS:
        raise ModelFormatError(f"tensor {name!r} has the impossible shape {shape}")
    return name, shape, cursor.u32(), cursor.u64()


def _place(
    path: Path, declared: list[tuple[str, tuple[int, ...], int, int]], start: int, alignment: int, file_bytes: int
) -> dict[str, TensorFacts]:
    """Tensors by name. Raises ModelFormatError unless they are contiguous except for padding and end within the file."""
    tensors: dict[str, TensorFacts] = {}
    expected = 0
    for name, shape, kind, offset in declared:
        stored = BY_ID[kind]
        if shape[0] % stored.block_elements:
            raise ModelFormatError(
                f"tensor {name!r} has rows of {shape[0]}, not a multiple of {stored.name}'s block of {stored.block_elements}"
            )
        if name in tensors:
            raise ModelFormatError(f"tensor {name!r} appears twice; the file is damaged")
        length = prod(shape) // stored.block_elements * stored.block_bytes
        if offset != expected:
            raise ModelFormatError(f"tensor {name!r} is at offset {offset}, {expected} was expected: tensors overlap or leave a gap")
        if start + offset + length > file_bytes:
            raise ModelFormatError(
                f"tensor {name!r} ends at byte {start + offset + length}, the file at {file_bytes}; it is truncated: download it again"
            )
        tensors[name] = TensorFacts(name, stored.name, tuple(reversed(shape)), path, start + offset, length)
        expected = -(-(offset + length) // alignment) * alignment
    return tensors
