"""The file tier: one file of slots of equal size in a private folder, which a later engine finds again.

Owns the file's layout: 4,096 bytes that say its sizes, a table with an entry per slot (name, place, worth), the slots. Nothing is flushed
and nothing is repaired: what a crash tears has a wrong checksum, and is a miss. The file is sparse and never mapped, so a full disk is an
error of one write.
"""

import fcntl
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from struct import Struct
from threading import Lock
from typing import Final

from ridgeline.engine.tiers.seal import NAME_BYTES
from ridgeline.engine.tiers.worth import NOWHERE, Place, Worth
from ridgeline.facts.hardware.disk import file_rate

SUFFIX: Final = ".kv"
HEAD_BYTES: Final = 4_096
_HEAD: Final = Struct("<32sQQ")
_MAGIC: Final = b"ridgeline kv tier 3\n".ljust(32, b"\0")
LAYOUT_BYTES: Final = 256
"""Bytes behind that for the layout of its values in words, which who has another one is told."""
_ENTRY: Final = Struct(f"<{NAME_BYTES}s{NAME_BYTES}sId")
"""Name, place (the name before it, its position), worth."""
_EMPTY: Final = bytes(NAME_BYTES)
_READ_BYTES: Final = 1 << 20
MOST_WORTH: Final = 1e9
"""Uses count no more beyond it; nothing comes near."""


class _Slots:
    """Slots of files as they are read, whoever writes them."""

    name = "file"
    refused = 0

    def __init__(self, value_bytes: int, most_bytes: int) -> None:
        self._slot_bytes = value_bytes
        self._count, self._first = _sizes(value_bytes, most_bytes)
        self._slots: dict[bytes, int] = {}

    def might_have(self, name: bytes) -> bool:
        return name in self._slots

    def has(self, names: Sequence[bytes]) -> list[bool]:
        return [name in self._slots for name in names]

    def get(self, names: Sequence[bytes], seconds: float, value_bytes: int) -> list[bytes | None]:
        return [self._read(name) for name in names]

    def _read(self, name: bytes) -> bytes | None:
        raise NotImplementedError

    def _value(self, file: int, slot: int) -> bytes:
        return os.pread(file, self._slot_bytes, self._first + slot * self._slot_bytes)


class FileTier(_Slots):
    """Implements `Tier`. Another engine that has the file open keeps this one out: OSError. What is worth least makes room (`Worth`).

    descriptor   of the folder
    label        names the file: one per layout and model
    value_bytes  of every value
    most_bytes   of all files of the folder together
    layout       of its values, in words
    attention_tokens  see `Worth`
    """

    takes = True

    def __init__(
        self, descriptor: int, label: str, value_bytes: int, most_bytes: int, layout: str = "", attention_tokens: float = 0.0
    ) -> None:  # fmt: skip
        super().__init__(value_bytes, most_bytes)
        self._lock = Lock()
        self._file = _open_locked(descriptor, label + SUFFIX)
        self._layout = layout
        self._worth = Worth(attention_tokens)
        self._free: list[int] = []
        try:
            self._load()
            remove_others(descriptor, label + SUFFIX, most_bytes - os.fstat(self._file).st_blocks * 512)
        except BaseException:
            os.close(self._file)
            raise

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def capacity(self) -> int:
        """Blocks that it holds at most."""
        return self._count

    @property
    def rate(self) -> float | None:
        """Bytes per second at which its values are read, measured for some milliseconds; None where there are too few."""
        with suppress(OSError):  # whoever reads a value is told
            return file_rate(self._file)
        return None

    def put(self, name: bytes, value: bytes, place: Place = NOWHERE) -> None:
        with self._lock:
            if name in self._slots:
                return
            slot = self._free.pop() if self._free else self._evict()
            self._slots[name] = slot
            try:
                _write_all(self._file, value, self._first + slot * self._slot_bytes)
                self._enter(slot, name, self._worth.enter(name, place))
            except OSError:
                del self._slots[name]
                self._worth.forget(name)
                self._free.append(slot)
                raise

    def forget(self, name: bytes) -> None:
        with self._lock:
            slot = self._slots.pop(name, None)
            if slot is not None:
                self._worth.forget(name)
                self._free.append(slot)
                _write_all(self._file, _ENTRY.pack(_EMPTY, _EMPTY, 0, 0.0), HEAD_BYTES + slot * _ENTRY.size)

    def close(self) -> None:
        with self._lock:
            self._slots.clear()
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    def _read(self, name: bytes) -> bytes | None:
        with self._lock:
            slot = self._slots.get(name)
            if slot is None:
                return None
            value = self._value(self._file, slot)
            with suppress(OSError):  # a full disk still reads
                self._enter(slot, name, self._worth.use(name))
            return value

    def _enter(self, slot: int, name: bytes, worth: float) -> None:
        """Notes what a value is worth for the next engine."""
        before, position = self._worth.place(name)
        _write_all(self._file, _ENTRY.pack(name, before, position, worth), HEAD_BYTES + slot * _ENTRY.size)

    def _evict(self) -> int:
        """Drops the block of least worth; returns its slot. Called where every slot has a name."""
        return self._slots.pop(self._worth.evict())

    def _load(self) -> None:
        """Reads the table of a file of the same sizes; any other becomes empty."""
        head = _HEAD.pack(_MAGIC, self._slot_bytes, self._count)
        if os.pread(self._file, _HEAD.size, 0) != head:
            os.ftruncate(self._file, 0)
            os.ftruncate(self._file, self._first)
            with suppress(OSError):  # of a full disk: found empty again by the next engine
                _write_all(self._file, head + self._layout.encode()[:LAYOUT_BYTES], 0)
        found = list[tuple[bytes, Place, float]]()
        for slot, (name, before, position, worth) in enumerate(_entries(self._file, self._count)):
            if name == _EMPTY or name in self._slots or not 0 <= worth < MOST_WORTH:
                self._free.append(slot)
                continue
            self._slots[name] = slot
            found.append((name, Place(before.rstrip(b"\0") and before, position), worth))
        self._worth.load(found)
        self._free.reverse()


class FileArchive(_Slots):
    """Implements `Tier` over the files of engines of another KV type, or with other heads, as they are when they are opened: nothing is
    written to them, and an engine that has one open goes on. A slot that has another name since then is a miss.

    labels  one for each file; the other parameters are those of `FileTier`. Raises OSError where one is not there
    """

    takes = False

    def __init__(self, descriptor: int, labels: Sequence[str], value_bytes: int, most_bytes: int) -> None:
        super().__init__(value_bytes, most_bytes)
        self._files: list[int] = []
        try:
            for label in labels:
                self._load(_open(descriptor, label + SUFFIX, os.O_RDONLY))
        except OSError:
            self.close()
            raise

    def put(self, name: bytes, value: bytes, place: Place = NOWHERE) -> None:
        """Nothing: it is another engine's."""

    def forget(self, name: bytes) -> None:
        self._slots.pop(name, None)

    def close(self) -> None:
        self._slots = {}
        while self._files:
            os.close(self._files.pop())

    def _load(self, file: int) -> None:
        """Reads the table of a file; slots are numbered through all of them."""
        first = len(self._files) * self._count
        self._files.append(file)
        if os.pread(file, _HEAD.size, 0) == _HEAD.pack(_MAGIC, self._slot_bytes, self._count):
            self._slots |= {name: slot for slot, (name, *_) in enumerate(_entries(file, self._count), first) if name != _EMPTY}

    def _read(self, name: bytes) -> bytes | None:
        found = self._slots.get(name)
        if found is None:
            return None
        file, slot = self._files[found // self._count], found % self._count
        return self._value(file, slot) if os.pread(file, NAME_BYTES, HEAD_BYTES + slot * _ENTRY.size) == name else None


def other_layouts(folder: int, own: Sequence[str]) -> list[str]:
    """The layouts of the files of a folder that have none of the labels `own`, in words; of one that tells none "unknown"."""
    found = []
    for name in sorted(os.listdir(folder)):
        if name.endswith(SUFFIX) and name.removesuffix(SUFFIX) not in own:
            with suppress(OSError):
                file = _open(folder, name, os.O_RDONLY)
                words = os.pread(file, LAYOUT_BYTES, _HEAD.size).partition(b"\0")[0].decode("ascii", "replace")
                os.close(file)
                found.append(words if words and words.isprintable() else "unknown")
    return found


def _sizes(value_bytes: int, most_bytes: int) -> tuple[int, int]:
    """(slots of a file, where the first one is). Raises OSError where there would be none."""
    count = (most_bytes - HEAD_BYTES) // (value_bytes + _ENTRY.size)
    if count < 1:
        raise OSError(f"{most_bytes} bytes hold no block of {value_bytes}")
    return count, HEAD_BYTES + count * _ENTRY.size


def _entries(file: int, count: int) -> Iterator[tuple[bytes, bytes, int, float]]:
    step = _READ_BYTES // _ENTRY.size
    for first in range(0, count, step):
        size = min(step, count - first) * _ENTRY.size
        data = os.pread(file, size, HEAD_BYTES + first * _ENTRY.size).ljust(size, b"\0")
        yield from _ENTRY.iter_unpack(data)


def _open(folder: int, name: str, flags: int) -> int:
    """Opens a regular file of our own, never through a link. Raises OSError."""
    file = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600, dir_fd=folder)
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1 or found.st_uid != os.geteuid():
        os.close(file)
        raise OSError(f"{name} is not a regular file of this user with one name")
    return file


def _open_locked(folder: int, name: str) -> int:
    """Opens a file that no other process writes. Raises OSError, also where another process holds its lock."""
    file = _open(folder, name, os.O_RDWR | os.O_CREAT)
    try:
        os.fchmod(file, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException as error:
        os.close(file)
        if isinstance(error, BlockingIOError):
            raise OSError(f"another engine has {name} open") from None
        raise
    return file


def remove_others(folder: int, own: str, most_bytes: int) -> None:
    """Removes files of other layouts, the least recently written first, until they have `most_bytes` on disk; none that is in use."""
    found: list[tuple[float, int, str]] = []
    for name in os.listdir(folder):
        if name.endswith(SUFFIX) and name != own:
            with suppress(OSError):
                state = os.stat(name, dir_fd=folder, follow_symlinks=False)
                found.append((state.st_mtime, state.st_blocks * 512, name))
    total = sum(size for _, size, _ in found)
    for _, size, name in sorted(found):
        if total <= most_bytes:
            return
        with suppress(OSError):
            os.close(_open_locked(folder, name))
            os.unlink(name, dir_fd=folder)
            total -= size


def _write_all(file: int, data: bytes, at: int) -> None:
    """Writes all of it. Raises OSError, then some of it may be written."""
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, at)
        view, at = view[written:], at + written
