"""A connection's deadlines, over a pair of sockets; `tests/e2e/test_readers.py` has whole servers."""

import asyncio
import socket
from typing import Any

import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from uvicorn.server import ServerState

from ridgeline.server.connection import BODY_TIMEOUT_SECONDS, HttpConnection
from ridgeline.server.transport import BODY_LIMIT_KEY, GONE_KEY, Writes, read_body

REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s"


class Table:
    """Remembers the deadline: None while the client may take its time."""

    seconds: float | None = None
    send_timeout = 7.5

    def __init__(self) -> None:
        self.writes = Writes()

    def await_client(self, connection: HttpConnection, seconds: float) -> None:
        self.seconds = seconds

    def await_server(self, connection: HttpConnection) -> None:
        self.seconds = None

    def remove(self, connection: HttpConnection) -> None:
        pass


async def endless(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while True:
        await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})


class Connected:
    """A connection to an application, and its client's end."""

    def __init__(self, app: Any) -> None:
        config = uvicorn.Config(app, ws="none", lifespan="off", log_config=None, access_log=False)
        config.load()
        self.ours, self.theirs = socket.socketpair()
        self.theirs.setblocking(False)
        self.table, self.state = Table(), ServerState()
        self.connection = HttpConnection(config, self.state, {}, self.table, self.ours, b"a", False)

    async def __aenter__(self) -> "Connected":
        await asyncio.get_running_loop().connect_accepted_socket(lambda: self.connection, self.ours)
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self.state.tasks:
            task.cancel()
        self.connection.drop()
        self.theirs.close()
        await asyncio.sleep(0)

    async def read(self) -> bytes:
        """Some bytes of an answer."""
        async with asyncio.timeout(5):
            return await asyncio.get_running_loop().sock_recv(self.theirs, 1 << 16)


async def length(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the number of bytes of the body."""
    body = await read_body(Request({**scope, BODY_LIMIT_KEY: 1 << 20}, receive))
    await Response(str(len(body)))(scope, receive, send)


def test_a_body_has_its_time_from_its_turn_on() -> None:
    async def play() -> tuple[bytes, float | None, bytes]:
        async with Connected(length) as it:
            it.theirs.sendall(POST % (1, b"a") + POST % (2, b"b"))
            first = await it.read()
            seconds = it.table.seconds
            it.connection.time_out()
            return first, seconds, await it.read()

    first, seconds, second = asyncio.run(play())
    assert first.startswith(b"HTTP/1.1 200") and seconds == BODY_TIMEOUT_SECONDS
    assert second.startswith(b"HTTP/1.1 408") and b"client_too_slow" in second


def test_a_client_that_goes_behind_a_long_body_is_noticed() -> None:
    """The server's parser reads nothing more behind 64 KiB of a body."""
    gone = False

    async def waits(scope: Any, receive: Any, send: Any) -> None:
        nonlocal gone
        await read_body(Request({**scope, BODY_LIMIT_KEY: 1 << 20}, receive))
        await scope[GONE_KEY]
        gone = True

    async def play() -> None:
        async with Connected(waits) as it, asyncio.timeout(5):
            await asyncio.get_running_loop().sock_sendall(it.theirs, POST % (300_000, b"x" * 300_000))
            while it.connection._in_body or it.connection._head_bytes:
                await asyncio.sleep(0)
            it.theirs.close()
            while not gone:
                await asyncio.sleep(0.01)

    asyncio.run(play())
    assert gone


def test_further_requests_give_no_more_time_to_read_the_answer() -> None:
    async def play() -> tuple[int, float | None]:
        async with Connected(endless) as it, asyncio.timeout(5):
            it.theirs.sendall(REQUEST)
            while it.connection.flow is None or not it.connection.flow.write_paused:
                await asyncio.sleep(0)
            it.theirs.sendall(REQUEST)
            while not it.connection.pipeline:
                await asyncio.sleep(0)
            return len(it.connection.pipeline), it.table.seconds

    assert asyncio.run(play()) == (1, 7.5)
