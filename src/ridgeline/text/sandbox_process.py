"""A process of its own for work on what clients send: started by module name, limited in time, ended when it exceeds that.

Owns the process and the frames' deadlines. The module's `main` limits memory and rights, and answers each frame with one frame.
"""

import select
import socket
import subprocess
import sys
from contextlib import suppress
from time import clock_gettime, monotonic
from typing import Any, Final

from ridgeline.config.env import child_environment
from ridgeline.errors import OverloadedError
from ridgeline.text.sandbox_frames import CHUNK_BYTES, FrameError, arrived, frame, receive, send

MIN_CPU_SECONDS: Final = 0.05
STALL_SECONDS: Final = 2.0
"""Work that has used less CPU time than the first was not scheduled by the system: it may take up to the second in wall time."""
_SCHEDULED: Final = 2
"""CPUCLOCK_SCHED: with it and a process's number the clock of its CPU time is made, as glibc's clock_getcpuclockid does."""


class SandboxProcess:
    """One process that runs `module`. Not for two threads at a time."""

    def __init__(self, module: str, first: dict[str, Any], start_seconds: float) -> None:
        """Sends the first frame. start_seconds: until it has to be answered."""
        self._stream, child_stream = socket.socketpair()
        self._stream.setblocking(False)
        self._start_seconds = start_seconds
        self._started = monotonic()
        self._description: dict[str, Any] | None = None
        try:
            self._process = subprocess.Popen(
                # -P: the working directory is no place to import from.
                [sys.executable, "-P", "-m", module, str(child_stream.fileno())],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                pass_fds=(child_stream.fileno(),), env=child_environment(),
                process_group=0,  # Ctrl-C in the terminal is the parent's alone.
            )  # fmt: skip
        except BaseException:
            self._stream.close()
            raise
        finally:
            child_stream.close()
        with suppress(OSError):  # `ready` raises then
            send(self._stream, frame(first), self._started + start_seconds)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_ready(self) -> bool:
        """True if the first frame has been answered, and its answer read."""
        return self._description is not None

    def ready(self, grace: float) -> dict[str, Any] | None:
        """The answer to the first frame; None where the process ended. Waits up to `grace` seconds past the time to start, as the answer
        of an older process has come and only needs to be read. Raises TimeoutError."""
        if self._description is None:
            try:
                self._description = receive(self._stream, max(self._started + self._start_seconds, monotonic() + grace))
            except TimeoutError:
                raise
            except (OSError, FrameError):
                self._description = None
        return self._description

    def ask(self, request: bytes, seconds: float, least_cpu_seconds: float | None = None) -> dict[str, Any] | None:
        """The answer to a frame; None where the process ended.

        least_cpu_seconds  CPU time that it must have used to be too slow; None: MIN_CPU_SECONDS
        Raises `TimeoutError` after `seconds`, `OverloadedError` after `STALL_SECONDS`.
        """
        least = MIN_CPU_SECONDS if least_cpu_seconds is None else least_cpu_seconds
        start, used = monotonic(), self._cpu_seconds()
        stall = max(seconds, STALL_SECONDS)
        try:
            send(self._stream, request, start + stall)
            timeout = seconds
            while not self._answers_within(timeout):
                if self._cpu_seconds() - used >= least:
                    raise TimeoutError
                if monotonic() - start >= stall:
                    raise OverloadedError(f"the machine was too busy for this request within {stall:g} s: try again", 1)
                timeout = MIN_CPU_SECONDS
            return receive(self._stream, start + stall)
        except (BrokenPipeError, ConnectionResetError, FrameError):
            return None

    async def ask_from_loop(self, request: bytes, seconds: float) -> dict[str, Any] | None:
        """The same as `ask` for a frame that the socket takes at once, without holding up the event loop, and without a thread, whose
        wake-ups cost more than all else."""
        start, used = monotonic(), self._cpu_seconds()
        stall, data, timeout = max(seconds, STALL_SECONDS), bytearray(), seconds
        try:
            send(self._stream, request, start)
            while (answer := arrived(data)) is None:
                if await self._is_readable(timeout):
                    chunk = self._stream.recv(CHUNK_BYTES)
                    if not chunk:
                        return None
                    data += chunk
                elif self._cpu_seconds() - used >= MIN_CPU_SECONDS:
                    raise TimeoutError
                elif monotonic() - start >= stall:
                    raise OverloadedError(f"the machine was too busy for this request within {stall:g} s: try again", 1)
                else:
                    timeout = MIN_CPU_SECONDS
        except (BrokenPipeError, ConnectionResetError, FrameError):
            return None
        return answer

    async def _is_readable(self, seconds: float) -> bool:
        import asyncio  # a server has loaded it; `LLM` does without

        loop = asyncio.get_running_loop()
        readable: asyncio.Future[bool] = loop.create_future()

        def end(found: bool) -> None:
            if not readable.done():
                readable.set_result(found)

        loop.add_reader(self._stream, end, True)
        timer = loop.call_later(seconds, end, False)
        try:
            return await readable
        finally:
            timer.cancel()
            loop.remove_reader(self._stream)

    def end(self) -> None:
        """Kills the process and reaps it."""
        self._stream.close()
        self._process.kill()
        self._process.wait()

    def _answers_within(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._stream, select.POLLIN)
        return bool(poll.poll(seconds * 1_000))

    def _cpu_seconds(self) -> float:
        """CPU time that the process has used; wall time where it has ended."""
        try:
            return clock_gettime(~self.pid << 3 | _SCHEDULED)
        except OSError:
            return monotonic()
