"""The laws of docs/laws.md that a scheduler's state can show.

`check` looks at counters and open sequences, `check_plan` at one plan; `check_full` recounts every page.
Never repairs anything: a law that does not hold raises `LawViolation` with its number. Laws that need to know what was computed
(7, 8, 9, 12, 13, 15) or what a client was told (1, 10, 11) are the simulator's.
"""

from collections import Counter

from ridgeline.core.params import Limits
from ridgeline.core.plan import KVShape, Plan
from ridgeline.core.scheduler import Scheduler
from ridgeline.core.sequence import Sequence, State
from ridgeline.errors import LawViolation


def check(scheduler: Scheduler) -> None:
    """Laws 1, 2 (counters), 4, 5 (rows) and 6 after a step. O(open sequences)."""
    life, pages = scheduler.life, scheduler.cache.pages
    for sequence in life.running:
        _check_sequence(sequence, State.RUNNING)
    for sequence in life.waiting:
        _check_sequence(sequence, State.WAITING)
        if sequence.overtaken:
            raise LawViolation(6, f"sequence {sequence.number} was overtaken {sequence.overtaken} times while it was ready")
    if len(life.running) + len(life.rows) > scheduler.limits.rows:
        raise LawViolation(5, f"{len(life.running)} sequences run and {len(life.rows)} of {scheduler.limits.rows} rows are free")
    if len(pages.free) + len(pages.cached) + pages.held != pages.count:
        raise LawViolation(2, f"free {len(pages.free)} + cached {len(pages.cached)} + held {pages.held} is not {pages.count}")
    host = scheduler.cache.host
    if len(host.free) + len(host.cached) != host.count:
        raise LawViolation(2, f"of the host, free {len(host.free)} + cached {len(host.cached)} is not {host.count}")


def _check_sequence(sequence: Sequence, state: State) -> None:
    computed, scheduled, reach, promised = sequence.computed, sequence.scheduled, sequence.reach, sequence.promised
    if sequence.state is not state:
        raise LawViolation(1, f"sequence {sequence.number} is queued as {state.name} and is {sequence.state.name}")
    if not 0 <= computed <= scheduled <= reach:
        raise LawViolation(4, f"sequence {sequence.number}: computed {computed}, scheduled {scheduled}, reach {reach}")
    if reach > sequence.limit or promised < 0 or scheduled > sequence.capacity:
        raise LawViolation(
            4, f"sequence {sequence.number}: reach {reach} of {sequence.limit}, scheduled {scheduled} of {sequence.capacity}"
        )
    if not min(scheduled, sequence.to_score) <= sequence.scored <= sequence.to_score:
        raise LawViolation(4, f"sequence {sequence.number}: {sequence.scored} prompt positions scored, scheduled {scheduled}")
    if (promised or computed < scheduled) and not sequence.in_flight:
        raise LawViolation(4, f"sequence {sequence.number} is promised {promised} ids and has no step in flight")


def check_plan(plan: Plan, limits: Limits, shape: KVShape) -> None:
    """Law 5: a plan never exceeds token budget, rows or pages, and is never empty. Its columns fit each other."""
    tokens, rows, name = sum(plan.count), len(plan.row), f"step {plan.step}"
    if not 0 < tokens <= limits.token_budget:
        raise LawViolation(5, f"{name} computes {tokens} tokens, the budget is {limits.token_budget}")
    if rows > limits.rows or len(set(plan.row)) != rows or not 0 <= min(plan.row) <= max(plan.row) < limits.rows:
        raise LawViolation(5, f"{name} has {rows} rows of {limits.rows}, {len(set(plan.row))} different")
    lengths = {len(plan.start), len(plan.count), len(plan.sample)}
    if tokens != len(plan.tokens) or min(plan.count) < 1 or lengths != {rows}:
        raise LawViolation(5, f"{name}: columns do not fit each other")
    if any(samples > count for samples, count in zip(plan.sample, plan.count, strict=True)):
        raise LawViolation(5, f"{name} samples {list(plan.sample)} of {list(plan.count)} positions")
    for index, first, count in plan.score:
        if not (0 <= index < rows and count > 0 and 0 <= first <= first + count <= plan.count[index] - plan.sample[index]):
            raise LawViolation(5, f"{name} scores {count} positions from {first} on of row index {index}, not all computed there")
    given = [page for *_, pages in plan.blocks for page in pages]
    given += [page for new in plan.new_rows for table in new.tables for page in table]
    if given and not 0 <= min(given) <= max(given) <= shape.pages:
        raise LawViolation(5, f"{name} names pages outside 0 … {shape.pages}")
    for pair in plan.copies:
        if not 1 <= min(pair) <= shape.pages < max(pair) <= shape.pages + shape.host_pages:
            raise LawViolation(5, f"{name} copies page {pair[0]} to {pair[1]}; the device has {shape.pages}, the host {shape.host_pages}")


def check_full(scheduler: Scheduler) -> None:
    """Beside `check`: laws 2 and 3 by recounting every holder of every page, law 14 when the scheduler is idle. O(pages + known ids)."""
    check(scheduler)
    pages = scheduler.cache.pages
    tables: Counter[int] = Counter()
    for sequence in scheduler.life.running + scheduler.life.waiting:
        for table in sequence.tables:
            tables.update([page for page in table if page])
        _check_tables(sequence, scheduler)
    holders = tables.copy()
    for handed in pages.handed_over.values():
        holders.update(handed)
    for page in range(1, pages.count + 1):
        if holders[page] != pages.holders[page]:
            raise LawViolation(2, f"page {page} has {holders[page]} holders and counts {pages.holders[page]}")
        if tables[page] > 1 and page not in scheduler.cache.index.holding:
            raise LawViolation(3, f"page {page} is in {tables[page]} tables and not published")
    free = set(pages.free)
    if len(free) != len(pages.free) or free & pages.cached.keys() or any(pages.holders[page] for page in free | pages.cached.keys()):
        raise LawViolation(3, "a page is free twice, free and cached, or free and held")
    _check_index(scheduler)
    if scheduler.idle:
        _check_idle(scheduler)


def _check_tables(sequence: Sequence, scheduler: Scheduler) -> None:
    """Every block that is still seen has its page; a published page holds a full, computed block with these very ids."""
    index, size = scheduler.cache.index, scheduler.cache.shape.block_tokens
    name = f"sequence {sequence.number}"
    for g, (table, group) in enumerate(zip(sequence.tables, scheduler.cache.shape.groups, strict=True)):
        if len(table) * size != sequence.capacity:
            raise LawViolation(2, f"{name} has {len(table)} blocks of group {g} for {sequence.capacity} positions")
        if 0 in table[index.first_seen(group.window, sequence.scheduled) :]:
            raise LawViolation(3, f"{name} has let go of a block of group {g} that position {sequence.scheduled} sees")
        for block, page in enumerate(table):
            found = index.holding.get(page)
            if found is None:
                continue
            if (block + 1) * size > sequence.computed:
                raise LawViolation(3, f"{name} will write block {block} of group {g}, whose page {page} is published")
            if found.pages[g] != page or found.ids != tuple(sequence.known[block * size : (block + 1) * size]):
                raise LawViolation(3, f"page {page} is published with other ids than block {block} of {name} has")
            if found.identity != index.identity(sequence):
                raise LawViolation(9, f"{name} shares page {page} across identities")


def _check_index(scheduler: Scheduler) -> None:
    pages, index = scheduler.cache.pages, scheduler.cache.index
    entries = {page: block for block in index.blocks.values() for page in block.pages if page}
    host, here = scheduler.cache.host, {page for page in entries if page <= pages.count}
    if entries != index.holding or sum(pages.published) != len(here) or not all(pages.published[page] for page in here):
        raise LawViolation(3, f"{len(entries)} pages are indexed, {len(index.holding)} known to be, {sum(pages.published)} marked")
    numbers = {*host.free, *host.cached}
    if numbers != set(range(host.first, host.first + host.count)) or host.cached.keys() != entries.keys() - here:
        raise LawViolation(3, f"{len(host.cached)} pages of the host hold blocks, {len(entries) - len(here)} are indexed")
    for key, block in index.blocks.items():
        if block.key != key or len(block.ids) != index.shape.block_tokens or not any(block.pages):
            raise LawViolation(3, f"a block with pages {block.pages} is published under another key, or is not full")
    if not pages.cached.keys() <= entries.keys():
        raise LawViolation(3, "a page is cached and not published")


def _check_idle(scheduler: Scheduler) -> None:
    life, pages = scheduler.life, scheduler.cache.pages
    if pages.available != pages.count or pages.handed_over or any(pages.holders):
        raise LawViolation(14, f"idle, and {pages.count - pages.available} pages are not back")
    if len(life.rows) != scheduler.limits.rows or life.waiting or life.running:
        raise LawViolation(14, f"idle, and {scheduler.limits.rows - len(life.rows)} rows are not back")
    if scheduler.cache.index.computing or (pages.cached and not scheduler.limits.prefix_caching):
        raise LawViolation(14, "idle, and the prefix index still expects blocks or keeps those of a request")
