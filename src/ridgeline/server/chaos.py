"""Faults on demand: real ones, in the real processes of a server that was started with --allow-chaos, and what came of each.

A fault is done with signals and limits of the system, never with a switch in what serves: what is tested is what runs. The clock is left
alone: only root may set it, and no decision depends on the time of day.
"""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

from ridgeline.errors import ConfigError
from ridgeline.observe.requests import Result
from ridgeline.server.admin_shapes import ChaosReport
from ridgeline.server.service import Service

MAX_FAULT_SECONDS: Final = 60.0
RECOVERY_SECONDS: Final = 120.0
"""Time for which a recovery is waited for."""
POLL_SECONDS: Final = 0.02
PULSE_SECONDS: Final = 0.1
"""Of a slow engine: it stands still every second pulse, so that a step takes twice as long."""


class Dropped(Protocol):
    """A client's connection."""

    def drop(self) -> None:
        """Closes it now."""


class Chaos:
    """One fault at a time. `connections`: those of clients, now."""

    def __init__(self, service: Service, connections: Callable[[], Collection[Dropped]]) -> None:
        self._service = service
        self._connections = connections
        self._is_busy = False

    async def inject(self, fault: str, seconds: float) -> ChaosReport:
        """Does it, for so many seconds where it lasts, and waits until the server is well again. Raises ConfigError where it may not."""
        if not self._service.config.allow_chaos:
            raise ConfigError("this server injects no faults; start it with --allow-chaos, and let nobody rely on it")
        if fault not in FAULTS:
            raise ConfigError(f"{fault[:60]!r} is no fault; there are: {', '.join(FAULTS)}")
        if not 0 < seconds <= MAX_FAULT_SECONDS:
            raise ConfigError(f"seconds is {seconds}, outside 0 … {MAX_FAULT_SECONDS:g}")
        if self._is_busy:
            raise ConfigError("a fault is being injected; wait for its end")
        self._is_busy = True
        try:
            return await self._report(fault, seconds)
        finally:
            self._is_busy = False

    async def _report(self, fault: str, seconds: float) -> ChaosReport:
        deployment, metrics = self._service.deployment, self._service.metrics
        open_requests, engine = deployment.open_requests, self._pid()
        before = metrics.continued, metrics.results[Result.FAILED], metrics.results[Result.ABORTED]
        began = time.monotonic()
        what = await FAULTS[fault](self, seconds)
        while time.monotonic() - began < RECOVERY_SECONDS and not deployment.is_ready:
            await asyncio.sleep(POLL_SECONDS)
        now = self._service.current_metrics()
        behind = now.continued, now.results[Result.FAILED], now.results[Result.ABORTED]
        continued, failed, aborted = (new - old for new, old in zip(behind, before, strict=True))
        return ChaosReport(
            fault, what, open_requests, continued, failed, aborted, engine_restarted=self._pid() != engine,
            recovered=deployment.is_ready, seconds=round(time.monotonic() - began, 3),
        )  # fmt: skip

    def _pid(self) -> int | None:
        client = self._service.deployment.client
        return None if client is None else client.pid

    def _engine(self) -> int:
        pid = self._pid()
        if pid is None:
            raise ConfigError("no engine runs now; `ridgeline admin status` says why")
        return pid

    async def _kill_engine(self, seconds: float) -> str:
        pid = self._engine()
        os.kill(pid, signal.SIGKILL)
        await self._until(lambda: self._pid() != pid, seconds)
        return f"engine {pid} was killed (SIGKILL)"

    async def _stop_engine(self, seconds: float) -> str:
        """Stops it for so long; where it has work, the watch of its progress ends it before."""
        pid = self._engine()
        began = time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        try:
            ended = await self._until(lambda: self._pid() != pid, seconds)
        finally:
            if self._pid() == pid:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        end = "found to hang" if ended else "went on"
        return f"engine {pid} was stopped (SIGSTOP), and {end} after {time.monotonic() - began:.1f} s"

    async def _slow_engine(self, seconds: float) -> str:
        pid, pulses = self._engine(), 0
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end and self._pid() == pid:
                os.kill(pid, signal.SIGSTOP if pulses % 2 == 0 else signal.SIGCONT)
                pulses += 1
                await asyncio.sleep(PULSE_SECONDS)
        finally:
            if self._pid() == pid:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        return f"engine {pid} stood still for half of {seconds:g} s, {PULSE_SECONDS:g} s at a time"

    async def _drop_connections(self, seconds: float) -> str:
        dropped = list(self._connections())
        open_requests = self._service.deployment.open_requests
        for each in dropped:
            each.drop()
        freed = await self._until(lambda: self._service.deployment.open_requests < max(1, open_requests), seconds)
        left = self._service.deployment.open_requests
        return f"{len(dropped)} connections of clients were closed; {left} requests are open" + ("" if freed else " still")

    async def _full_disk(self, seconds: float) -> str:
        """No file of the server's can grow meanwhile: writes fail as on a full disk, those of stored answers and the log among them."""
        import resource

        await asyncio.sleep(PULSE_SECONDS)  # the line of the audit is written
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        try:
            await asyncio.sleep(seconds)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        return f"for {seconds:g} s no file of the server could grow (its sockets could)"

    async def _until(self, condition: Callable[[], bool], seconds: float) -> bool:
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() >= end:
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True


FAULTS: Final[Mapping[str, Callable[[Any, float], Awaitable[str]]]] = {
    "kill-engine": Chaos._kill_engine,
    "stop-engine": Chaos._stop_engine,
    "slow-engine": Chaos._slow_engine,
    "drop-connections": Chaos._drop_connections,
    "full-disk": Chaos._full_disk,
}
"""Name → what does it."""
