"""Requests that wait for a replica while there is none: a service that is scaled to zero begins with them.

Bounded in number, bytes and time, and none without `--hold-timeout`. Whoever scales replicas reads `ridgeline_router_requests_held`.
"""

import asyncio
from contextlib import suppress
from typing import Final

MOST_HELD: Final = 1_024
MOST_HELD_BYTES: Final = 64 << 20
"""Bytes of their bodies."""


class HoldingRoom:
    """The room where they wait, each for `seconds` at most; 0: nobody does.

    count  of those that wait
    """

    def __init__(self, seconds: float) -> None:
        self.count = 0
        self._seconds = seconds
        self._bytes = 0
        self._waiting: set[asyncio.Future[bool]] = set()
        self._is_wanted = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """True if another request may wait."""
        return self._seconds > 0 and self.count < MOST_HELD

    async def wait(self, size: int) -> bool:
        """Waits for a replica with a request of so many bytes; False where it cannot wait, or has waited in vain."""
        if not self.is_open or self._bytes + size > MOST_HELD_BYTES:
            return False
        waiting: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        self.count += 1
        self._bytes += size
        self._is_wanted.set()
        try:
            async with asyncio.timeout(self._seconds):
                return await waiting
        except TimeoutError:
            return False
        finally:
            self._waiting.discard(waiting)
            self.count -= 1
            self._bytes -= size
            if not self.count:
                self._is_wanted.clear()

    def release(self, is_served: bool = True) -> None:
        """There is a replica, or there will be none."""
        for each in self._waiting:
            if not each.done():
                each.set_result(is_served)

    async def pause(self, seconds: float, short: float) -> None:
        """Sleeps so long, or only `short` while somebody waits."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_wanted.wait()
                await asyncio.sleep(short)
