"""Log lines of a served process: one per event, timestamped, as text or as JSON, on stderr.

Owns handlers, formats and levels. Loggers are called `ridgeline.<area>`; a line is a short event and named fields, passed as
`log.info("request", extra=with_fields(status=200))`. Lines are formatted and written by a thread of their own: a log that nobody reads, or
a full disk, delays no request. What clients send is escaped, so that no line can be forged.
"""

import json
import logging
import os
import re
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

MAX_QUEUED_LINES: Final = 10_000
"""Lines that may wait to be written; further ones are dropped and counted."""
GATHER_SECONDS: Final = 0.005
"""Time for which lines are gathered before they are written together."""
REQUESTS_LOGGER: Final = "ridgeline.access"
REQUESTS_SECONDS: Final = 0.5
"""The same of lines about requests that ended as usual, while there is no other one: to wake the writer costs more than a line."""
MAX_LINES_PER_WRITE: Final = 16
REST_SECONDS: Final = 0.0005
"""Pause between two writes, in which threads that answer requests get the interpreter: formatting a line takes it for some 20 µs."""
_WORD: Final = re.compile(r"[!#-<>-~]+")
"""Most of the words that need no quotes: of ASCII, without a quote or an equals sign."""
CLOSE_SECONDS: Final = 2.0
"""Time at the end of the process to write what waits."""
STDERR: Final = 2


def with_fields(**fields: object) -> dict[str, object]:
    """The `extra` of a line with these fields; None leaves a field out."""
    return {"fields": {name: value for name, value in fields.items() if value is not None}}


@contextmanager
def logging_to(file: int = STDERR, *, level: str = "info", form: str = "text") -> Iterator[None]:
    """Lines of this process go to a file descriptor meanwhile: Ridgeline's from `level` on, those of libraries from warnings on."""
    handler = WriterHandler(file, JsonFormatter() if form == "json" else TextFormatter())
    root, own, http = logging.getLogger(), logging.getLogger("ridgeline"), logging.getLogger("uvicorn.error")
    before = [(each, each.level) for each in (root, own, http)]
    # Not in any line, and each costs a system call or a walk over frames ("Optimization" in Python's manual of logging).
    unused = {name: getattr(logging, name) for name in ("logThreads", "logProcesses", "logMultiprocessing", "_srcfile")}
    vars(logging).update(dict.fromkeys(unused))
    set_level(level)
    http.setLevel(logging.ERROR)  # what it warns of has a line of its own here
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()
        vars(logging).update(unused)
        for logger, earlier in before:
            logger.setLevel(earlier)


def set_level(level: str) -> None:
    """Lines from this level on are written, of libraries from warnings on at least."""
    own = logging.getLogger("ridgeline")
    own.setLevel(level.upper())
    logging.getLogger().setLevel(max(logging.WARNING, own.level))


class WriterHandler(logging.Handler):
    """Hands records to a thread that formats and writes them, those of a moment together. `emit` never waits.

    It writes past `sys.stderr`, whose lock a blocked write would hold when the process ends.
    """

    def __init__(self, file: int, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._file = file
        self._records: deque[logging.LogRecord] = deque()
        self._has_records = threading.Event()
        self._is_urgent = threading.Event()
        self._is_closed = threading.Event()
        self._dropped = self._failed = self._told = 0
        """Lines that found too many waiting; lines that could not be written; lines of these that the log has told of."""
        self._thread = threading.Thread(target=self._write_all, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queues the record, or counts it as dropped where too many wait."""
        if len(self._records) >= MAX_QUEUED_LINES:
            self._dropped += 1
            return
        self._records.append(record)
        if (record.name != REQUESTS_LOGGER or record.levelno > logging.INFO) and not self._is_urgent.is_set():
            self._is_urgent.set()
        if not self._has_records.is_set():  # one wake-up per moment: it costs more than the rest
            self._has_records.set()

    def close(self) -> None:
        """Writes what waits, for at most CLOSE_SECONDS."""
        for each in (self._is_closed, self._is_urgent, self._has_records):
            each.set()
        self._thread.join(CLOSE_SECONDS)
        super().close()

    def _write_all(self) -> None:
        while not self._is_closed.is_set():
            self._has_records.wait()
            self._gather()
            while self._records:  # while lines come, none has to wake this thread
                self._write_waiting()
                self._gather()
            self._has_records.clear()
            if self._records:  # this one came in between
                self._has_records.set()
        self._write_waiting()

    def _gather(self) -> None:
        """Waits for further lines."""
        if self._is_urgent.wait(REQUESTS_SECONDS):
            self._is_closed.wait(GATHER_SECONDS)
            if not self._is_closed.is_set():
                self._is_urgent.clear()

    def _write_waiting(self) -> None:
        while count := min(len(self._records), MAX_LINES_PER_WRITE):
            self._failed += self._write([self._records.popleft() for _ in range(count)])
            self._is_closed.wait(REST_SECONDS if self._records else 0.0)
            if lost := self._dropped + self._failed - self._told:
                text = "log lines were lost: they came faster than they could be written, or could not be written"
                line = logging.LogRecord("ridgeline.log", logging.WARNING, "", 0, text, None, None)
                line.__dict__ |= with_fields(lines=lost)
                self._told += 0 if self._write([line]) else lost

    def _write(self, records: list[logging.LogRecord]) -> int:
        """The number of lines that could not be written."""
        text = "".join(f"{self._line(record)}\n" for record in records)
        try:
            data = memoryview(text.encode("utf-8", "backslashreplace"))
            while data:
                data = data[os.write(self._file, data) :]
        except OSError:  # a full disk, a reader that has gone: serving goes on
            return len(records)
        return 0

    def _line(self, record: logging.LogRecord) -> str:
        try:
            return self.format(record)
        except Exception as error:  # a line whose arguments do not fit it
            return f"{record.name} {record.levelname} {_escaped(str(record.msg))} ({type(error).__name__})"


class TextFormatter(logging.Formatter):
    """`2026-05-01T12:00:00.123Z INFO ridgeline.access request status=200 path=/v1/models …`; lines of tracebacks are indented."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, with a traceback several."""
        fields = "".join(f" {name}={_word(value)}" for name, value in _fields(record).items())
        line = f"{_timestamp(record)} {record.levelname} {record.name} {_escaped(record.getMessage())}{fields}"
        return line + "".join(f"\n    {_escaped(each)}" for each in _traceback(self, record).splitlines())


class JsonFormatter(logging.Formatter):
    """One JSON object per line: `time`, `level`, `logger`, `message`, the fields under their own names, `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line of ASCII."""
        line = {"time": _timestamp(record), "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
        line |= _fields(record)
        if traceback := _traceback(self, record):
            line["exception"] = traceback
        return json.dumps(line, default=str)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, "fields", {})
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in fields.items()}


def _timestamp(record: logging.LogRecord) -> str:
    second, thousandth = divmod(int(record.created * 1_000), 1_000)
    return f"{_second(second)}.{thousandth:03}Z"


@lru_cache(1)  # lines of a moment are written together
def _second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _word(value: object) -> str:
    """A value of text form: bare where it is one word, else a JSON string."""
    text = str(value)
    if _WORD.fullmatch(text):
        return text
    return text if text.isprintable() and text and not set(text) & set(' "=') else json.dumps(text, ensure_ascii=not text.isprintable())


def _escaped(text: str) -> str:
    return text if text.isprintable() else json.dumps(text)[1:-1]


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return formatter.formatException(record.exc_info) if record.exc_info else ""
