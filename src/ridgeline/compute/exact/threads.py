"""Threads of the numpy runner: BLAS computes every product on the thread that asks for it, work is shared out here.

A BLAS that splits a product over its own threads rounds differently for different thread counts. So it is held to one thread
while a step runs, and products are cut into pieces whose shapes do not depend on the number of threads.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeVar

import numpy as np

Item = TypeVar("Item")

_SYMBOLS = ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}")


class Team:
    """The calling thread and `threads - 1` others."""

    def __init__(self, threads: int = 1) -> None:
        self.threads = max(1, threads)
        self.done = 0
        """Items so far; threads that count at the same time may lose one of another."""
        self._pool = ThreadPoolExecutor(self.threads - 1, "ridgeline-numpy") if threads > 1 else None

    def each(self, work: Callable[[Item], None], items: Sequence[Item]) -> None:
        """Calls `work` for every item; thread t takes items t, t + threads, …; returns when all are done."""
        if self._pool is None or len(items) < 2:
            self._serve(work, items)
            return
        shares = [items[t :: self.threads] for t in range(min(self.threads, len(items)))]
        others = [self._pool.submit(self._serve, work, share) for share in shares[1:]]
        try:
            self._serve(work, shares[0])
        finally:
            for other in others:
                other.result()

    def close(self) -> None:
        """Ends the threads."""
        if self._pool is not None:
            self._pool.shutdown()

    def _serve(self, work: Callable[[Item], None], items: Sequence[Item]) -> None:
        # Not a number and infinity are values here, found by whoever looks at results; numpy keeps this setting a thread.
        with np.errstate(all="ignore"):
            for item in items:
                work(item)
                self.done += 1


@contextmanager
def one_blas_thread() -> Iterator[bool]:
    """Holds OpenBLAS to one thread a product, then restores what was set; yields whether there is an OpenBLAS to hold."""
    libraries = _openblas()
    before = [get() for get, _ in libraries]
    for _, hold in libraries:
        hold(1)
    try:
        yield bool(libraries)
    finally:
        for (_, hold), threads in zip(libraries, before, strict=True):
            hold(threads)


@cache
def _openblas() -> tuple[tuple[Callable[[], int], Callable[[int], None]], ...]:
    """(get, set) of the thread count of every OpenBLAS in this process; numpy's is among them, unless it uses another BLAS."""
    found = []
    for path in _loaded_libraries():
        library = ctypes.CDLL(path)
        symbol = next((s for s in _SYMBOLS if hasattr(library, s.format("set_num_threads"))), None)
        if symbol is not None:
            get, hold = library[symbol.format("get_num_threads")], library[symbol.format("set_num_threads")]
            get.restype, hold.argtypes, hold.restype = ctypes.c_int, [ctypes.c_int], None
            found.append((get, hold))
    return tuple(found)


def _loaded_libraries() -> list[str]:
    """Paths of the shared libraries in this process whose names speak of OpenBLAS."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return []
    paths = {line.split(maxsplit=5)[5].strip() for line in maps.splitlines() if "openblas" in line.lower()}
    return sorted(path for path in paths if Path(path).is_file())
