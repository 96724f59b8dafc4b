"""Memory of the front end that models come and go in: given back when one goes, and from one heap, so that the next finds its place."""

import ctypes
import gc
import time
from typing import Final

M_ARENA_MAX: Final = -8
"""Parameter of glibc's `malloc.h`."""


def use_one_heap() -> None:
    """Keeps malloc from making a heap for each thread. Models are read in threads: in whichever heap one stood, what other threads have
    put between its parts keeps its pages, so that the heaps together grow with the loads. This process computes nothing in threads, which
    is what several heaps are good for."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc's
        mallopt(M_ARENA_MAX, 1)


def give_back() -> float:
    """Frees what a model leaves in this process, a vocabulary in cycles among it, which is frozen where it was loaded at the start, and
    gives the memory back. Returns the seconds for which nothing else ran."""
    began = time.monotonic()
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc's
        trim(0)
    return time.monotonic() - began
