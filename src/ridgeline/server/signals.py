"""Signals: the end of the server, the reading of its keys and certificate, and the log lines about both."""

import asyncio
import logging
import signal
import time
from math import ceil

import uvicorn

from ridgeline.errors import ConfigError
from ridgeline.observe.logs import with_fields
from ridgeline.server.http_server import MIN_SHUTDOWN_SECONDS
from ridgeline.server.service import Service
from ridgeline.server.several.roster import Roster
from ridgeline.server.tls import Certificate

log = logging.getLogger("ridgeline.server")


class Shutdown:
    """The end on a signal, or by an admin: the first lets accepted requests end, while new ones are rejected and `/readyz` answers 503; the
    second does not wait."""

    def __init__(self, service: Service | Roster, server: uvicorn.Server) -> None:
        self._service = service
        self._deployments = service.deployments if isinstance(service, Service) else service
        self._server = server
        self._tasks: set[asyncio.Task[None]] = set()
        self._began_at = 0.0
        self.reason = ""
        """Name of the first signal, or "admin"."""
        self._aborted = 0

    def listen(self, *numbers: signal.Signals) -> None:
        """Begins on these signals, but for those that are ignored, as under nohup."""
        for number in numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:
                asyncio.get_running_loop().add_signal_handler(number, self.begin, number.name)

    @property
    def has_begun(self) -> bool:
        """True once a signal or an admin's request has come."""
        return bool(self._tasks)

    def cancel(self) -> None:
        """Waits for nothing any longer."""
        for task in self._tasks:
            task.cancel()

    def log_end(self) -> None:
        """Says in the log how it ended."""
        seconds = time.monotonic() - self._began_at
        level = logging.WARNING if self._aborted else logging.INFO
        log.log(level, "shutdown ended", extra=with_fields(reason=self.reason, aborted_requests=self._aborted, seconds=seconds))

    def begin(self, reason: str, seconds: float | None = None) -> float:
        """Begins the end. `seconds` that open requests have; None: the setting's, and none the second time. Returns them."""
        if seconds is None:
            seconds = 0.0 if self.has_begun else self._service.config.shutdown_timeout
        fields = with_fields(reason=reason, open_requests=self._deployments.open_requests, timeout_seconds=seconds)
        log.info("shutdown no longer waits" if self.has_begun and not seconds else "shutdown began", extra=fields)
        if not self.has_begun:
            self._began_at, self.reason = time.monotonic(), reason
        self._tasks.add(asyncio.create_task(self._end(seconds)))
        return seconds

    async def _end(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        if not await self._deployments.drain(seconds):
            self._aborted += self._deployments.open_requests
            await self._service.stop()
        self._server.config.timeout_graceful_shutdown = max(MIN_SHUTDOWN_SECONDS, ceil(deadline - time.monotonic()))
        self._server.should_exit = True


def reload_on_signal(service: Service, certificate: Certificate) -> None:
    """SIGHUP reads keys and certificate again. Open connections and requests stay."""

    def reload() -> None:
        try:
            keys = service.keys.reload()
            certificate.reload()
        except ConfigError as error:
            log.error("reload failed; what was read before stays", extra=with_fields(signal="SIGHUP", reason=str(error)))
        else:
            log.info("reload", extra=with_fields(signal="SIGHUP", keys=keys, certificate=certificate.context is not None))

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
