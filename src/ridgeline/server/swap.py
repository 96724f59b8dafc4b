"""A model swap, blue-green inside one server: another engine loads beside the one that serves, its answers are checked, requests go to it
from one moment on. The old one, behind its last answer, is kept for as long as the new one is watched: where that yields less, the old one
has the next request, as it has its weights still.

Owns the order, the check that both fit (by plan, before anything is loaded), and the way back. Where the new one cannot serve, the old
model goes on as if nothing had been asked.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from ridgeline.config.groups import EngineConfig
from ridgeline.core.commands import Abort
from ridgeline.errors import ConfigError, EngineDeadError
from ridgeline.server.admin_shapes import SwapReport
from ridgeline.server.deployment import Deployment
from ridgeline.server.knob_watch import Tell, Verdict, Watches, Yield
from ridgeline.server.service import Service

CheckFit = Callable[[EngineConfig], None]
OnSwapped = Callable[[], Awaitable[None]]
POLL_SECONDS: Final = 0.05
ENDED: Final = "the model of this request was swapped for another, and the time that its open requests had is over; send it again"


@dataclass(frozen=True, slots=True)
class Watch:
    """The watch of a new model: for how long, by whom, and who is told of its end."""

    seconds: float
    watches: Watches
    tell: Tell


class Swapper:
    """One swap at a time. `check_fit` raises ConfigError where an engine has no room beside the one that runs; `on_swapped` is called when
    a model has ended that another took the place of."""

    def __init__(self, service: Service, check_fit: CheckFit, on_swapped: OnSwapped | None = None) -> None:
        self._service = service
        self._check_fit = check_fit
        self._on_swapped = on_swapped
        self._is_busy = False
        self._count = 0
        self._watching: asyncio.Task[None] | None = None
        self._follows = asyncio.Event()
        """Set when another swap ends the watch."""

    async def swap(self, model: str, drain_seconds: float | None, watch: Watch | None = None) -> SwapReport:
        """Puts `model` in the place of the one that serves, under the same name and settings. Requests of that one have so many seconds to
        end; None: --shutdown-timeout. A model that is still watched stays, and is replaced. Raises a RidgelineError where the new one
        cannot serve: nothing has changed then."""
        self._check_free()
        if self._watching is not None:
            self._follows.set()
            await asyncio.wait({self._watching})
            self._check_free()
        self._is_busy = True
        try:
            return await self._swap(model, self._service.config.shutdown_timeout if drain_seconds is None else drain_seconds, watch)
        finally:
            self._is_busy = False

    def cancel(self) -> None:
        """Ends the watch; what it watches stays."""
        if self._watching is not None:
            self._watching.cancel()

    def _check_free(self) -> None:
        """Raises ConfigError where no swap can begin."""
        if self._is_busy:
            raise ConfigError("a model is being swapped; wait for its end")
        if not self._service.deployment.is_ready:
            raise ConfigError(f"no swap now: {self._service.deployment.not_ready_reason()}")

    async def _swap(self, model: str, drain_seconds: float, watch: Watch | None) -> SwapReport:
        service, old, began = self._service, self._service.deployment, time.monotonic()
        before = None if watch is None else watch.watches.last(watch.seconds)
        self._count += 1
        files = {name: f"{file}.{self._count}" for name in ("record", "trace") if (file := getattr(old.engine_config, name)) is not None}
        config = replace(old.engine_config, model=model, expect_sha256=None, record=files.get("record"), trace=files.get("trace"))
        await asyncio.to_thread(self._check_fit, config)
        new = service.deployments.add(config, replace(service.config, served_model_name=service.name))
        try:
            loaded = await new.start()
            wrong = next((finding for finding in loaded.findings if finding.severity == "error"), None)
            if wrong is not None:
                raise ConfigError(f"the new model was not taken: {wrong}")
            if service.deployment is not old or old.is_draining:
                raise ConfigError("the model was unloaded meanwhile, or the server is shutting down")
        except BaseException:
            service.deployments.others.remove(new)
            await new.stop()
            raise
        load_seconds = time.monotonic() - began
        service.switch(new)
        open_requests = old.open_requests
        aborted = await self._retire(old, drain_seconds)
        if watch is None or before is None:
            service.metrics.swaps["kept"] += 1
            await self._end(old)
        else:
            service.deployments.kept = old
            self._follows.clear()
            self._watching = asyncio.create_task(self._watch(new, before, watch, drain_seconds))
        return SwapReport(
            old.engine_config.model, model, round(load_seconds, 3), open_requests, aborted, round(time.monotonic() - began, 3),
            0.0 if watch is None else watch.seconds,
        )  # fmt: skip

    async def _retire(self, old: Deployment, seconds: float) -> int:
        """Waits for requests that have begun with a model: those that it has, and those on their way to it. Returns how many of them had
        not ended, and have now."""
        end = time.monotonic() + seconds
        while (old.users or old.open_requests) and time.monotonic() < end:
            await asyncio.sleep(POLL_SECONDS)
        client = old.client
        if client is None:
            return 0
        dropped = client.drop(EngineDeadError(ENDED))
        for request_id in dropped:
            client.send(Abort(request_id))
        return len(dropped)

    async def _end(self, old: Deployment) -> None:
        """Ends a model whose requests have ended."""
        await old.stop()
        self._service.deployments.others.remove(old)
        if self._on_swapped is not None:
            await self._on_swapped()

    # ── the watch ───────────────────────────────────────────────────────────────────────────────────────────────

    async def _watch(self, new: Deployment, before: Yield, watch: Watch, drain_seconds: float) -> None:
        """Watches the new model, then ends it or the one before it, which is kept meanwhile."""
        service, old = self._service, self._service.deployments.kept
        assert old is not None
        found = await self._verdict(new, before, watch)
        service.deployments.kept = None
        comes_back = found.is_loss and service.deployment is new and not new.is_draining and old.is_ready
        if comes_back:
            service.switch(old)
        serves, ends = (old, new) if comes_back else (new, old)
        service.metrics.swaps["rolled_back" if comes_back else "kept"] += 1
        watch.tell(
            "swap rolled back" if comes_back else "swap kept", serves=serves.engine_config.model, ends=ends.engine_config.model,
            reason=found.reason,
        )  # fmt: skip
        self._is_busy = comes_back
        try:
            await self._retire(ends, drain_seconds)
            await self._end(ends)
        finally:
            self._is_busy, self._watching = False, None

    async def _verdict(self, new: Deployment, before: Yield, watch: Watch) -> Verdict:
        """The verdict on the new model. An engine that will never run again is a loss at once; a swap that follows ends the watch."""
        judging = asyncio.create_task(watch.watches.compare(before, watch.seconds))
        failing, following = asyncio.create_task(new.wait_failed()), asyncio.create_task(self._follows.wait())
        tasks: set[asyncio.Task[Any]] = {judging, failing, following}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if failing.done():
                return Verdict(is_loss=True, reason=f"its engine has ended for good: {failing.exception()}")
            return judging.result() if judging.done() else Verdict(is_loss=False, reason="not judged: another swap follows")
        finally:
            for each in tasks:
                each.cancel()
