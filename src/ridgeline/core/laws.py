"""Checks of the invariants of docs/laws.md ("laws") that show in a scheduler's state.

`check` looks at counters and open sequences, `check_plan` at one plan, `check_full` recounts every block. A law that does not hold raises
`LawViolation` with its number; nothing is repaired. The simulator checks the laws about computed values (7, 8, 9, 12, 13, 15) and about
what clients receive (1, 10, 11).
"""

from collections import Counter
from itertools import accumulate

from ridgeline.core.params import Limits
from ridgeline.core.plan import DRAFT, KVShape, Plan
from ridgeline.core.scheduler import Scheduler
from ridgeline.core.sequence import Sequence, State
from ridgeline.errors import LawViolation


def check(scheduler: Scheduler) -> None:
    """Checks laws 1, 2 (counters), 4, 5 (rows) and 6 after a step. O(open sequences)."""
    lifecycle, pool = scheduler.lifecycle, scheduler.cache.pool
    for sequence in lifecycle.running:
        _check_sequence(sequence, State.RUNNING)
    for sequence in lifecycle.waiting:
        _check_sequence(sequence, State.WAITING)
        if sequence.overtaken:
            raise LawViolation(6, f"sequence {sequence.number} was overtaken {sequence.overtaken} times while it was ready")
    if len(lifecycle.running) + len(lifecycle.rows) > scheduler.limits.rows:
        raise LawViolation(5, f"{len(lifecycle.running)} sequences run and {len(lifecycle.rows)} of {scheduler.limits.rows} rows are free")
    if any(step.is_barrier for step in list(scheduler.steps_in_flight)[:-1]):
        raise LawViolation(4, "a step is planned behind one that drafts and is a barrier")
    if len(pool.free) + len(pool.cached) + pool.held != pool.count:
        raise LawViolation(2, f"free {len(pool.free)} + cached {len(pool.cached)} + held {pool.held} is not {pool.count}")
    if lifecycle.adapters.count:
        _check_slots(scheduler)
    host = scheduler.cache.host
    if len(host.free) + len(host.cached) != host.count:
        raise LawViolation(2, f"of the host, free {len(host.free)} + cached {len(host.cached)} is not {host.count}")


def _check_slots(scheduler: Scheduler) -> None:
    """Checks law 5: adapters of rows lie in slots of their own, as many as there are."""
    lifecycle, adapters = scheduler.lifecycle, scheduler.lifecycle.adapters
    numbers = list(adapters.slots.values())
    if len(set(numbers)) != len(numbers) or len(numbers) > adapters.count or not adapters.rows.keys() <= adapters.slots.keys():
        raise LawViolation(5, f"{len(numbers)} adapters lie in {adapters.count} slots: {numbers}")
    for sequence in lifecycle.running:
        adapter = sequence.request.adapter
        if (adapter is None) != (sequence.slot < 0) or (adapter is not None and adapters.slots.get(adapter.digest) != sequence.slot):
            raise LawViolation(5, f"sequence {sequence.number} uses slot {sequence.slot}, which is not its adapter's")
    opened = Counter(s.request.adapter.digest for each in lifecycle.open.values() for s in each.values() if s.request.adapter is not None)
    if opened != adapters.open or (scheduler.idle and adapters.rows):
        raise LawViolation(14, f"{opened.total()} sequences with adapters are open and {adapters.open.total()} are counted")


def _check_sequence(sequence: Sequence, state: State) -> None:
    computed, scheduled, target, promised = sequence.computed, sequence.scheduled, sequence.target, sequence.promised
    if sequence.state is not state:
        raise LawViolation(1, f"sequence {sequence.number} is queued as {state.name} and is {sequence.state.name}")
    if not 0 <= computed <= scheduled <= target or (sequence.drafted and not sequence.in_flight):
        name = f"sequence {sequence.number}"
        raise LawViolation(4, f"{name}: computed {computed}, scheduled {scheduled} + {sequence.drafted} drafted, target {target}")
    if target + sequence.drafted > sequence.limit or promised < 0 or scheduled + sequence.drafted > sequence.capacity:
        raise LawViolation(
            4, f"sequence {sequence.number}: target {target} of {sequence.limit}, scheduled {scheduled} of {sequence.capacity}"
        )
    if not min(scheduled, sequence.to_score) <= sequence.scored <= sequence.to_score:
        raise LawViolation(4, f"sequence {sequence.number}: {sequence.scored} prompt positions scored, scheduled {scheduled}")
    if (promised or computed < scheduled) and not sequence.in_flight:
        raise LawViolation(4, f"sequence {sequence.number} is promised {promised} ids and has no step in flight")


def check_plan(plan: Plan, limits: Limits, shape: KVShape) -> None:
    """Checks law 5: a plan is not empty, is within token budget, rows, samples and blocks, and its columns fit each other."""
    tokens, rows, name = sum(plan.count), len(plan.row), f"step {plan.step}"
    if not 0 < tokens <= limits.token_budget:
        raise LawViolation(5, f"{name} computes {tokens} tokens, the budget is {limits.token_budget}")
    if rows > limits.rows or len(set(plan.row)) != rows or not 0 <= min(plan.row) <= max(plan.row) < limits.rows:
        raise LawViolation(5, f"{name} has {rows} rows of {limits.rows}, {len(set(plan.row))} different")
    lengths = {len(plan.start), len(plan.count), len(plan.sample)}
    if tokens != len(plan.tokens) or min(plan.count) < 1 or lengths != {rows} or len(plan.open) not in (0, rows):
        raise LawViolation(5, f"{name}: columns do not fit each other")
    if sum(plan.sample) > limits.max_samples or any(samples > count for samples, count in zip(plan.sample, plan.count, strict=True)):
        raise LawViolation(5, f"{name} samples {list(plan.sample)} of {list(plan.count)} positions, {limits.max_samples} are allowed")
    spans = {span.row: span for span in plan.spans}
    for row, end, samples in zip(plan.row, accumulate(plan.count), plan.sample, strict=True):
        ids = plan.tokens[end - samples : end].tolist()
        own = samples > 1 and ids[1:] == [DRAFT] * (samples - 1) and row in spans and spans[row].drafts == samples - 1
        if samples > 1 and not own and min(ids) < 0:
            raise LawViolation(4, f"{name} has drafts behind an id that is not known, or drafts without an id")
        if row in spans and spans[row].drafts and not own:
            raise LawViolation(4, f"{name} has ids drafted for row {row} that it does not verify")
    if len(spans) < len(plan.spans) or not spans.keys() <= set(plan.row) or any(not span.ids for span in plan.spans):
        raise LawViolation(5, f"{name}: spans of the draft model do not fit its rows")
    if sum([len(span.ids) for span in plan.spans]) > limits.token_budget:
        raise LawViolation(5, f"{name}: the draft model computes more known ids than the budget of {limits.token_budget} tokens")
    for index, first, count in plan.score:
        if not (0 <= index < rows and count > 0 and 0 <= first <= first + count <= plan.count[index] - plan.sample[index]):
            raise LawViolation(5, f"{name} scores {count} positions from {first} on of row index {index}, not all computed there")
    given = [block_id for *_, block_ids in plan.blocks for block_id in block_ids]
    given += [block_id for new in plan.new_rows for table in new.tables for block_id in table]
    if given and not 0 <= min(given) <= max(given) <= shape.blocks:
        raise LawViolation(5, f"{name} names blocks outside 0 … {shape.blocks}")
    slots = [new.slot for new in plan.new_rows] + [fill.slot for fill in plan.fills]
    if slots and not -1 <= min(slots) <= max(slots) < limits.adapter_slots:
        raise LawViolation(5, f"{name} names slots {slots} of {limits.adapter_slots}")
    for pair in plan.copies:
        low, high = min(pair), max(pair)
        if not (pair[0] == low < 0 < high <= shape.blocks or 1 <= low <= shape.blocks < high <= shape.blocks + shape.host_blocks):
            raise LawViolation(5, f"{name} copies {pair}; the device has {shape.blocks} blocks, the host {shape.host_blocks}")


def check_full(scheduler: Scheduler) -> None:
    """Checks what `check` does, laws 2 and 3 by recounting the holders of every block, and law 14 if idle. O(blocks + known ids)."""
    check(scheduler)
    pool = scheduler.cache.pool
    tables: Counter[int] = Counter()
    for sequence in scheduler.lifecycle.running + scheduler.lifecycle.waiting:
        for table in sequence.tables:
            tables.update([block_id for block_id in table if block_id])
        _check_tables(sequence, scheduler)
    holders = tables.copy()
    for block_ids in pool.held_by_steps.values():
        holders.update(block_ids)
    for block_id in range(1, pool.count + 1):
        if holders[block_id] != pool.holders[block_id]:
            raise LawViolation(2, f"block {block_id} has {holders[block_id]} holders and counts {pool.holders[block_id]}")
        if tables[block_id] > 1 and block_id not in scheduler.cache.index.by_block_id:
            raise LawViolation(3, f"block {block_id} is in {tables[block_id]} tables and not published")
    free = set(pool.free)
    if len(free) != len(pool.free) or free & pool.cached.keys() or any(pool.holders[block_id] for block_id in free | pool.cached.keys()):
        raise LawViolation(3, "a block is free twice, free and cached, or free and held")
    _check_index(scheduler)
    if scheduler.idle:
        _check_idle(scheduler)


def _check_tables(sequence: Sequence, scheduler: Scheduler) -> None:
    """Checks that every block that the next position sees is held, and that published ones are full, computed and have its ids."""
    index, size = scheduler.cache.index, scheduler.cache.shape.block_tokens
    name = f"sequence {sequence.number}"
    for g, (table, group) in enumerate(zip(sequence.tables, scheduler.cache.shape.groups, strict=True)):
        if len(table) * size != sequence.capacity:
            raise LawViolation(2, f"{name} has {len(table)} blocks of group {g} for {sequence.capacity} positions")
        if 0 in table[index.first_visible_block(group.window, sequence.scheduled) :]:
            raise LawViolation(3, f"{name} has freed a block of group {g} that position {sequence.scheduled} sees")
        for block, block_id in enumerate(table):
            found = index.by_block_id.get(block_id)
            if found is None:
                continue
            if (block + 1) * size > sequence.computed:
                raise LawViolation(3, f"{name} will write to block {block_id}, its block {block} of group {g}, which is published")
            if found.block_ids[g] != block_id or found.ids != tuple(sequence.known[block * size : (block + 1) * size]):
                raise LawViolation(3, f"block {block_id} is published with other ids than {name} has in its block {block}")
            if found.identity != index.identity(sequence):
                raise LawViolation(9, f"{name} shares block {block_id} across identities")


def _check_index(scheduler: Scheduler) -> None:
    pool, index = scheduler.cache.pool, scheduler.cache.index
    entries = {block_id: block for block in index.blocks.values() for block_id in block.block_ids if block_id}
    host, here = scheduler.cache.host, {block_id for block_id in entries if block_id <= pool.count}
    if entries != index.by_block_id or sum(pool.published) != len(here) or not all(pool.published[block_id] for block_id in here):
        raise LawViolation(3, f"{len(entries)} blocks are indexed by key, {len(index.by_block_id)} by id, {sum(pool.published)} marked")
    numbers = {*host.free, *host.cached}
    if numbers != set(range(host.first, host.first + host.count)) or host.cached.keys() != entries.keys() - here:
        raise LawViolation(3, f"{len(host.cached)} host blocks are cached, {len(entries) - len(here)} are in the index")
    for key, block in index.blocks.items():
        if block.key != key or len(block.ids) != index.shape.block_tokens or not any(block.block_ids):
            raise LawViolation(3, f"a block {block.block_ids} is published under another key, or is not full")
    if not pool.cached.keys() <= entries.keys():
        raise LawViolation(3, "a block is cached and not published")


def _check_idle(scheduler: Scheduler) -> None:
    lifecycle, pool = scheduler.lifecycle, scheduler.cache.pool
    if pool.available != pool.count or pool.held_by_steps or any(pool.holders):
        raise LawViolation(14, f"idle, and {pool.count - pool.available} blocks are not free")
    if len(lifecycle.rows) != scheduler.limits.rows or lifecycle.waiting or lifecycle.running:
        raise LawViolation(14, f"idle, and {scheduler.limits.rows - len(lifecycle.rows)} rows are not free")
    if scheduler.cache.index.computing or (pool.cached and not scheduler.limits.prefix_caching):
        raise LawViolation(14, "idle, and the prefix index still expects blocks, or has cached blocks without prefix caching")
