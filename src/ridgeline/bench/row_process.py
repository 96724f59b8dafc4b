"""A process that prints rows, JSON objects by line, run with a time limit.

Owns that its rows are told as they come, and that its group dies with this process. Needs neither arrays nor the packages of a server.
"""

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from tempfile import TemporaryFile
from threading import Timer
from typing import Any, Final, NamedTuple

from ridgeline.bench.processes import ProcessGuard

READ_BYTES: Final = 1 << 16
POLL_SECONDS: Final = 0.5
"""Interval of looking for output of a process that may have ended."""

ERROR_CHARACTERS: Final = 4000
"""Characters of a process' stderr that are kept."""

Row = dict[str, Any]


class Ended(NamedTuple):
    """The end of a process: its seconds, and the reason if it was early."""

    seconds: float
    error: str | None


def run_rows(command: Sequence[str], limit: float, on_row: Callable[[Row], None]) -> Ended:
    """Runs a command that is killed after `limit` seconds, and with this process. on_row: called with each row."""
    began = time.monotonic()
    timed_out: list[bool] = []
    with TemporaryFile() as stderr:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True)
        guard = ProcessGuard(process.pid)

        def end() -> None:
            timed_out.append(True)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

        timer = Timer(limit, end)
        timer.start()
        assert process.stdout is not None
        try:
            for row in _rows(_lines(process)):
                on_row(row)
            status = process.wait()
        finally:
            timer.cancel()
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            process.stdout.close()
            guard.release()
        seconds = time.monotonic() - began
        if timed_out:
            return Ended(seconds, f"ended at its limit of {limit:.0f} s; rows measured before are kept")
        if status:
            last = _read_tail(stderr).strip() or "none"
            return Ended(seconds, f"its process ended with status {status} after {seconds:.0f} s; the end of its stderr: {last}")
        return Ended(seconds, None)


def _lines(process: "subprocess.Popen[bytes]") -> Iterator[bytes]:
    """Lines of a process until it has ended; its children may keep stdout open."""
    assert process.stdout is not None
    rest, stdout = b"", process.stdout.fileno()
    while True:
        ended = process.poll() is not None
        if not select.select([stdout], [], [], POLL_SECONDS)[0]:
            if ended:
                break
            continue
        data = os.read(stdout, READ_BYTES)
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        yield from lines
    yield rest


def _rows(lines: Iterable[bytes]) -> Iterator[Row]:
    """Each line as a row; a line that is not a JSON object, such as a library's message, becomes a note."""
    for line in lines:
        text = line.decode("utf-8", "replace").strip()
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if text:
            yield found if isinstance(found, dict) else {"note": text[:ERROR_CHARACTERS]}


def _read_tail(stderr: Any) -> str:
    end = stderr.seek(0, 2)
    stderr.seek(max(0, end - ERROR_CHARACTERS))
    return str(stderr.read().decode("utf-8", "replace"))
