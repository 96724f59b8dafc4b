"""The laws of docs/laws.md that a scheduler's state can show. `check` is cheap; `check_full` recounts every page."""

from collections import Counter

from ridgeline.core.params import Limits
from ridgeline.core.plan import KVShape, Plan
from ridgeline.core.scheduler import Scheduler
from ridgeline.core.sequence import Sequence, State
from ridgeline.errors import LawViolation


def check(scheduler: Scheduler) -> None:
    """Laws 1, 2 (counts), 4 and 6 over open sequences. O(open sequences)."""
    life, cache = scheduler.life, scheduler.cache
    for sequence in life.running:
        _check_sequence(sequence, State.RUNNING)
    for sequence in life.waiting:
        _check_sequence(sequence, State.WAITING)
        if sequence.overtaken:
            raise LawViolation(6, f"sequence {sequence.number} was overtaken {sequence.overtaken} times while it was ready")
    if len(life.running) > scheduler.limits.rows:
        raise LawViolation(5, f"{len(life.running)} sequences run on {scheduler.limits.rows} rows")
    held = sum(count > 0 for count in cache.pages.holders)
    total = len(cache.pages.free) + len(cache.pages.cached) + held
    if total != cache.pages.count:
        raise LawViolation(2, f"free {len(cache.pages.free)} + cached {len(cache.pages.cached)} + held {held} is not {cache.pages.count}")


def _check_sequence(sequence: Sequence, state: State) -> None:
    if sequence.state is not state:
        raise LawViolation(1, f"sequence {sequence.number} is queued as {state.name} and is {sequence.state.name}")
    if not 0 <= sequence.computed <= sequence.scheduled <= sequence.reach:
        raise LawViolation(
            4, f"sequence {sequence.number}: computed {sequence.computed}, scheduled {sequence.scheduled}, reach {sequence.reach}"
        )
    if sequence.reach > sequence.limit or sequence.promised < 0 or sequence.scheduled > sequence.capacity:
        raise LawViolation(
            4,
            f"sequence {sequence.number}: reach {sequence.reach} of {sequence.limit}, scheduled {sequence.scheduled} of {sequence.capacity}",
        )


def check_plan(plan: Plan, limits: Limits, shape: KVShape) -> None:
    """Law 5: a plan never exceeds token budget, rows or pages, and is never empty. Its columns fit each other."""
    tokens = sum(plan.count)
    if not 0 < tokens <= limits.token_budget:
        raise LawViolation(5, f"step {plan.step} computes {tokens} tokens, the budget is {limits.token_budget}")
    if len(plan.row) > limits.rows or len(set(plan.row)) != len(plan.row):
        raise LawViolation(5, f"step {plan.step} has {len(plan.row)} rows of {limits.rows}, {len(set(plan.row))} different")
    if tokens != len(plan.tokens) or len(plan.select) != sum(plan.sample) or min(plan.count) < 1:
        raise LawViolation(5, f"step {plan.step}: columns do not fit each other")
    given = [page for _, _, _, pages in plan.blocks for page in pages] + [
        page for new in plan.new_rows for table in new.tables for page in table
    ]
    if given and not (0 <= min(given) and max(given) <= shape.pages):
        raise LawViolation(5, f"step {plan.step} names pages outside 0 … {shape.pages}")


def check_full(scheduler: Scheduler) -> None:
    """Laws 2 and 3 by recounting every holder of every page; law 14 when the scheduler is idle."""
    check(scheduler)
    pages = scheduler.cache.pages
    holders: Counter[int] = Counter()
    for sequence in scheduler.life.running + scheduler.life.waiting:
        for table in sequence.tables:
            holders.update([page for page in table if page])
    for handed in pages.handed_over.values():
        holders.update(handed)
    for page in range(1, pages.count + 1):
        if holders[page] != pages.holders[page]:
            raise LawViolation(2, f"page {page} has {holders[page]} holders and counts {pages.holders[page]}")
    free, cached = set(pages.free), set(pages.cached)
    if len(free) != len(pages.free) or free & cached or any(pages.holders[page] for page in free | cached):
        raise LawViolation(3, "a page is free twice, free and cached, or free and held")
    _check_index(scheduler)
    if scheduler.idle:
        _check_idle(scheduler)


def _check_index(scheduler: Scheduler) -> None:
    pages, index = scheduler.cache.pages, scheduler.cache.index
    if sum(len(table) for table in index.pages) != len(index.blocks) or sum(pages.published) != len(index.blocks):
        raise LawViolation(3, f"{len(index.blocks)} blocks are published, {sum(pages.published)} pages marked")
    for page, block in index.blocks.items():
        if index.pages[block.group].get(block.key) != page or len(block.ids) != index.shape.block_tokens:
            raise LawViolation(3, f"page {page} is published under a key that does not lead to it, or is not full")
    for page in pages.cached:
        if not pages.published[page]:
            raise LawViolation(3, f"page {page} is cached and not published")


def _check_idle(scheduler: Scheduler) -> None:
    life, pages = scheduler.life, scheduler.cache.pages
    if len(pages.free) + len(pages.cached) != pages.count or pages.handed_over:
        raise LawViolation(14, f"idle, and {pages.count - pages.available} pages are not back")
    if len(life.rows) != scheduler.limits.rows or life.waiting or life.running:
        raise LawViolation(14, f"idle, and {scheduler.limits.rows - len(life.rows)} rows are not back")
    if scheduler.cache.index.computing or (pages.cached and not scheduler.limits.prefix_caching):
        raise LawViolation(14, "idle, and the prefix index still expects blocks")
