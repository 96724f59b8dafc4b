"""A draft model from the scheduler's side: rows catch up, draft, and give way; its price and acceptance decide how deep."""

from typing import Any

from ridgeline.core.drafts.acceptance import Acceptance
from ridgeline.core.drafts.depth import StepCost, choose_depths
from ridgeline.core.drafts.model import DraftCache, ModelDrafter
from ridgeline.core.plan import DRAFT

PRICE = tuple((tokens, tokens, 1.0 + 0.02 * tokens) for tokens in (1, 2, 4, 8, 16, 32))
"""Seconds of steps that are bound by their weights."""


def drafting(loop: Any, blocks: int = 64, passes: tuple[tuple[int, float], ...] = (), **limits: object) -> Any:
    cache = DraftCache(1, 4, blocks, 2048, passes)
    return loop(drafter=ModelDrafter(4, PRICE, False, cache), draft_blocks=blocks, **limits)


def test_a_row_catches_up_and_then_drafts(loop) -> None:
    run = drafting(loop, token_budget=16)
    run.finish(run.request("a", 40, 30))
    spans = [(plan, span) for plan in run.plans for span in plan.spans]
    catching = [span for _, span in spans if not span.drafts]
    assert [span.start for span in catching] == [0, 15, 30] and all(len(span.ids) <= 16 for span in catching)
    first = next(plan for plan in run.plans if plan.drafts)
    assert list(first.tokens)[1:] == [DRAFT] * 4 and first.spans[0].drafts == 4
    assert len(run.plans) < 30


def test_a_row_without_a_block_does_not_draft_and_delays_nobody(loop) -> None:
    run = drafting(loop, blocks=14)
    run.finish(run.request("a", 40, 12), run.request("b", 40, 12))
    assert max(sum(span.drafts > 0 for span in plan.spans) for plan in run.plans) == 1


def test_a_dear_draft_model_does_not_draft(loop) -> None:
    cheap, dear = drafting(loop, passes=((1, 0.05), (8, 0.1))), drafting(loop, passes=((1, 0.8), (8, 0.9)))
    for run in (cheap, dear):
        run.finish(run.request("a", 4, 20))
    assert any(plan.drafts for plan in cheap.plans)
    assert not any(plan.spans for plan in dear.plans)


def test_passes_are_paid_by_the_rows_that_share_them() -> None:
    """One row does not pay for a pass; eight rows do."""
    cost, offers = StepCost(PRICE), [(0.9, 0.9, 4)]
    passes = lambda rows: 0.9 + 0.001 * rows  # noqa: E731
    assert choose_depths(cost, 1, offers, 0, 8, False, passes) == [0]
    assert sum(choose_depths(StepCost([(1, 1, 1.0), (64, 64, 1.01)]), 8, offers * 8, 0, 64, False, passes)) == 0
    passes = lambda rows: 0.4 + 0.001 * rows  # noqa: E731
    assert sum(choose_depths(StepCost([(1, 1, 1.0), (64, 64, 1.01)]), 8, offers * 8, 0, 64, False, passes)) >= 8


def test_acceptance_forgets_what_was_long_ago() -> None:
    record = Acceptance()
    for _ in range(20):
        record.record(4, 0)
    assert record.estimate(0.7) < 0.25
    for _ in range(1500):
        record.fade()
    assert record.estimate(0.7) > 0.6
