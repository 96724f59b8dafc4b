"""A file of requests answered through the application in this process: no socket, and the same answers as over one.

Owns OpenAI's form of such files, and the file of answers so far, by which a run that was killed is gone on with: it lies beside the output,
a line is appended whole for each answer, and only when all are there does the output take its name, in the order of the requests.
"""

import asyncio
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
from starlette.types import ASGIApp, Message

from ridgeline.errors import ConfigError, EngineDeadError
from ridgeline.server.body import is_deeper_than
from ridgeline.server.routes import MAX_BODY_BYTES, RERANK_PATHS

ENDPOINTS: Final = (
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/messages", "/pooling", "/score", "/v1/score",
    *RERANK_PATHS,
)  # fmt: skip
"""Routes that answer a body of JSON with one."""
MAX_LINES: Final = 1_000_000
MAX_ID_CHARACTERS: Final = 512
MAX_DEPTH: Final = 64
PARTIAL: Final = ".partial"
BUSY: Final = (429, 503)
BUSY_SECONDS: Final = 0.5
BUSY_TRIES: Final = 600
"""Attempts at a request that finds no room, or an engine that starts again."""


class _Request(msgspec.Struct):
    custom_id: str
    url: str
    body: dict[str, msgspec.Raw]
    method: str = "POST"


class _Answered(msgspec.Struct):
    """The part of an answer that is read again."""

    id: str
    custom_id: str


@dataclass(frozen=True, slots=True)
class Line:
    """A request of the input: where it stands (bytes), and the id of its answer, which names its text and the model."""

    custom_id: str
    start: int
    size: int
    answer_id: str


def read_lines(path: Path, model: str) -> list[Line]:
    """The requests of a file, which are read again when it is their turn. Raises ConfigError that names the line of the first that is none,
    or is there twice."""
    found: list[Line] = []
    known: dict[str, int] = {}
    with path.open("rb") as file:
        for number, (start, data) in enumerate(_raw_lines(file), 1):
            if not data.strip():
                continue
            where = f"{path.name} line {number}"
            if len(data) > MAX_BODY_BYTES:
                raise ConfigError(f"{where} has more than {MAX_BODY_BYTES} bytes")
            custom_id = _read_request(data, where).custom_id
            if custom_id in known:
                raise ConfigError(f"{where} has the custom_id of line {known[custom_id]}; give each request its own")
            if len(found) == MAX_LINES:
                raise ConfigError(f"{path.name} has more than {MAX_LINES:,} requests; divide it")
            known[custom_id] = number
            digest = hashlib.sha256(model.encode() + b"\n" + data.strip()).hexdigest()
            found.append(Line(custom_id, start, len(data), f"batch_req_{digest[:32]}"))
    return found


def _raw_lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """(place, bytes) of each line, of which a longer one than a request may have is cut."""
    start = 0
    while data := file.readline(MAX_BODY_BYTES + 1):
        yield start, data
        start += len(data)


def _read_request(data: bytes, where: str) -> _Request:
    try:
        request = msgspec.json.decode(data, type=_Request)
        if is_deeper_than(data, MAX_DEPTH):
            raise ConfigError(f"{where} nests deeper than {MAX_DEPTH} levels")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{where} is no request: {error}; it needs custom_id, method, url and body") from None
    if request.method != "POST" or request.url not in ENDPOINTS:
        raise ConfigError(f"{where}: method must be POST, and url one of {', '.join(ENDPOINTS)}")
    if not 0 < len(request.custom_id) <= MAX_ID_CHARACTERS:
        raise ConfigError(f"{where}: custom_id has {len(request.custom_id)} characters; it must have 1 to {MAX_ID_CHARACTERS}")
    for name in ("stream", "background"):
        if bytes(request.body.get(name, msgspec.Raw(b"false"))).strip() not in (b"false", b"null"):
            raise ConfigError(f"{where}: {name} has no meaning in a file; leave it out")
    return request


class Answers:
    """The answers so far, in a file beside the output. One process at a time has it."""

    def __init__(self, file: BinaryIO, output: Path) -> None:
        self._file, self._output = file, output
        self._places: dict[str, tuple[int, int]] = {}
        """Id of an answer → place and size of its line."""

    def keep(self, lines: Mapping[str, Line]) -> int:
        """Reads what is there of a run before; what is torn or answers other requests is forgotten. Returns how many are kept."""
        end, offset = 0, 0
        for data in iter(self._file.readline, b""):
            place, offset = offset, offset + len(data)
            try:
                answered = msgspec.json.decode(data, type=_Answered)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            if not data.endswith(b"\n"):
                continue
            end = offset
            line = lines.get(answered.custom_id)
            if line is not None and line.answer_id == answered.id:
                self._places[answered.id] = (place, len(data))
        self._file.truncate(end)
        self._file.seek(end)
        return len(self._places)

    def has(self, line: Line) -> bool:
        """True if the request has its answer."""
        return line.answer_id in self._places

    def add(self, line: Line, answer: Mapping[str, Any]) -> None:
        """Appends an answer, with one write."""
        data = msgspec.json.encode(answer) + b"\n"
        place = self._file.seek(0, os.SEEK_END)
        self._file.write(data)
        self._file.flush()
        self._places[line.answer_id] = (place, len(data))

    def finish(self, lines: list[Line]) -> None:
        """Writes all answers in the order of their requests, and gives the file its name."""
        whole = self._output.with_name(self._output.name + ".whole")
        with whole.open("wb") as out:
            for line in lines:
                place, size = self._places[line.answer_id]
                self._file.seek(place)
                out.write(self._file.read(size))
            out.flush()
            os.fsync(out.fileno())
        os.replace(whole, self._output)
        self._output.with_name(self._output.name + PARTIAL).unlink()


@contextmanager
def open_answers(output: Path) -> Iterator[Answers]:
    """The answers for this output. Raises ConfigError where it exists, or another process writes it."""
    if output.exists():
        raise ConfigError(f"{output.name} is there already; remove it, or name another file")
    with output.with_name(output.name + PARTIAL).open("a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"another process writes {output.name}; wait for its end") from None
        file.seek(0)
        yield Answers(file, output)


async def answer_all(
    app: ASGIApp, source: Path, lines: list[Line], answers: Answers, at_once: int, on_answer: Callable[[int], None]
) -> None:  # fmt: skip
    """Answers the requests that have no answer yet, `at_once` at a time; `on_answer` is told each status. Raises EngineDeadError where one
    finds no room for minutes."""
    waiting = iter([line for line in lines if not answers.has(line)])

    async def work(file: BinaryIO) -> None:
        for line in waiting:
            file.seek(line.start)
            request = _read_request(file.read(line.size), line.custom_id)
            status, body = await _ask(app, request)
            answers.add(line, _answer(line, status, body))
            on_answer(status)

    try:
        with source.open("rb") as file:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(at_once):
                    tasks.create_task(work(file))
    except ExceptionGroup as group:
        raise group.exceptions[0] from None


def _answer(line: Line, status: int, body: bytes) -> dict[str, Any]:
    failed = msgspec.json.decode(body).get("error") if status != 200 else None
    error = None if failed is None else {"code": str(failed.get("code", status)), "message": failed["message"]}
    response = {"status_code": status, "request_id": line.answer_id, "body": msgspec.Raw(body)}
    return {"id": line.answer_id, "custom_id": line.custom_id, "response": response, "error": error}


async def _ask(app: ASGIApp, request: _Request) -> tuple[int, bytes]:
    """(status, body) of the answer. One that finds no room is asked for again. Raises EngineDeadError where it never finds any: that is no
    answer, and a run after it asks again."""
    data = msgspec.json.encode(request.body)
    for _ in range(BUSY_TRIES):
        status, body = await _call(app, request.url, data)
        if status not in BUSY:
            return status, body
        await asyncio.sleep(BUSY_SECONDS)
    message = msgspec.json.decode(body)["error"]["message"]
    raise EngineDeadError(
        f"request {request.custom_id!r:.100} found no room in {BUSY_TRIES * BUSY_SECONDS:g} s: {status} {message:.200}; "
        "what was answered is kept, the same command goes on"
    )


async def _call(app: ASGIApp, path: str, data: bytes) -> tuple[int, bytes]:
    status, parts = 0, list[bytes]()
    incoming: list[Message] = [{"type": "http.request", "body": data, "more_body": False}]
    scope: dict[str, Any] = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
        "http_version": "1.1", "scheme": "http", "client": None, "server": None, "state": {},
        "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")],
    }  # fmt: skip

    async def receive() -> Message:
        return incoming.pop() if incoming else await asyncio.get_running_loop().create_future()

    async def send(message: Message) -> None:
        nonlocal status
        status = message.get("status", status)
        parts.append(message.get("body", b""))

    await app(scope, receive, send)
    return status, b"".join(parts)
