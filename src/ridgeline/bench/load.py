"""Load on a server: closed loops, in which each stream waits for its answer, and open ones, in which requests come when they come.

In an open loop latency counts from the moment at which a request should have been sent, whatever the server or this client was doing then:
a server that stalls shows it in every request that it kept waiting (Tene, "How not to measure latency": coordinated omission).
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ridgeline.bench.client import Ask, Client, Outcome

OnDone = Callable[[Outcome], None]


@dataclass(frozen=True, slots=True)
class Measured:
    """All outcomes in the order in which they ended, and the processor seconds that this process spent over `seconds` of the clock."""

    outcomes: Sequence[Outcome]
    seconds: float
    client_seconds: float


async def closed_loop(client: Client, asks: Iterator[Ask], streams: int, seconds: float | None, on_done: OnDone) -> Measured:
    """`streams` requests at once, each followed by the next as soon as it ends, until `asks` or the seconds are used up.

    A request is meant to be sent when the one before it ended.
    """
    outcomes: list[Outcome] = []
    watch = _Watch()

    async def stream() -> None:
        free = watch.began
        while (seconds is None or free < watch.began + seconds) and (ask := next(asks, None)) is not None:
            outcome = await client.run(ask, free)
            outcomes.append(outcome)
            on_done(outcome)
            free = time.perf_counter()

    async with asyncio.TaskGroup() as group:
        for _ in range(streams):
            group.create_task(stream())
    return watch.stop(outcomes)


async def open_loop(client: Client, asks: Sequence[Ask], most: int | None, on_done: OnDone) -> Measured:
    """Each request when it is due, at most `most` at once; who waits for a place has begun to wait when due."""
    outcomes: list[Outcome] = []
    places = asyncio.Semaphore(most or len(asks) or 1)
    watch = _Watch()

    async def one(ask: Ask, due: float) -> None:
        async with places:
            outcome = await client.run(ask, due)
        outcomes.append(outcome)
        on_done(outcome)

    async with asyncio.TaskGroup() as group:
        for ask in asks:
            due = watch.began + ask.due
            wait = due - time.perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            group.create_task(one(ask, due))
    return watch.stop(outcomes)


class _Watch:
    def __init__(self) -> None:
        self.began, self._own = time.perf_counter(), time.process_time()

    def stop(self, outcomes: Sequence[Outcome]) -> Measured:
        """Everything since the start."""
        return Measured(outcomes, time.perf_counter() - self.began, time.process_time() - self._own)
