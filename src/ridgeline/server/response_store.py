"""Answers that clients ask for again by their ids: in memory, in files that survive a restart, or in a server that several share.

Owns their bounds (bytes and age, for each key by itself), and that an answer is found under the key alone that it was stored under. An id
has 96 random bits. Records are bytes of the caller's; a file that is not as it was written is its business, and a miss.
"""

import asyncio
import logging
import os
import re
import secrets
import shlex
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar, runtime_checkable

from ridgeline.config.env import responses_directory
from ridgeline.config.file import OTHERS
from ridgeline.config.groups import ServerConfig
from ridgeline.config.redis import read_password
from ridgeline.errors import ConfigError

log = logging.getLogger("ridgeline.server")
Result = TypeVar("Result")

FLAG: Final = "--response-store-dir"
ID: Final = re.compile(r"resp_[0-9a-f]{32}")
RECORD_OVERHEAD: Final = 512
"""Bytes that a record counts beside its own: its id, its place in the index, a file's inode."""
_OWNER: Final = re.compile(r"[0-9a-f]{64}")
_SUFFIX: Final = ".json"
_THREADS: Final = ThreadPoolExecutor(2, "responses")
"""Threads of their own: a slow disk holds up stored answers and nothing else."""


class ResponseStore(Protocol):
    """Records by owner and id. An owner is the digest of a key; empty where no key is needed."""

    async def put(self, owner: bytes, response_id: str, record: bytes) -> None:
        """Stores a record, in the place of an earlier one; the oldest of the owner make room for it. One that never fits is not stored."""

    async def get(self, owner: bytes, response_id: str) -> bytes | None:
        """The record; None where the owner has none of this id."""

    async def delete(self, owner: bytes, response_id: str) -> bool:
        """Deletes a record; False where the owner has none of this id."""


@runtime_checkable
class SharedStore(ResponseStore, Protocol):
    """A store in which a server finds what others still compute."""

    async def lease(self, response_ids: Sequence[str]) -> None:
        """Notes that these answers are still computed, for `LEASE_SECONDS`."""

    async def is_leased(self, response_id: str) -> bool:
        """True while some server computes the answer."""


def open_store(config: ServerConfig) -> ResponseStore | None:
    """The store of a server; None: it has none. Raises ConfigError for a folder that cannot be used, or that others may read, and for an
    address that is not taken."""
    bounds = Bounds(config.response_store_bytes, config.response_store_ttl)
    if config.response_store == "memory":
        return MemoryStore(bounds)
    if config.response_store == "file":
        return FileStore(Path(config.response_store_dir or responses_directory()), bounds)
    if config.response_store == "none":
        return None
    from ridgeline.server.redis_store import PASSWORD_FLAG, RedisStore

    return RedisStore(config.response_store, read_password(config.response_store_password_file, PASSWORD_FLAG), bounds)


class Bounds:
    """Bounds on what one owner may store. `seconds`: age at which a record goes."""

    def __init__(self, max_bytes: int, seconds: float, clock: Callable[[], float] = time.time) -> None:
        self.max_bytes = max_bytes
        self.seconds = seconds
        self.clock = clock


class _Index:
    """Sizes and ages of the records of all owners, oldest first: what has to go. Not for two threads at once."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._records: dict[bytes, dict[str, tuple[int, float]]] = {}
        self._bytes: dict[bytes, int] = {}

    def add(self, owner: bytes, response_id: str, size: int, stored: float) -> list[str]:
        """Adds a record and returns the ids of those of this owner that have to go for it, perhaps its own."""
        size += RECORD_OVERHEAD
        if size > self._bounds.max_bytes:
            log.warning("an answer of %d bytes is not stored: --response-store-bytes is %d", size, self._bounds.max_bytes)
            self.remove(owner, response_id)
            return [response_id]
        self.remove(owner, response_id)
        self._records.setdefault(owner, {})[response_id] = (size, stored)
        self._bytes[owner] = self._bytes.get(owner, 0) + size
        gone = []
        while self._bytes[owner] > self._bounds.max_bytes:
            gone.append(next(iter(self._records[owner])))
            self.remove(owner, gone[-1])
        return gone

    def remove(self, owner: bytes, response_id: str) -> bool:
        """Forgets a record; False where there is none."""
        size, _ = self._records.get(owner, {}).pop(response_id, (0, 0.0))
        if not size:
            return False
        self._bytes[owner] -= size
        if not self._records[owner]:
            del self._records[owner], self._bytes[owner]
        return True

    def is_live(self, stored: float) -> bool:
        """True for a record that is not too old."""
        return self._bounds.clock() - stored < self._bounds.seconds

    def expire(self) -> list[tuple[bytes, str]]:
        """Forgets the records that are too old, and returns them."""
        gone = []
        for owner, records in list(self._records.items()):
            for response_id, (_, stored) in list(records.items()):
                if self.is_live(stored):
                    break
                gone.append((owner, response_id))
                self.remove(owner, response_id)
        return gone

    @property
    def is_empty(self) -> bool:
        """True without a record."""
        return not self._records


class _Sweeper:
    """Calls `sweep` once in a while as long as there are records, so that none outlives its age because nobody asks."""

    def __init__(self, seconds: float, sweep: Callable[[], bool]) -> None:
        """`sweep` returns True if records are left."""
        self._seconds = min(max(seconds / 10, 0.1), 600.0)
        self._sweep = sweep
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """There are records from now on."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._run)

    def _run(self) -> None:
        self._timer = None
        if self._sweep():
            self.start()


class MemoryStore:
    """Records in memory, gone with the process."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._index = _Index(bounds)
        self._records: dict[tuple[bytes, str], tuple[bytes, float]] = {}
        self._sweeper = _Sweeper(bounds.seconds, self._sweep)

    async def put(self, owner: bytes, response_id: str, record: bytes) -> None:
        self._sweep()
        stored = self._bounds.clock()
        self._records[owner, response_id] = (record, stored)
        for gone in self._index.add(owner, response_id, len(record), stored):
            self._records.pop((owner, gone), None)
        self._sweeper.start()

    async def get(self, owner: bytes, response_id: str) -> bytes | None:
        record, stored = self._records.get((owner, response_id), (None, 0.0))
        return record if self._index.is_live(stored) else None

    async def delete(self, owner: bytes, response_id: str) -> bool:
        found = await self.get(owner, response_id) is not None
        self._records.pop((owner, response_id), None)
        self._index.remove(owner, response_id)
        return found

    def _sweep(self) -> bool:
        for gone in self._index.expire():
            self._records.pop(gone, None)
        return not self._index.is_empty


class FileStore:
    """Records in files that only this user can read: a folder for each owner, a file for each record, written whole or not at all.

    No link is followed, and what is not a file of the store is left alone.
    """

    def __init__(self, folder: Path, bounds: Bounds) -> None:
        self._folder, self._bounds = folder.expanduser(), bounds
        self._index = _Index(bounds)
        self._lock = asyncio.Lock()
        self._sweeper = _Sweeper(bounds.seconds, self._start_sweep)
        self._sweeps: set[asyncio.Task[None]] = set()
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _opened(os.fspath(self._folder)) as root:
                self._read_index(root)
        except OSError as error:
            message = f"{FLAG} {str(self._folder)!r:.200} cannot be used: {error.strerror or error}"
            raise ConfigError(message, fix={"--response-store": "memory", FLAG: None}) from None

    async def put(self, owner: bytes, response_id: str, record: bytes) -> None:
        async with self._lock:
            await self._run(self._expire)
            gone = self._index.add(owner, response_id, len(record), self._bounds.clock())
            if response_id not in gone and not await self._run(partial(self._write, owner, response_id, record)):
                self._index.remove(owner, response_id)
            await self._run(partial(self._remove, [(owner, each) for each in gone]))
        self._sweeper.start()

    async def get(self, owner: bytes, response_id: str) -> bytes | None:
        return await self._run(partial(self._read, owner, response_id))

    async def delete(self, owner: bytes, response_id: str) -> bool:
        async with self._lock:
            found = await self.get(owner, response_id) is not None
            self._index.remove(owner, response_id)
            await self._run(partial(self._remove, [(owner, response_id)]))
        return found

    async def _run(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(_THREADS, work)

    def _start_sweep(self) -> bool:
        sweep = asyncio.ensure_future(self._sweep())
        self._sweeps.add(sweep)
        sweep.add_done_callback(self._sweeps.discard)
        return not self._index.is_empty

    async def _sweep(self) -> None:
        async with self._lock:
            await self._run(self._expire)

    # ── files ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _read_index(self, root: int) -> None:
        """Makes the index of the files that there are; removes what is too old, too much, or was being written."""
        found = []
        for name in filter(_OWNER.fullmatch, os.listdir(root)):
            with suppress(OSError), _opened(name, root) as folder:
                for each in os.listdir(folder):
                    status = os.stat(each, dir_fd=folder, follow_symlinks=False)
                    if each.startswith(".resp_") and stat.S_ISREG(status.st_mode):
                        os.unlink(each, dir_fd=folder)
                    elif _is_record(each) and stat.S_ISREG(status.st_mode):
                        found.append((status.st_mtime, name, each.removesuffix(_SUFFIX), status.st_size))
        for stored, name, response_id, size in sorted(found):
            owner = _owner_of(name)
            self._remove([(owner, each) for each in self._index.add(owner, response_id, size, stored)])
        self._expire()

    def _expire(self) -> None:
        self._remove(self._index.expire())

    def _write(self, owner: bytes, response_id: str, record: bytes) -> bool:
        """False where it could not be written, as on a disk that is full; the log says so."""
        temporary = f".{response_id}.{secrets.token_hex(4)}"
        try:
            with self._owners_folder(owner, create=True) as folder:
                try:
                    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                    with os.fdopen(os.open(temporary, flags, 0o600, dir_fd=folder), "wb") as file:
                        file.write(record)
                    os.rename(temporary, response_id + _SUFFIX, src_dir_fd=folder, dst_dir_fd=folder)
                except OSError:
                    with suppress(OSError):
                        os.unlink(temporary, dir_fd=folder)
                    raise
        except OSError as error:
            log.warning("an answer is not stored: %s", error.strerror or error)
            return False
        return True

    def _read(self, owner: bytes, response_id: str) -> bytes | None:
        if not ID.fullmatch(response_id):
            return None
        try:
            with self._owners_folder(owner) as folder:
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                with os.fdopen(os.open(response_id + _SUFFIX, flags, dir_fd=folder), "rb") as file:
                    status = os.fstat(file.fileno())
                    if not stat.S_ISREG(status.st_mode) or not self._index.is_live(status.st_mtime):
                        return None
                    data = file.read(self._bounds.max_bytes + 1)
                    return data if len(data) <= self._bounds.max_bytes else None
        except OSError:
            return None

    def _remove(self, gone: list[tuple[bytes, str]]) -> None:
        for owner, response_id in gone:
            with suppress(OSError), self._owners_folder(owner) as folder:
                os.unlink(response_id + _SUFFIX, dir_fd=folder)

    @contextmanager
    def _owners_folder(self, owner: bytes, create: bool = False) -> Iterator[int]:
        """A descriptor of the owner's folder. Raises OSError."""
        with _opened(os.fspath(self._folder)) as root:
            name = _name_of(owner)
            if create:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=root)
            with _opened(name, root) as folder:
                yield folder


@contextmanager
def _opened(folder: str, parent: int | None = None) -> Iterator[int]:
    """A descriptor of a folder that only this user can read. Raises OSError, for a link too."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            raise PermissionError("it belongs to another user")
        if status.st_mode & OTHERS:
            raise PermissionError(f"its mode {stat.S_IMODE(status.st_mode):04o} lets others read it; run: chmod 700 {shlex.quote(folder)}")
        yield descriptor
    finally:
        os.close(descriptor)


def _is_record(name: str) -> bool:
    return name.endswith(_SUFFIX) and ID.fullmatch(name.removesuffix(_SUFFIX)) is not None


def _name_of(owner: bytes) -> str:
    """The folder of an owner."""
    return owner.hex() or "0" * 64


def _owner_of(name: str) -> bytes:
    return b"" if set(name) == {"0"} else bytes.fromhex(name)
