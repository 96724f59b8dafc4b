"""A client's connection to the router: requests that go the short way (`short_way`), and the server's own way for all others.

A request whose head and body are read here, and that is then taken the long way, is read once more by the server's parser, as it came.
"""

from collections.abc import Callable
from typing import Any

from ridgeline.router.proxy import CHOSEN_KEY, Chosen
from ridgeline.router.short_way import Head, Passing, ShortWay
from ridgeline.server.connection import BODY_TIMEOUT_SECONDS, IDLE_TIMEOUT_SECONDS, HttpConnection


class Front(HttpConnection):
    """One accepted connection of a client."""

    def __init__(self, way: ShortWay, *arguments: Any) -> None:
        """`arguments`: of `HttpConnection`."""
        super().__init__(*arguments)
        self._way = way
        self._head: Head | None = None
        """A request whose body, from byte `_begin` on, has yet to come, `_missing` bytes of it; `_held`: what has come."""
        self._held: list[bytes] = []
        self._begin = self._missing = 0
        self._passing: Passing | None = None
        self._next: list[bytes] = []
        """Bytes that the client has sent behind the request that is passed on."""
        self._chosen: Chosen | None = None

    # ── events of the transport ─────────────────────────────────────────────────────────────────────────────────────

    def data_received(self, data: bytes) -> None:
        if self._passing is not None:
            self._next.append(data)
            self.flow.pause_reading()
            return
        if self._head is None:
            is_free = (self.cycle is None or self.cycle.response_complete) and not (self._in_head or self._in_body or self.pipeline)
            read = self._way.read(data) if is_free and not self._is_crowded else None
            if read is None:
                super().data_received(data)
                return
            self._head, self._begin, self._missing = read
            if len(data) < self._missing:
                self._table.await_client(self, BODY_TIMEOUT_SECONDS)
        self._held.append(data)
        self._missing -= len(data)
        if self._missing > 0:
            return
        if self._missing < 0:  # another request behind it
            self._go_long_way()
            return
        head, request = self._head, data if len(self._held) == 1 else b"".join(self._held)
        self._head, self._held = None, []
        self._passing = self._way.begin(self, head, self._begin, request)
        if self._passing is not None:
            self._table.await_server(self)

    def _go_long_way(self) -> None:
        """Gives what is held to the server's parser."""
        held, self._head, self._held = self._held, None, []
        for each in held:
            super().data_received(each)

    def connection_lost(self, exc: Exception | None) -> None:
        passing, self._passing = self._passing, None
        self._held, self._next = [], []
        super().connection_lost(exc)
        if passing is not None:
            passing.client_has_gone()

    def eof_received(self) -> bool:  # type: ignore[override]
        passing = self._passing
        if passing is None:
            self._go_long_way()
            return super().eof_received()
        if passing.has_begun or self.scheme == "https":
            return False
        passing.is_last = True
        self._probe(0)
        return True

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._passing is not None:
            self._passing.heard()

    def time_out(self) -> None:
        self._go_long_way()
        super().time_out()

    def shutdown(self) -> None:
        """The server ends: an answer under way is the last one."""
        if self._passing is not None:
            self._passing.is_last = True
        else:
            super().shutdown()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._chosen is not None:
            self.scope[CHOSEN_KEY], self._chosen = self._chosen, None  # type: ignore[typeddict-unknown-key]

    def _end_stall(self) -> None:
        super()._end_stall()
        if self._passing is not None and self.transport.is_closing():
            self._passing.access.error = "client_too_slow"

    @property
    def _has_begun(self) -> bool:
        return super()._has_begun if self._passing is None else self._passing.has_begun

    @property
    def _is_answered(self) -> bool:
        return self._passing is None and super()._is_answered

    # ── for the request that is passed on ───────────────────────────────────────────────────────────────────────────

    @property
    def is_paused(self) -> bool:
        """True while the client does not read."""
        return bool(self.flow.write_paused)

    async def until_read(self) -> None:
        """Waits for the client to read."""
        if self.flow.write_paused:
            await self.flow.drain()

    def take_long_way(self, request: bytes, chosen: Chosen | None) -> None:
        """Takes the request from the short way, which has sent nothing of an answer."""
        self._passing, self._chosen = None, chosen
        self._table.await_server(self)
        super().data_received(request)
        self._read_next(super().data_received)

    def has_passed(self, is_whole: bool) -> None:
        """The answer has ended; `is_whole`: so that the client knows, and it was not the last one."""
        self._passing = None
        if not is_whole:
            self.transport.close()
        elif not self.transport.is_closing():
            if not self.is_paused:
                self._table.await_client(self, IDLE_TIMEOUT_SECONDS)
            self._read_next(self.data_received)

    def _read_next(self, read: Callable[[bytes], None]) -> None:
        if self._next:
            following, self._next = self._next, []
            self.flow.resume_reading()
            read(b"".join(following))
