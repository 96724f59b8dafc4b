"""Prefix sharing: once per burst, among choices, never across tenants, never after NaN."""

import pytest

from ridgeline.core.commands import Abort
from ridgeline.core.events import Closed, Evicted, Finish, PrefixHit, Ready, Wait, Waiting
from ridgeline.sim.laws.model import FakeModel

SHARED = tuple(40 + i * 13 % 211 for i in range(1000))


def computed(run) -> int:
    return sum(sum(plan.count) for plan in run.plans)


@pytest.mark.parametrize("windows", [(0,), (0, 512), (0, 30), (64,)])
@pytest.mark.parametrize(("budget", "depth"), [(2048, 1), (2048, 3), (300, 1), (250, 2)])
def test_a_burst_computes_its_prefix_once(loop, windows: tuple[int, ...], budget: int, depth: int) -> None:
    run = loop(rows=16, blocks=4000, block_tokens=16, windows=windows, token_budget=budget, depth=depth)
    run.finish(*[run.request(f"r{i}", (*SHARED, 300 + i, 7), max_tokens=2) for i in range(16)])
    run.check_ended()
    whole = len(SHARED) // 16 * 16
    assert computed(run) == whole + 16 * (len(SHARED) + 2 - whole + 1)
    assert [e.usage.cached_tokens for e in run.events_of(Closed)].count(whole) == 15
    assert all(e.blocker == "r0" for e in run.events_of(Waiting) if e.reason is Wait.PREFIX)


def test_a_wait_for_a_prefix_ends_when_the_other_is_aborted(loop) -> None:
    run = loop(block_tokens=16, blocks=400, depth=2)
    run.apply(run.request("first", (*SHARED, 1), max_tokens=2), run.request("second", (*SHARED, 2), max_tokens=2))
    run.plan()
    assert run.sequence("second").waiting_for == {Wait.PREFIX}
    run.apply(Abort("first"))
    assert list(run.plan().count) == [1001]
    run.finish()
    run.check_ended()
    assert [e.reason for e in run.events_of(Ready, "second")] == [Wait.PREFIX]
    assert run.ids("second") == run.expected("second")


def test_a_running_sequence_reuses_blocks_published_meanwhile(loop) -> None:
    """An urgent request arrives while another has computed a part of the prefix, computes the rest first, and the other reuses it."""
    run = loop(policy="priority", block_tokens=4, token_budget=20, rows=4)
    run.turn(run.request("slow", (*SHARED[:100], 1), max_tokens=2, priority=5))
    run.finish(run.request("urgent", (*SHARED[:100], 2), max_tokens=2, priority=0))
    run.check_ended()
    assert computed(run) < 140
    assert run.events_of(PrefixHit, "slow")


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("choices", [1, 2, 3, 4])
def test_choices_share_the_prompt_and_answer_apart(loop, choices: int, caching: bool) -> None:
    run = loop(prefix_caching=caching, windows=(0, 11), token_budget=16)
    run.finish(run.request("a", 21, max_tokens=6, choices=choices))
    run.check_ended()
    answers = [run.ids("a", choice) for choice in range(choices)]
    assert answers == [run.expected("a", choice) for choice in range(choices)]
    assert len(set(answers)) == choices
    assert computed(run) == 21 + (choices - 1) + choices * 5
    assert [e.usage.cached_tokens for e in run.events_of(Closed)] == [0] + [20] * (choices - 1)
    assert bool(run.scheduler.cache.pool.cached) is caching


def test_without_prefix_caching_two_requests_share_nothing(loop) -> None:
    run = loop(prefix_caching=False)
    for name in ("a", "b"):
        run.finish(run.request(name, SHARED[:40], max_tokens=2, choices=2))
    assert [e.usage.cached_tokens for e in run.events_of(Closed)] == [0, 36, 0, 36]


def test_nothing_is_shared_across_tenants(loop) -> None:
    run = loop(model=FakeModel(identities=2))
    run.finish(run.request("a", SHARED[:40], max_tokens=2, seed=2))
    run.finish(run.request("b", SHARED[:40], max_tokens=2, seed=3, domain=b"other"))
    run.finish(run.request("c", SHARED[:40], max_tokens=2, seed=3, domain=b"other"))
    run.check_ended()
    assert [e.usage.cached_tokens for e in run.events_of(Closed)] == [0, 0, 36]


def test_nan_ends_the_choice_and_keeps_its_blocks_out_of_the_cache(loop) -> None:
    model = FakeModel(nan_permille=1000, nan_positions=30)
    position = model.nan_position(loop().request("a", SHARED[:60], seed=3).request.row_params(0))
    run = loop(model=model, token_budget=8, depth=3)
    run.finish(run.request("a", SHARED[:60], seed=3))
    assert 0 <= position < 30
    (closed,) = run.events_of(Closed, "a")
    assert closed.reason is Finish.ERROR and "not finite" in closed.message
    assert sum(run.scheduler.cache.pool.published) <= position // 8 * 2  # chunks of 8, blocks of 4: none of NaN's chunk or behind
    assert run.scheduler.idle


def test_nan_does_not_affect_other_rows(loop) -> None:
    model = FakeModel(nan_permille=500, nan_positions=20)
    run = loop(model=model, token_budget=8, depth=2)
    run.finish(*[run.request(f"r{i}", SHARED[: 20 + i], max_tokens=4) for i in range(8)])
    reasons = {e.request_id: e.reason for e in run.events_of(Closed)}
    assert {Finish.ERROR, Finish.LENGTH} <= set(reasons.values())
    for name, reason in reasons.items():
        if reason is Finish.LENGTH:
            assert run.ids(name) == run.expected(name)


def test_the_deepest_block_is_evicted_first(loop) -> None:
    run = loop(blocks=16, windows=(0, 0), token_budget=64)
    run.finish(run.request("a", SHARED[:29], max_tokens=1))
    assert len(run.scheduler.cache.pool.cached) == 14
    run.finish(run.request("other", 9, max_tokens=3))
    assert len(run.events_of(Evicted)) == 4
    run.finish(run.request("again", SHARED[:29], max_tokens=1))
    assert run.events_of(Closed, "again")[0].usage.cached_tokens == 20
    run.check_ended()
