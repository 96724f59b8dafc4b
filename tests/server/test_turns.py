"""Clients by turns: nobody waits behind all requests of another, and who is refused is told when it is his turn."""

import asyncio
import heapq
from bisect import bisect
from collections.abc import Callable
from random import Random
from statistics import median
from threading import Event

import pytest

from ridgeline.errors import OverloadedError
from ridgeline.server.turns import Turns
from ridgeline.server.workers import Workers

SECONDS = 0.2
"""Of a turn, in the mean."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time passes when nothing is ready to run."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        timers = self._scheduled  # type: ignore[attr-defined]
        while timers and timers[0].cancelled():
            heapq.heappop(timers)._scheduled = False
            self._timer_cancelled_count -= 1  # type: ignore[attr-defined]
        if timers and not self._ready:  # type: ignore[attr-defined]
            self.now = max(self.now, timers[0].when())
        super()._run_once()  # type: ignore[misc]


def overload(phases: list[tuple[float, float]], seconds: Callable[[Random, float], float], most_tries: int, seed: int) -> "Overload":
    found = Overload(Random(seed), seconds, most_tries)
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(found.run(phases))
    return found


class Overload:
    """Eight clients, who come again when they are told to. Phases are (load, seconds). refusals: of each request; told: moment, seconds and
    pace of each refusal; ends: moments at which turns ended."""

    def __init__(self, rng: Random, seconds: Callable[[Random, float], float], most_tries: int) -> None:
        self._rng, self._seconds, self._most = rng, seconds, most_tries
        self._turns = Turns("it", 16, 4.0)
        self.refusals: list[int] = []
        self.told: list[tuple[float, int, float]] = []
        self.ends: list[float] = []

    async def run(self, phases: list[tuple[float, float]]) -> None:
        clock, tasks = asyncio.get_running_loop().time, []
        for load, length in phases:
            end = clock() + length
            while clock() < end:
                await asyncio.sleep(self._rng.expovariate(load / SECONDS))
                tasks.append(asyncio.create_task(self._ask(b"%d" % self._rng.randrange(8))))
        await asyncio.gather(*tasks)

    async def _ask(self, client: bytes) -> None:
        clock = asyncio.get_running_loop().time
        for tries in range(self._most):
            try:
                async with self._turns.turn(client):
                    await asyncio.sleep(self._seconds(self._rng, clock()))
                    self.ends.append(clock())
                self.refusals.append(tries)
                return
            except OverloadedError as error:
                self.told.append((clock(), error.retry_after_seconds, 1 / self._turns._turn.seconds))
                await asyncio.sleep(error.retry_after_seconds + self._rng.uniform(0, 0.1))


def test_behind_a_burst_a_polite_client_is_refused_once_more_at_most() -> None:
    """Eight bursts."""
    refused = []
    for seed in range(8):
        found = overload([(4, 20), (0.5, 300)], lambda rng, now: rng.expovariate(1 / SECONDS), 100, seed)
        refused += [each for each in found.refusals if each]
    assert len(refused) > 2_000
    assert sum(each <= 2 for each in refused) >= 0.95 * len(refused)


@pytest.mark.parametrize("load", [1.3, 2.0])
def test_under_lasting_overload_the_time_that_is_told_is_right(load: float) -> None:
    """Also where turns become three times as long."""

    def seconds(rng: Random, now: float) -> float:
        return rng.expovariate(1 / SECONDS) * (1 if now < 120 else 3)

    found, errors = overload([(load, 240)], seconds, 3, 1), []
    for at, told, pace in found.told:
        place = bisect(found.ends, at) + int(pace * told)
        if place < len(found.ends):
            took = found.ends[place] - at
            errors.append(abs(told - took) / took)
    assert len(errors) > 300 and median(errors) < 0.25, median(errors)


def test_what_would_not_begin_in_time_is_refused_when_it_comes() -> None:
    async def work() -> None:
        turns = Turns("it", 16, 4.0)
        async with turns.turn(b"a"):
            await asyncio.sleep(3)
        async with turns.turn(b"a"):
            waiting = asyncio.create_task(take(turns, b"a", []))
            await asyncio.sleep(0)
            with pytest.raises(OverloadedError, match=r"would wait 6.0 s for it, 4 s at most") as refused:
                await take(turns, b"b", [])
            assert refused.value.retry_after_seconds == 8, "of the turns 40 % are promised"
        await waiting

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(work())


async def take(turns: Turns, client: bytes, order: list[bytes]) -> None:
    async with turns.turn(client):
        order.append(client)
        await asyncio.sleep(0)


def test_work_that_says_itself_that_it_cannot_is_told_the_pace_of_turns() -> None:
    async def work() -> None:
        turns = Turns("it", 16, 9.0)
        async with turns.turn(b"a"):
            await asyncio.sleep(3)
        with pytest.raises(OverloadedError, match="the knife is in use") as told:
            async with turns.turn(b"a"):
                raise OverloadedError("the knife is in use", 1)
        assert told.value.retry_after_seconds == 8, "of the turns 40 % are promised"
        assert not turns._is_taken

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(work())


def test_clients_have_their_turns_one_after_the_other() -> None:
    async def work() -> list[bytes]:
        turns, order = Turns("it", 8, 5.0), list[bytes]()
        await asyncio.gather(*(take(turns, client, order) for client in [b"a", b"a", b"a", b"a", b"b", b"b", b"c"]))
        assert not turns._is_taken and not turns._waiting
        return order

    assert asyncio.run(work()) == [b"a", b"a", b"b", b"c", b"a", b"b", b"a"]


def test_waiting_is_bounded_in_number_and_time() -> None:
    async def work() -> None:
        turns, order = Turns("the oven", 2, 0.05), list[bytes]()
        async with turns.turn(b"a"):
            waiting = [asyncio.create_task(take(turns, b"a", order)) for _ in range(2)]
            await asyncio.sleep(0)
            with pytest.raises(OverloadedError, match="2 requests wait for the oven"):
                await take(turns, b"a", order)
            with pytest.raises(OverloadedError, match=r"kept the oven busy for 0.05 s"):
                await take(turns, b"b", order)
            assert all(isinstance(each, OverloadedError) for each in await asyncio.gather(*waiting, return_exceptions=True))
        await take(turns, b"b", order)
        assert order == [b"b"] and not turns._waiting and not turns._is_taken

    asyncio.run(work())


def test_who_goes_away_does_not_keep_the_turn() -> None:
    async def work() -> None:
        turns, order = Turns("it", 8, 5.0), list[bytes]()
        async with turns.turn(b"a"):
            gone, late, last = (asyncio.create_task(take(turns, client, order)) for client in (b"b", b"c", b"d"))
            await asyncio.sleep(0)
            gone.cancel()
            await asyncio.sleep(0)
        late.cancel()  # its turn has come, and it has not been told yet
        await last
        assert order == [b"d"] and not turns._is_taken

    asyncio.run(work())


def test_work_that_would_not_begin_in_time_is_refused_when_it_comes() -> None:
    """One thread, whose work takes three seconds: one may wait, the next would begin too late."""

    def refuse() -> None:
        raise OverloadedError("the knife is in use", 1)

    async def work() -> None:
        workers, baked = Workers("slow", 1, "loaves wait for the oven", 5.0), Event()
        workers._turn.add(3.0)
        running, waiting = (asyncio.create_task(workers.run(baked.wait)) for _ in range(2))
        while workers._waiting != 1 or running.done():
            await asyncio.sleep(0.001)
        workers._waiting += 1  # a third
        with pytest.raises(OverloadedError, match="loaves wait for the oven longer than 5 s") as told:
            await workers.run(baked.wait)
        assert told.value.retry_after_seconds == 8, "of the turns 40 % are promised"
        workers._waiting -= 1
        baked.set()
        assert await running and await waiting and not workers._waiting
        with pytest.raises(OverloadedError, match="the knife is in use") as told:
            await workers.run(refuse)
        assert told.value.retry_after_seconds > 8, "behind who was told to come again before"

    asyncio.run(work())
