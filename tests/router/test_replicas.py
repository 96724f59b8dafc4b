"""Which replica gets a request, and when one gets none: the breaker, canaries."""

import asyncio
import time

from ridgeline.core.routing import ROUTING
from ridgeline.router.prompts import Prompt
from ridgeline.router.proxy import _nobody
from ridgeline.router.replicas import FAILURES, MOST_PAUSE_SECONDS, Replicas
from ridgeline.router.roster import Named

SHORT = Prompt(10, ())


def fleet(*shares: float) -> Replicas:
    return of([Named(f"http://127.0.0.1:{number + 1}", share=share) for number, share in enumerate(shares)])


def of(named: list[Named], routing: str = "least-requests") -> Replicas:
    made = Replicas(named, ROUTING[routing], seed=1)
    for each in made.all:
        each.is_ready = True
    return made


def test_a_replica_that_fails_is_shut_out_ever_longer_until_it_answers() -> None:
    replicas = fleet(0, 0)
    bad = replicas.all[0]
    pauses = []
    for _ in range(3):
        for _ in range(FAILURES):
            bad.note_failure()
        pauses.append(bad._shut_until)
        assert replicas.ready() == [replicas.all[1]]
        bad._shut_until = 0.0
    assert pauses[0] < pauses[1] < pauses[2]
    bad.note_answer()
    assert not bad.is_shut(0.0) and len(replicas.ready()) == 2


def test_who_finds_nobody_is_told_what_the_first_replica_has_said_or_its_breaker() -> None:
    """A whole second at least, as each is asked that often."""

    async def soonest(*answers: bytes) -> int:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 503 Busy\r\nRetry-After: %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % told.pop(0))
            writer.close()

        told = list(answers)
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            named = [Named(f"http://{host}:{port}") for host in ("127.0.0.1", "localhost")[: len(told)]]
            replicas = Replicas(named, ROUTING["least-requests"], seed=1)
            for each in replicas.all:
                await each.check()
        return int(_nobody(replicas).headers["Retry-After"])

    assert asyncio.run(soonest(b"25", b"9")) == 9
    assert asyncio.run(soonest(b"never", b"7")) == 1 == asyncio.run(soonest(b"0"))
    assert asyncio.run(soonest(b"9000")) == MOST_PAUSE_SECONDS
    replicas = fleet(0)
    for _ in range(FAILURES + 1):
        replicas.all[0].note_failure()
    replicas.all[0]._shut_until = time.monotonic() + 5
    assert int(_nobody(replicas).headers["Retry-After"]) == 5


def test_with_every_breaker_open_all_get_requests() -> None:
    replicas = fleet(0, 0)
    for each in replicas.all:
        for _ in range(FAILURES):
            each.note_failure()
    assert len(replicas.ready()) == 2 and replicas.choose(SHORT, set()) is not None


def test_every_canary_gets_its_share() -> None:
    replicas = fleet(0, 0.05, 0.1)
    found = [replicas.choose(SHORT, set())[0].number for _ in range(20_000)]  # type: ignore[index]
    assert abs(found.count(1) / 20_000 - 0.05) < 0.01 and abs(found.count(2) / 20_000 - 0.1) < 0.01


def test_a_prompt_that_is_cached_does_not_wait_for_long() -> None:
    """What a replica was sent before costs it no prefill: it counts as waiting only by the rest."""
    replicas = of([Named("http://127.0.0.1:1")], "cache-aware")
    prompt = Prompt(1_000, (b"a", b"b", b"c"))
    for waiting in (1_000, 1_000 - 3 * 128):
        choice = replicas.choose(prompt, set())
        assert choice is not None
        replica, cached = choice
        with replica.serving(prompt.tokens, cached) as turn:
            assert replica.load.waiting_tokens == waiting
            turn.first_byte()
            assert replica.load.waiting_tokens == 0 and replica.load.requests == 1


def test_another_set_takes_over_once_one_of_it_is_ready() -> None:
    blue, green = Named("http://127.0.0.1:1"), Named("http://127.0.0.1:2", 2.0)
    replicas = of([blue])
    old = replicas.all[0]
    replicas.follow([green])
    new = replicas.all[1]
    assert replicas.ready() == [old], "nobody else is ready"
    replicas._let_go()
    assert len(replicas.all) == 2
    new.is_ready = True
    assert replicas.ready() == [new] and new.load.weight == 2.0
    with old.serving(10, 0):
        replicas._let_go()
        assert len(replicas.all) == 2, "it has an answer under way"
    replicas._let_go()
    assert replicas.all == [new] and old.has_left and not new.has_left
    assert replicas.choose(SHORT, set()) == (new, 0)
    replicas.follow([blue])
    assert replicas.all[1].number not in (old.number, new.number), "what is learned of one is not another's"


def test_one_that_is_named_again_stays_as_it_was() -> None:
    a, b = (Named(f"http://127.0.0.1:{number}") for number in (1, 2))
    replicas = of([a, b])
    first, second = replicas.all
    replicas.follow([a])
    replicas.follow([b, a])
    replicas._let_go()
    assert replicas.all == [first, second] and len(replicas.ready()) == 2


def test_a_stopped_canary_is_tried_again_with_another_share() -> None:
    plain, canary = Named("http://127.0.0.1:1"), Named("http://127.0.0.1:2", share=0.1)
    replicas = of([plain, canary])
    replicas.all[1].is_stopped = True
    replicas.follow([plain, canary])
    assert replicas.all[1].is_stopped
    replicas.follow([plain, Named(canary.url)])
    assert not replicas.all[1].is_stopped and len(replicas.ready()) == 2
