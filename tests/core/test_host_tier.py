"""The host tier: evicted blocks are copied back on a hit and not computed again."""

from ridgeline.core.events import Evicted, Moved, PrefixHit

PROMPT = tuple(range(50, 62))
OTHER = tuple(range(70, 90))


def test_an_evicted_prefix_is_copied_back(loop) -> None:
    run = loop(blocks=6, host_blocks=8, rows=1)
    run.finish(run.request("a", PROMPT, max_tokens=1))
    run.finish(run.request("b", OTHER, max_tokens=1))
    out = [(moved.block_id, moved.to) for moved in run.events_of(Moved)]
    assert out and all(block_id <= 6 < to for block_id, to in out) and not run.events_of(Evicted)
    run.finish(run.request("a2", (*PROMPT, 1), max_tokens=1))
    back = [(moved.block_id, moved.to) for moved in run.events_of(Moved) if not moved.out]
    assert run.events_of(PrefixHit)[-1].from_host == 4 * len(back) > 0 and run.events_of(PrefixHit)[-1].tokens == len(PROMPT)
    assert [pair for plan in run.plans for pair in plan.copies] == [(moved.block_id, moved.to) for moved in run.events_of(Moved)]
    assert len(run.plans[-1].tokens) == 1, "only what follows the prefix is computed"
    run.check_ended()


def test_a_full_host_tier_evicts_its_oldest_block(loop) -> None:
    run = loop(blocks=6, host_blocks=1, rows=1)
    run.finish(run.request("a", PROMPT, max_tokens=1))
    run.finish(run.request("b", OTHER, max_tokens=1))
    assert {event.block_id for event in run.events_of(Evicted)} == {7} and len(run.events_of(Moved)) == len(run.events_of(Evicted)) + 1


def test_without_a_host_tier_nothing_is_copied(loop) -> None:
    run = loop(blocks=6, rows=1)
    run.finish(run.request("a", PROMPT, max_tokens=1))
    run.finish(run.request("b", OTHER, max_tokens=1))
    assert run.events_of(Evicted) and not run.events_of(Moved) and not any(plan.copies for plan in run.plans)
