"""Coverage of rare situations: how often each occurred. A simulation in which one never occurs has not tested it.

Owns the names and the counts, from commands, plans, results and events; never influences the run.
"""

from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from ridgeline.core import events
from ridgeline.core.commands import Abort, Close, Command
from ridgeline.core.events import Event, Finish, Wait
from ridgeline.core.plan import Plan, Result
from ridgeline.core.scheduler import Scheduler
from ridgeline.sim.laws.front_end import FrontEnd, Key
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
    "prefix hit in a tier",
    "resumed from the host",
    "fetched beside blocks that move out",
    "preempted",
    "preempted twice",
    "preempted with a shared prefix",
    "preempted while its prompt is being scored",
    "prompt scored beside decode rows",
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
    "ranks later since it was late",
    "starts before older ones of other tenants",
    "rejected as unservable",
    "rejected as the queue is full",
    "no block free",
    "waits for outputs to come",
    "rows all taken while requests wait",
    "budget spent to the last token",
    "prefill chunk beside decode rows",
    "prefill chunk cut by the prefill budget",
    "2 steps in flight",
    "3 steps in flight",
    "4 steps in flight",
    "drafts all right",
    "drafts partly right",
    "drafts all wrong",
    "drafts of several rows",
    "drafts beside a prefill chunk",
    "drafts at depth 4",
    "drafts up to the last allowed token",
    "drafts across a block's edge",
    "drafts of a row with a window",
    "drafts of a row that was preempted",
    "drafts as long as samples allow",
    "drafts of a model",
    "draft model catches up beside drafts",
    "stop id before the last right draft",
    "NaN at a rejected position",
    "NaN behind right drafts",
    "close that falls inside a step's ids",
    "engine ended under requests",
    "went on behind its outputs",
    "went on before its first output",
    "went on while its prompt was being scored",
    "went on beside a choice that had ended",
    "close without an engine",
    "abort without an engine",
    "suspect waited for another",
    "waited for an adapter",
    "waited for an adapter slot",
    "slot filled in the place of another adapter",
    "rows of several adapters and of none in a step",
)

_CLEARED = {Wait.PREFIX: "wait for a prefix cleared", Wait.ADAPTER: "waited for an adapter"}


class Coverage:
    """Counts of one run, from commands before each turn, plans and results within it, and events after it."""

    def __init__(self, world: World, front_end: FrontEnd, scheduler: Scheduler, counts: Counter[str]) -> None:
        """`counts` goes on: an engine before may have begun it."""
        self.counts = counts
        self._world = world
        self._front_end = front_end
        self._scheduler = scheduler
        self._row: dict[int, int] = {}
        """Sequence number by row."""
        self._sequence: dict[Key, int] = {}
        self._key: dict[int, Key] = {}
        self._nan: dict[int, int] = {}
        """Position that computes to NaN, by row."""
        self._slot: dict[int, int] = {}
        """Slot of its adapter, by row."""
        self._filled: set[int] = set()
        self._running: set[Key] = set()
        self._provisional: set[Key] = set()
        self._preempted: set[Key] = set()
        self._prefix_hits: set[Key] = set()
        self._preemptions: Counter[Key] = Counter()
        self._blockers: set[str] = set()
        """Requests whose prefix other requests wait for."""
        self._first_blocks: dict[tuple[int, ...], set[bytes]] = {}
        self._steps_in_flight: deque[frozenset[int]] = deque()
        self._committed: frozenset[int] = frozenset()
        self._handlers: dict[type, Callable[[Any], None]] = {
            events.Started: self._on_started,
            events.Scheduled: self._on_scheduled,
            events.PrefixHit: self._on_hit,
            events.PrefixMiss: self._on_miss,
            events.Waiting: self._on_waiting,
            events.Ready: lambda event: self._count(_CLEARED.get(event.reason, ""), event.reason in _CLEARED),
            events.Evicted: self._on_evicted,
            events.Moved: lambda event: self._count("block moved to the host", event.out),
            events.Preempted: self._on_preempted,
            events.EndedProvisionally: self._on_provisional,
            events.Closed: self._on_closed,
            events.Rejected: self._on_rejected,
        }

    def on_command(self, command: Command) -> None:
        """Counts a command that is about to reach the engine."""
        if isinstance(command, Abort):
            self._on_abort(command.request_id)
        elif isinstance(command, Close):
            self._on_close((command.request_id, command.choice), command.keep)

    def on_plan(self, plan: Plan) -> None:
        """Counts a plan that has been submitted."""
        for new in plan.new_rows:
            self._row[new.row] = new.sequence
            self._nan[new.row] = self._world.model.nan_position(new.params)
            behind = any(group.window and table[:1] == (0,) for group, table in zip(self._world.info.kv.groups, new.tables, strict=True))
            self._count("window group joins behind its window", behind)
            self._slot[new.row] = new.slot
        self._count("slot filled in the place of another adapter", any(fill.slot in self._filled for fill in plan.fills))
        self._filled.update(fill.slot for fill in plan.fills)
        slots = {self._slot[each] for each in plan.row}
        self._count("rows of several adapters and of none in a step", -1 in slots and len(slots) > 2)
        row = self._row
        self._steps_in_flight.append(frozenset([row[each] for each in plan.row]))
        if len(self._steps_in_flight) > 1:
            self.counts[f"{len(self._steps_in_flight)} steps in flight"] += 1
        if plan.drafts:
            _count_drafts(self, plan)
        if plan.spans:
            _count_spans(self, plan)
        spent = len(plan.tokens) == self._scheduler.limits.token_budget
        if not spent and self._scheduler.cache.pool.held_by_steps:
            self._count("second victim spared as blocks were coming", self._is_second_victim_spared(plan.step))
        self._count("budget spent to the last token", spent)
        directions = {source > target for source, target in plan.copies}
        self._count("fetched beside blocks that move out", len(directions) == 2)
        self._count("prompt scored beside decode rows", bool(plan.score) and 1 in plan.count)
        limits, singles = self._scheduler.limits, plan.count.count(1)
        spent = len(plan.tokens) - singles == limits.prefill_budget(singles)
        cut = singles and not plan.drafts and limits.mixed_tokens < limits.token_budget and spent
        self._count("prefill chunk cut by the prefill budget", bool(cut))
        self._count("prefill chunk beside decode rows", 1 < len(plan.row) < len(plan.tokens) and 1 in plan.count)

    def on_result(self, plan: Plan, result: Result) -> None:
        """Counts the result of the oldest step."""
        if plan.drafts:
            _count_verification(self, plan, result)
        self._committed = self._steps_in_flight.popleft()
        if 0 in result.finite:
            bad = [index for index, finite in enumerate(result.finite) if not finite]
            self._count("NaN in a chunk that does not sample", not all(plan.sample[index] for index in bad))
            self._count("NaN beside healthy rows", len(bad) < len(plan.row))
            ended = [self._key.get(self._row[plan.row[index]]) not in self._running for index in bad]
            self._count("NaN of a choice that had ended", any(ended))

    def on_event(self, event: Event) -> None:
        """Counts one event; called in the order of the turn."""
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event)

    # ── commands ────────────────────────────────────────────────────────────────────────────────────────────────

    def _on_abort(self, request_id: str) -> None:
        choices = {key: choice for key, choice in self._front_end.choices.items() if key[0] == request_id}
        open_choices = [key for key, choice in choices.items() if choice.closed is None]
        self._count("abort of what has ended", not open_choices)
        if not open_choices:
            return
        self._count("abort when a sibling has ended", len(open_choices) < len(choices))
        self._count("abort while waiting", any(key not in self._sequence for key in open_choices))
        self._count("abort while preempted", any(key in self._preempted for key in open_choices))
        self._count("abort while in flight", any(self._in_flight(key) for key in open_choices))
        self._count("abort after a provisional end", any(key in self._provisional for key in open_choices))
        self._count("abort while others wait for its prefix", request_id in self._blockers)

    def _on_close(self, key: Key, keep: int) -> None:
        choice = self._front_end.choices[key]
        self._count("close repeated", choice.closed is not None)
        if choice.closed is not None:
            return
        self._count("close after a provisional end", key in self._provisional)
        self._count("close before the engine's end", key not in self._provisional)
        self._count("close that drops ids", keep < len(choice.oracle.ids))
        self._count("close that falls inside a step's ids", len(choice.oracle.ids) - choice.num_new_ids < keep < len(choice.oracle.ids))
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
        waiting = self._scheduler.lifecycle.waiting if self._world.policy != "priority" else ()
        older = any(each.number < event.sequence and not each.waiting_for for each in waiting)
        self._count("starts before older ones of other tenants", older)

    def _on_scheduled(self, event: events.Scheduled) -> None:
        self._count("no block free", event.free_blocks == 0 and event.cached_blocks == 0)
        self._count("rows all taken while requests wait", event.waiting > 0 and len(event.sequences) == self._world.limits.rows)

    def _on_evicted(self, event: events.Evicted) -> None:
        self._count("cached block evicted", True)
        self._count("block of the host forgotten", event.block_id > self._world.info.kv.blocks)

    def _on_hit(self, event: events.PrefixHit) -> None:
        key = (event.request_id, event.choice)
        prompt = self._front_end.choices[key].oracle.request.prompt
        size = self._world.info.kv.block_tokens
        self.counts["prefix hit"] += 1
        self._count("prefix hit on the host", event.from_host > 0)
        self._count("prefix hit in a tier", event.from_tier > 0)
        self._count("resumed from the host", event.from_host > 0 and self._preemptions[key] > 0)
        self._prefix_hits.add(key)
        self._count("prefix hit by a sibling choice", event.choice > 0)
        self._count(
            "fully cached prompt of whole blocks",
            len(prompt) % size == 0 and len(prompt) - size <= event.tokens < len(prompt),
        )
        self._count("resumed with outputs from the cache", event.tokens > len(prompt))

    def _on_miss(self, event: events.PrefixMiss) -> None:
        request = self._front_end.choices[event.request_id, event.choice].oracle.request
        others = self._first_blocks.get(request.prompt[: self._world.info.kv.block_tokens], set())
        elsewhere = bool(others) and request.domain not in others
        self._count("same prefix in another domain is a miss", event.first_missing_block == 0 and elsewhere)

    def _on_waiting(self, event: events.Waiting) -> None:
        self._count("waits for a prefix being computed", event.reason is Wait.PREFIX)
        self._count("waited for an adapter slot", event.reason is Wait.SLOT)
        if event.blocker is not None:
            self._blockers.add(event.blocker)

    def _on_preempted(self, event: events.Preempted) -> None:
        key = (event.request_id, event.choice)
        self._running.discard(key)
        self._preempted.add(key)
        self._preemptions[key] += 1
        self.counts["preempted"] += 1
        shared = key in self._prefix_hits or self._front_end.choices[key].oracle.request.choices > 1
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
        request = self._front_end.choices[key].oracle.request
        self._count("ends with further steps in flight", self._in_flight(key) and key not in self._provisional)
        self._count("NaN ends a choice", event.reason is Finish.ERROR)
        last = event.reason is Finish.STOP and event.usage.completion_tokens == request.max_tokens
        self._count("stop id on the last allowed token", last and not request.two_phase)
        self._running.discard(key)
        self._preempted.discard(key)
        self._provisional.discard(key)
        self._blockers.discard(event.request_id)
        first = request.prompt[: self._world.info.kv.block_tokens]
        self._first_blocks.setdefault(first, set()).add(request.domain)

    def _on_rejected(self, event: events.Rejected) -> None:
        waiting = sum(choice.closed is None for choice in self._front_end.choices.values()) - len(self._running)
        full = waiting >= self._world.limits.max_waiting
        self.counts[f"rejected {'as the queue is full' if full else 'as unservable'}"] += 1

    def _is_second_victim_spared(self, step: int) -> bool:
        """True if a preempted sequence's blocks are in flight and another sequence waits for them instead of preempting a second one."""
        life = self._scheduler.lifecycle
        if not any(each.in_flight for each in life.waiting) or not self._scheduler.cache.pool.count_pending_free():
            return False
        return any(each.last_step != step and each.scheduled == each.capacity and each.scheduled < each.target for each in life.running)

    def _in_flight(self, key: Key) -> bool:
        sequence = self._sequence.get(key)
        return sequence is not None and any(sequence in step for step in self._steps_in_flight)

    def _count(self, situation: str, is_met: bool) -> None:
        if is_met:
            self.counts[situation] += 1


def _count_drafts(coverage: Coverage, plan: Plan) -> None:
    """Counts a submitted plan with drafts."""
    rows = [(index, samples) for index, samples in enumerate(plan.sample) if samples > 1]
    size, windows = coverage._world.info.kv.block_tokens, any(group.window for group in coverage._world.info.kv.groups)
    coverage._count("drafts of several rows", len(rows) > 1)
    chunked = any(count > max(1, samples) for count, samples in zip(plan.count, plan.sample, strict=True))
    coverage._count("drafts beside a prefill chunk", chunked)
    coverage._count("drafts at depth 4", coverage._world.limits.depth == 4)
    coverage._count("drafts as long as samples allow", sum(plan.sample) == coverage._scheduler.limits.max_samples)
    for index, samples in rows:
        start, key = plan.start[index], coverage._key.get(coverage._row[plan.row[index]])
        coverage._count("drafts across a block's edge", start // size < (start + samples - 1) // size)
        coverage._count("drafts of a row with a window", windows)
        if key is not None:
            request = coverage._front_end.choices[key].oracle.request
            coverage._count("drafts of a row that was preempted", coverage._preemptions[key] > 0)
            coverage._count("drafts up to the last allowed token", start + samples + 1 == len(request.prompt) + request.max_tokens)


def _count_spans(coverage: Coverage, plan: Plan) -> None:
    """Counts what the draft model computes in a submitted plan."""
    depths = [span.drafts for span in plan.spans]
    coverage._count("drafts of a model", any(depths))
    coverage._count("draft model catches up beside drafts", any(depths) and not all(depths))


def _count_verification(coverage: Coverage, plan: Plan, result: Result) -> None:
    """Counts the result of a plan with drafts."""
    for index, samples in enumerate(plan.sample):
        if samples < 2:
            continue
        length, begin = len(result.sampled[index]), plan.start[index] + plan.count[index] - samples
        nan, key = coverage._nan[plan.row[index]], coverage._key.get(coverage._row[plan.row[index]])
        if not result.finite[index]:
            coverage._count("NaN behind right drafts", length > 0)
        else:
            coverage._count("NaN at a rejected position", begin + length <= nan < begin + samples)
            coverage.counts["drafts all right" if length == samples else "drafts partly right" if length > 1 else "drafts all wrong"] += 1
        if key is not None:
            request = coverage._front_end.choices[key].oracle.request
            ids, first = result.sampled[index], begin + 2 - len(request.prompt)
            stops = [at for at, token in enumerate(ids, first) if token in request.stop_ids and at > request.min_tokens]
            coverage._count("stop id before the last right draft", bool(stops) and stops[0] < first + length - 1)
