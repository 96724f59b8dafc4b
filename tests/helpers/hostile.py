"""A client that sends malformed requests over many connections, reads every byte of the answers, and says what is wrong with them."""

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from malformed import Malformed, Request

from ridgeline.server.errors import CATALOGUE, GGML_TOO_LONG, anthropic_type

SLOWEST_SECONDS: Final = 5.0
CONNECTIONS: Final = 16
UNTOLD: Final = ("Traceback", 'File "', " object at 0x", "/home/", "/site-packages/", "ridgeline.")
"""What no error says."""
CHUNK_SIZE: Final = re.compile(rb"\r\n[0-9a-f]+\r\n")
"""Between two chunks of a body."""
ENDS: Final = (b"completed", b"incomplete", b"failed")
"""How streams of /v1/responses end."""
FAILURES: Final = ("internal_error", "engine_failed")


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(slots=True)
class Tally:
    """What came of the requests. problems: number of a request → what is wrong with its answer."""

    statuses: Counter[int] = field(default_factory=Counter)
    problems: dict[int, str] = field(default_factory=dict)
    slowest: float = 0.0
    streams: int = 0


def send_all(url: str, seed: int, numbers: range, authorization: bytes | None = None) -> Tally:
    """Sends the requests of a seed; returns when all have been answered."""
    tally, waiting = Tally(), iter(numbers)
    requests = Malformed(seed, authorization)

    async def work() -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(CONNECTIONS):
                tasks.create_task(Client(url, requests, tally).run(waiting))

    asyncio.run(work())
    return tally


class Client:
    """One connection after the other."""

    def __init__(self, url: str, requests: Malformed, tally: Tally) -> None:
        address = urlsplit(url)
        self._host, self._port = address.hostname, address.port
        self._requests, self._tally = requests, tally
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def run(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            request = self._requests.request(number)
            began = time.monotonic()
            try:
                async with asyncio.timeout(2 * SLOWEST_SECONDS):
                    problem = await (self._framed(request) if request.is_framed else self._unframed(request))
            except TimeoutError:
                problem = f"no answer within {2 * SLOWEST_SECONDS:g} s"
                self._close()
            seconds = time.monotonic() - began
            self._tally.slowest = max(self._tally.slowest, seconds)
            if problem is None and seconds > SLOWEST_SECONDS:
                problem = f"took {seconds:.1f} s"
            if problem is not None:
                self._tally.problems[number] = problem
        self._close()

    async def _framed(self, request: Request) -> str | None:
        """A request that is HTTP, on a connection that is kept."""
        for is_last in (False, True):
            fresh = self._streams is None
            try:
                reader, writer = self._streams = self._streams or await self._open()
                writer.write(request.data)
                if request.leaves:
                    await asyncio.sleep(0.002)
                    self._close()
                    return None
                answer = await read_answer(reader, request.is_head)
                break
            except (OSError, asyncio.IncompleteReadError) as error:
                self._close()
                if fresh or is_last:  # else the server had closed a connection at rest
                    return f"no answer: {error!r}"
        if answer.headers.get("connection") == "close":
            self._close()
        return self._problem(answer, request)

    async def _unframed(self, request: Request) -> str | None:
        """Bytes that may be anything, on a connection of their own: none, one or several answers, or nothing."""
        reader, writer = await self._open()
        try:
            writer.write(request.data)
            writer.write_eof()
            while True:
                answer = await read_answer(reader, request.is_head)
                if (problem := self._problem(answer, request)) is not None:
                    return problem
        except (OSError, asyncio.IncompleteReadError):
            return None  # the end
        except ValueError as error:
            return f"what came back is not HTTP: {error}"
        finally:
            writer.transport.abort()

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._host, self._port, limit=1 << 20)

    def _close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None

    def _problem(self, answer: Answer, request: Request) -> str | None:
        """What is wrong with an answer."""
        self._tally.statuses[answer.status] += 1
        if answer.status == 504 and b"deadline_ms" in CHUNK_SIZE.sub(b"", request.data) and b"was its deadline" in answer.body:
            return error_problem(answer, request)  # the end that the client asked for
        if answer.status >= 500:
            return f"{answer.status} {answer.body[:600]!r}"
        if request.is_head or answer.status == 102:
            return None
        if answer.status >= 400:
            return error_problem(answer, request)
        kind = answer.headers.get("content-type", "")
        if kind.startswith("text/event-stream"):
            self._tally.streams += 1
            return stream_problem(answer.body)
        if kind.startswith("application/x-ndjson"):
            self._tally.streams += 1
            return lines_problem(answer.body)
        if kind.startswith("application/json"):
            json.loads(answer.body)
        return None


async def read_answer(reader: asyncio.StreamReader, is_head: bool) -> Answer:
    """The next answer, interim ones skipped. Raises ValueError for what is none, IncompleteReadError at the end."""
    while True:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        version, _, status = head[0].partition(" ")
        if not version.startswith("HTTP/1."):
            raise ValueError(head[0][:100])
        number = int(status[:3])
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        if number >= 200:
            break
    body = b""
    if is_head:
        pass
    elif headers.get("transfer-encoding") == "chunked":
        while size := int(await reader.readuntil(b"\r\n"), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
    elif "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
    elif number not in (204, 304):
        body = await reader.read()
    return Answer(number, headers, body)


def dialect_of_error(body: dict[str, Any]) -> str:
    """The dialect in which an error is told; that of responses is OpenAI's."""
    if isinstance(body["error"], str):
        return "ollama"
    if body.get("type") == "error":
        return "anthropic"
    return "ggml" if isinstance(body["error"].get("code"), int) else "openai"


def error_problem(answer: Answer, request: Request) -> str | None:
    """What is wrong with a 4xx: its body must be of the dialect of its route, and say nothing of the server's inside."""
    try:
        body: Any = json.loads(answer.body)
        error = body["error"]
        message = error if isinstance(error, str) else error["message"]
    except (ValueError, TypeError, KeyError):
        return f"{answer.status} without an error: {answer.body[:300]!r}"
    dialect = dialect_of_error(body)
    if dialect == "ollama":
        is_known = set(body) == {"error"}
    elif dialect == "ggml":
        kind = (answer.status, error["type"])
        is_known = set(error) == {"code", "message", "type"} and (kind in CATALOGUE.values() or kind == (400, GGML_TOO_LONG))
    elif dialect == "anthropic":
        is_known = {"type", "message"} <= set(error) <= {"type", "message", "details"} and error["type"] == anthropic_type(answer.status)
    else:
        is_known = set(error) == {"message", "type", "param", "code"} and CATALOGUE.get(error["code"]) == (answer.status, error["type"])
    if not is_known or not message or len(message) > 2_000:
        return f"{answer.status} with another body than the catalogue's: {answer.body[:300]!r}"
    expected = request.row and ("openai" if request.row.dialect == "responses" else request.row.dialect)
    if expected is not None and answer.status not in (404, 405) and dialect != expected:
        return f"{answer.status} in the dialect {dialect}, where the route's is {expected}: {answer.body[:200]!r}"
    if any(word in message for word in UNTOLD):
        return f"says what is inside: {message!r}"
    return None


def lines_problem(body: bytes) -> str | None:
    """What is wrong with a whole stream of lines: each is JSON, and the last ends it."""
    lines = [json.loads(line) for line in body.split(b"\n") if line.strip()]
    if any("the server failed" in str(line.get("error")) for line in lines):
        return f"a stream failed: {body[-500:]!r}"
    is_whole = bool(lines) and (lines[-1].get("done") is True or "error" in lines[-1] or lines[-1].get("status") == "success")
    return None if is_whole else f"a stream without an end: {body[-300:]!r}"


def stream_problem(body: bytes) -> str | None:
    """What is wrong with a whole stream of events: it must have an end, and no failure of the server."""
    if any(b'"%s"' % each.encode() in body for each in FAILURES):
        return f"a stream failed: {body[-500:]!r}"
    last = body.removesuffix(b"\n\n").rpartition(b"\n\n")[2]
    ends = (b"data: [DONE]", b"event: message_stop", b"event: error", *(b"event: response." + each for each in ENDS))
    is_whole = last.startswith(ends) or b'"stop":true' in last or last.startswith((b'data: {"error"', b"data: {}"))
    return None if body.endswith(b"\n\n") and is_whole else f"a stream without its end: {body[-200:]!r}"


@dataclass(frozen=True, slots=True)
class Held:
    """What a server at rest holds."""

    engine: int
    files: tuple[int, int]
    blocks: float
    running: float
    waiting: float


def held(server: Any) -> Held:
    """What the processes of the server and of its engine hold, once all requests have ended."""
    pids = (server.process.pid, server.engine_pid())

    def look() -> Held:
        metric = server.metric
        return Held(
            pids[1],
            tuple(len([*Path(f"/proc/{pid}/fd").iterdir()]) for pid in pids),  # type: ignore[arg-type]
            metric("ridgeline_kv_blocks_free") + metric("ridgeline_kv_blocks_cached"),
            metric("vllm:num_requests_running"),
            metric("vllm:num_requests_waiting"),
        )

    found = look()
    for _ in range(40):
        time.sleep(0.05)  # connections that were given up are closed in a moment
        found, before = look(), found
        if found == before and found.running == found.waiting == 0:
            break
    return found


def resident_mb(server: Any) -> tuple[float, float]:
    """Resident memory of the server's and of its engine's process, in MB."""
    pids = (server.process.pid, server.engine_pid())
    return tuple(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4_096 / 1e6 for pid in pids)  # type: ignore[return-value]
