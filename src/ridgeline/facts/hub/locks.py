"""Locks of files between processes and threads: the system frees them when their holder ends, however it ends."""

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

POLL_SECONDS = 0.1


@contextmanager
def file_lock(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Holds the lock file at `path`, made where it is missing. `on_wait` is called while another holds it, and may raise.

    It is the same lock that huggingface_hub takes on the same path. Raises OSError where the file cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o664)
        try:
            while not _try_lock(handle):
                on_wait()
                time.sleep(POLL_SECONDS)
            if _is_same(handle, path):  # else its last holder has removed it, and others lock a new one
                yield
                return
        finally:
            os.close(handle)


def writer_tag() -> str:
    """Part of the name of a temporary file that no other process or thread has."""
    return f"{os.getpid()}-{threading.get_ident()}"


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_same(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False
