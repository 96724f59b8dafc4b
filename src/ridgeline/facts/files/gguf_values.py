"""Metadata values of GGUF files: a cursor that checks every length against what is left before using it."""

import struct
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ridgeline.errors import ModelFormatError

MAX_HEADER_BYTES = 64 << 20
MAX_STRING_BYTES = 1 << 20
MAX_ARRAY_ITEMS = 4 << 20
MAX_NESTING = 4
MAX_LIST_ITEMS = 65_536
"""Booleans and inner arrays of a whole header: each becomes a Python object, far larger than its bytes in the file."""

_SCALARS: dict[int, tuple[str, str]] = {
    0: ("uint8", "B"), 1: ("int8", "b"), 2: ("uint16", "H"), 3: ("int16", "h"), 4: ("uint32", "I"), 5: ("int32", "i"),
    6: ("float32", "f"), 10: ("uint64", "Q"), 11: ("int64", "q"), 12: ("float64", "d"),
}  # fmt: skip
_BOOL, _STRING, _ARRAY = 7, 8, 9


@dataclass(frozen=True, slots=True)
class StringArray:
    """An array of strings that is decoded when it is iterated, so that the length of a vocabulary is cheap."""

    data: bytes
    items: int

    def __len__(self) -> int:
        return self.items

    def __iter__(self) -> Iterator[str]:
        position, data, length_at, parts = 0, self.data, struct.Struct("<Q").unpack_from, list[bytes]()
        for _ in range(self.items):
            start = position + 8
            position = start + length_at(data, position)[0]
            parts.append(data[start:position])
        try:
            return iter(list(map(bytes.decode, parts)))
        except UnicodeDecodeError as error:
            raise ModelFormatError(f"a string of the header is not UTF-8 (byte {error.start}); the file is damaged") from error


Value = int | float | bool | str | StringArray | list["Value"] | array  # type: ignore[type-arg]


class TruncatedHeaderError(ModelFormatError):
    """The bytes end before the header does."""


class Cursor:
    """Reads little-endian values from `data` and never past `MAX_HEADER_BYTES` or its end."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.end = min(len(data), MAX_HEADER_BYTES)
        self.position = 0
        self.list_items = 0

    def take(self, length: int) -> int:
        """Skips `length` bytes and returns their offset."""
        start = self.position
        if length > self.end - start:
            raise TruncatedHeaderError(
                f"the header needs {length} bytes at offset {start}, but only {self.end - start} are left "
                f"(file {len(self.data)} bytes, header limit {MAX_HEADER_BYTES}); the file is truncated or damaged: download it again"
            )
        self.position = start + length
        return start

    def u32(self) -> int:
        return int.from_bytes(self.data[self.take(4) : self.position], "little")

    def u64(self) -> int:
        return int.from_bytes(self.data[self.take(8) : self.position], "little")

    def string(self, limit: int = MAX_STRING_BYTES) -> str:
        length = self.u64()
        if length > limit:
            raise ModelFormatError(
                f"a string of {length} bytes at offset {self.position} exceeds the limit of {limit}; the file is damaged"
            )
        start = self.take(length)
        try:
            return str(self.data[start : self.position], "utf-8")
        except UnicodeDecodeError as error:
            raise ModelFormatError(f"the string at offset {start} is not UTF-8; the file is damaged") from error

    def value(self, kind: int, depth: int = 0) -> Value:
        """One metadata value of the given GGUF type."""
        if kind in _SCALARS:
            code = _SCALARS[kind][1]
            start = self.take(struct.calcsize(code))
            return struct.unpack_from("<" + code, self.data, start)[0]  # type: ignore[no-any-return]
        if kind == _BOOL:
            return self._bools(1)[0]
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array(depth)
        raise ModelFormatError(f"metadata type {kind} at offset {self.position} does not exist (known: 0 … 12); the file is damaged")

    def _array(self, depth: int) -> Value:
        kind, count = self.u32(), self.u64()
        if count > MAX_ARRAY_ITEMS:
            raise ModelFormatError(f"an array of {count} items at offset {self.position} exceeds the limit of {MAX_ARRAY_ITEMS}")
        if depth >= MAX_NESTING:
            raise ModelFormatError(f"arrays nest deeper than {MAX_NESTING} at offset {self.position}")
        if kind in _SCALARS:
            values = array(_SCALARS[kind][1])
            start = self.take(count * values.itemsize)
            values.frombytes(self.data[start : self.position])
            return values
        if kind == _BOOL:
            self._count_items(count)
            return list(self._bools(count))
        if kind == _STRING:
            return self._strings(count)
        if kind == _ARRAY:
            self._count_items(count)
            return [self._array(depth + 1) for _ in range(count)]
        raise ModelFormatError(f"array element type {kind} at offset {self.position} does not exist (known: 0 … 12); the file is damaged")

    def _count_items(self, count: int) -> None:
        self.list_items += count
        if self.list_items > MAX_LIST_ITEMS:
            raise ModelFormatError(
                f"the header holds {self.list_items} booleans and arrays inside arrays (offset {self.position}), "
                f"more than the limit of {MAX_LIST_ITEMS}; the file is damaged"
            )

    def _bools(self, count: int) -> list[bool]:
        start = self.take(count)
        raw = bytes(self.data[start : self.position])
        if raw.strip(b"\0\1"):
            raise ModelFormatError(f"a boolean at offset {start} is neither 0 nor 1; the file is damaged")
        return [byte == 1 for byte in raw]

    def _strings(self, count: int) -> StringArray:
        """Checks every length, copies the span once, decodes on demand."""
        start, position, end = self.position, self.position, self.end
        data = self.data
        length_at: Callable[[memoryview, int], tuple[int]] = struct.Struct("<Q").unpack_from
        for _ in range(count):
            if position + 8 > end:
                self.take(end - start + 1)
            length = length_at(data, position)[0]
            if length > MAX_STRING_BYTES:
                raise ModelFormatError(f"a string of {length} bytes at offset {position} exceeds the limit of {MAX_STRING_BYTES}")
            position += 8 + length
        self.take(position - start)
        return StringArray(bytes(data[start:position]), count)
