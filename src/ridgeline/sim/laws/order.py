"""Checks of scheduling order from events alone (law 6: starts, preemptions), of the prefill budget (law 5), of skippable steps (law 13).

`OrderChecker` computes the policy's order independently of the scheduler's queues; it never reads them.
"""

from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ridgeline.core import events
from ridgeline.core.commands import Admit, Command, Delivered
from ridgeline.core.events import Event, Finish
from ridgeline.core.fairness import DECODE_TOKENS, FIRST_GUESS, MEAN_OVER, UNIT
from ridgeline.core.params import Admitted
from ridgeline.core.plan import Plan
from ridgeline.core.scheduler import Scheduler
from ridgeline.core.slack import DEFAULT_TTFT_MS
from ridgeline.errors import LawViolation
from ridgeline.sim.laws.workload import World

Key = tuple[str, int]
Rank = tuple[int, int, int]


class TagReckoner:
    """Start tags of fair queueing, reckoned from commands and events alone: tenant → what it is charged with, its latest tag, and the mean
    of its outputs."""

    def __init__(self, world: World) -> None:
        kv = world.info.kv
        self._row_share = max(1, kv.blocks * kv.block_tokens // len(kv.groups) // world.limits.rows)
        self._charged: Counter[str] = Counter()
        self.latest: Counter[str] = Counter()
        self._mean: dict[str, int] = {}
        self._charge: dict[Key, int] = {}
        self.started: set[Key] = set()
        self.tag: dict[Key, int] = {}
        self._time = 0

    def _cost(self, computed: int, prompt: int, outputs: int) -> int:
        kv = outputs * (2 * prompt + outputs) * UNIT // (2 * self._row_share)
        return computed * UNIT + DECODE_TOKENS * (outputs * UNIT + kv)

    def on_admitted(self, key: Key, request: Admitted) -> int:
        """Returns the tag of a choice."""
        tenant, prompt = request.tenant, len(request.prompt)
        tag = max(self._time, self._charged[tenant], self.latest[tenant])
        guess = min(request.max_tokens, self._mean.setdefault(tenant, FIRST_GUESS * UNIT) // UNIT)
        self._charge[key] = self._cost(0 if key[1] else prompt, prompt, guess) // request.weight
        self._charged[tenant] = max(self._time, self._charged[tenant]) + self._charge[key]
        self.latest[tenant] = self.tag[key] = tag
        return tag

    def lead(self, key: Key) -> int | None:
        """Prefill tokens by which the tag of a choice is ahead of virtual time; None where there is one tenant."""
        return (self.tag[key] - self._time) // UNIT if len(self._mean) > 1 else None

    def on_started(self, key: Key, passed_over: Iterable[Key]) -> None:
        """Advances virtual time, to the lowest tag where others were passed over."""
        self.started.add(key)
        self._time = max(self._time, min(self.tag[each] for each in (key, *passed_over)))

    def on_closed(self, key: Key, request: Admitted, usage: events.Usage) -> None:
        """Charges the true cost."""
        tenant, true = request.tenant, 0
        if key in self.started:
            true = self._cost(usage.prompt_tokens - usage.cached_tokens, usage.prompt_tokens, usage.completion_tokens)
            self._mean[tenant] += (usage.completion_tokens * UNIT - self._mean[tenant]) // MEAN_OVER
        self._charged[tenant] += true // request.weight - self._charge.pop(key)
        if not self._charge:
            self._time = max(self._time, *self._charged.values())


class OrderChecker:
    """Ready sequences start in order of rank (class or latest start, start tag, arrival). The last in order is preempted first, the first
    never.

    token_seconds  of the scheduler's pace in front of the turn
    late           choices that rank later since they should have begun
    """

    def __init__(self, world: World) -> None:
        self.token_seconds = 0.0
        self._max_preemptions = world.limits.max_preemptions
        self._policy = world.policy
        self._tags = TagReckoner(world)
        self._newest = 0
        """Microsecond of the newest arrival."""
        self._begun: set[str] = set()
        self._keeps_place: set[Key] = set()
        """Choices of tenants within their shares."""
        self.late: set[Key] = set()
        self._requests: dict[str, Admitted] = {}
        self._delivered: dict[str, Sequence[Delivered]] = {}
        self._rank: dict[Key, Rank] = {}
        self._waiting: list[tuple[Rank, Key]] = []
        self._running: list[tuple[Rank, Key]] = []
        self._reasons: dict[Key, set[str]] = {}
        self._preemptions: Counter[Key] = Counter()
        self._handlers: dict[type, Callable[[Any], None]] = {
            events.Admitted: self._on_admitted,
            events.Started: self._on_started,
            events.Waiting: self._on_waiting,
            events.Ready: self._on_ready,
            events.Preempted: self._on_preempted,
            events.EndedProvisionally: self._on_ended,
            events.Closed: self._on_closed,
        }

    def on_turn(self, commands: Sequence[Command], turn_events: Sequence[Event]) -> None:
        """Checks one turn of the engine. Raises LawViolation."""
        for command in commands:
            if isinstance(command, Admit):
                self._requests.setdefault(command.request.request_id, command.request)
                self._delivered.setdefault(command.request.request_id, command.delivered)
        for event in turn_events:
            handler = self._handlers.get(type(event))
            if handler is not None:
                handler(event)

    def _on_admitted(self, event: events.Admitted) -> None:
        request = self._requests[event.request_id]
        for part in self._delivered[event.request_id] or [Delivered(choice) for choice in range(request.choices)]:
            key = (event.request_id, part.choice)
            if part.cached_tokens is not None:  # it ran in an engine that has ended
                self._preemptions[key] = 1
                self._tags.started.add(key)
            tag = self._tags.on_admitted(key, request)
            first = request.priority if self._policy == "priority" else self._latest_start(key, request) if self._policy == "slo" else 0
            self._rank[key] = rank = first, tag, len(self._rank)
            self._reasons[key] = set()
            insort(self._waiting, (rank, key))
        if self._policy == "slo":
            self._move_late()

    def _latest_start(self, key: Key, request: Admitted) -> int:
        arrived = self._newest if request.arrived is None else round(request.arrived * 1e6)
        self._newest = max(self._newest, arrived)
        target, lead = 1_000 * (request.ttft_ms or DEFAULT_TTFT_MS), self._tags.lead(key)
        shift = round(1e6 * self.token_seconds * (lead or 0))
        if lead is not None and shift < target:
            self._keeps_place.add(key)
        return arrived + target + shift - round(1e6 * self.token_seconds * len(request.prompt))

    def _move_late(self) -> None:
        """Ranks those later, once, that should have begun before the newest arrival and have not."""
        for rank, key in tuple(self._waiting):
            if rank[0] < self._newest and key not in self.late | self._keeps_place and key[0] not in self._begun:
                self.late.add(key)
                self._waiting.remove((rank, key))
                self._rank[key] = rank[0] + 1_000 * min(30_000, 10 * (self._requests[key[0]].ttft_ms or DEFAULT_TTFT_MS)), *rank[1:]
                insort(self._waiting, (self._rank[key], key))

    def _on_started(self, event: events.Started) -> None:
        key = (event.request_id, event.choice)
        first = next((other for _, other in self._waiting if other == key or not self._reasons[other]), None)
        if first != key:
            raise LawViolation(6, f"{key} starts before {first}, which is older and ready")
        self._begun.add(event.request_id)
        self._tags.on_started(key, [other for _, other in self._waiting] if self._policy == "slo" else ())
        self._waiting.remove((self._rank[key], key))
        insort(self._running, (self._rank[key], key))

    def _on_waiting(self, event: events.Waiting) -> None:
        self._reasons[event.request_id, event.choice].add(event.reason)

    def _on_ready(self, event: events.Ready) -> None:
        self._reasons[event.request_id, event.choice].discard(event.reason)

    def _on_preempted(self, event: events.Preempted) -> None:
        key = (event.request_id, event.choice)
        rank = self._rank[key]
        younger = [other for _, other in self._running if self._rank[other] > rank and self._preemptions[other] < self._max_preemptions]
        if younger:
            raise LawViolation(6, f"{key} is preempted although {younger[-1]} ranks behind it")
        if self._running[0][1] == key:
            raise LawViolation(6, f"{key} is preempted although it ranks first of all running")
        if min(each for each_key, each in self._rank.items() if each_key[0] == event.by) > rank:
            raise LawViolation(6, f"{key} is preempted by {event.by}, which ranks behind it")
        if self._preemptions[key] >= self._max_preemptions:
            raise LawViolation(6, f"{key} is preempted more than {self._max_preemptions} times")
        self._preemptions[key] += 1
        self._reasons[key].clear()
        self._running.remove((rank, key))
        insort(self._waiting, (rank, key))

    def _on_closed(self, event: events.Closed) -> None:
        self._on_ended(event)
        self._tags.on_closed((event.request_id, event.choice), self._requests[event.request_id], event.usage)

    def _on_ended(self, event: events.EndedProvisionally | events.Closed) -> None:
        key = (event.request_id, event.choice)
        entry = (self._rank[key], key)
        if entry in self._running:
            self._running.remove(entry)
        elif entry in self._waiting:
            self._waiting.remove(entry)


class PrefillBudgetChecker:
    """Checks that prefill tokens beside decode rows stay within `Limits.prefill_budget` (law 5). Wraps `scheduler.schedule`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._schedule, self._scheduler = scheduler.schedule, scheduler
        scheduler.schedule = self.schedule  # type: ignore[method-assign]

    def schedule(self, now: float) -> Plan | None:
        """The scheduler's plan, checked. Raises LawViolation."""
        running = self._scheduler.lifecycle.running
        decode_rows = {s.number: s for s in running if s.target - s.scheduled == 1 and s.target < s.limit}
        pace = self._scheduler.pace
        plan = self._schedule(now)
        if plan is not None:
            planned_decodes = decode_rows.keys() & self._scheduler.steps_in_flight[-1].numbers
            rows = zip(plan.count, plan.sample, strict=True)
            prefill_counts = [count - (samples == count) for count, samples in rows if count > 1 or not samples]
            named = [decode_rows[number].request.itl_ms for number in planned_decodes]
            budget = self._scheduler.limits.prefill_budget(len(planned_decodes), pace.tokens_within(named) if pace else None)
            if planned_decodes and sum(prefill_counts) > budget:
                counts = f"{sum(prefill_counts)} prefill tokens beside {len(planned_decodes)} decode rows"
                raise LawViolation(5, f"step {plan.step}: {counts}, {budget} are allowed")
        return plan


class SkippableStepsChecker:
    """Checks that nothing is decided during the steps that `skippable_steps` counts, unless a command comes or a sequence stops (law 13).

    A simulator that skips skippable steps makes the engine's plans only if this holds.
    """

    DECISIONS = (events.Started, events.Preempted, events.Waiting)

    def __init__(self) -> None:
        self._left = 0

    def on_turn(self, commands: Sequence[Command], turn_events: Sequence[Event], count_skippable_steps: Callable[[], int]) -> None:
        """Checks a turn; counts skippable steps again once the announced ones are over. Raises LawViolation."""
        if commands:
            self._left = 0
        for event in turn_events:
            if self._left > 0 and isinstance(event, self.DECISIONS):
                raise LawViolation(13, f"{self._left} skippable steps were announced, then came {event}")
            if isinstance(event, (events.Closed, events.EndedProvisionally)):
                if self._left > 0 and event.reason is Finish.LENGTH:
                    raise LawViolation(13, f"{self._left} skippable steps were announced, then {event.request_id} reached its length")
                self._left = 0
            self._left -= type(event) is events.Scheduled
        if self._left <= 0:
            self._left = count_skippable_steps()
