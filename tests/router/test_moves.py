"""Requests that are sent again: what replicas hear of them when one ends under many, when all refuse, and when one ends after the other."""

import asyncio
import re
import time

from router_site import BUSY, STREAM, WHOLE, request, run, site

from ridgeline.router.budget import FLOOR_PER_SECOND, MOST_SAVED, SHARE
from ridgeline.router.roster import Named

KEY = bytes(32)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


BEGUN = STREAM + chunk(b":r [1]\ndata: a\n\n")
MORE = STREAM + chunk(b":r [2]\ndata: b\n\n")
REST = STREAM + chunk(b":r [3]\ndata: c\n\n") + b"0\r\n\r\n"


def said(answer: bytes) -> list[bytes]:
    """Events of a stream."""
    return re.findall(rb"data: (\w)", answer)


def test_all_streams_of_a_replica_go_on_at_once_and_cost_the_budget_nothing() -> None:
    count = 60

    async def work() -> None:
        async with site(*[BEGUN] * count, *[REST] * count, replicas=2, key=KEY) as one:
            clients = [asyncio.create_task(one.talk(request(), ends=b"0\r\n\r\n")) for _ in range(count)]
            while len(one.opened) < count:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            while one.replicas.budget.take():
                pass
            began = time.monotonic()
            for each in list(one.opened):
                each.close()
            assert [said(each) for each in await asyncio.gather(*clients)] == [[b"a", b"c"]] * count
            assert time.monotonic() - began < count / FLOOR_PER_SECOND / 2

    run(work)


def test_a_second_loss_is_paid_and_waits_for_it() -> None:
    async def work() -> None:
        async with site(BEGUN, MORE, MORE, REST, key=KEY) as one:
            client = asyncio.create_task(one.talk(request(), ends=b"0\r\n\r\n"))
            for number in range(1, 4):
                while len(one.opened) < number:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.05)
                one.replicas.budget._saved = 0.0
                one.opened[-1].close()
            assert said(await client) == [b"a", b"b", b"b", b"c"]
            assert one.heard[-1].endswith(b"[[1],[2],[2]]" + request().partition(b"\r\n\r\n")[2])

    run(work)


def test_where_all_refuse_replicas_hear_little_more_than_the_requests() -> None:
    count = 200

    async def work() -> None:
        async with site(*[BUSY] * 3 * count, replicas=3) as one:
            began = time.monotonic()
            for _ in range(count):
                assert (await one.talk(request(), ends=b"busy")).startswith(b"HTTP/1.1 503")
            seconds = time.monotonic() - began
            again = len(one.heard) - count
            assert MOST_SAVED <= again <= MOST_SAVED + SHARE * count + FLOOR_PER_SECOND * seconds + 1, (again, seconds)

    run(work)


def test_a_replica_that_nobody_reaches_costs_nothing() -> None:
    async def work() -> None:
        async with site(*[WHOLE] * 30) as one:
            named = [Named(one.replicas.all[0].upstream.url), *(Named(f"http://127.0.0.1:{port}") for port in range(1, 4))]
            one.replicas.follow(named)
            for _ in range(10):
                one.replicas.budget._saved = 0.0
                for each in one.replicas.all:
                    each.is_ready, each._shut_until = True, 0.0
                assert (await one.talk(request(), ends=b"abc")).startswith(b"HTTP/1.1 200")

    run(work)
