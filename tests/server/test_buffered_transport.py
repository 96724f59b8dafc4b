"""Writes of one iteration of the event loop are sent together, in order, and never after a connection's end."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from ridgeline.server.transport import FLUSH_BYTES, BufferedTransport, Writes


class Transport:
    """Remembers what was written, and when the end came."""

    def __init__(self) -> None:
        self.written: list[bytes | None] = []
        self.closing = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True
        self.written.append(None)

    def get_extra_info(self, name: str) -> str:
        return name


def played(*turns: Callable[[BufferedTransport, Transport], Any]) -> list[bytes | None]:
    async def run() -> list[bytes | None]:
        transport = Transport()
        buffered = BufferedTransport(cast(asyncio.Transport, transport), Writes())
        for turn in turns:
            turn(buffered, transport)
            await asyncio.sleep(0)
        return transport.written

    return asyncio.run(run())


def test_a_turn_is_one_write() -> None:
    def two(buffered: BufferedTransport, transport: Transport) -> None:
        buffered.write(b"a")
        buffered.write(b"b")
        assert transport.written == []

    assert played(two, lambda buffered, _: buffered.write(b"c")) == [b"ab", b"c"]


def test_the_end_comes_behind_what_was_written() -> None:
    def end(buffered: BufferedTransport, transport: Transport) -> None:
        buffered.write(b"a")
        buffered.close()

    assert played(end) == [b"a", None]


def test_what_is_much_does_not_wait() -> None:
    def much(buffered: BufferedTransport, transport: Transport) -> None:
        buffered.write(b"a")
        buffered.write(bytes(FLUSH_BYTES))
        assert len(transport.written) == 1
        buffered.write(b"b")

    assert played(much) == [b"a" + bytes(FLUSH_BYTES), b"b"]


def test_nothing_is_written_to_a_connection_that_was_lost() -> None:
    def lost(buffered: BufferedTransport, transport: Transport) -> None:
        buffered.write(b"a")
        transport.closing = True

    assert played(lost) == []


def test_all_else_is_the_transports() -> None:
    found = []
    played(lambda buffered, _: found.append(buffered.get_extra_info("peername")))
    assert found == ["peername"]
