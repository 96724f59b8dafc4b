"""How far ahead nothing will be decided: what a simulator may skip."""

from ridgeline.core.scheduler import Scheduler
from ridgeline.core.sequence import Sequence


def quiet_steps(scheduler: Scheduler) -> int:
    """Steps that can pass, at least, in which every running sequence computes one token and nothing else happens: none starts, none ends by
    length, no page is evicted, none is preempted. A stop id sampled meanwhile ends the quiet; who simulates knows its own lengths.

    0 while anything is queued that could start, while a sequence catches up, or while more run than a step's budget holds.
    """
    running, limits = scheduler.life.running, scheduler.limits
    if not running or len(running) > limits.token_budget:
        return 0
    if scheduler.life.waiting and len(running) < limits.rows:  # a row is free, or comes free when its last step commits
        return 0
    if any(s.reach - s.scheduled != 1 or s.needs_commit for s in running):
        return 0
    low, high = 0, max(0, min(s.limit - s.reach for s in running) - 1)
    free = len(scheduler.cache.pages.free)
    while low < high:
        middle = (low + high + 1) // 2
        if _pages(scheduler, running, middle) <= free:
            low = middle
        else:
            high = middle - 1
    return low


def _pages(scheduler: Scheduler, running: list[Sequence], steps: int) -> int:
    """Pages that `steps` further tokens of every running sequence take; what windows give back is not counted."""
    size, groups = scheduler.cache.shape.block_tokens, len(scheduler.cache.shape.groups)
    return groups * sum(max(0, -(-(s.scheduled + steps - s.capacity) // size)) for s in running)
