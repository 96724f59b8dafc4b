"""One HTTP exchange with clients that are slow, or disconnect at any time."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Generator
from typing import Any

import pytest
from starlette.requests import Request

from ridgeline.server import transport
from ridgeline.server.errors import ApiError
from ridgeline.server.transport import Disconnected, EventStream, read_body, unless_disconnected

SCOPE: dict[str, Any] = {"type": "http", "method": "POST", "path": "/", "headers": [], transport.BODY_LIMIT_KEY: 1 << 20}


async def never() -> Any:
    await asyncio.Event().wait()


async def gone() -> Any:
    return {"type": "http.disconnect"}


class Events:
    """Ten events; remembers whether they were closed and whether the stream called `close`."""

    def __init__(self, error: Exception | None = None) -> None:
        self.closed = 0
        self.error = error

    async def events(self) -> AsyncGenerator[bytes, None]:
        for number in range(10):
            yield b"%d" % number
            if self.error and number == 3:
                raise self.error

    def close(self) -> None:
        self.closed += 1


def written(events: Events) -> bytes:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(EventStream(events.events(), events.close)(SCOPE, never, send))
    assert [message["more_body"] for message in sent[1:]] == [True] * (len(sent) - 2) + [False]
    assert events.closed == 1
    return b"".join(message["body"] for message in sent[1:])


def test_the_grammar_of_a_stream() -> None:
    assert written(Events()) == b"".join(b"data: %d\n\n" % number for number in range(10)) + b"data: [DONE]\n\n"


def test_silence_becomes_a_comment() -> None:
    class Pauses(Events):
        async def events(self) -> AsyncGenerator[bytes, None]:
            for event in (b"{}", transport.KEEP_ALIVE, transport.KEEP_ALIVE, b"{}"):
                yield event

    assert written(Pauses()) == b"data: {}\n\n: keep-alive\n\n: keep-alive\n\ndata: {}\n\ndata: [DONE]\n\n"


def test_an_error_is_an_event_and_the_last() -> None:
    """It is raised behind them, so that the layers around the endpoint know of it."""
    sent: list[bytes] = []

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    events = Events(ApiError("engine_failed", "so it is"))
    with pytest.raises(ApiError, match="so it is"):
        asyncio.run(EventStream(events.events(), events.close)(SCOPE, never, send))
    lines = b"".join(sent).decode().split("\n\n")
    assert events.closed == 1
    assert lines[3] == "data: 3" and '"message":"so it is"' in lines[4] and lines[5:] == ["data: [DONE]", ""]


def test_bodies_take_the_shortest_way_to_the_server() -> None:
    """Layers around `send` get only the start of an answer."""
    begun: list[Any] = []
    bodies: list[Any] = []

    async def send(message: Any) -> None:
        begun.append(message["type"])

    async def send_body(message: Any) -> None:
        bodies.append(message["body"])

    events = Events()
    asyncio.run(EventStream(events.events(), events.close)({**SCOPE, transport.BODY_SEND_KEY: send_body}, never, send))
    assert begun == ["http.response.start"] and len(bodies) == 11 and bodies[-1] == transport.DONE


def test_an_event_wakes_no_layer_around_the_endpoint() -> None:
    """Each of a dozen would be resumed for every token."""
    resumed = 0

    class Layer:
        def __init__(self, work: Coroutine[Any, Any, None]) -> None:
            self._work = work

        def __await__(self) -> Generator[Any, Any, None]:
            nonlocal resumed
            for waited in self._work.__await__():
                resumed += 1
                yield waited

    class Waits(Events):
        async def events(self) -> AsyncGenerator[bytes, None]:
            for number in range(100):
                await asyncio.sleep(0)
                yield b"%d" % number

    async def send(message: Any) -> None:
        pass

    async def around() -> None:
        events = Waits()
        await Layer(EventStream(events.events(), events.close)(SCOPE, never, send))

    asyncio.run(around())
    assert resumed < 5


def test_a_client_that_has_gone_before_the_stream_began() -> None:
    events = Events()

    async def send(message: Any) -> None:
        await asyncio.sleep(0)

    async def run() -> None:
        left = asyncio.get_running_loop().create_future()
        left.set_result(None)
        await EventStream(events.events(), events.close)({**SCOPE, transport.GONE_KEY: left}, never, send)

    with pytest.raises(Disconnected):
        asyncio.run(run())
    assert events.closed == 1


def test_work_ends_when_the_client_goes() -> None:
    ended = []

    async def work() -> None:
        try:
            await never()
        finally:
            ended.append(True)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        scope = {transport.GONE_KEY: loop.create_future()}
        loop.call_later(0.05, scope[transport.GONE_KEY].set_result, None)
        with pytest.raises(Disconnected):
            await unless_disconnected(scope, work())

    asyncio.run(run())
    assert ended == [True]


def test_a_client_that_goes_when_the_work_is_done_ends_nothing_else() -> None:
    async def run() -> bool:
        scope = {transport.GONE_KEY: asyncio.get_running_loop().create_future()}

        async def work() -> bool:
            scope[transport.GONE_KEY].set_result(None)
            return True

        done = await unless_disconnected(scope, work())
        await asyncio.sleep(0)
        return done

    assert asyncio.run(run())


def test_a_body_that_does_not_come() -> None:
    with pytest.raises(Disconnected):
        asyncio.run(read_body(Request(SCOPE, gone)))


def test_the_grammar_of_anthropic() -> None:
    async def events() -> AsyncGenerator[bytes, None]:
        yield b'a\ndata: {"type":"a"}'
        yield transport.KEEP_ALIVE
        raise ApiError("engine_failed", "why")

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    with pytest.raises(ApiError):
        asyncio.run(EventStream(events(), lambda: None, transport.ANTHROPIC_EVENTS)(SCOPE, never, send))
    assert b"".join(message.get("body", b"") for message in sent) == (
        b'event: a\ndata: {"type":"a"}\n\nevent: ping\ndata: {"type":"ping"}\n\n'
        b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"why"}}\n\n'
    )
    assert sent[-1]["more_body"] is False


@pytest.mark.parametrize("declared", [str((16 << 20) + 1), "9" * 400])
def test_a_declared_length_is_refused_before_anything_is_read(declared: str) -> None:
    scope = {**SCOPE, "headers": [(b"content-length", declared.encode())]}
    with pytest.raises(ApiError) as large:
        asyncio.run(read_body(Request(scope, never)))
    assert large.value.status == 413


def test_events_that_a_client_has_hold_up_no_others() -> None:
    class Old:
        def mark(self, event: bytes) -> bytes:
            return b""

    async def run() -> int:
        stream, turns = EventStream(Events().events(), lambda: None), 0
        stream.relay = Old()

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(others())
        await stream(SCOPE, never, _nothing)
        task.cancel()
        return turns

    assert asyncio.run(run()) >= 10


async def _nothing(message: Any) -> None:
    pass
