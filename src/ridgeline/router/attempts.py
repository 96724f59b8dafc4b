"""Attempts at a request: an exchange with one replica up to the beginning of its answer, and a second one beside it that may be faster.

A request that another replica may take as well, as nothing of an answer has been sent, ends in `Elsewhere`.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from starlette.types import Scope

from ridgeline.errors import ConfigError
from ridgeline.router.journal import Journal
from ridgeline.router.metrics import RouterMetrics
from ridgeline.router.replicas import Replica, Turn
from ridgeline.router.upstream import Connection, Headers, UpstreamError
from ridgeline.server.access import ACCESS_KEY
from ridgeline.server.routers import PREFIX_HEADER
from ridgeline.server.routes import Row

MOST_ERROR_BYTES: Final = 1 << 16
ELSEWHERE: Final = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
"""Statuses of a replica that takes nothing now, where another may."""
REWRITTEN: Final = (b"x-request-id", b"request-id", b"date", PREFIX_HEADER.encode())
"""Headers of a replica's answer that the router's own takes the place of, and one that is for the router alone."""
OWN_LIMITS: Final = (b"rate_limit_exceeded", b"insufficient_quota")
"""Codes of a 429 that is about the key and not about the replica."""
UNKNOWN: Final = (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND)
STORED_PATH: Final = "/v1/responses"
UNKNOWN_CODES: Final = (b'"previous_response_not_found"', b'"not_found"')
"""Statuses, paths and codes of a replica that has not the stored answer that a request names."""
LEAST_SAMPLES: Final = 50
"""First bytes by which a percentile is known."""
MOST_SAMPLES: Final = 1_000
SAMPLES_PER_LOOK: Final = 20
LEAST_PERCENTILE, MOST_PERCENTILE = 50.0, 99.9


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer of a replica."""

    status: int
    headers: Headers
    body: bytes


class Elsewhere(Exception):
    """The replica does not take this request now, and nothing has been sent of an answer. `answer` is the replica's, if it gave one;
    `was_sent`: it may have begun with it; `is_unknown`: it has not the stored answer that the request names."""

    def __init__(self, answer: Answer | None = None, *, was_sent: bool = True, is_unknown: bool = False) -> None:
        super().__init__()
        self.answer, self.was_sent, self.is_unknown = answer, was_sent, is_unknown


class Broken(Exception):
    """The replica has ended in the middle of its answer, of which this much has been sent."""

    def __init__(self, begun: "Begun", journal: Journal) -> None:
        super().__init__()
        self.replica = begun.replica
        self.headers = begun.connection.headers
        self.journal = journal


@dataclass(slots=True)
class Begun:
    """An answer that has begun. `first`: what has come of its body, where that was waited for."""

    replica: Replica
    turn: Turn
    connection: Connection
    status: int
    first: bytes = b""


class Attempts:
    """Begins answers, and counts them."""

    def __init__(self, metrics: RouterMetrics) -> None:
        self._metrics = metrics

    async def begin(
        self, scope: Scope, replica: Replica, body: bytes, turn: Turn, more: Headers, asked: Connection | None = None
    ) -> Begun:  # fmt: skip
        """Sends the request, with the headers `more`, and returns with the beginning of the answer. `asked`: a connection on which it has
        been sent. Raises Elsewhere, also where the replica says that it takes nothing now.

        A kept connection that the replica has just closed says nothing about the replica: a fresh one is tried.
        """
        target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        own = [(b"x-request-id", scope[ACCESS_KEY].request_id), *more]
        request = replica.upstream.request(scope["method"], target, scope["headers"], body, own)
        is_fresh = was_sent = False
        while True:
            connection, asked = asked, None
            try:
                if connection is None:
                    connection = await replica.upstream.connect(is_fresh)
                    status = await connection.send(request, scope["method"] == "HEAD")
                else:
                    status = await connection.head()
                begun = Begun(replica, turn, connection, status)
                self._metrics.answers(replica.upstream.url, f"{begun.status // 100}xx").inc()
                if begun.status in ELSEWHERE:
                    await self._hear_refusal(begun)
                elif begun.status in UNKNOWN and scope["path"].startswith(STORED_PATH) and not replica.shares_responses:
                    await self._hear_unknown(begun)
                return begun
            except UpstreamError:
                if connection is not None:
                    was_sent = True
                    replica.upstream.release(connection)
                    if connection.was_used and not is_fresh:
                        is_fresh = True
                        continue
                turn.judge(is_good=False)
                replica.note_silence()
                raise Elsewhere(was_sent=was_sent) from None
            except Elsewhere:
                assert connection is not None
                replica.upstream.release(connection)
                raise
            except BaseException:  # the client has gone, or another replica was faster
                if connection is not None:
                    connection.close()
                    replica.upstream.release(connection)
                raise

    async def _hear_refusal(self, begun: Begun) -> None:
        """Reads an answer of 429 or 503. Raises Elsewhere unless it is about the key and not about the replica."""
        answer = await _read(begun)
        if answer.status == HTTPStatus.SERVICE_UNAVAILABLE or not any(code in answer.body for code in OWN_LIMITS):
            begun.turn.judge(is_good=answer.status == HTTPStatus.TOO_MANY_REQUESTS)
            raise Elsewhere(answer)
        begun.first = answer.body

    async def _hear_unknown(self, begun: Begun) -> None:
        """Reads an answer of 400 or 404. Raises Elsewhere where it says that this replica has not the stored answer that is named."""
        answer = await _read(begun)
        if any(code in answer.body for code in UNKNOWN_CODES):
            begun.turn.judge(is_good=True)
            raise Elsewhere(answer, is_unknown=True)
        begun.first = answer.body

    async def begin_body(self, scope: Scope, replica: Replica, body: bytes, turn: Turn, more: Headers) -> Begun:
        """The same, with the first bytes of the body. Raises Elsewhere also where there are none."""
        begun = await self.begin(scope, replica, body, turn, more)
        try:
            begun.first = begun.first or await begun.connection.read()
        except UpstreamError:
            drop(begun)
            turn.judge(is_good=False)
            replica.note_failure()
            raise Elsewhere from None
        except BaseException:
            drop(begun)
            raise
        return begun


def drop(begun: Begun) -> None:
    """Ends an answer that nobody reads: its replica stops."""
    begun.connection.close()
    begun.replica.upstream.release(begun.connection)


class Hedge:
    """The rule by which a request gets a second replica: behind a percentile of the seconds that first bytes took lately.

    delay  in seconds; None while no request is hedged
    """

    def __init__(self, percentile: float | None) -> None:
        """`percentile`: None: never. Raises ConfigError."""
        if percentile is not None and not LEAST_PERCENTILE <= percentile <= MOST_PERCENTILE:
            message = f"--hedge-percentile {percentile:g} is outside {LEAST_PERCENTILE:g} … {MOST_PERCENTILE}"
            raise ConfigError(message, fix={"--hedge-percentile": "95"})
        self._share = None if percentile is None else percentile / 100
        self._seconds: deque[float] = deque(maxlen=MOST_SAMPLES)
        self._noted = 0
        self.delay: float | None = None

    def note(self, seconds: float) -> None:
        """A first byte took so long."""
        if self._share is None:
            return
        self._seconds.append(seconds)
        self._noted += 1
        if self._noted >= LEAST_SAMPLES and self._noted % SAMPLES_PER_LOOK == 0:
            self.delay = sorted(self._seconds)[int(self._share * len(self._seconds))]

    def takes(self, method: str, row: Row | None, bound_to: bytes) -> bool:
        """True for a request of which a second copy changes nothing: it reads, or generates and is not stored."""
        if self.delay is None or bound_to:
            return False
        return method in ("GET", "HEAD") or (row is not None and row.is_queued and not row.path.startswith("/v1/responses"))


async def race(first: "asyncio.Task[Begun]", delay: float, second: Callable[[], "asyncio.Task[Begun] | None"]) -> Begun:
    """The answer that begins first, where `second` begins one behind the delay, or none. The other is ended. Raises what the last one did
    where none begins."""
    tasks = {first}
    try:
        done, _ = await asyncio.wait(tasks, timeout=delay)
        if not done and (other := second()) is not None:
            tasks.add(other)
        while True:
            done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            begun = next((each for each in done if each.exception() is None), None)
            if begun is not None or not waiting:
                break
            tasks = set(waiting)
        winner = begun or next(iter(done))
        tasks.discard(winner)
        return winner.result()
    finally:
        for each in tasks:
            each.cancel()
        for found in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(found, Begun):
                drop(found)


async def _read(begun: Begun) -> Answer:
    headers = [each for each in begun.connection.headers if each[0] not in REWRITTEN]
    return Answer(begun.status, headers, await whole(begun.connection))


async def whole(connection: Connection) -> bytes:
    """The body of an error."""
    body = b""
    while len(body) < MOST_ERROR_BYTES and (part := await connection.read()):
        body += part
    return body
