"""The rate at which files are read, as they lie there now: on a disk, or in memory from the last time."""

import os
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Final

PART_BYTES: Final = 1 << 18
PARTS: Final = 32
LEAST_BYTES: Final = 1 << 20
"""Fewer say nothing."""
MOST_SECONDS: Final = 0.01


def file_rate(file: int) -> float | None:
    """Bytes per second of parts from all over a file, holes left out, read for ten milliseconds or one part more; None where it has too
    few. Raises OSError."""
    size, part = os.fstat(file).st_size, bytearray(b"\1") * PART_BYTES
    read, seconds = 0, 0.0
    for number in range(PARTS):
        with suppress(OSError):  # nothing but a hole from here to its end
            at = os.lseek(file, size * number // PARTS, os.SEEK_DATA)
            began = perf_counter()
            read += os.preadv(file, [part], at)
            seconds += perf_counter() - began
        if seconds > MOST_SECONDS:
            break
    return read / seconds if read >= LEAST_BYTES else None


def folder_rate(folder: str, suffix: str) -> float | None:
    """The rate of the largest file there whose name ends so; None where it cannot be read, or has too little."""
    with suppress(OSError, RuntimeError, ValueError):
        files = [each for each in Path(folder).expanduser().iterdir() if each.name.endswith(suffix)]
        for largest in sorted(files, key=lambda each: each.lstat().st_blocks)[-1:]:
            file = os.open(largest, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                return file_rate(file)
            finally:
                os.close(file)
    return None
