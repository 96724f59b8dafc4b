"""The deployments of a server: the one that serves, and beside it, while a model is swapped, one that loads or ends.

Owns which of them a request belongs to. A request stays with the deployment that it met first, from its prompt's ids to its answer's: ids
of one model mean nothing to another.
"""

import asyncio
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import replace
from typing import Final

from ridgeline.config.groups import EngineConfig, ServerConfig
from ridgeline.core.commands import SetKnob
from ridgeline.core.events import Computed, Event, Idle, Scheduled, Started
from ridgeline.core.params import Adapter
from ridgeline.engine.adapters import KnownAdapter
from ridgeline.engine.seats import Seats
from ridgeline.errors import ConfigError
from ridgeline.server.callers import current_caller
from ridgeline.server.deployment import Deployment

POLL_SECONDS: Final = 0.05
Progress = Callable[[str, float], None]
"""Called with (stage, fraction done)."""


class _Pin:
    """The deployment of one HTTP request; None before it has met one. It does not keep it: timers and tasks that a request leaves behind
    have its context, and with it the pin, for as long as they live."""

    __slots__ = ("_token", "adapter", "deployment")

    def __init__(self) -> None:
        self.deployment: weakref.ref[Deployment] | None = None
        self.adapter: Adapter | None = None

    def __enter__(self) -> None:
        self._token = _PIN.set(self)

    def __exit__(self, *error: object) -> None:
        _PIN.reset(self._token)
        if self.deployment is not None and (met := self.deployment()) is not None:
            met.users -= 1


_PIN: Final[ContextVar[_Pin | None]] = ContextVar("pin", default=None)


class Deployments:
    """`current` serves; `others` load to take its place, or end behind it. `on_events` is told whose events they are."""

    def __init__(
        self, engine_config: EngineConfig, config: ServerConfig, on_events: Callable[[Deployment, Sequence[Event]], None],
        on_progress: Progress, seats: Seats | None = None,
    ) -> None:  # fmt: skip
        self._on_events = on_events
        self._seats = seats
        self._engine_config, self._config, self._on_progress = engine_config, config, on_progress
        self._rests = 0
        self.others: list[Deployment] = []
        self.kept: Deployment | None = None
        """The one of the others that served before, and serves again if the current one, which is watched, yields less."""
        self.aliases: dict[str, None] = {}
        """Further names of the model, which an admin gave it while it is served."""
        self.current = self._make(engine_config, config, on_progress)

    def _make(self, engine_config: EngineConfig, config: ServerConfig, on_progress: Progress) -> Deployment:
        made = Deployment(engine_config, config, lambda events: self._on_events(made, events), on_progress, self._seats)
        return made

    def add(self, engine_config: EngineConfig, config: ServerConfig) -> Deployment:
        """Another deployment, to be started and then switched to."""
        self.others.append(self._make(engine_config, config, lambda stage, fraction: None))
        return self.others[-1]

    @property
    def mine(self) -> Deployment:
        """The deployment of the request that this task answers; elsewhere the current one."""
        pin = _PIN.get()
        if pin is None:
            return self.current
        if pin.deployment is None:
            pin.deployment = weakref.ref(self.current)
            self.current.users += 1
        return pin.deployment() or self.current

    def check_name(self, name: str | None, *, takes_adapters: bool = False) -> None:
        """Raises RequestError unless `name` is the model's, or an alias of it. None means the only model there is.

        takes_adapters: it may also be an adapter's, or MODEL:ADAPTER, which then answers the request that this task answers
        """
        mine = self.mine
        if name is None or name == mine.model.name or name in self.aliases:
            return
        known = self.adapter_for_caller(name.removeprefix(f"{mine.model.name}:")) if takes_adapters else None
        pin = _PIN.get()
        if known is None or pin is None:
            mine.model.check_name(name)
        else:
            pin.adapter = known.adapter

    def adapter_for_caller(self, name: str) -> KnownAdapter | None:
        """The adapter of a name; None where there is none, and where it is not for the caller of this task, who learns of neither."""
        return self.mine.adapters.find(name) if current_caller().may_use(name) else None

    @property
    def adapters_for_caller(self) -> list[KnownAdapter]:
        """All that are for the caller of this task."""
        caller = current_caller()
        return [each for each in self.mine.adapters.known if caller.may_use(each.adapter.name)]

    @property
    def adapter(self) -> Adapter | None:
        """The adapter that the request of this task has named."""
        pin = _PIN.get()
        return None if pin is None else pin.adapter

    def pinned(self) -> AbstractContextManager[None]:
        """Within it, everything is of one deployment."""
        return _Pin()

    def switch(self, new: Deployment) -> Deployment:
        """New requests go to `new`, one of the others, which has started. Returns the one before, which keeps those that it has."""
        old, self.current = self.current, new
        self.others.remove(new)
        self.others.append(old)
        for name, value in old.knobs.items():
            new.set_knob(name, value)
        return old

    def put_away(self) -> Deployment:
        """Puts a deployment of the same model and settings that has not started in the place of the one that serves, and returns that: its
        requests have ended, and it is to be stopped. Its model's path is kept, so that a later start asks no hub, and its adapters, by
        whose names requests have it loaded again."""
        old, self._rests = self.current, self._rests + 1
        path = old.model.path if old.has_started else None
        model = old.engine_config.model if path is None else str(path)
        record, trace = (file and f"{file}.load-{self._rests}" for file in (self._engine_config.record, self._engine_config.trace))
        config = replace(old.engine_config, model=model, record=record, trace=trace)
        self.current = self._make(config, self._config, self._on_progress)
        self.current.knobs.update(old.knobs)
        self.current.adapters = old.adapters
        return old

    def send(self, knob: SetKnob) -> None:
        """Tells the engine that serves, also while it drains; one that has just ended takes nothing."""
        if self.current.client is not None:
            self.current.client.send(knob)

    async def stop(self) -> None:
        """Ends all engines and their open requests."""
        await asyncio.gather(*(each.stop() for each in (self.current, *self.others)))

    async def drain(self, seconds: float) -> bool:
        """Takes no new request from now on, and waits until those that were accepted have ended, at most `seconds`. True if all have."""
        return all(await asyncio.gather(*(each.drain(seconds) for each in (self.current, *self.others))))

    @property
    def open_requests(self) -> int:
        """Requests that engines have not ended yet."""
        return sum(each.open_requests for each in (self.current, *self.others))

    async def wait_failed(self) -> None:
        """Waits until no engine of the one that serves will ever run again; raises ConfigError with the reason. Call it after a start."""
        while True:
            watched = self.current
            try:
                await watched.wait_failed()
            except ConfigError:
                while watched is self.current and self.kept is not None:
                    await asyncio.sleep(POLL_SECONDS)
                if watched is self.current:
                    raise


def renumbered(event: Event) -> Event | None:
    """An event of a deployment that ends, for metrics that count the one that serves: its sequences have numbers that no other has
    (`Metrics.engine_replaced`). None for gauges of its cache, which say nothing of the other's."""
    match event:
        case Scheduled() | Idle():
            return None
        case Started():
            return replace(event, sequence=-1 - event.sequence)
        case Computed():
            return event._replace(sequences=tuple(-1 - sequence for sequence in event.sequences))
    return event
