"""Checks of who starts and who is pushed out, from events alone: law 6 and the rules for victims; of who waits for whose tokens: law 5.

`Order` owns a second opinion on the policy's order, kept apart from the scheduler's queues; it never reads them.
"""

from bisect import insort
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ridgeline.core import events
from ridgeline.core.commands import Admit, Command
from ridgeline.core.events import Event, Finish
from ridgeline.core.plan import Plan
from ridgeline.core.scheduler import Scheduler
from ridgeline.errors import LawViolation
from ridgeline.sim.laws.workload import World

Key = tuple[str, int]
Rank = tuple[int, int]


class Order:
    """Ready sequences start in order of rank (class, arrival). The youngest of the lowest class falls first, the oldest never."""

    def __init__(self, world: World) -> None:
        self._most = world.limits.max_preemptions
        self._classes = world.policy == "priority"
        self._priority: dict[str, int] = {}
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
            events.Closed: self._on_ended,
        }

    def on_turn(self, commands: Sequence[Command], happened: Sequence[Event]) -> None:
        """Follows one turn of the engine."""
        for command in commands:
            if isinstance(command, Admit):
                self._priority[command.request.request_id] = command.request.priority if self._classes else 0
        for event in happened:
            handler = self._handlers.get(type(event))
            if handler is not None:
                handler(event)

    def _on_admitted(self, event: events.Admitted) -> None:
        for choice in range(event.choices):
            key = (event.request_id, choice)
            rank = (self._priority[event.request_id], len(self._rank))
            self._rank[key] = rank
            self._reasons[key] = set()
            insort(self._waiting, (rank, key))

    def _on_started(self, event: events.Started) -> None:
        key = (event.request_id, event.choice)
        first = next((other for _, other in self._waiting if other == key or not self._reasons[other]), None)
        if first != key:
            raise LawViolation(6, f"{key} starts before {first}, which is older and ready")
        self._waiting.remove((self._rank[key], key))
        insort(self._running, (self._rank[key], key))

    def _on_waiting(self, event: events.Waiting) -> None:
        self._reasons[event.request_id, event.choice].add(event.reason)

    def _on_ready(self, event: events.Ready) -> None:
        self._reasons[event.request_id, event.choice].discard(event.reason)

    def _on_preempted(self, event: events.Preempted) -> None:
        key = (event.request_id, event.choice)
        rank = self._rank[key]
        younger = [other for _, other in self._running if self._rank[other] > rank and self._preemptions[other] < self._most]
        if younger:
            raise LawViolation(6, f"{key} is preempted, {younger[-1]} is behind it")
        if self._running[0][1] == key:
            raise LawViolation(6, f"{key} is preempted, the first of all that run")
        if min(each for each_key, each in self._rank.items() if each_key[0] == event.by) > rank:
            raise LawViolation(6, f"{key} is preempted by {event.by}, which is behind it")
        if self._preemptions[key] >= self._most:
            raise LawViolation(6, f"{key} is preempted more than {self._most} times")
        self._preemptions[key] += 1
        self._reasons[key].clear()
        self._running.remove((rank, key))
        insort(self._waiting, (rank, key))

    def _on_ended(self, event: events.EndedProvisionally | events.Closed) -> None:
        key = (event.request_id, event.choice)
        entry = (self._rank[key], key)
        if entry in self._running:
            self._running.remove(entry)
        elif entry in self._waiting:
            self._waiting.remove(entry)


class Pace:
    """Rows that keep up wait for the step with every token of the others, which have what `Limits.prefill_budget` leaves them: law 5."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._schedule, self._scheduler = scheduler.schedule, scheduler
        scheduler.schedule = self.schedule  # type: ignore[method-assign]

    def schedule(self, now: float) -> Plan | None:
        """The scheduler's plan, after a look at who keeps up before it and who is in it."""
        running = self._scheduler.lifecycle.running
        keeping = {s.number for s in running if s.target - s.scheduled == 1 and s.target < s.limit}
        plan = self._schedule(now)
        if plan is not None:
            kept = keeping.intersection(self._scheduler.steps_in_flight[-1].numbers)
            rows = zip(plan.count, plan.sample, strict=True)
            others = [count - (samples == count) for count, samples in rows if count > 1 or not samples]
            most = self._scheduler.limits.prefill_budget(len(kept))
            if kept and sum(others) > most:
                raise LawViolation(5, f"step {plan.step}: {sum(others)} tokens beside {len(kept)} rows that keep up, {most} are allowed")
        return plan


class Quiet:
    """Holds the scheduler to `skippable_steps`: while it lasts, and no command comes and nobody stops, nothing is decided.

    A simulator that skips quiet steps makes the engine's plans only if the promise holds: law 13.
    """

    LOUD = (events.Started, events.Preempted, events.Waiting)

    def __init__(self) -> None:
        self._left = 0

    def on_turn(self, commands: Sequence[Command], happened: Sequence[Event], promise: Callable[[], int]) -> None:
        """Checks a turn, then asks anew once the promise has run out."""
        if commands:
            self._left = 0
        for event in happened:
            if self._left > 0 and isinstance(event, self.LOUD):
                raise LawViolation(13, f"{self._left} quiet steps were promised, then came {event}")
            if isinstance(event, (events.Closed, events.EndedProvisionally)):
                if self._left > 0 and event.reason is Finish.LENGTH:
                    raise LawViolation(13, f"{self._left} quiet steps were promised, then {event.request_id} reached its length")
                self._left = 0
            self._left -= type(event) is events.Scheduled
        if self._left <= 0:
            self._left = promise()
