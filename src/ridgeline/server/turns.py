"""Turns at what only one request can use at a time: clients by turns, the requests of one client in order.

Owns who is next, and when who is refused should come again. A client that asks for much at once waits for itself: another's next request
is behind one of its requests, not all. What would wait too long, as turns take, is refused when it comes.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ridgeline.errors import OverloadedError
from ridgeline.server.promises import Promises, TurnTime


class Turns:
    """A queue of requests, by client."""

    def __init__(self, what: str, most: int, seconds: float) -> None:
        """what: that they wait for, in an error. most: may wait of one client, and four times as many of all. seconds: each may wait."""
        self._what, self._most, self._seconds = what, most, seconds
        self._is_taken = False
        self._waiting: OrderedDict[bytes, deque[asyncio.Future[None]]] = OrderedDict()
        """Requests of each client that has some, in the order of the clients' turns."""
        self._turn = TurnTime()
        self._promises = Promises()

    @asynccontextmanager
    async def turn(self, client: bytes) -> AsyncIterator[None]:
        """Waits for the turn, which ends with the context. Raises OverloadedError where too many wait, it takes too long, or the work says
        so itself."""
        if self._is_taken:
            await self._wait(client)
        self._is_taken = True
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            yield
        except OverloadedError as error:  # what has the work done knows nothing of those who wait here
            told = self._overloaded(client, str(error)).retry_after_seconds
            raise OverloadedError(str(error), max(error.retry_after_seconds, told)) from None
        finally:
            self._turn.add(clock() - began)
            self._next()

    async def _wait(self, client: bytes) -> None:
        own, all_waiting = len(self._waiting.get(client, ())), sum(map(len, self._waiting.values()))
        if own >= self._most or all_waiting >= 4 * self._most:
            raise self._overloaded(client, f"{own or all_waiting} requests wait for {self._what} already")
        if (wait := self._expected_wait(client)) > self._seconds:
            raise self._overloaded(client, f"this request would wait {wait:.1f} s for {self._what}, {self._seconds:g} s at most")
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
                raise self._overloaded(client, f"others have kept {self._what} busy for {self._seconds:g} s") from None
            raise

    def _expected_wait(self, client: bytes) -> float:
        """Seconds until those have had their turns who are before a new request of the client."""
        own = len(self._waiting.get(client, ()))
        before = sum(min(len(each), own + 1) for other, each in self._waiting.items() if other != client)
        return (own + before + 1) * self._turn.seconds

    def _overloaded(self, client: bytes, problem: str) -> OverloadedError:
        wait, now = self._expected_wait(client), asyncio.get_running_loop().time()
        return OverloadedError(f"{problem}; try again", self._promises.retry_after("", wait, self._turn.seconds, now))

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
