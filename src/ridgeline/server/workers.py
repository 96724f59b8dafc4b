"""Threads for work on what clients send, which has a time to be done in, waiting included.

Owns how much waits and how long it should: what would not begin in time is refused when it comes, and told when to come again.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TypeVar

from ridgeline.errors import OverloadedError
from ridgeline.server.promises import Promises, TurnTime

Result = TypeVar("Result")


class Workers:
    """`count` threads. what: those who wait and for what, in an error; seconds: each may take."""

    def __init__(self, name: str, count: int, what: str, seconds: float) -> None:
        self._threads = ThreadPoolExecutor(count, name)
        self._count, self._what, self._seconds = count, what, seconds
        self._lock = Lock()
        """Lock of the two below: threads begin and end work while the event loop gives them more."""
        self._waiting = 0
        self._turn = TurnTime()
        self._promises = Promises()

    async def run(self, work: Callable[[], Result]) -> Result:
        """The result of `work`. Raises OverloadedError where it does not begin in time, could not, or says so itself, and TimeoutError
        where it is not done in time."""
        if self._expected_wait() > self._seconds:
            raise self.overloaded()
        with self._lock:
            self._waiting += 1
        running = self._threads.submit(self._work, work)
        try:
            async with asyncio.timeout(self._seconds):
                return await asyncio.wrap_future(running)
        except TimeoutError:
            if running.cancel():
                raise self.overloaded() from None
            raise
        except OverloadedError as error:  # what its work shares with others knows nothing of those who wait here
            raise OverloadedError(str(error), max(error.retry_after_seconds, self.overloaded().retry_after_seconds)) from None
        finally:
            if running.cancel():  # it had not begun, and never will
                with self._lock:
                    self._waiting -= 1

    def overloaded(self) -> OverloadedError:
        """The error for work that takes too long as others have theirs done."""
        turn = self._turn.seconds / self._count
        seconds = self._promises.retry_after("", self._expected_wait(), turn, time.monotonic())
        return OverloadedError(f"{self._what} longer than {self._seconds:g} s; try again", seconds)

    def _expected_wait(self) -> float:
        return self._waiting * self._turn.seconds / self._count

    def _work(self, work: Callable[[], Result]) -> Result:
        with self._lock:
            self._waiting -= 1
        began = time.monotonic()
        try:
            return work()
        finally:
            with self._lock:
                self._turn.add(time.monotonic() - began)
