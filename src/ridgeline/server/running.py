"""Running servers of this user: each writes a small file that says where it is, and removes it at its end; `ridgeline ps` reads them.

A file whose process has ended is removed by whoever reads it. A process is told from a later one with the same number by its start time.
"""

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ridgeline.errors import ModelFormatError, ModelNotFoundError
from ridgeline.facts.files.json_file import read_object

MAX_BYTES: Final = 16_384
MAX_SERVERS: Final = 1_000
_NAME = re.compile(r"server-(\d{1,10})\.json")
_URL = re.compile(r"https?://(?:[0-9.]{1,15}|\[[0-9a-f:.%a-z]{1,60}\]):\d{1,5}")


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server. `started` is in seconds since 1970; `admin`: the path of its admin socket."""

    pid: int
    url: str
    model: str
    started: float
    admin: str | None = None


@contextmanager
def announced(folder: Path, *, url: str, model: str, admin: str | None = None) -> Iterator[None]:
    """Announces this process's server within the context. A folder that cannot be written is no error: the server runs, unlisted."""
    path, pid = folder / f"server-{os.getpid()}.json", os.getpid()
    values = {"pid": pid, "process_started": _process_started(pid), "url": url, "model": model, "started": time.time(), "admin": admin}
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = folder / f".server-{pid}"
        temporary.unlink(missing_ok=True)
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(values, file)
        os.replace(temporary, path)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()


def running_servers(folder: Path) -> list[RunningServer]:
    """Servers whose process runs, oldest first. Removes the files of those whose process has ended."""
    found = []
    for path in sorted(folder.glob("server-*.json"))[:MAX_SERVERS]:
        named = _NAME.fullmatch(path.name)
        server = _read(path, int(named[1])) if named else None
        if server is not None:
            found.append(server)
        elif named:
            with suppress(OSError):
                path.unlink()
    return sorted(found, key=lambda server: server.started)


def _read(path: Path, pid: int) -> RunningServer | None:
    """The server of a file; None where its process has ended, or where the file is not one that a server wrote."""
    try:
        values = read_object(path, MAX_BYTES)
    except (ModelFormatError, ModelNotFoundError):
        return None
    url, model, started = values.get("url"), values.get("model"), values.get("started")
    begun = _process_started(pid)
    if begun is None or values.get("pid") != pid or values.get("process_started") != begun:
        return None
    if not isinstance(url, str) or not _URL.fullmatch(url) or not isinstance(model, str) or not isinstance(started, (int, float)):
        return None
    admin = values.get("admin")
    if not isinstance(admin, str) or not admin.isprintable() or not os.path.isabs(admin):
        admin = None
    return RunningServer(pid, url, "".join(character for character in model if character.isprintable())[:300], float(started), admin)


def _process_started(pid: int) -> str | None:
    """Mark that tells a running process from another with its number: the start time that the system keeps; None where none runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        pass
    if Path("/proc/self/stat").exists():
        return None
    try:
        os.kill(pid, 0)  # no /proc on this system: the number alone
    except OSError:
        return None
    return ""
