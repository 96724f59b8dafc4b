"""The bound on what waits: shares of tenants, requests of several sequences, and Retry-After by the queue's pace, all in virtual time."""

import heapq
from bisect import bisect
from collections.abc import Callable
from random import Random
from statistics import median
from typing import Any

import pytest

from ridgeline.errors import OverloadedError, RequestError
from ridgeline.server.keys import Caller
from ridgeline.server.targets import Patience
from ridgeline.server.waiting_room import WaitingRoom

ROWS, QUEUE = 16, 64
A, B = Caller("a"), Caller("b", weight=3)


def is_refused(room: WaitingRoom, caller: Caller, count: int, open_: dict[str, int]) -> bool:
    try:
        room.check(caller, count, ROWS, open_, 0.0)
    except OverloadedError:
        return True
    return False


def test_a_tenant_alone_has_every_place() -> None:
    room = WaitingRoom(QUEUE)
    assert not is_refused(room, A, 1, {"a": 79}) and is_refused(room, A, 1, {"a": 80})
    assert not is_refused(room, A, 8, {"a": 72}) and is_refused(room, A, 8, {"a": 73}), "a request counts once for each choice"
    assert room.refused == {"a": 2}
    with pytest.raises(RequestError, match="81 sequences, one for each prompt and choice; this server takes at most 80"):
        room.check(A, 81, ROWS, {}, 0.0)


def test_who_floods_fills_his_own_share() -> None:
    room = WaitingRoom(QUEUE)
    room.check(A, 1, ROWS, {"a": 79}, 0.0)
    assert not is_refused(room, B, 1, {"a": 80}), "another tenant's place is there"
    assert not is_refused(room, B, 60, {"a": 80}) and is_refused(room, B, 3, {"a": 80, "b": 58}), "3/4 of all places are b's"
    assert is_refused(room, A, 1, {"a": 20, "b": 1}) and not is_refused(room, A, 1, {"a": 19, "b": 60})
    assert not is_refused(room, A, 40, {"b": 60}), "a tenant with nothing open is not kept out by the size of its first request"
    assert not is_refused(WaitingRoom(0), B, 1, {"a": ROWS - 1}), "a free row is free for everybody"


def test_a_target_counts_once_the_server_is_behind_and_a_deadline_always() -> None:
    """Behind is who has more waiting than rows, those who were refused among them, until nobody would wait."""

    def may_wait(patience: Patience, open_: int, now: float) -> bool:
        try:
            room.check(A, 1, ROWS, {"a": open_}, now, patience)
        except OverloadedError:
            return False
        return True

    room = WaitingRoom(QUEUE)
    room.check(A, 1, ROWS, {"a": ROWS}, 0.0)
    for end in range(1, 5):
        room.on_ended(1, ROWS, ROWS, end / 4)  # four per second
    brief = Patience(target=0.1)
    assert may_wait(brief, ROWS + 1, 1.0) and not may_wait(Patience(deadline=0.1), ROWS + 1, 1.0)
    assert [may_wait(brief, ROWS + 1, 1.0) for _ in range(20)] == [True] * 13 + [False] * 7, "those who were refused would wait, too"
    room.on_ended(1, ROWS, ROWS, 1.2)
    assert not may_wait(brief, ROWS + 1, 1.2), "those who were refused would wait still"
    assert may_wait(brief, ROWS - 1, 1.3) and not may_wait(brief, ROWS + 1, 1.4), "a free row for a moment is no lull"
    for second in range(2, 40):
        assert all(may_wait(brief, ROWS - 1, second + part / 5) for part in range(5)), "there is room"
    assert not may_wait(brief, ROWS + 1, 40), "who comes meanwhile, five per second, would have to wait behind those who were refused"
    assert may_wait(brief, ROWS - 1, 52) and may_wait(brief, ROWS + 1, 52.1), "behind a lull of two rounds the server is not behind"


def test_who_leaves_the_queue_frees_no_row() -> None:
    room = WaitingRoom(QUEUE)
    room.check(A, 1, ROWS, {"a": ROWS}, 0.0)
    for end in range(1, 9):
        room.on_ended(1, ROWS, ROWS + 4, end / 4)  # four per second
    pace = room.seconds_per_place
    room.on_ended(0, ROWS, ROWS + 3, 2.0, left=1)
    assert room.seconds_per_place == pace == pytest.approx(1 / 4)
    late = room.late(A, 1, ROWS, {"a": ROWS + 13}, 2.0)
    assert late.retry_after_seconds == 3, "twelve wait besides"
    assert room.refused == {"a": 1}
    assert room.late(A, 1, ROWS, {"a": ROWS + 13}, 2.0).retry_after_seconds >= 3


Service = Callable[[Random, float], float]


def overload(
    phases: list[tuple[float, float]], seconds: Service, most_tries: int, seed: int, rows: int = ROWS
) -> tuple[list[int], list[Any], list[float]]:
    """Clients of a server, each of which comes again when it was told to, up to `most_tries` times. Phases are (load, seconds).
    Returns refusals of each client, (time, Retry-After, pace) of each refusal, and the times of ends."""
    rng, room = Random(seed), WaitingRoom(QUEUE)
    events: list[tuple[float, int, int]] = []  # time, number, refusals so far; −1 is an end
    now = 0.0
    for load, length in phases:
        end = now + length
        while (now := now + rng.expovariate(load * rows)) < end:
            heapq.heappush(events, (now, len(events), 0))
        now = end
    number, open_, told, ends, refusals = len(events), 0, [], [], []
    while events:
        now, _, tries = heapq.heappop(events)
        number += 1
        if tries < 0:
            open_ -= 1
            ends.append(now)
            room.on_ended(1, rows, open_, now)
            if open_ >= rows:
                heapq.heappush(events, (now + seconds(rng, now), number, -1))
            continue
        try:
            room.check(A, 1, rows, {"a": open_} if open_ else {}, now)
        except OverloadedError as error:
            after = error.retry_after_seconds
            assert 1 <= after <= 60
            told.append((now, after, room._pace.per_second()))
            if tries + 1 < most_tries:
                heapq.heappush(events, (now + after + rng.uniform(0, 0.1), number, tries + 1))
            continue
        refusals.append(tries)
        open_ += 1
        if open_ <= rows:
            heapq.heappush(events, (now + seconds(rng, now), number, -1))
    return refusals, told, ends


def exponential(rng: Random, now: float) -> float:
    return rng.expovariate(1)


@pytest.mark.parametrize("seed", range(4))
def test_behind_a_burst_a_polite_client_is_refused_once_more_at_most(seed: int) -> None:
    refusals, told, _ = overload([(4, 20), (0.5, 300)], exponential, 100, seed)
    refused = [each for each in refusals if each]
    assert len(refused) > 600
    assert sum(each <= 2 for each in refused) >= 0.95 * len(refused)
    assert all(seconds >= 4 for at, seconds, _ in told if at > 2), "nobody is told less than the queue takes: 64 at 16 per second"


def test_a_pace_that_nobody_has_measured_promises_no_wait_but_that_until_now() -> None:
    room = WaitingRoom(QUEUE)
    assert [room.wait_seconds(total, 1, now) for total, now in ((6, 3.0), (9, 3.5), (1, 3.5))] == [0.0, 0.5, 0.0]
    room.on_ended(1, 1, 2, 4.0)
    assert room.wait_seconds(3, 1, 4.0) == 2.0


def test_the_pace_is_that_of_a_full_engine() -> None:
    _, told, _ = overload([(0.1, 60), (3, 20)], exponential, 2, 1)
    assert told and 8 < median([pace for _, _, pace in told]) < 24 and min(pace for _, _, pace in told) > 6, "not the 1.6 per second before"


@pytest.mark.parametrize(("load", "rows"), [(1.3, 16), (2.0, 16), (1.3, 4), (2.0, 4)])
def test_under_lasting_overload_the_pace_is_right(load: float, rows: int) -> None:
    """In the seconds that a client is told, the engine ends as many as the pace says; also where answers become three times as long,
    at once or little by little."""

    def lengthening(rng: Random, now: float) -> float:
        return rng.lognormvariate(-0.5, 1) * (1 if now < 120 else 3)

    def growing(rng: Random, now: float) -> float:
        return rng.lognormvariate(-0.5, 1) * (1 + now / 60)

    for seconds in (exponential, lengthening, growing):
        medians = []
        for seed in range(1, 4 if rows < ROWS else 2):
            _, told, ends = overload([(load, 240)], seconds, 3, seed, rows)
            errors = []
            for at, after, pace in told:
                place = bisect(ends, at) + int(pace * after)
                if place < len(ends):
                    took = ends[place] - at
                    errors.append(abs(after - took) / took)
            assert len(errors) > 400
            medians.append(median(errors))
        assert sum(medians) / len(medians) < 0.25
