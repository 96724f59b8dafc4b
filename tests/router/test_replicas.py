"""Which replica gets a request, and when one gets none: the breaker, canaries, retries."""

import random
from math import inf

from ridgeline.core.routing import ROUTING
from ridgeline.router.prompts import Prompt
from ridgeline.router.replicas import FAILURES, WATCHED, Replica, Replicas

SHORT = Prompt(10, ())


def fleet(*shares: float) -> Replicas:
    made = [Replica(number, f"http://127.0.0.1:{number + 1}", 1.0, share) for number, share in enumerate(shares)]
    for each in made:
        each.is_ready = True
    return Replicas(made, ROUTING["least-requests"], seed=1)


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


def test_a_sound_canary_stays_and_a_worse_one_is_stopped() -> None:
    dice = random.Random(3)

    def stopped(spread: float, slower: float, broken: float, batches: int) -> bool:
        replicas = fleet(0, 0.05)
        for _ in range(batches):
            for each, factor, lost in zip(replicas.all, (1.0, slower), (0.0, broken), strict=True):
                for _ in range(WATCHED):
                    failed = dice.random() < lost
                    each.answers.append((not failed, inf if failed else factor * dice.lognormvariate(0, spread)))
            replicas._judge(replicas.all[1])
        return replicas.all[1].is_stopped

    assert not any(stopped(spread, 1.0, 0.0, 40) for spread in (0.3, 0.5, 0.8, 1.2) for _ in range(5))
    assert all(stopped(spread, 5.0, 0.0, 2) for spread in (0.3, 0.5, 0.8))
    assert stopped(0.5, 1.0, 0.9, 1)


def test_retries_have_a_budget() -> None:
    replicas = fleet(0)
    assert sum(replicas.may_retry() for _ in range(100)) == 10
    for _ in range(10):
        replicas.choose(SHORT, set())
    assert sum(replicas.may_retry() for _ in range(100)) in (1, 2)


def test_a_prompt_that_is_cached_does_not_wait_for_long() -> None:
    """What a replica was sent before costs it no prefill: it counts as waiting only by the rest."""
    replicas = Replicas(fleet(0).all, ROUTING["cache-aware"], seed=1)
    prompt = Prompt(1_000, (b"a", b"b", b"c"))
    for waiting in (1_000, 1_000 - 3 * 128):
        choice = replicas.choose(prompt, set())
        assert choice is not None
        replica, cached = choice
        with replica.serving(prompt.tokens, cached) as turn:
            assert replica.load.waiting_tokens == waiting
            turn.first_byte()
            assert replica.load.waiting_tokens == 0 and replica.load.requests == 1
