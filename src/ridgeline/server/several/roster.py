"""The models of a server that has several: which are loaded, which makes room for which, and when one is unloaded.

One load at a time. What a model needs is planned before its first load and measured behind it; what is free is measured at each, less what
the caches of loaded ones may yet take. Room is made by the least recently used that is idle; where all are busy, by the least recently
used that has been there for `min_residence`: its requests end first, new ones wait. So two models that exclude each other take turns.
"""

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from math import ceil
from typing import Any, Final

from ridgeline.config.groups import EngineConfig, ServerConfig
from ridgeline.config.per_model import own_settings
from ridgeline.engine.seats import Seats
from ridgeline.errors import ConfigError, EngineDeadError, OverloadedError, RidgelineError
from ridgeline.facts.hardware.machine import anonymous_bytes, machine_facts
from ridgeline.observe.logs import with_fields
from ridgeline.server.deployment import resolve_files
from ridgeline.server.deployments import Progress
from ridgeline.server.errors import ApiError
from ridgeline.server.loading import Model
from ridgeline.server.promises import MAX_RETRY_AFTER_SECONDS
from ridgeline.server.service import Service
from ridgeline.server.several.listing import make_listing
from ridgeline.server.several.memory import give_back, use_one_heap
from ridgeline.server.several.resident import Phase, Resident

log: Final = logging.getLogger("ridgeline.models")

PlanBytes = Callable[[EngineConfig], int]
"""Bytes that a model will need; raises ConfigError where it cannot be one of several."""

Tell = Callable[[str], Awaitable[None]]
TELL_SECONDS: Final = 1.0
POLL_SECONDS: Final = 0.02
SWEEP_SECONDS: Final = 0.25
FAILED_SECONDS: Final = 10.0
"""Seconds behind a load that failed, for which requests hear of it at once."""
SPARE_SHARE: Final = 0.02
"""Share of all memory that stays free."""


def _retry_after(seconds: float) -> int:
    return min(MAX_RETRY_AFTER_SECONDS, max(1, ceil(seconds)))


async def nobody(stage: str) -> None:
    """Tells nobody of a stage."""


class Roster:
    """All models. Their order is that of the command line; the first one answers what names no model and has to be of one."""

    def __init__(self, services: Sequence[Service], seats: Seats, plan_bytes: PlanBytes) -> None:
        self.residents = {service.name: Resident(service, service.config.keep_alive) for service in services}
        self._seats = seats
        self._plan_bytes = plan_bytes
        self._turn = asyncio.Lock()
        self._tasks: dict[Resident, asyncio.Task[None]] = {}
        """The load or unload of a model that is under way."""
        self._background: set[asyncio.Task[None]] = set()
        self.has_started = False
        self.is_draining = False

    # ── what a server asks of all that it serves ────────────────────────────────────────────────────────────────────

    @property
    def first(self) -> Resident:
        """The model that is named first."""
        return next(iter(self.residents.values()))

    async def start(self) -> list[Model]:
        """Loads the first model, and of the others, in their order, those that fit beside it. Raises a RidgelineError where one cannot be
        loaded; those that do not fit are loaded when they are asked for."""
        for resident in self.residents.values():
            if resident is self.first or await self._fits(resident):
                await self._begin(resident, self._load)
            else:
                await resolve_files(resident.service.deployments.current)
                log.info("no room; loaded when it is asked for", extra=with_fields(model=resident.name))
        self.has_started = True
        self._spawn(self._sweep())
        return [each.service.model for each in self.loaded]

    async def stop(self) -> None:
        """Ends all engines and their open requests."""
        self.is_draining = True
        for task in (*self._background, *self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await asyncio.gather(*(each.service.stop() for each in self.residents.values()))
        self._seats.close()

    async def drain(self, seconds: float) -> bool:
        """Takes no new request from now on, and waits for those that were accepted, at most `seconds`. True if all have ended."""
        self.is_draining = True
        return all(await asyncio.gather(*(each.service.deployments.drain(seconds) for each in self.residents.values())))

    @property
    def open_requests(self) -> int:
        """Requests that engines have not ended yet."""
        return sum(each.service.deployments.open_requests for each in self.residents.values())

    @property
    def config(self) -> ServerConfig:
        """Settings that are those of all."""
        return self.first.service.config

    @property
    def loaded(self) -> list[Resident]:
        """Models that are loaded."""
        return [each for each in self.residents.values() if each.phase is Phase.LOADED]

    # ── which model ─────────────────────────────────────────────────────────────────────────────────────────────────

    def find(self, name: str) -> Resident:
        """The model of a name, an alias or an adapter of it. Raises ApiError for a name that nothing has."""
        found = self.residents.get(name)
        if found is not None:
            return found
        for each in self.residents.values():
            deployments = each.service.deployments
            if name in deployments.aliases or deployments.adapter_for_caller(name.removeprefix(f"{each.name}:")) is not None:
                return each
        names = ", ".join(map(repr, self.residents))
        raise ApiError("model_not_found", f"there is no model of that name here; this server has {names}", param="model")

    @asynccontextmanager
    async def using(self, resident: Resident, keep_alive: float | None = None, tell: Tell = nobody) -> AsyncIterator[None]:
        """Within it the model is loaded and stays. keep_alive: seconds, as the request says it, below 0 for ever; None: it does not.

        tell  called every second with what is waited for; what it raises ends that
        Raises EngineDeadError where it cannot be loaded, OverloadedError where too many wait for that.
        """
        if resident.phase is not Phase.LOADED:
            await self.load(resident, tell)
        resident.users += 1
        resident.keep_alive = self.config.keep_alive if keep_alive is None else keep_alive if keep_alive >= 0 else None
        try:
            yield
        finally:
            resident.users -= 1
            resident.last_used = time.monotonic()

    # ── loads and unloads ───────────────────────────────────────────────────────────────────────────────────────────

    async def load(self, resident: Resident, tell: Tell = nobody) -> None:
        """Returns when the model is loaded; who goes on at once has it before it can make room for another."""
        if resident.waiting >= max(1, self.config.max_waiting):
            problem = f"{resident.waiting} requests wait for the model to be loaded; at most {self.config.max_waiting} may"
            raise OverloadedError(problem, _retry_after(resident.seconds_to_load()))
        resident.waiting += 1
        resident.totals.waiting += 1
        try:
            while resident.phase is not Phase.LOADED:
                if self.is_draining:
                    raise EngineDeadError("the server is shutting down")
                left = 0.0 if resident.failed_at is None else resident.failed_at + FAILED_SECONDS - time.monotonic()
                if left > 0:
                    raise EngineDeadError(
                        "the model could not be loaded, and the server's log says why; try again later", _retry_after(left)
                    )
                work = self._begin(resident, self._load)
                if not (await asyncio.wait({work}, timeout=TELL_SECONDS))[0]:
                    await tell(resident.stage())
        finally:
            resident.waiting -= 1
            resident.totals.waiting -= 1

    async def unload(self, resident: Resident) -> None:
        """Ends the model's engine behind its requests; those that come meanwhile wait, and have it loaded again."""
        if resident.phase is Phase.LOADING:
            await asyncio.wait({self._begin(resident, self._load)})
        if resident.phase is not Phase.UNLOADED:
            await asyncio.shield(self._begin(resident, self._unload))

    def _begin(self, resident: Resident, work: Callable[[Resident], Coroutine[Any, Any, None]]) -> "asyncio.Task[None]":
        """The load or unload that is under way, or a new one."""
        task = self._tasks.get(resident)
        if task is None or task.done():
            task = self._tasks[resident] = asyncio.create_task(work(resident))
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # whoever waits sees the phase
        return task

    async def _load(self, resident: Resident) -> None:
        async with self._turn:
            began, front = time.monotonic(), anonymous_bytes(os.getpid()) or 0
            try:
                await self._make_room(resident)
                resident.phase = Phase.LOADING
                await resident.service.start()
                resident.measure(front)
                resident.listing = await make_listing(resident.service)
            except BaseException as error:
                resident.phase, resident.failed_at = Phase.UNLOADED, time.monotonic()
                await resident.service.switch(None).stop()
                if isinstance(error, RidgelineError):
                    log.error("load failed", extra=with_fields(model=resident.name, reason=str(error)))
                raise
            resident.phase, resident.loaded_at, resident.failed_at = Phase.LOADED, time.monotonic(), None
            resident.last_used = resident.loaded_at
            totals, seconds = resident.totals, resident.loaded_at - began
            totals.is_loaded, totals.loads, totals.load_seconds = True, totals.loads + 1, totals.load_seconds + seconds
            log.info("loaded", extra=with_fields(model=resident.name, seconds=seconds, memory_bytes=resident.measured))
            self._spawn(self._watch(resident))

    async def _unload(self, resident: Resident) -> None:
        resident.phase = Phase.UNLOADING
        began = time.monotonic()
        while resident.users or resident.service.deployments.open_requests:
            await asyncio.sleep(POLL_SECONDS)
        old = resident.service.switch(None)
        try:
            await old.stop()
        finally:  # however it ended: nobody is sent there any more
            resident.phase = Phase.UNLOADED
            resident.totals.is_loaded, resident.totals.unloads = False, resident.totals.unloads + 1
            del old
        await asyncio.sleep(POLL_SECONDS)  # whoever watched the engine hears of its end, and lets go of the model
        seconds = time.monotonic() - began
        pause = give_back()
        log.info("unloaded", extra=with_fields(model=resident.name, seconds=seconds, collection_seconds=pause))

    async def _watch(self, resident: Resident) -> None:
        """Puts a model away whose engine will never run again: the others go on, and the next request for it tries another load."""
        deployments = resident.service.deployments
        while deployments.current.has_started:  # it has been put away where it has not
            watched = deployments.current
            try:
                await watched.wait_failed()
            except ConfigError as error:
                if watched is deployments.current and resident.phase is Phase.LOADED and not self.is_draining:
                    log.error("model has failed", extra=with_fields(model=resident.name, reason=str(error)))
                    resident.failed_at = time.monotonic()
                    await self.unload(resident)
                    return

    # ── room ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _fits(self, resident: Resident) -> bool:
        """True if the model may be loaded beside those that are."""
        others = [each for each in self.residents.values() if each.phase is not Phase.UNLOADED and each is not resident]
        if self.config.max_loaded_models is not None and len(others) >= self.config.max_loaded_models:
            return False
        need = resident.measured
        if need is None:
            need = await asyncio.to_thread(self._plan_bytes, resident.service.deployments.current.engine_config)
        machine = machine_facts()
        promised = sum(each.untouched_bytes for each in others)
        return not need or need <= machine.available_bytes - promised - SPARE_SHARE * machine.memory_bytes

    async def _make_room(self, resident: Resident) -> None:
        """Unloads others until the model fits, or there is no other: whether it fits alone its load says, with numbers."""
        while not await self._fits(resident):
            others = sorted((each for each in self.loaded if each is not resident), key=lambda each: (not each.is_idle, each.last_used))
            now, stay = time.monotonic(), self.config.min_residence
            chosen = next((each for each in others if now - each.loaded_at >= stay and not each.waiting), None)
            if chosen is not None:
                await self.unload(chosen)
            elif others or any(each.phase is Phase.UNLOADING for each in self.residents.values()):
                await asyncio.sleep(POLL_SECONDS)
            else:
                return

    async def _sweep(self) -> None:
        """Unloads what has been idle for long enough."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            for resident in self.loaded:
                at = resident.unloads_at(self.config.min_residence)
                if at is not None and time.monotonic() >= at and resident.is_idle:
                    try:
                        await self.unload(resident)
                    except Exception:  # of this model alone: others are unloaded, and this one loaded again
                        log.exception("unload failed", extra=with_fields(model=resident.name))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def make_roster(
    models: Mapping[str, str], engine: EngineConfig, config: ServerConfig, plan_bytes: PlanBytes, on_progress: Progress
) -> Roster:  # fmt: skip
    """A roster of models by their names, with the same settings each, but for those that are written for one. The price of the machine is
    divided among them, as its idle time is nobody's in particular. Raises ConfigError."""
    use_one_heap()
    seats, services = Seats(), list[Service]()
    price = None if config.price_per_hour is None else config.price_per_hour / len(models)
    for name, model in models.items():
        record, trace = (file and f"{file}.{name.replace('/', '_')}" for file in (engine.record, engine.trace))
        settings, own = own_settings(name, models, engine, config) if len(models) > 1 else (engine, config)
        own = replace(own, served_model_name=name, price_per_hour=price)
        settings = replace(settings, model=model, record=record, trace=trace)
        services.append(Service(settings, own, on_progress, beside=services[0] if services else None, seats=seats))
    return Roster(services, seats, plan_bytes)
