"""Requests that go the short way through the router: what a client gets is what the long way gives it, however its bytes are cut, and
whatever becomes of the replica."""

import asyncio
import re

import pytest
from router_site import BUSY, EVENTS, STREAM, WHOLE, request, run, site

from ridgeline.router.prompts import read_prompt
from ridgeline.router.roster import Named
from ridgeline.router.short_way import MOST_HEADS, SETTLE_SECONDS, ShortWay


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each whole request that was read: whether it went the short way."""
    found, begin = list[bool](), ShortWay.begin

    def note(self: ShortWay, *arguments: object) -> object:
        passing = begin(self, *arguments)  # type: ignore[arg-type]
        found.append(passing is not None)
        return passing

    monkeypatch.setattr(ShortWay, "begin", note)
    return found


@pytest.mark.parametrize("answer", [WHOLE, EVENTS], ids=["whole", "events"])
def test_both_ways_answer_alike(taken: list[bool], answer: bytes) -> None:
    async def work() -> None:
        async with site(answer, answer, answer, answer) as one:
            ends = b"abc" if answer is WHOLE else b"0\r\n\r\n"
            plain = await one.talk(request(), ends=ends)
            cut = await one.talk(request()[:-5], request()[-5:], ends=ends)
            long = await one.talk(request(more=b"TE: trailers\r\n"), ends=ends)  # one of the headers that go the long way
            halved = await one.talk(request()[:20], request()[20:], ends=ends)
            assert taken == [True, True] and plain == cut == long == halved, (plain, long)
            assert len({re.sub(rb"x-request-id: \S+", b"", each) for each in one.heard}) == 1, "and so is what the replica hears"

    run(work)


def test_one_connection_carries_many_and_what_is_sent_ahead_waits(taken: list[bool]) -> None:
    last = request(b"{}", b"Connection: close\r\n")

    async def work() -> None:
        async with site(*[WHOLE] * 6) as one:
            assert (await one.talk(request(), request(), last[:30], last[30:])).count(b"\r\n\r\nabc") == 3 and len(taken) == 2
            assert (await one.talk(request(b"{}") + last)).count(b"\r\n\r\nabc") == 2 and len(taken) == 2
            assert len(one.heard) == 5

    run(work)


def test_a_head_that_came_before_means_what_it_did(taken: list[bool]) -> None:
    """Heads are kept without their length; what differs in anything else is read and let in by itself."""
    heads = [b"X-A: 1\r\n", b"X-A: 1\r\n", b"X-A: 2\r\n", b"Authorization: Bearer k\r\n", b"X-Request-Id: own\r\n"]

    async def work() -> None:
        async with site(*[WHOLE] * 6) as one:
            for number, more in enumerate(heads):
                body = b'{"prompt": "%b"}' % (b"a" * number * 9)
                assert (await one.talk(request(body, more), ends=b"abc")).startswith(b"HTTP/1.1 200")
                head, _, got = one.heard[-1].partition(b"\r\n\r\n")
                assert got == body and b"content-length: %d" % len(body) in head and more.strip().lower() in head.lower()
            assert (await one.talk(request(more=b"X-A: 1\r\n").replace(b"localhost", b"evil.com"))).startswith(b"HTTP/1.1 403")
            assert (await one.talk(request(more=b"X-A: 1\r\nContent-Length: 3\r\n"))).startswith(b"HTTP/1.1 400")
            kept = [b"".join(key) for key in one.way._heads]
            assert len(kept) == 2 and not any(b"Bearer" in each for each in kept), "keys are not kept"

    run(work)
    assert taken == [True] * 5


@pytest.mark.parametrize("replicas", [1, 2])
def test_what_was_sent_is_known_behind_the_answer(replicas: int) -> None:
    """One replica alone is asked before its prompt is read: others that come later must find what it has."""
    body = b'{"prompt": "%b"}' % (b"a" * 2_000)

    async def work() -> None:
        async with site(WHOLE, replicas=replicas) as one:
            await one.talk(request(body), ends=b"abc")
            await asyncio.sleep(10 * SETTLE_SECONDS)
            sent = [each.number for each in one.replicas.all if each.answers]
            _, cached = one.replicas.chooser.choose([one.replicas.all[sent[0]].load], read_prompt("/v1/completions", body, b""))
            assert len(sent) == 1 and cached == 3 * 128

    run(work)


def test_what_was_sent_is_known_where_another_replica_comes_before_the_answer_ends() -> None:
    body = b'{"prompt": "%b"}' % (b"a" * 2_000)

    async def work() -> None:
        async with site(EVENTS[:-5]) as one:
            reader, writer = await asyncio.open_connection("127.0.0.1", one.port)
            writer.write(request(body))
            await reader.readuntil(b"x\n\n")
            first = one.replicas.all[0]
            one.replicas.follow([Named(first.upstream.url), Named("http://127.0.0.1:1")])
            one.finish()
            await reader.readuntil(b"0\r\n\r\n")
            while one.replicas.open_requests:
                await asyncio.sleep(0.01)
            one.way.settle()  # as the router's end does
            _, cached = one.replicas.chooser.choose([first.load], read_prompt("/v1/completions", body, b""))
            assert cached == 3 * 128
            writer.close()

    run(work)


def test_a_flood_of_heads_keeps_nobody_out() -> None:
    async def work() -> None:
        async with site() as one:
            heads = [request(more=b"X-A: %d\r\n" % number) for number in range(4 * MOST_HEADS)]
            assert all(one.way.read(each) for each in heads)
            own = one.way.read(request())
            for each in heads[: MOST_HEADS - 1]:
                one.way.read(each)
            again = one.way.read(request())
            assert own and again and own[0] is again[0], "it is not read anew"
            for each in heads[MOST_HEADS : 2 * MOST_HEADS]:
                one.way.read(each)
            later = one.way.read(request())
            assert later and later[0] is not own[0] and len(one.way._heads) == MOST_HEADS

    run(work)


def test_what_comes_while_an_answer_does_waits(taken: list[bool]) -> None:
    async def work() -> None:
        async with site(EVENTS[:-5], WHOLE) as one:
            reader, writer = await asyncio.open_connection("127.0.0.1", one.port)
            writer.write(request())
            await reader.readuntil(b"x\n\n")
            writer.write(request())
            await asyncio.sleep(0.05)
            assert len(one.heard) == 1 and taken == [True]
            one.finish()
            assert (await asyncio.wait_for(reader.readuntil(b"abc"), 10)).count(b"HTTP/1.1 200") == 1
            assert len(one.heard) == 2
            writer.close()

    run(work)


def test_heads_that_may_be_read_two_ways_go_the_long_way(taken: list[bool]) -> None:
    odd = [
        request(more=b"Content-Length: 32\r\n"), request(more=b"Transfer-Encoding: chunked\r\n"), request(more=b"X-A: 1\r\n 2\r\n"),
        request(more=b"X-A : 1\r\n"), request(more=b"X-A: \x01\r\n"), request(more=b"X-A: 1\n\r\n"),
        request(more=b"Expect: 100-continue\r\n"),
        request().replace(b"HTTP/1.1", b"HTTP/1.0"), request().replace(b"Content-Length: ", b"Content-Length: +"),
        request(more=b"Host: evil\r\n"), request().replace(b"localhost", b"evil.example"), request(more=b"Origin: http://evil\r\n"),
        request(path=b"/v1/responses"), request(path=b"/v1/completions?x=1"), request(path=b"/metrics"),
    ]  # fmt: skip

    async def work() -> None:
        async with site(*[WHOLE] * len(odd)) as one:
            for each in odd:
                assert one.way.read(each) is None, each
            refused = await one.talk(request().replace(b"localhost", b"evil.example"))
            assert b"403" in refused and b"host_not_allowed" in refused and not one.heard

    run(work)
    assert not taken


def test_a_connection_that_had_closed_costs_nothing(taken: list[bool]) -> None:
    async def work() -> None:
        async with site(b"", WHOLE) as one:
            assert (await one.talk(request(), ends=b"abc")).startswith(b"HTTP/1.1 200")
            assert len(one.heard) == 2, "asked again on a fresh one, as nothing had come of an answer"

    run(work)


def test_requests_of_a_moment_see_each_other(taken: list[bool]) -> None:
    """Choices are loads at once, on both ways: else all that come together would go to one replica."""

    async def work() -> None:
        async with site(*[EVENTS[:-5]] * 8, replicas=2) as one:
            clients = [await asyncio.open_connection("127.0.0.1", one.port) for _ in range(8)]
            for _, writer in clients:
                writer.write(request())
            for reader, _ in clients:
                await asyncio.wait_for(reader.readuntil(b"x\n\n"), 10)
            assert [each.load.requests for each in one.replicas.all] == [4, 4] and sorted(taken) == [False] * 6 + [True] * 2
            for _, writer in clients:
                writer.close()
            while one.replicas.open_requests:
                await asyncio.sleep(0.01)

    run(work)


def test_a_refusal_is_asked_elsewhere_and_heard_once(taken: list[bool]) -> None:
    async def work() -> None:
        async with site(BUSY, WHOLE, replicas=2) as one:
            assert (await one.talk(request(), ends=b"abc")).startswith(b"HTTP/1.1 200") and len(one.heard) == 2
        async with site(BUSY) as one:
            found = await one.talk(request(), ends=b"busy")
            assert found.startswith(b"HTTP/1.1 503") and len(one.heard) == 1, "the replica that said so is not asked again"

    run(work)
    assert taken == [True, True]


def test_an_answer_that_breaks_off_says_so(taken: list[bool]) -> None:
    async def work() -> None:
        async with site(EVENTS[:-5] + b"CUT", WHOLE[:-1] + b"CUT") as one:
            found = await one.talk(request(), ends=b"0\r\n\r\n")
            assert b"ended before its answer did" in found and found.endswith(b"0\r\n\r\n")

    run(work)
    assert taken == [True]


def test_a_client_that_goes_ends_its_request(taken: list[bool]) -> None:
    async def work() -> None:
        async with site(EVENTS[:-5]) as one:
            reader, writer = await asyncio.open_connection("127.0.0.1", one.port)
            writer.write(request())
            await reader.readuntil(b"data:")
            assert one.replicas.open_requests == 1
            writer.close()
            for _ in range(500):
                if not one.replicas.open_requests:
                    return
                await asyncio.sleep(0.01)
            pytest.fail("its replica still has the request")

    run(work)


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_client_that_does_not_read_holds_the_replica_up_and_is_let_go(taken: list[bool], is_chunked: bool) -> None:
    size = 64 << 20
    flood = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + b"x" * size
    if is_chunked:
        flood = STREAM + b"ff9\r\n%b\r\n" % (b"x" * 0xFF9) * (size >> 12)

    async def work() -> None:
        async with site(flood) as one:
            reader, writer = await asyncio.open_connection("127.0.0.1", one.port, limit=1 << 12)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(request())
            for _ in range(800):
                await asyncio.sleep(0.01)
                if one.heard and not one.replicas.open_requests:
                    break
            else:
                pytest.fail("its request is still open")
            writer.close()
            assert reader is not None

    run(work)
    assert taken == [True]
