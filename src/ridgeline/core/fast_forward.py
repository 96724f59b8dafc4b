"""Skipping steps in which the scheduler decides nothing, for the simulator.

A skip leaves exactly the state that as many calls of `schedule` and `commit` would, free list and prefix index included, except for their
events.
"""

from collections.abc import Iterable

from ridgeline.core.scheduler import Scheduler
from ridgeline.core.sequence import Sequence


def skippable_steps(scheduler: Scheduler, most: int = 1 << 31) -> int:
    """Returns the number of next steps, at most `most`, that decode one token of every running sequence and decide nothing else, provided
    that no command comes and no sequence stops.

    In these steps no sequence starts, reaches its length or is preempted, and the available blocks suffice; with a host tier the free ones,
    as an eviction is a copy. Blocks that sequences will free behind their windows are not counted. Stop ids, NaN and closes by the front
    end are not foreseen: the simulator knows when its own sequences stop. 0 if a waiting sequence could start, if a sequence prefills or is
    pinned, if more sequences run than the token budget allows, or if there is a drafter.
    """
    running, waiting, limits = scheduler.lifecycle.running, scheduler.lifecycle.waiting, scheduler.limits
    if scheduler.drafter is not None or not running or len(running) > limits.token_budget or scheduler.lifecycle.pinned:
        return 0
    if waiting and len(running) < limits.rows:  # a row is free, or becomes free when its last step commits
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
    """Returns the blocks that `steps` further tokens of every running sequence take; blocks freed behind windows are not counted."""
    size, groups = scheduler.cache.shape.block_tokens, len(scheduler.cache.shape.groups)
    beyond = [-(-end // size) for s in running if (end := s.scheduled + steps - s.capacity) > 0]
    return groups * sum(beyond)


def skip_steps(scheduler: Scheduler, steps: int, token: int, seconds: Iterable[float] = ()) -> None:
    """Lets every running sequence compute one token and sample `token`, `steps` ≤ `skippable_steps` times. Nothing may be in flight.
    `seconds`: of each step, for a scheduler with a pace.

    Blocks are evicted, allocated, freed and published in the order of single steps: by step, schedule before commit, in policy order.
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
    if scheduler.pace is not None:
        updates = [scheduler.pace.measure(len(running), 0, each) for each in seconds]
        if any(updates):
            scheduler.limits = scheduler.pace.limited(scheduler.limits)
    scheduler.step += steps
    for start, sequence in zip(starts, running, strict=True):
        sequence.computed = sequence.scheduled = start + steps
        sequence.target += steps
        sequence.last_step = scheduler.step - 1
