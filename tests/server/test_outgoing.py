"""Writes of one turn of the loop leave as one, in order, and never behind the end of a connection."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from ridgeline.server.transport import FLUSH_BYTES, Outgoing


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


def played(*turns: Callable[[Outgoing, Transport], Any]) -> list[bytes | None]:
    async def run() -> list[bytes | None]:
        transport = Transport()
        outgoing = Outgoing(cast(asyncio.Transport, transport), asyncio.get_running_loop())
        for turn in turns:
            turn(outgoing, transport)
            await asyncio.sleep(0)
        return transport.written

    return asyncio.run(run())


def test_a_turn_is_one_write() -> None:
    def two(outgoing: Outgoing, transport: Transport) -> None:
        outgoing.write(b"a")
        outgoing.write(b"b")
        assert transport.written == []

    assert played(two, lambda outgoing, _: outgoing.write(b"c")) == [b"ab", b"c"]


def test_the_end_comes_behind_what_was_written() -> None:
    def end(outgoing: Outgoing, transport: Transport) -> None:
        outgoing.write(b"a")
        outgoing.close()

    assert played(end) == [b"a", None]


def test_what_is_much_does_not_wait() -> None:
    def much(outgoing: Outgoing, transport: Transport) -> None:
        outgoing.write(b"a")
        outgoing.write(bytes(FLUSH_BYTES))
        assert len(transport.written) == 1
        outgoing.write(b"b")

    assert played(much) == [b"a" + bytes(FLUSH_BYTES), b"b"]


def test_nothing_is_written_to_a_connection_that_was_lost() -> None:
    def lost(outgoing: Outgoing, transport: Transport) -> None:
        outgoing.write(b"a")
        transport.closing = True

    assert played(lost) == []


def test_all_else_is_the_transports() -> None:
    found = []
    played(lambda outgoing, _: found.append(outgoing.get_extra_info("peername")))
    assert found == ["peername"]
