"""Clients by turns: nobody waits behind all requests of another."""

import asyncio

import pytest

from ridgeline.errors import OverloadedError
from ridgeline.server.turns import Turns


async def take(turns: Turns, client: bytes, order: list[bytes]) -> None:
    async with turns.turn(client):
        order.append(client)
        await asyncio.sleep(0)


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
