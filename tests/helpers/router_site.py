"""A router in the test's own process, in front of replicas that say what a test wants."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

from ridgeline.config.groups import ServerConfig
from ridgeline.core.routing import ROUTING
from ridgeline.router.attempts import Hedge
from ridgeline.router.front import Front
from ridgeline.router.metrics import RouterMetrics
from ridgeline.router.prompts import NO_SESSIONS
from ridgeline.router.proxy import Proxy
from ridgeline.router.replicas import Replicas
from ridgeline.router.roster import Named
from ridgeline.router.short_way import ShortWay
from ridgeline.server.access import AccessLog
from ridgeline.server.app import ErrorHandler
from ridgeline.server.auth import AccessGuard
from ridgeline.server.http_server import HttpServer, listening_socket
from ridgeline.server.keys import ApiKeys
from ridgeline.server.listener import Connections
from ridgeline.server.tls import Certificate

BODY = b'{"prompt": "a", "max_tokens": 1}'
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-own: 1\r\ncontent-length: 3\r\n\r\nabc"
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENTS = STREAM + b"6\r\ndata:\n\r\n3\r\nx\n\n\r\n0\r\n\r\n"
BUSY = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nbusy"
OWN = re.compile(rb"(date: [^\r]*|x-request-id: [0-9a-f]{32})\r\n")


def request(body: bytes = BODY, more: bytes = b"", path: bytes = b"/v1/completions") -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n%b\r\n%b" % (path, len(body), more, body)


class Site:
    """A router in front of replicas that answer POST with what `answers` says next, b"" being the end of the connection. `heard`: requests;
    `opened`: connections on which they have been answered."""

    def __init__(self, port: int, way: ShortWay, replicas: Replicas, heard: list[bytes], opened: list[asyncio.StreamWriter]) -> None:
        self.port, self.way, self.replicas, self.heard, self.opened = port, way, replicas, heard, opened

    def finish(self) -> None:
        """Ends the last answer, in chunks."""
        self.opened[-1].write(b"0\r\n\r\n")

    async def talk(self, *parts: bytes, ends: bytes = b"") -> bytes:
        """What the router answers to these parts, each sent by itself, until it has said `ends` or closes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.01)
        found = b""
        while part := await asyncio.wait_for(reader.read(1 << 16), 10):
            found += part
            if ends and found.endswith(ends):
                break
        writer.close()
        return OWN.sub(b"", found)


@asynccontextmanager
async def site(*answers: bytes, replicas: int = 1, key: bytes | None = None, pauses: Sequence[float] = ()) -> AsyncIterator[Site]:
    """`pauses`: of each replica, in seconds between events."""
    left, heard, opened = list(answers), list[bytes](), list[asyncio.StreamWriter]()

    async def serve(pause: float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"GET"):
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok\n")
                    continue
                found = re.search(rb"content-length: (\d+)", head)
                assert found is not None
                heard.append(head + await reader.readexactly(int(found[1])))
                if not (answer := left.pop(0)):
                    break
                *first, last = re.findall(rb".*?\n\n\r\n|.+", answer, re.DOTALL) if pause else [answer]
                for part in first:
                    writer.write(part)
                    await asyncio.sleep(pause)
                writer.write(last)
                opened.append(writer)
                if answer.endswith(b"CUT"):
                    break
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    servers = [await asyncio.start_server(partial(serve, each), "127.0.0.1", 0) for each in pauses or [0.0] * replicas]
    named = [Named(f"http://127.0.0.1:{each.sockets[0].getsockname()[1]}") for each in servers]
    of, metrics, hedge = Replicas(named, ROUTING["least-requests"], seed=1), RouterMetrics(), Hedge(None)
    proxy = Proxy(of, metrics, key)
    guard = AccessGuard(proxy, "127.0.0.1", ApiKeys(), frozenset())
    way = ShortWay(proxy, guard, of, metrics, key, NO_SESSIONS, hedge)
    for each in of.all:
        await each.check()  # one connection to each is open and idle
    with listening_socket("127.0.0.1", 0) as listener:
        app = AccessLog(ErrorHandler(guard), lambda *_: None)
        server = HttpServer(app, Certificate(ServerConfig()), Connections(64, 64, 1.0), partial(Front, way))
        serving = asyncio.create_task(server.serve([listener]))
        while not server.started:
            await asyncio.sleep(0.01)
        try:
            yield Site(listener.getsockname()[1], way, of, heard, opened)
            assert of.open_requests == 0 and not way.tasks
        finally:
            server.should_exit = True
            await serving
            of.close()
            for each in servers:
                each.close()


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(work(), 30)

    asyncio.run(bounded())
