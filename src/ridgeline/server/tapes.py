"""The events of answers in the background, for clients that come back for them: each can be read from any event on, while it grows and
for some time behind its end.

Owns how long events are kept, and how many bytes of them.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator
from typing import Final

from ridgeline.errors import OverloadedError
from ridgeline.server.errors import ApiError
from ridgeline.server.promises import Promises, TurnTime
from ridgeline.server.transport import KEEP_ALIVE

KEPT_SECONDS: Final = 300.0
"""Time behind an answer's end for which its events are kept."""
MAX_BYTES: Final = 8 << 20
"""Bytes of events of one answer: the oldest make room."""
MAX_ALL_BYTES: Final = 64 << 20
"""Those of all answers: those that have ended make room, the owner's first, then the oldest; with so many of answers that go on, no other
begins."""


class Tape:
    """The events of one answer, numbered from 0. `began`: seconds of the event loop's clock."""

    def __init__(self, owner: bytes, began: float) -> None:
        self.owner = owner
        self.began = began
        self._events: list[bytes] = []
        self._gone = 0
        """Events that have made room."""
        self._grown = asyncio.Event()
        self.bytes = 0
        self.is_over = False

    def add(self, event: bytes) -> None:
        """The next event."""
        self._events.append(event)
        self.bytes += len(event)
        if self.bytes > MAX_BYTES:
            half = len(self._events) // 2
            self.bytes -= sum(map(len, self._events[:half]))
            del self._events[:half]
            self._gone += half
        self._wake()

    def end(self) -> None:
        """No more will come."""
        self.is_over = True
        self._wake()

    def _wake(self) -> None:
        grown, self._grown = self._grown, asyncio.Event()
        grown.set()

    async def read(self, start: int, keep_alive_seconds: float) -> AsyncGenerator[bytes, None]:
        """The events from number `start` on, and KEEP_ALIVE where none comes for so long. Raises ApiError for one that is not kept."""
        while True:
            grown, at = self._grown, start - self._gone
            if at < 0:
                raise ApiError("invalid_value", f"events before number {self._gone} are not kept", param="starting_after")
            for event in self._events[at:]:
                start += 1
                yield event
            if self.is_over and start - self._gone >= len(self._events):
                return
            try:
                async with asyncio.timeout(keep_alive_seconds):
                    await grown.wait()
            except TimeoutError:
                yield KEEP_ALIVE


class Tapes:
    """The tapes of all answers, by their ids."""

    def __init__(self) -> None:
        self._tapes: OrderedDict[str, Tape] = OrderedDict()
        self._turn = TurnTime()
        """Order of answers that have ended."""
        self._promises = Promises()

    def check_room(self) -> None:
        """Raises OverloadedError where answers that go on have all the bytes there are, until the next of them should end."""
        live = [tape for tape in self._tapes.values() if not tape.is_over]
        if sum(tape.bytes for tape in live) > MAX_ALL_BYTES:
            message = "the events of answers in the background that go on have no more room; leave stream out, or try again later"
            now = asyncio.get_running_loop().time()
            wait = (self._turn.seconds or now - live[0].began) / len(live)
            raise OverloadedError(message, self._promises.retry_after("", wait, wait, now))

    def begin(self, owner: bytes, response_id: str) -> Tape:
        """A tape for a new answer."""
        size = sum(tape.bytes for tape in self._tapes.values())
        ended = [each for each, tape in self._tapes.items() if tape.is_over]
        for gone in sorted(ended, key=lambda each: self._tapes[each].owner != owner):
            if size <= MAX_ALL_BYTES:
                break
            size -= self._tapes.pop(gone).bytes
        tape = self._tapes[response_id] = Tape(owner, asyncio.get_running_loop().time())
        return tape

    def end(self, response_id: str) -> None:
        """The answer has ended: its tape is kept for a while."""
        if (tape := self._tapes.get(response_id)) is not None:
            tape.end()
            loop = asyncio.get_running_loop()
            self._turn.add(loop.time() - tape.began)
            loop.call_later(KEPT_SECONDS, self.drop, response_id)

    def drop(self, response_id: str) -> None:
        """Forgets a tape, if there is one."""
        self._tapes.pop(response_id, None)

    def find(self, response_id: str) -> Tape:
        """The tape of an answer. Raises ApiError where there is none."""
        found = self._tapes.get(response_id)
        if found is None:
            message = (
                "the events of this answer are not kept: those of an answer made with background and stream are, until "
                f"{KEPT_SECONDS:.0f} s behind its end; leave stream out"
            )
            raise ApiError("unsupported_parameter", message, param="stream")
        return found
