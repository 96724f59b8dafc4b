"""When a canary is stopped: by answers that are none, late or slow, soon where it is plain, and never a sound one."""

import asyncio
import random
import time
from collections.abc import Callable

import pytest
from router_site import STREAM, request, run, site

from ridgeline.core.routing import ROUTING
from ridgeline.router.replicas import Replicas, Turn
from ridgeline.router.roster import Named
from ridgeline.router.trial import JUDGED_SECONDS, LEAST_COMPARED, PACED_BYTES, Outcome, Trial, Usual

FIRST, PACE = 0.2, 0.001


def stopped(
    seconds: float, rate: float = 5.0, share: float = 0.1, first: float = 1.0, pace: float = 1.0, lost: float = 0.0, spread: float = 0.3,
    wave: Callable[[float], float] = lambda at: 1.0, seed: int = 1,
) -> float | None:  # fmt: skip
    """Second in which a canary is stopped that takes so many times as long, and loses a part of its answers; None: it is not. `wave`: by
    which all that is asked then takes longer."""
    dice, usual, trial = random.Random(seed), Usual(), Trial()
    at, waiting = dice.expovariate(rate), list[Outcome]()
    for look in range(1, int(seconds)):
        others = list[Outcome]()
        while at < look:
            is_canary = dice.random() < share
            to_first, to_next = (wave(at) * each * dice.lognormvariate(0, spread) for each in (FIRST, PACE))
            if is_canary:
                waiting.append(Outcome(at, dice.random() >= lost, first * to_first, pace * to_next, True))
            else:
                others.append(Outcome(at, True, to_first, to_next, True))
            at += dice.expovariate(rate)
        usual.hear(others, look)
        if usual.bad is not None:
            if trial.hear(waiting, usual):
                return look
            waiting.clear()
    return None


@pytest.mark.parametrize("worse", [{"pace": 3.0}, {"first": 3.0}, {"lost": 1.0}, {"pace": 2.5, "rate": 20.0, "spread": 0.5}])
def test_one_that_is_plainly_worse_is_stopped_within_a_minute(worse: dict[str, float]) -> None:
    found = [stopped(300, **worse, seed=seed) for seed in range(10)]  # type: ignore[arg-type]
    assert all(each is not None and each <= 60 for each in found), found


def test_few_requests_are_enough_where_it_is_plain() -> None:
    """Two requests a second, a tenth of them the canary's: twelve answers a minute, of which ten decide, at the worst."""
    found = [stopped(300, rate=2.0, pace=4.0, spread=0.15, seed=seed) for seed in range(20)]
    assert sum(each is not None and each <= 60 for each in found) >= 18 and all(found), found


def test_one_that_is_a_little_worse_is_stopped_later() -> None:
    found = [stopped(600, rate=50.0, lost=0.15, seed=seed) for seed in range(5)]
    assert all(each is not None and each > 5 for each in found), found


def test_a_sound_one_stays() -> None:
    """However much answers differ, and however all of them slow down and recover together."""
    for spread in (0.1, 0.5, 1.2):
        for rate in (2.0, 50.0):
            assert stopped(1_000 / rate, rate, spread=spread) is None
            assert stopped(1_000 / rate, rate, spread=spread, wave=slow_at_times) is None
    assert stopped(500, pace=1.2, first=1.2) is None


def slow_at_times(at: float) -> float:
    return 4.0 if at % 40 < 10 else 1.0


@pytest.mark.night
@pytest.mark.timeout(1800)
def test_a_million_answers_stop_no_sound_one() -> None:
    for seed in range(4):
        for spread in (0.1, 0.3, 0.5, 0.8, 1.2):
            for rate in (2.0, 10.0, 50.0, 200.0):
                for wave in (slow_at_times, lambda at: 1.0):
                    assert stopped(60_000 / rate, rate, spread=spread, wave=wave, seed=seed) is None, (seed, spread, rate)


def test_a_pause_of_a_second_stops_nobody() -> None:
    usual, trial = Usual(), Trial()
    usual.hear([Outcome(0.0, True, FIRST, PACE, True)] * LEAST_COMPARED, 0.0)
    assert not trial.hear([Outcome(1.0, True, 9 * FIRST, PACE, True)] * 500, usual) and max(trial.evidence) > 0
    assert trial.hear([Outcome(2.0 + at, True, 9 * FIRST, PACE, True) for at in range(5)], usual)


def test_streams_and_whole_answers_are_compared_with_their_like() -> None:
    usual = Usual()
    usual.hear([Outcome(0.0, True, each, None, each < 1) for each in (0.1, 5.0) * LEAST_COMPARED], 0.0)
    assert not usual.limits.is_bad(Outcome(0.0, True, 6.0, None, is_stream=False))
    assert usual.limits.is_bad(Outcome(0.0, True, 6.0, None, is_stream=True)) and usual.limits.pace > 1e9


def test_a_stream_that_is_slow_behind_its_first_byte_alone_stops_its_canary(caplog: pytest.LogCaptureFixture) -> None:
    """A canary that sends its first event as soon as the other replica, and the others four times as slowly."""
    event = b"data: " + b"x" * 200 + b"\n\n"
    answer = STREAM + (b"%x\r\n%b\r\n" % (len(event), event)) * 8 + b"0\r\n\r\n"

    async def work() -> None:
        async with site(*[answer] * 10_000, pauses=[0.02, 0.08]) as one:
            usual, canary = one.replicas.all
            one.replicas.follow([Named(usual.upstream.url), Named(canary.upstream.url, share=0.3)])

            async def ask() -> None:
                while not canary.is_stopped:
                    assert (await one.talk(request(), ends=b"0\r\n\r\n")).count(event) == 8

            asking = [asyncio.create_task(ask()) for _ in range(12)]
            while not canary.is_stopped:
                one.replicas.judge()
                await asyncio.sleep(0.5)
            await asyncio.gather(*asking)
            assert one.replicas.ready() == [usual] and one.replicas._usual.limits.pace < 1

    run(work)
    assert "canary is stopped" in caplog.text


# ── what is known of an answer ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1_000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def turn(clock: list[float], *, is_stream: bool = True) -> Turn:
    """A request whose first byte has taken a second."""
    replicas = Replicas([Named("http://127.0.0.1:1")], ROUTING["least-requests"])
    made = replicas.all[0].serving(10, 0)
    clock[0] += 1.0
    made.first_byte()
    made.is_stream = is_stream
    return made


def test_an_answer_is_judged_once_at_its_end_or_a_while_behind_its_first_byte(clock: list[float]) -> None:
    long = turn(clock)
    long.passed, began = 500, clock[0]
    for seconds in (0.5 * JUDGED_SECONDS, JUDGED_SECONDS, 100.0):
        clock[0] = began + seconds
        long.look(clock[0], JUDGED_SECONDS)
    long.judge(is_good=False)
    assert [*long.replica.answers] == [Outcome(began + JUDGED_SECONDS, True, 1.0, JUDGED_SECONDS / 500, True)]
    short = turn(clock)
    short.passed = PACED_BYTES
    clock[0] += 2.0
    short.judge(is_good=True)
    assert short.replica.answers[0].pace == 2.0 / PACED_BYTES


def test_what_has_no_pace_has_none(clock: list[float]) -> None:
    few, whole, held = turn(clock), turn(clock, is_stream=False), turn(clock)
    held.passed = whole.passed = 10 * PACED_BYTES
    held.is_held = True
    for each in (few, whole, held):
        clock[0] += 0.1
        each.judge(is_good=True)
        assert each.replica.answers[0].pace is None


def test_an_answer_that_never_begins_is_late(clock: list[float]) -> None:
    replicas = Replicas([Named("http://127.0.0.1:1")], ROUTING["least-requests"])
    hung = replicas.all[0].serving(10, 0)
    for _ in range(30):
        clock[0] += 1.0
        hung.look(clock[0], patience=10.0)
    (found,) = replicas.all[0].answers
    assert found.seconds == 11.0
    hung.end()
    assert not replicas.all[0].turns
