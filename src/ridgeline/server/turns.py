"""Turns at what only one request can use at a time: clients by turns, the requests of one client in order.

Owns who is next. A client that asks for much at once waits for itself: another's next request is behind one of its requests, not all.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ridgeline.errors import OverloadedError


class Turns:
    """A queue of requests, by client."""

    def __init__(self, what: str, most: int, seconds: float) -> None:
        """what: that they wait for, in an error. most: may wait of one client, and four times as many of all. seconds: each may wait."""
        self._what, self._most, self._seconds = what, most, seconds
        self._is_taken = False
        self._waiting: OrderedDict[bytes, deque[asyncio.Future[None]]] = OrderedDict()
        """Requests of each client that has some, in the order of the clients' turns."""

    @asynccontextmanager
    async def turn(self, client: bytes) -> AsyncIterator[None]:
        """Waits for the turn, which ends with the context. Raises OverloadedError where too many wait, or it takes too long."""
        if self._is_taken:
            await self._wait(client)
        self._is_taken = True
        try:
            yield
        finally:
            self._next()

    async def _wait(self, client: bytes) -> None:
        own, all_waiting = len(self._waiting.get(client, ())), sum(map(len, self._waiting.values()))
        if own >= self._most or all_waiting >= 4 * self._most:
            raise OverloadedError(f"{own or all_waiting} requests wait for {self._what} already; try again", 1)
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(mine)
        try:
            async with asyncio.timeout(self._seconds):
                await mine
        except BaseException as error:
            if mine.done() and not mine.cancelled():
                self._next()  # it came while this request was given up
            else:
                self._remove(client, mine)
            if isinstance(error, TimeoutError):
                raise OverloadedError(f"others have kept {self._what} busy for {self._seconds:g} s: try again", 1) from None
            raise

    def _remove(self, client: bytes, mine: "asyncio.Future[None]") -> None:
        queue = self._waiting[client]
        queue.remove(mine)
        if not queue:
            del self._waiting[client]

    def _next(self) -> None:
        """Gives the turn to the next client, or to nobody."""
        self._is_taken = bool(self._waiting)
        if self._waiting:
            client, queue = self._waiting.popitem(last=False)
            queue.popleft().set_result(None)
            if queue:
                self._waiting[client] = queue
