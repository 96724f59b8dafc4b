"""The engine loop: apply commands, keep `depth` steps in flight, collect the oldest, commit it.

Owns the steps in flight and their order. Never blocks but in `Executor.collect`, never reads a socket, never catches what an executor
raises: a failed step leaves device state unknown, so the owner of the engine ends it and starts a new one.
The engine process, the in-process `LLM` and the simulator all run this class.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ridgeline.core.commands import AdapterReady, Admit, Command, GrammarReady, Output
from ridgeline.core.events import Event, Idle
from ridgeline.core.kv_blocks import KVBlocks
from ridgeline.core.params import Admitted
from ridgeline.core.scheduler import Scheduler
from ridgeline.engine.executor import Executor, Ticket


class Clock(Protocol):
    """Time, passed in: the simulator has its own."""

    def now(self) -> float:
        """Seconds since an arbitrary origin; never goes back."""
        ...


class MonotonicClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        return time.monotonic()


class Store(Protocol):
    """Blocks that outlive an engine: `engine.tiers.store.BlockStore`, or a simulation of it."""

    def ask(self, request: Admitted, cache: KVBlocks) -> bool:
        """Begins to fetch blocks of a prompt; False where there are surely none, else `take` reports what has come."""
        ...

    def take(self) -> Sequence[Command]:
        """Returns what has come since the last call."""
        ...

    @property
    def pending(self) -> bool:
        """True while `take` has something to report, or will have."""
        ...

    def fileno(self) -> int:
        """A file descriptor that can be read while `take` has something to report."""
        ...

    def keep(self, cache: KVBlocks) -> None:
        """Takes the contents of `cache.fresh`, and drops `cache.unused`."""
        ...

    def used(self) -> Sequence[Event]:
        """Work of tiers since the last call."""
        ...

    def close(self) -> None:
        """Ends its threads. Safe to call twice."""
        ...


@dataclass(frozen=True, slots=True)
class Turn:
    """Results of one turn of the loop.

    step        number of the step that was committed; None when nothing was in flight
    time        seconds on the engine's clock at the end of the turn
    progressed  a step was committed; when False, only a further command can change anything
    """

    step: int | None
    time: float
    outputs: Sequence[Output]
    events: Sequence[Event]

    @property
    def progressed(self) -> bool:
        return self.step is not None


class Engine:
    """Runs a scheduler against an executor, `depth` ≥ 1 steps deep. `store`: of blocks that outlive the engine."""

    def __init__(self, scheduler: Scheduler, executor: Executor, clock: Clock, depth: int, store: Store | None = None) -> None:
        if depth < 1:
            raise ValueError(f"depth is {depth}; at least one step must be in flight")
        self.scheduler = scheduler
        self.executor = executor
        self.clock = clock
        self.depth = depth
        self.store = store
        if store is not None:
            scheduler.cache.fresh = []
        self._in_flight: deque[Ticket] = deque()

    @property
    def in_flight(self) -> int:
        """Number of steps that are submitted and not committed."""
        return len(self._in_flight)

    @property
    def idle(self) -> bool:
        """True if no step is in flight and no request is open."""
        return not self._in_flight and self.scheduler.idle

    def prepare(self, commands: Sequence[Command]) -> list[Command]:
        """Begins to compile the grammars, to read the adapters and to fetch the blocks of new requests. Returns the commands, and what
        became ready."""
        grammars, found = self.executor.grammars, list(commands)
        for command in commands:
            if isinstance(command, Admit) and (grammar := command.request.sampling.grammar) is not None:
                if grammars is None:
                    found.append(GrammarReady(grammar.digest, "no grammar can be followed here; send the request without one"))
                else:
                    grammars.compile(grammar)
        if grammars is not None and grammars.pending:
            found += [GrammarReady(*each) for each in grammars.take()]
        adapters = self.executor.adapters
        if adapters is not None:
            for command in commands:
                if isinstance(command, Admit) and command.request.adapter is not None:
                    adapters.load(command.request.adapter)
            found += [AdapterReady(*each) for each in adapters.take()]
        if self.store is not None:
            found = [self._fetching(self.store, each) if isinstance(each, Admit) else each for each in found]
            found += self.store.take() if self.store.pending else []
        return found

    def _fetching(self, store: Store, command: Admit) -> Admit:
        return replace(command, fetching=True) if store.ask(command.request, self.scheduler.cache) else command

    @property
    def awaited(self) -> list[int]:
        """File descriptors that can be read once a grammar, an adapter or blocks that a request waits for are there."""
        preparing = self.executor.grammars, self.executor.adapters, self.store
        return [each.fileno() for each in preparing if each is not None and each.pending]

    def turn(self, commands: Sequence[Command] = ()) -> Turn:
        """Runs one round of the loop: `commands` first, then the oldest step in flight. Effects of commands are reported as events."""
        self.scheduler.apply(commands, self.clock.now())
        self._submit()
        step: int | None = None
        outputs: Sequence[Output] = ()
        if self._in_flight:
            ticket = self._in_flight.popleft()
            result = self.executor.collect(ticket)
            step = ticket.plan.step
            outputs = self.scheduler.commit(ticket.plan, result, self.clock.now())
        if self.store is not None:
            self.store.keep(self.scheduler.cache)
        if self.executor.adapters is not None:
            self.executor.adapters.begin(self.scheduler.lifecycle.adapters.open)
        now, events = self.clock.now(), self.scheduler.take_events()
        if self.store is not None:
            events += self.store.used()
        if step is None:
            cache = self.scheduler.cache
            events.append(Idle(now, len(cache.pool.free), len(cache.pool.cached), len(cache.host.cached)))
        return Turn(step, now, outputs, events)

    def touch_next_blocks(self, first: int, count: int) -> None:
        """Has the system give memory for blocks that are allocated `first`-th from now on and later. Only while no step is in flight."""
        free, blocks = self.scheduler.cache.pool.free, self.executor.blocks
        end = len(free) - first
        if blocks is not None and end > 0:
            blocks.touch(free[max(0, end - count) : end])

    def close(self) -> None:
        """Ends the executor, and the store behind what it has yet to write."""
        if self.store is not None:
            self.store.close()
        self.executor.close()

    def _submit(self) -> None:
        while len(self._in_flight) < self.depth:
            plan = self.scheduler.schedule(self.clock.now())
            if plan is None:
                return
            self._in_flight.append(self.executor.submit(plan))
