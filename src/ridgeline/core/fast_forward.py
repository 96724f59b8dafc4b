"""Steps ahead in which nothing will be decided, and the jump over them: what a simulator may skip.

Owns no state. A jump leaves exactly what so many calls of `schedule` and `commit` would, free list and prefix index included, but for the
events that tell of each step.
"""

from ridgeline.core.scheduler import Scheduler
from ridgeline.core.sequence import Sequence


def skippable_steps(scheduler: Scheduler, most: int = 1 << 31) -> int:
    """Further calls of `schedule`, at most `most`, that plan one token for every running sequence and decide nothing, if no command comes.

    None starts, none ends by length, none is preempted. Blocks that are free or cached suffice: which one is taken is no decision. Where
    cached blocks would move to the host, free ones suffice. Stop ids, NaN and the front end's closes cannot be foreseen: one of them ends
    the quiet, and who simulates knows when its own sequences stop. 0 while anything queued could start, while a sequence catches up or is
    pinned, while more run than a step's budget holds, while any row may draft. Blocks that windows will give back are not counted on.
    """
    running, waiting, limits = scheduler.lifecycle.running, scheduler.lifecycle.waiting, scheduler.limits
    if scheduler.drafter is not None or not running or len(running) > limits.token_budget or scheduler.lifecycle.pinned:
        return 0
    if waiting and len(running) < limits.rows:  # a row is free, or comes free when its last step commits
        return 0
    if waiting and scheduler.preemptor.find_victim(waiting[0]) is not None:
        return 0
    left = [s.limit - s.target for s in running if s.target - s.scheduled == 1]
    if len(left) < len(running):
        return 0
    low, high = 0, min(most, max(0, min(left) - 1))
    pool = scheduler.cache.pool
    available = len(pool.free) if scheduler.cache.host.count else pool.available
    middle = high
    while low < high:
        if _blocks_taken(scheduler, running, middle) <= available:
            low = middle
        else:
            high = middle - 1
        middle = (low + high + 1) // 2
    return low


def _blocks_taken(scheduler: Scheduler, running: list[Sequence], steps: int) -> int:
    """Blocks that `steps` further tokens of every running sequence take; what windows give back is not counted."""
    size, groups = scheduler.cache.shape.block_tokens, len(scheduler.cache.shape.groups)
    beyond = [-(-end // size) for s in running if (end := s.scheduled + steps - s.capacity) > 0]
    return groups * sum(beyond)


def skip_steps(scheduler: Scheduler, steps: int, token: int) -> None:
    """Lets every running sequence compute one token and sample `token`, `steps` ≤ `skippable_steps` times. Nothing may be in flight.

    Blocks are evicted, taken, let go and published in the order in which single steps would: (step, schedule before commit, policy order).
    """
    cache, running, size = scheduler.cache, scheduler.lifecycle.running, scheduler.cache.shape.block_tokens
    starts = [sequence.scheduled for sequence in running]
    edges: list[tuple[int, bool, int]] = []
    sampled = [token] * steps
    for index, sequence in enumerate(running):
        sequence.known += sampled
        end = starts[index] + steps
        if sequence.capacity < end:
            edges += [(ahead, False, index) for ahead in range(sequence.capacity - starts[index], steps, size)]
        if sequence.publish_at <= end:
            edges += [(ahead, True, index) for ahead in range(sequence.publish_at - starts[index] - 1, steps, size)]
    for ahead, commits, index in sorted(edges):
        sequence = running[index]
        sequence.scheduled = starts[index] + ahead
        sequence.computed = sequence.scheduled + commits
        if commits:
            cache.publish(sequence)
        else:
            cache.free_out_of_window(sequence)
            cache.allocate(sequence, sequence.scheduled + 1)
            sequence.new_blocks.clear()
    scheduler.step += steps
    for start, sequence in zip(starts, running, strict=True):
        sequence.computed = sequence.scheduled = start + steps
        sequence.target += steps
        sequence.last_step = scheduler.step - 1
