"""A model swap, blue-green inside one server: another engine loads beside the one that serves, its answers are checked, requests go to it
from one moment on, and the old one ends behind its last answer.

Owns the order, and the check that both fit: by plan, before anything is loaded. Where it fails, the old model goes on as if nothing had
been asked.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from ridgeline.config.groups import EngineConfig
from ridgeline.errors import ConfigError
from ridgeline.server.admin_shapes import SwapReport
from ridgeline.server.deployment import Deployment
from ridgeline.server.service import Service

CheckFit = Callable[[EngineConfig], None]
OnSwapped = Callable[[], Awaitable[None]]
POLL_SECONDS: Final = 0.05


class Swapper:
    """One swap at a time. `check_fit` raises ConfigError where an engine has no room beside the one that runs; `on_swapped` is called when
    the old one has ended."""

    def __init__(self, service: Service, check_fit: CheckFit, on_swapped: OnSwapped | None = None) -> None:
        self._service = service
        self._check_fit = check_fit
        self._on_swapped = on_swapped
        self._is_busy = False
        self._count = 0

    async def swap(self, model: str, drain_seconds: float | None) -> SwapReport:
        """Puts `model` in the place of the one that serves, under the same name and settings. Requests of that one have so many seconds to
        end; None: --shutdown-timeout. Raises a RidgelineError where the new one cannot serve: nothing has changed then."""
        if self._is_busy:
            raise ConfigError("a model is being swapped; wait for its end")
        if not self._service.deployment.is_ready:
            raise ConfigError(f"no swap now: {self._service.deployment.not_ready_reason()}")
        self._is_busy = True
        try:
            return await self._swap(model, self._service.config.shutdown_timeout if drain_seconds is None else drain_seconds)
        finally:
            self._is_busy = False

    async def _swap(self, model: str, drain_seconds: float) -> SwapReport:
        service, old, began = self._service, self._service.deployment, time.monotonic()
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
        await self._retire(old, drain_seconds)
        aborted = old.open_requests
        await old.stop()
        service.deployments.others.remove(old)
        if self._on_swapped is not None:
            await self._on_swapped()
        return SwapReport(
            old.engine_config.model, model, round(load_seconds, 3), open_requests, aborted, round(time.monotonic() - began, 3)
        )  # fmt: skip

    async def _retire(self, old: Deployment, seconds: float) -> None:
        """Waits for requests that have begun with the old model: those that it has, and those on their way to it."""
        end = time.monotonic() + seconds
        while (old.users or old.open_requests) and time.monotonic() < end:
            await asyncio.sleep(POLL_SECONDS)
