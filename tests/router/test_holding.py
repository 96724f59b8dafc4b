"""Requests that wait for a replica, and for how many there is room."""

import asyncio

from ridgeline.router.holding import MOST_HELD, MOST_HELD_BYTES, HoldingRoom


def test_the_room_is_bounded_in_number_and_bytes() -> None:
    async def run() -> None:
        room = HoldingRoom(60.0)
        waiting = [asyncio.ensure_future(room.wait(10)) for _ in range(MOST_HELD)]
        await asyncio.sleep(0)
        assert room.count == MOST_HELD and not room.is_open and not await room.wait(1)
        waiting.pop().cancel()
        await asyncio.sleep(0)
        assert room.is_open and not await room.wait(MOST_HELD_BYTES)
        room.release()
        assert all(await asyncio.gather(*waiting)) and not room.count and not room._bytes

    asyncio.run(run())


def test_nobody_waits_for_ever_and_without_a_time_nobody_waits() -> None:
    async def run() -> None:
        assert not await HoldingRoom(0.01).wait(1)
        assert not await HoldingRoom(0.0).wait(1) and not HoldingRoom(0.0).is_open

    asyncio.run(run())


def test_checks_come_sooner_while_somebody_waits() -> None:
    async def run() -> None:
        room, clock = HoldingRoom(60.0), asyncio.get_running_loop().time
        waiting = asyncio.ensure_future(room.wait(1))
        began = clock()
        await room.pause(60.0, 0.001)
        assert clock() - began < 30
        room.release(is_served=False)
        assert not await waiting

    asyncio.run(run())
