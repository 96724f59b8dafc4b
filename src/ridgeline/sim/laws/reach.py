"""Counts of rare situations that were met: a simulation that never meets one has not tested it.

Owns the names and the counts; folds commands, plans and events, and never influences the run.
"""

from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from ridgeline.core import events
from ridgeline.core.commands import Abort, Close, Command
from ridgeline.core.events import Event, Finish, Wait
from ridgeline.core.plan import Plan, Result
from ridgeline.core.scheduler import Scheduler
from ridgeline.sim.laws.edge import Edge, Key
from ridgeline.sim.laws.workload import World

SITUATIONS = (
    "prefix hit",
    "fully cached prompt of whole blocks",
    "prefix hit by a sibling choice",
    "resumed with outputs from the cache",
    "same prefix in another domain is a miss",
    "window group joins behind its window",
    "waits for a prefix being computed",
    "wait for a prefix cleared",
    "abort while others wait for its prefix",
    "cached block evicted",
    "block moved to the host",
    "block of the host forgotten",
    "prefix hit on the host",
    "resumed from the host",
    "fetched beside blocks that move out",
    "preempted",
    "preempted twice",
    "preempted with a shared prefix",
    "preempted while its prompt is being scored",
    "prompt scored beside single tokens",
    "preempted with steps in flight",
    "preempted at its last allowed time",
    "second victim spared as blocks were coming",
    "resumed",
    "abort while waiting",
    "abort while preempted",
    "abort while in flight",
    "abort after a provisional end",
    "abort of what has ended",
    "abort when a sibling has ended",
    "close after a provisional end",
    "close before the engine's end",
    "close that drops ids",
    "close while in flight",
    "close while preempted",
    "close repeated",
    "ends with further steps in flight",
    "stop id on the last allowed token",
    "NaN ends a choice",
    "NaN in a chunk that does not sample",
    "NaN beside healthy rows",
    "NaN of a choice that had ended",
    "rejected as unservable",
    "rejected as the queue is full",
    "no block free",
    "rows all taken while requests wait",
    "budget spent to the last token",
    "a chunk beside single tokens",
    "a chunk cut for rows that keep up",
    "2 steps in flight",
    "3 steps in flight",
    "4 steps in flight",
    "drafts all right",
    "drafts half right",
    "drafts all wrong",
    "drafts of several rows",
    "drafts beside a chunk",
    "drafts at depth 4",
    "drafts up to the last allowed token",
    "drafts across a block's edge",
    "drafts of a row with a window",
    "drafts of a row that was preempted",
    "drafts as long as samples allow",
    "stop id before the last right draft",
    "NaN at a rejected position",
    "NaN behind right drafts",
    "close that falls inside a step's ids",
)


class Reach:
    """Counts of one run. Told of commands before each turn, of plans and results within it, and of its events at the end."""

    def __init__(self, world: World, edge: Edge, scheduler: Scheduler) -> None:
        self.counts: Counter[str] = Counter()
        self._world = world
        self._edge = edge
        self._scheduler = scheduler
        self._row: dict[int, int] = {}
        """Sequence number by row."""
        self._sequence: dict[Key, int] = {}
        self._key: dict[int, Key] = {}
        self._nan: dict[int, int] = {}
        """Position that computes to NaN, by row."""
        self._running: set[Key] = set()
        self._provisional: set[Key] = set()
        self._preempted: set[Key] = set()
        self._hit: set[Key] = set()
        self._preemptions: Counter[Key] = Counter()
        self._blocking: set[str] = set()
        """Requests that others wait for."""
        self._first_blocks: dict[tuple[int, ...], set[bytes]] = {}
        self._flying: deque[frozenset[int]] = deque()
        self._committed: frozenset[int] = frozenset()
        self._handlers: dict[type, Callable[[Any], None]] = {
            events.Started: self._on_started,
            events.Scheduled: self._on_scheduled,
            events.PrefixHit: self._on_hit,
            events.PrefixMiss: self._on_miss,
            events.Waiting: self._on_waiting,
            events.Ready: lambda event: self._count("wait for a prefix cleared", event.reason is Wait.PREFIX),
            events.Evicted: self._on_evicted,
            events.Moved: lambda event: self._count("block moved to the host", event.out),
            events.Preempted: self._on_preempted,
            events.EndedProvisionally: self._on_provisional,
            events.Closed: self._on_closed,
            events.Rejected: self._on_rejected,
        }

    def on_command(self, command: Command) -> None:
        """A command is about to reach the engine."""
        if isinstance(command, Abort):
            self._on_abort(command.request_id)
        elif isinstance(command, Close):
            self._on_close((command.request_id, command.choice), command.keep)

    def on_plan(self, plan: Plan) -> None:
        """A plan has been submitted."""
        for new in plan.new_rows:
            self._row[new.row] = new.sequence
            self._nan[new.row] = self._world.model.nan_position(new.params)
            behind = any(group.window and table[:1] == (0,) for group, table in zip(self._world.info.kv.groups, new.tables, strict=True))
            self._count("window group joins behind its window", behind)
        row = self._row
        self._flying.append(frozenset([row[each] for each in plan.row]))
        if len(self._flying) > 1:
            self.counts[f"{len(self._flying)} steps in flight"] += 1
        if plan.drafts:
            _count_drafts(self, plan)
        spent = len(plan.tokens) == self._scheduler.limits.token_budget
        if not spent and self._scheduler.cache.pool.held_by_steps:
            self._count("second victim spared as blocks were coming", self._spared(plan.step))
        self._count("budget spent to the last token", spent)
        directions = {source > target for source, target in plan.copies}
        self._count("fetched beside blocks that move out", len(directions) == 2)
        self._count("prompt scored beside single tokens", bool(plan.score) and 1 in plan.count)
        limits, singles = self._scheduler.limits, plan.count.count(1)
        spent = len(plan.tokens) - singles == limits.prefill_budget(singles)
        cut = singles and not plan.drafts and limits.mixed_tokens < limits.token_budget and spent
        self._count("a chunk cut for rows that keep up", bool(cut))
        self._count("a chunk beside single tokens", 1 < len(plan.row) < len(plan.tokens) and 1 in plan.count)

    def on_result(self, plan: Plan, result: Result) -> None:
        """The oldest step has been collected."""
        if plan.drafts:
            _count_walks(self, plan, result)
        self._committed = self._flying.popleft()
        if 0 in result.finite:
            bad = [index for index, finite in enumerate(result.finite) if not finite]
            self._count("NaN in a chunk that does not sample", not all(plan.sample[index] for index in bad))
            self._count("NaN beside healthy rows", len(bad) < len(plan.row))
            ended = [self._key.get(self._row[plan.row[index]]) not in self._running for index in bad]
            self._count("NaN of a choice that had ended", any(ended))

    def on_event(self, event: Event) -> None:
        """The turn's events, in their order."""
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event)

    # ── commands ────────────────────────────────────────────────────────────────────────────────────────────────

    def _on_abort(self, request_id: str) -> None:
        choices = {key: choice for key, choice in self._edge.choices.items() if key[0] == request_id}
        open_ = [key for key, choice in choices.items() if choice.closed is None]
        self._count("abort of what has ended", not open_)
        if not open_:
            return
        self._count("abort when a sibling has ended", len(open_) < len(choices))
        self._count("abort while waiting", any(key not in self._sequence for key in open_))
        self._count("abort while preempted", any(key in self._preempted for key in open_))
        self._count("abort while in flight", any(self._in_flight(key) for key in open_))
        self._count("abort after a provisional end", any(key in self._provisional for key in open_))
        self._count("abort while others wait for its prefix", request_id in self._blocking)

    def _on_close(self, key: Key, keep: int) -> None:
        choice = self._edge.choices[key]
        self._count("close repeated", choice.closed is not None)
        if choice.closed is not None:
            return
        self._count("close after a provisional end", key in self._provisional)
        self._count("close before the engine's end", key not in self._provisional)
        self._count("close that drops ids", keep < len(choice.oracle.ids))
        self._count("close that falls inside a step's ids", len(choice.oracle.ids) - choice.newest < keep < len(choice.oracle.ids))
        self._count("close while in flight", self._in_flight(key))
        self._count("close while preempted", key in self._preempted)

    # ── events ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _on_started(self, event: events.Started) -> None:
        key = (event.request_id, event.choice)
        self._sequence[key] = event.sequence
        self._key[event.sequence] = key
        self._running.add(key)
        self._preempted.discard(key)
        self._count("resumed", event.resumed)

    def _on_scheduled(self, event: events.Scheduled) -> None:
        self._count("no block free", event.free_blocks == 0 and event.cached_blocks == 0)
        self._count("rows all taken while requests wait", event.waiting > 0 and len(event.sequences) == self._world.limits.rows)

    def _on_evicted(self, event: events.Evicted) -> None:
        self._count("cached block evicted", True)
        self._count("block of the host forgotten", event.block_id > self._world.info.kv.blocks)

    def _on_hit(self, event: events.PrefixHit) -> None:
        key = (event.request_id, event.choice)
        prompt = self._edge.choices[key].oracle.request.prompt
        size = self._world.info.kv.block_tokens
        self.counts["prefix hit"] += 1
        self._count("prefix hit on the host", event.from_host > 0)
        self._count("resumed from the host", event.from_host > 0 and self._preemptions[key] > 0)
        self._hit.add(key)
        self._count("prefix hit by a sibling choice", event.choice > 0)
        self._count(
            "fully cached prompt of whole blocks",
            len(prompt) % size == 0 and len(prompt) - size <= event.tokens < len(prompt),
        )
        self._count("resumed with outputs from the cache", event.tokens > len(prompt))

    def _on_miss(self, event: events.PrefixMiss) -> None:
        request = self._edge.choices[event.request_id, event.choice].oracle.request
        others = self._first_blocks.get(request.prompt[: self._world.info.kv.block_tokens], set())
        elsewhere = bool(others) and request.domain not in others
        self._count("same prefix in another domain is a miss", event.first_missing_block == 0 and elsewhere)

    def _on_waiting(self, event: events.Waiting) -> None:
        self._count("waits for a prefix being computed", event.reason is Wait.PREFIX)
        if event.blocker is not None:
            self._blocking.add(event.blocker)

    def _on_preempted(self, event: events.Preempted) -> None:
        key = (event.request_id, event.choice)
        self._running.discard(key)
        self._preempted.add(key)
        self._preemptions[key] += 1
        self.counts["preempted"] += 1
        shared = key in self._hit or self._edge.choices[key].oracle.request.choices > 1
        self._count("preempted twice", self._preemptions[key] == 2)
        self._count("preempted with a shared prefix", shared)
        victim = self._scheduler.lifecycle.open.get(event.request_id, {}).get(event.choice)
        self._count("preempted while its prompt is being scored", victim is not None and 0 < victim.scored < victim.to_score)
        self._count("preempted with steps in flight", self._sequence[key] in self._committed or self._in_flight(key))
        self._count("preempted at its last allowed time", self._preemptions[key] == self._world.limits.max_preemptions)

    def _on_provisional(self, event: events.EndedProvisionally) -> None:
        key = (event.request_id, event.choice)
        self._running.discard(key)
        self._provisional.add(key)
        self._count("ends with further steps in flight", self._in_flight(key))

    def _on_closed(self, event: events.Closed) -> None:
        key = (event.request_id, event.choice)
        request = self._edge.choices[key].oracle.request
        self._count("ends with further steps in flight", self._in_flight(key) and key not in self._provisional)
        self._count("NaN ends a choice", event.reason is Finish.ERROR)
        last = event.reason is Finish.STOP and event.usage.completion_tokens == request.max_tokens
        self._count("stop id on the last allowed token", last and not request.two_phase)
        self._running.discard(key)
        self._preempted.discard(key)
        self._provisional.discard(key)
        self._blocking.discard(event.request_id)
        first = request.prompt[: self._world.info.kv.block_tokens]
        self._first_blocks.setdefault(first, set()).add(request.domain)

    def _on_rejected(self, event: events.Rejected) -> None:
        waiting = sum(choice.closed is None for choice in self._edge.choices.values()) - len(self._running)
        full = waiting >= self._world.limits.max_waiting
        self.counts[f"rejected {'as the queue is full' if full else 'as unservable'}"] += 1

    def _spared(self, step: int) -> bool:
        """One has been preempted and its blocks are still in flight; another that needs blocks waits for them and pushes nobody out."""
        life = self._scheduler.lifecycle
        if not any(each.in_flight for each in life.waiting) or not self._scheduler.cache.pool.count_pending_free():
            return False
        return any(each.last_step != step and each.scheduled == each.capacity and each.scheduled < each.target for each in life.running)

    def _in_flight(self, key: Key) -> bool:
        sequence = self._sequence.get(key)
        return sequence is not None and any(sequence in flying for flying in self._flying)

    def _count(self, situation: str, met: bool) -> None:
        if met:
            self.counts[situation] += 1


def _count_drafts(reach: Reach, plan: Plan) -> None:
    """A plan that drafts has been submitted."""
    rows = [(index, samples) for index, samples in enumerate(plan.sample) if samples > 1]
    size, windows = reach._world.info.kv.block_tokens, any(group.window for group in reach._world.info.kv.groups)
    reach._count("drafts of several rows", len(rows) > 1)
    reach._count("drafts beside a chunk", any(count > max(1, samples) for count, samples in zip(plan.count, plan.sample, strict=True)))
    reach._count("drafts at depth 4", reach._world.limits.depth == 4)
    reach._count("drafts as long as samples allow", sum(plan.sample) == reach._scheduler.limits.max_samples)
    for index, samples in rows:
        start, key = plan.start[index], reach._key.get(reach._row[plan.row[index]])
        reach._count("drafts across a block's edge", start // size < (start + samples - 1) // size)
        reach._count("drafts of a row with a window", windows)
        if key is not None:
            request = reach._edge.choices[key].oracle.request
            reach._count("drafts of a row that was preempted", reach._preemptions[key] > 0)
            reach._count("drafts up to the last allowed token", start + samples + 1 == len(request.prompt) + request.max_tokens)


def _count_walks(reach: Reach, plan: Plan, result: Result) -> None:
    """A plan that drafts has been collected."""
    for index, samples in enumerate(plan.sample):
        if samples < 2:
            continue
        length, begin = len(result.sampled[index]), plan.start[index] + plan.count[index] - samples
        nan, key = reach._nan[plan.row[index]], reach._key.get(reach._row[plan.row[index]])
        if not result.finite[index]:
            reach._count("NaN behind right drafts", length > 0)
        else:
            reach._count("NaN at a rejected position", begin + length <= nan < begin + samples)
            reach.counts["drafts all right" if length == samples else "drafts half right" if length > 1 else "drafts all wrong"] += 1
        if key is not None:
            request = reach._edge.choices[key].oracle.request
            ids, first = result.sampled[index], begin + 2 - len(request.prompt)
            stops = [at for at, token in enumerate(ids, first) if token in request.stop_ids and at > request.min_tokens]
            reach._count("stop id before the last right draft", bool(stops) and stops[0] < first + length - 1)
