"""Transfer of one file: resumed where it stopped, checked against its digest, and in place only when it is whole.

Owns the file beside the target, `<target>.incomplete`, which holds the first bytes of it and nothing else, and survives every kind of end.
"""

import hashlib
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, BinaryIO, Final

from ridgeline.errors import ModelFormatError, ModelNotFoundError
from ridgeline.facts.hub.client import HubClient, RemoteFile, TransferError, pause_seconds
from ridgeline.facts.hub.local import PARTIAL
from ridgeline.facts.hub.locks import file_lock
from ridgeline.facts.hub.names import HubName

CHUNK_BYTES: Final = 1 << 20
MAX_FAILURES: Final = 6
"""Attempts in a row that bring no byte."""


class Stopped(Exception):
    """The download was stopped, by another file's failure or by the user."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """One file to fetch.

    target   where it belongs
    lock     lock file: whoever holds it writes
    on_bytes called with the bytes of this file that are on the disk
    check    called for every chunk; raises Stopped to end the transfer
    """

    client: HubClient
    name: HubName
    url: str
    file: RemoteFile
    target: Path
    lock: Path
    on_bytes: Callable[[int], None]
    check: Callable[[], None]

    @property
    def partial(self) -> Path:
        """The file that grows."""
        return self.target.with_name(self.target.name + PARTIAL)

    def run(self) -> None:
        """Returns when the file is in place: fetched here, or by another process that held the lock.

        Raises ModelNotFoundError where it cannot be fetched, ModelFormatError where its content is not what the digest says, OSError where
        the disk fails, Stopped.
        """
        with file_lock(self.lock, self._watch):
            if not self._is_complete():
                self._fetch()
        self.on_bytes(self.file.bytes)

    def _watch(self) -> None:
        """Reports another process's progress while it holds the lock."""
        self.check()
        with suppress(OSError):
            self.on_bytes(min(self.file.bytes, self.partial.stat().st_size))

    def _is_complete(self) -> bool:
        return self.target.is_file() and self.target.stat().st_size == self.file.bytes

    def _fetch(self) -> None:
        """Fetches what is missing and checks the whole. What was resumed and is wrong is fetched once more from its start."""
        for resumed in (True, False):
            handle = os.open(self.partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            with os.fdopen(handle, "r+b") as out:
                if not resumed or os.fstat(handle).st_size > self.file.bytes:
                    out.truncate(0)
                had = os.fstat(handle).st_size
                found = self._complete(out)
                os.fsync(handle)
            if found == self.file.digest:
                os.replace(self.partial, self.target)
                return
            if not had:
                break
        self.partial.unlink()
        raise ModelFormatError(
            f"{self.name.repository}: {self.file.path} has digest {found[:16]}…, the hub states {self.file.digest[:16]}…; "
            "it was removed: try again, or use another mirror"
        )

    def _complete(self, out: BinaryIO) -> str:
        """Appends bytes until the file has its size; returns its digest."""
        digest = self._hash_present(out)
        done = out.tell()
        failures = 0
        while done < self.file.bytes:
            before = done
            try:
                done = self._append(out, digest, done)
            except TransferError as error:
                done = out.tell()
                failures = 1 if done > before else failures + 1
                if failures >= MAX_FAILURES or (error.final and failures > 1):
                    raise ModelNotFoundError(
                        f"{self.name.repository}: {self.file.path} stopped at byte {done:,} of {self.file.bytes:,} ({error}); "
                        "the same command goes on from there"
                    ) from None
                self._pause(pause_seconds(failures - 1, error))
            if done < before:  # the server began anew
                digest = new_digest(self.file)
                done = 0
                out.seek(0)
                out.truncate(0)
        return str(digest.hexdigest())

    def _hash_present(self, out: BinaryIO) -> Any:
        """Digest of what is there already."""
        digest = new_digest(self.file)
        out.seek(0)
        while chunk := out.read(CHUNK_BYTES):
            self.check()
            digest.update(chunk)
        return digest

    def _append(self, out: BinaryIO, digest: Any, done: int) -> int:
        """Appends what one answer brings; returns the bytes of the file, or -1 where the server cannot go on at `done`.

        Raises TransferError where the connection breaks; what came before it is in the file."""
        with self.client.open(self.name, self.url, {"Range": f"bytes={done}-"} if done else {}) as response:
            if done and response.status != 206:
                return -1
            if done and not response.headers.get("Content-Range", "").startswith(f"bytes {done}-"):
                raise TransferError("the server sent another part of the file than was asked for")
            while done < self.file.bytes:
                chunk = _read(response, min(CHUNK_BYTES, self.file.bytes - done))
                if not chunk:
                    raise TransferError("the connection ended")
                self.check()
                out.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                self.on_bytes(done)
        return done

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.check()
            time.sleep(min(0.1, left))


def new_digest(file: RemoteFile) -> Any:
    """An empty digest of the kind that `file` states: SHA-256, or SHA-1 over the header of git's blob and the content."""
    if len(file.digest) == 64:
        return hashlib.sha256()
    digest = hashlib.sha1(usedforsecurity=False)
    digest.update(b"blob %d\0" % file.bytes)
    return digest


def _read(response: HTTPResponse, count: int) -> bytes:
    try:
        return response.read1(count)
    except (OSError, HTTPException) as error:
        raise TransferError(str(error) or type(error).__name__) from None
