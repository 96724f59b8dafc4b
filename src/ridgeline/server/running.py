"""Running servers of this user, and how the last ones ended: each writes a small file that says where it is, and at its end another with
the reason in its place; `ridgeline ps` and `ridgeline investigate Down` read them.

A file whose process has gone without a word is replaced by whoever reads it. A process is told from a later one with the same number by its
start time.
"""

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

from ridgeline.errors import ModelFormatError, ModelNotFoundError, RidgelineError
from ridgeline.facts.files.json_file import read_object

MAX_BYTES: Final = 16_384
MAX_SERVERS: Final = 1_000
MAX_ENDS: Final = 20
MAX_REASON: Final = 2_000
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


End = Literal["asked", "failed", "gone"]
"""An end: by a signal, an admin or an interrupt; by an error; without a word, as of a process that was killed."""
_ASKED: Final[End] = "asked"


@dataclass(frozen=True, slots=True)
class EndedServer:
    """A server that has ended. `reason`: a signal's name or an error's text, "" where it left none; `started`, `ended`: seconds since 1970,
    the second as it was found where the server left no word."""

    pid: int
    model: str
    end: End
    reason: str
    started: float
    ended: float


@dataclass(slots=True)
class Ending:
    """The reason of a server's end, as soon as it is known."""

    reason: str = ""


@contextmanager
def end_noted(folder: Path, model: str) -> Iterator[Ending]:
    """Notes how this process's server ends within the context: with what it says, or with an error."""
    ending, started, end = Ending(), time.time(), _ASKED
    try:
        yield ending
    except KeyboardInterrupt:
        ending.reason = "SIGINT"
        raise
    except BaseException as error:
        end, ending.reason = "failed", f"{error}" if isinstance(error, RidgelineError) else f"{type(error).__name__}: {error}"
        raise
    finally:
        _note_end(folder, EndedServer(os.getpid(), model, end, ending.reason[:MAX_REASON], started, time.time()))


def _note_end(folder: Path, ended: EndedServer) -> None:
    """Writes a file of its own for each end, so that no two writers meet; the oldest ones go. Nothing where it cannot be written."""
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / f"ended-{ended.started:017.6f}-{ended.pid}.json"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(asdict(ended), file)
        for old in sorted(folder.glob("ended-*.json"))[:-MAX_ENDS]:
            old.unlink(missing_ok=True)


def ended_servers(folder: Path) -> list[EndedServer]:
    """The last servers that have ended, those that started first first."""
    running_servers(folder)  # which notes those that are gone
    found = []
    for path in sorted(folder.glob("ended-*.json"))[-MAX_ENDS:]:
        with suppress(ModelFormatError, ModelNotFoundError, TypeError):
            ended = EndedServer(**read_object(path, MAX_BYTES))
            if ended.end in get_args(End) and all(isinstance(each, str) for each in (ended.model, ended.reason)):
                found.append(ended)
    return found


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
    """Servers whose process runs, oldest first. Of those whose process has ended it notes the end in place of their files."""
    found = []
    for path in sorted(folder.glob("server-*.json"))[:MAX_SERVERS]:
        named = _NAME.fullmatch(path.name)
        server = _read(path, int(named[1])) if named else None
        if server is not None:
            found.append(server)
        elif named:
            _bury(path, int(named[1]))
    return sorted(found, key=lambda server: server.started)


def _bury(path: Path, pid: int) -> None:
    """Removes the file of a server that is gone, and notes its end if the file is one that a server wrote."""
    values: dict[str, Any] = {}
    with suppress(ModelFormatError, ModelNotFoundError):
        values = read_object(path, MAX_BYTES)
    with suppress(OSError):
        path.unlink()
        model, started = values.get("model"), values.get("started")
        if isinstance(model, str) and isinstance(started, float):
            _note_end(path.parent, EndedServer(pid, model, "gone", "", started, time.time()))


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


def process_state(pid: int) -> str:
    """The system's letter for the state of a process; "" where it tells none."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def _process_started(pid: int) -> str | None:
    """Mark that tells a running process from another with its number: the start time that the system keeps; None where none runs, or one
    that has ended is waited for by its parent."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] == "Z" else fields[19]
    except (OSError, IndexError):
        pass
    if Path("/proc/self/stat").exists():
        return None
    try:
        os.kill(pid, 0)  # no /proc on this system: the number alone
    except OSError:
        return None
    return ""
