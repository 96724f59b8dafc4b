"""A connection's deadlines, over a pair of sockets; `tests/e2e/test_readers.py` has whole servers."""

import asyncio
import socket
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from ridgeline.server.connection import HttpConnection
from ridgeline.server.transport import Writes

REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


class Table:
    """Remembers the deadline: None while the client may take its time."""

    seconds: float | None = None
    send_timeout = 7.5
    writes = Writes()

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


def test_further_requests_give_no_more_time_to_read_the_answer() -> None:
    async def play() -> tuple[int, float | None]:
        config = uvicorn.Config(endless, ws="none", lifespan="off", log_config=None, access_log=False)
        config.load()
        ours, theirs = socket.socketpair()
        table, state = Table(), ServerState()
        connection = HttpConnection(config, state, {}, table, ours, b"a", False)
        await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, ours)
        async with asyncio.timeout(5):
            theirs.sendall(REQUEST)
            while connection.flow is None or not connection.flow.write_paused:
                await asyncio.sleep(0)
            theirs.sendall(REQUEST)
            while not connection.pipeline:
                await asyncio.sleep(0)
        waiting, seconds = len(connection.pipeline), table.seconds
        for task in state.tasks:
            task.cancel()
        connection.drop()
        theirs.close()
        await asyncio.sleep(0)
        return waiting, seconds

    assert asyncio.run(play()) == (1, 7.5)
