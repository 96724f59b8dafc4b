"""Faults on demand: real ones, in the real processes of a server that was started with --allow-chaos, and what came of each.

A fault is done with signals, limits of the system and clients of its own, never with a switch in what serves: what is tested is what runs.
The clock is left alone: only root may set it, and no decision depends on the time of day (`tests/e2e/test_chaos.py` lets it jump).
"""

import asyncio
import json
import os
import signal
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
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
"""Pulse of a slow engine: it stands still every second pulse, so that a step takes twice as long."""


STALLED_READERS: Final = 4
READER_CHOICES: Final = 4
"""Choices of the request of each; with log-probabilities, so that buffers are full after some 150 tokens."""
READER_BUFFER_BYTES: Final = 4_096


class Dropped(Protocol):
    """A client's connection. `client`: its address, in the last place the port."""

    client: tuple[str, int] | None

    def drop(self) -> None:
        """Closes it now."""


@dataclass(frozen=True, slots=True)
class Clients:
    """Connections of the server: those that are open now, and where and how new ones come."""

    connections: Callable[[], Collection[Dropped]]
    address: tuple[str, int]
    has_tls: bool

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection from this machine that takes a few kB of what it does not read."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.address[0], self.address[0])
        connecting = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        connecting.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, READER_BUFFER_BYTES)
        connecting.setblocking(False)
        context = ssl._create_unverified_context() if self.has_tls else None  # its own certificate, at its own address
        try:
            await asyncio.get_running_loop().sock_connect(connecting, (host, self.address[1]))
            return await asyncio.open_connection(
                sock=connecting, limit=READER_BUFFER_BYTES, ssl=context, server_hostname="localhost" if context else None
            )
        except BaseException:
            connecting.close()
            raise


class Chaos:
    """One fault at a time."""

    def __init__(self, service: Service, clients: Clients) -> None:
        self._service = service
        self._clients = clients
        self._authorization: str | None = None
        self._is_busy = False

    async def inject(self, fault: str, seconds: float, authorization: str | None) -> ChaosReport:
        """Injects a fault, for so many seconds where it lasts, and waits until the server is well again, or has begun to end.
        `authorization`: the header with the key of who asks, for requests of its own. Raises ConfigError where it may not."""
        if not self._service.config.allow_chaos:
            raise ConfigError("this server injects no faults; start it with --allow-chaos, and let nobody rely on it")
        if fault not in FAULTS:
            raise ConfigError(f"{fault[:60]!r} is no fault; there are: {', '.join(FAULTS)}")
        if not 0 < seconds <= MAX_FAULT_SECONDS:
            raise ConfigError(f"seconds is {seconds}, outside 0 … {MAX_FAULT_SECONDS:g}")
        if self._is_busy:
            raise ConfigError("a fault is being injected; wait for its end")
        self._is_busy, self._authorization = True, authorization
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
        while time.monotonic() - began < RECOVERY_SECONDS and not (deployment.is_ready or deployment.is_draining):
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

    async def _end_server(self, seconds: float) -> str:
        """Ends it as a service manager does. The report comes before it has gone, once nothing is open."""
        deployment = self._service.deployment
        began, open_requests = time.monotonic(), deployment.open_requests
        os.kill(os.getpid(), signal.SIGTERM)
        await self._until(lambda: deployment.is_draining and not deployment.open_requests, seconds)
        left, took = deployment.open_requests, time.monotonic() - began
        return f"the server is ending (SIGTERM): {open_requests - left} of {open_requests} requests had ended after {took:.1f} s"

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
        dropped = list(self._clients.connections())
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

    async def _stall_readers(self, seconds: float) -> str:
        """Clients that ask for much, and read the first line of the answer alone."""
        if self._service.keys.needed and not self._authorization:
            raise ConfigError("this server's requests need a key, readers' too; give the file of one with --key-file")
        asked = {
            "prompt": [1], "max_tokens": self._service.model.limits.max_model_len // READER_CHOICES - 1, "n": READER_CHOICES,
            "logprobs": 5, "stream": True, "ignore_eos": True, "temperature": 1,
        }  # fmt: skip
        body = json.dumps(asked).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
        head += f"Authorization: {self._authorization}\r\n" if self._authorization else ""
        began, opened = time.monotonic(), [await self._clients.connect() for _ in range(STALLED_READERS)]
        ports = {writer.get_extra_info("sockname")[1] for _, writer in opened}

        def left() -> int:
            return sum(each.client is not None and each.client[1] in ports for each in self._clients.connections())

        try:
            for _, writer in opened:
                writer.write(f"{head}\r\n".encode() + body)
            answers = [asyncio.create_task(reader.readline()) for reader, _ in opened]
            await self._until(lambda: all(each.done() for each in answers) and not left(), seconds)
            closed, took = STALLED_READERS - left(), time.monotonic() - began
            for each, (reader, _) in zip(answers, opened, strict=True):
                if each.done() and b" 200 " not in each.result():
                    raise ConfigError(f"a request of the fault was not taken: {await reader.read()!r:.600}")
                each.cancel()
        finally:
            for _, writer in opened:
                writer.transport.abort()
        return f"{closed} of {STALLED_READERS} clients that read nothing were closed within {took:.1f} s"

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
    "end-server": Chaos._end_server,
    "slow-engine": Chaos._slow_engine,
    "drop-connections": Chaos._drop_connections,
    "full-disk": Chaos._full_disk,
    "stall-readers": Chaos._stall_readers,
}
"""Name → what does it."""
