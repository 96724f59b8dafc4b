"""Download of a model into the cache that Hugging Face's own programs use, so that each of them finds it there.

Owns that cache's layout (blobs by digest, snapshots of links by commit, refs by revision), the check of the free disk space, and the
transfer of several files at once. Nothing is written outside the repository's folder and its locks.
"""

import errno
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from ridgeline.errors import ConfigError, ModelFormatError
from ridgeline.facts.hub.client import HubClient, RemoteFile, Repository
from ridgeline.facts.hub.local import PARTIAL, folder_of
from ridgeline.facts.hub.locks import writer_tag
from ridgeline.facts.hub.names import HubName
from ridgeline.facts.hub.select import Select, is_safe_path, select_files
from ridgeline.facts.hub.transfer import Stopped, Transfer

CONNECTIONS: Final = 4
"""Files in transfer at once."""
SPARE_BYTES: Final = 64 << 20
"""Free bytes that a download leaves on the disk."""

OnBytes = Callable[[int, int], None]
"""Called with (bytes of the model on the disk, bytes of the model)."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The meaning of a name at the hub: its repository at a commit, and the files that make it up, each with a digest."""

    repository: Repository
    files: tuple[RemoteFile, ...]

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(file.bytes for file in self.files)


def select_remote(client: HubClient, name: HubName, select: Select = select_files) -> Selection:
    """Asks the hub what `name` is. Raises ModelNotFoundError, ModelFormatError where no digest is known or another than the table's."""
    repository = client.repository(name)
    files = [repository.files[path] for path in select(name, repository.files)]
    files = [file if file.digest else replace(file, digest=client.stated_digest(repository, file.path)) for file in files]
    pinned = dict(name.sha256)
    for file in files:
        if not file.digest:
            raise ModelFormatError(f"{client.endpoint} states no digest for {file.path}, so it could not be checked; use another mirror")
        if pinned.get(file.path, file.digest) != file.digest:
            raise ModelFormatError(
                f"{name.repository}: {file.path} has digest {file.digest[:16]}… on the hub, and is known with {pinned[file.path][:16]}…; "
                f"it was replaced. If you trust the new one, name it in full: {name}"
            )
    return Selection(repository, tuple(files))


class RepositoryCache:
    """The folder of one repository in a hub cache."""

    def __init__(self, hub: Path, repository: str) -> None:
        self._folder = folder_of(hub, repository)
        self._locks = hub / ".locks" / self._folder.name

    def blob(self, file: RemoteFile) -> Path:
        """Path of the content of `file`."""
        return self._folder / "blobs" / file.digest

    def lock(self, file: RemoteFile) -> Path:
        """Lock of that place."""
        return self._locks / f"{file.digest}.lock"

    def bytes_present(self, file: RemoteFile) -> int:
        """Bytes of `file` that need not be fetched."""
        for path in (self.blob(file), self.blob(file).with_name(file.digest + PARTIAL)):
            with suppress(OSError):
                return min(file.bytes, path.stat().st_size)
        return 0

    def prepare(self) -> None:
        """Makes the folders. Raises OSError."""
        for name in ("blobs", "refs", "snapshots"):
            (self._folder / name).mkdir(parents=True, exist_ok=True)

    def place(self, selection: Selection) -> Path:
        """Links the files into the snapshot of their commit, points the revision there, and returns the snapshot. Raises OSError."""
        commit, revision = selection.repository.commit, selection.repository.name.revision or "main"
        snapshot = self._folder / "snapshots" / commit
        for file in selection.files:
            link = snapshot / file.path
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.parent.resolve().is_relative_to(snapshot.resolve()) or not is_safe_path(file.path):
                raise ModelFormatError(f"{link.parent} leads out of {snapshot}; remove it")
            _link(self.blob(file), link)
        if revision != commit:
            reference = self._folder / "refs" / revision
            temporary = reference.with_name(f".{revision[:200]}.{writer_tag()}")
            temporary.write_text(commit)
            os.replace(temporary, reference)
        return snapshot


def download_selection(client: HubClient, hub: Path, selection: Selection, on_bytes: OnBytes) -> Path:
    """Fetches what the cache lacks; returns the path of the GGUF file (of a split one the first) or of the checkpoint's directory.

    Raises ModelNotFoundError, ModelFormatError, ConfigError where the disk is too small.
    """
    cache = RepositoryCache(hub, selection.repository.name.repository)
    try:
        cache.prepare()
        _check_disk(hub, cache, selection)
        _fetch_all(client, cache, selection, on_bytes)
        snapshot = cache.place(selection)
    except OSError as error:
        raise _disk_error(hub, selection, error) from None
    first = selection.files[0].path
    return snapshot / first if first.endswith(".gguf") else snapshot


def _check_disk(hub: Path, cache: RepositoryCache, selection: Selection) -> None:
    missing = sum(file.bytes - cache.bytes_present(file) for file in selection.files)
    free = shutil.disk_usage(hub).free
    if missing and missing + SPARE_BYTES > free:
        raise ConfigError(
            f"{selection.repository.name} needs {missing:,} more bytes in {hub}, where {free:,} are free; make room there "
            "(`ridgeline list` shows what lies there), let HF_HOME name a larger disk, or take a smaller quantisation"
        )


def _disk_error(hub: Path, selection: Selection, error: OSError) -> ConfigError:
    name = selection.repository.name
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ConfigError(
            f"the disk of {hub} became full while {name} ({selection.bytes:,} bytes) was fetched; make room, and the same command goes on"
        )
    return ConfigError(f"{name} cannot be written to {hub} ({error.strerror or error}); let HF_HOME name a directory that can be written")


def _fetch_all(client: HubClient, cache: RepositoryCache, selection: Selection, on_bytes: OnBytes) -> None:
    """Fetches all files, `CONNECTIONS` at once. The first failure, or an interrupt, stops the others where they are."""
    files = {file.digest: file for file in sorted(selection.files, key=lambda file: file.bytes)}  # equal files share a blob
    waiting, stop, lock = list(files.values()), threading.Event(), threading.Lock()
    total, done = sum(file.bytes for file in waiting), dict.fromkeys(files, 0)
    failures: list[Exception] = []

    def report(digest: str, count: int) -> None:
        with lock:
            done[digest] = count
            on_bytes(sum(done.values()), total)

    def check() -> None:
        if stop.is_set():
            raise Stopped

    def fetch_all() -> None:
        name = selection.repository.name
        while not stop.is_set():
            with lock:
                if not waiting:
                    return
                file = waiting.pop()
            url, on_file = client.file_url(selection.repository, file.path), partial(report, file.digest)
            Transfer(client, name, url, file, cache.blob(file), cache.lock(file), on_file, check).run()

    def work() -> None:
        try:
            fetch_all()
        except Stopped:
            return
        except Exception as error:
            failures.append(error)
            stop.set()

    # Daemons: an interrupt does not wait for a connection that stands still, and what is on the disk is whole up to its end.
    threads = [threading.Thread(target=work, daemon=True, name=f"download {number}") for number in range(min(CONNECTIONS, len(files)))]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive() and not failures:
                thread.join(0.2)
    finally:
        stop.set()
    if failures:
        raise failures[0]


def _link(blob: Path, link: Path) -> None:
    """Makes `link` a relative link to `blob`, in one step."""
    target = os.path.relpath(blob, link.parent)
    if link.is_symlink() and os.readlink(link) == target:
        return
    temporary = link.with_name(f".{writer_tag()}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    os.replace(temporary, link)
