"""The front end's side of the engine: requests in, streams of outputs out, and what becomes of both when the engine dies.

Owns the process (`Child`: its start, its frames, its end), the open requests, and the state of the engine as clients may see it. Runs on
one asyncio loop; touches no array, admits nothing. Health is progress: an engine that has work, commits no step and does not compute for
`step_timeout_seconds` is killed and started anew.
"""

import asyncio
import math
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from ridgeline.config.groups import EngineConfig
from ridgeline.core.commands import Abort, Admit, Close, Command
from ridgeline.core.events import Event, Finish
from ridgeline.core.params import Admitted
from ridgeline.engine.messages import Fatal, Frame, FrameBuffer, Health, Message, Progress, Ready, WireError, encode
from ridgeline.engine.streams import OpenRequests, RequestStream, Wakeup
from ridgeline.errors import ConfigError, EngineDeadError

READ_BYTES: Final = 1 << 18
FAREWELL_SECONDS: Final = 5.0
"""How long an engine that was asked to end may take before it is killed."""


class Child:
    """One engine process. It dies when the write end of its lifeline, which only this process has, is closed."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", lifeline: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._lifeline = lifeline
        self._reader = reader
        self._writer = writer

    @classmethod
    async def spawn(cls, config: EngineConfig) -> "Child":
        """Starts `python -m ridgeline.engine.process`, which inherits one end of a socket pair and of a pipe, and nothing else."""
        ours, theirs = socket.socketpair()
        read_end, lifeline = os.pipe()
        process = None
        try:
            process = subprocess.Popen(
                # -P: the working directory is no place to import from.
                [sys.executable, "-P", "-m", "ridgeline.engine.process", str(theirs.fileno()), str(read_end)],
                stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(), read_end),
                process_group=0,  # Ctrl-C in the terminal is the parent's alone, even before the child can ignore it.
            )
            os.write(lifeline, msgspec.json.encode(config) + b"\n")
            ours.setblocking(False)
            reader, writer = await asyncio.open_unix_connection(sock=ours)
        except BaseException:
            ours.close()
            os.close(lifeline)
            if process is not None:
                process.kill()
                process.wait()
            raise
        finally:
            theirs.close()
            os.close(read_end)
        return cls(process, lifeline, reader, writer)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: Message) -> None:
        """Queues a frame. To a dead engine it is lost: `messages` ends and says so."""
        if not self._writer.is_closing():
            self._writer.write(encode(message))

    async def messages(self) -> AsyncIterator[list[Message]]:
        """Messages in the batches in which they arrive, until the engine's end of the socket closes. Raises `WireError`."""
        buffer = FrameBuffer()
        while True:
            try:
                data = await self._reader.read(READ_BYTES)
            except ConnectionResetError:
                return
            if not data:
                return
            yield buffer.feed(data)

    def cpu_seconds(self) -> float:
        """Processor time that the process has used; 0 where the system does not say."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        """Ends the process now, whatever it is doing, stopped or not."""
        self._process.kill()

    async def end(self, patience_seconds: float) -> int:
        """Closes the socket, waits so long for the process to end, then kills it. Returns its exit status; safe to call twice."""
        self._writer.close()
        try:
            return await asyncio.to_thread(self._process.wait, patience_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return await asyncio.to_thread(self._process.wait)
        finally:
            if self._lifeline >= 0:
                os.close(self._lifeline)
                self._lifeline = -1


STABLE_SECONDS: Final = 10.0
"""An engine that was ready for so long did not fail to start: the next one follows at once."""

WATCHES: Final = 8
"""How often in `step_timeout_seconds` an engine's progress is looked at."""
COMPUTING_SHARE: Final = 0.1
"""A process that uses so much of one core computes; a stopped or deadlocked one does not."""
PATIENCE: Final = 20
"""A step that computes may take so many times `step_timeout_seconds`."""


class State(StrEnum):
    """STARTING: the first engine loads. RESTARTING: a later one does. DEAD: none runs, another may follow after a pause."""

    STARTING = "starting"
    READY = "ready"
    DEAD = "dead"
    RESTARTING = "restarting"


def restart_delay(failures: int) -> float:
    """Seconds to wait before the next start after so many engines in a row that did not last: 0, 1, 2, 4 … 30."""
    return 0.0 if failures < 1 else min(30.0, 2.0 ** min(failures - 1, 5))


class EngineClient:
    """One engine process at a time, restarted when it dies.

    on_events    called with the events of each frame, in order (metrics, ledger)
    on_progress  called while an engine loads
    """

    def __init__(
        self,
        config: EngineConfig,
        on_events: Callable[[Sequence[Event]], None] = lambda events: None,
        on_progress: Callable[[str, float], None] = lambda stage, fraction: None,
        delay: Callable[[int], float] = restart_delay,
    ) -> None:
        self.state = State.STARTING
        self.starts = 0
        self.last_failure: str | None = None
        self._fix: Mapping[str, str | None] = {}
        self._config = config
        self._on_events = on_events
        self._on_progress = on_progress
        self._delay = delay
        self._open = OpenRequests()
        self._child: Child | None = None
        self._ready: Ready | None = None
        self._cause: str | None = None
        self._permanent = False
        self._changed = asyncio.Condition()
        self._steps = 0
        self._expecting_since: float | None = None
        """Since when a step should be completed; None while the engine has nothing to do."""
        self._supervisor: asyncio.Task[None] | None = None

    # ── life ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Starts the first engine; returns before it is ready."""
        self._supervisor = asyncio.create_task(self._supervise())

    async def ready(self) -> Ready:
        """Waits until an engine takes requests. Raises ConfigError if none ever will."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.state is State.READY or self._permanent)
        if self._ready is None:
            raise ConfigError(self.last_failure or "the engine has been shut down", fix=self._fix)
        return self._ready

    @property
    def is_ready(self) -> bool:
        return self.state is State.READY

    @property
    def pid(self) -> int | None:
        """Process id of the engine; None while there is none."""
        return self._child.pid if self._child else None

    async def shutdown(self) -> None:
        """Ends the engine and every open request. Safe to call twice."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
            self._supervisor = None
        self._permanent = True
        await self._enter(State.DEAD)

    # ── requests ────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def open_requests(self) -> int:
        return len(self._open)

    def submit(self, request: Admitted, wakeup: Wakeup | None = None) -> RequestStream:
        """Sends the request; `wakeup` is set whenever something comes of it. Raises EngineDeadError while no engine is ready."""
        if self.state is not State.READY:
            raise EngineDeadError(f"the engine is {self.state}; try again in a few seconds")
        stream = self._open.add(request, wakeup)
        self.send(Admit(request))
        return stream

    def close(self, request_id: str, choice: int, keep: int, reason: Finish) -> None:
        """Ends one choice: its first `keep` outputs count. Answers a provisional end, or comes before it."""
        self.send(Close(request_id, choice, keep, reason))

    def abort(self, request_id: str) -> None:
        """Ends every choice that is still open; the stream then delivers their `Closed`."""
        if request_id in self._open:
            self.send(Abort(request_id))

    def send(self, command: Command) -> None:
        """Sends any command. While no engine is ready it is dropped: every request it could mean has failed already."""
        if self._child is not None and self.state is State.READY:
            self._child.send(command)
            if self._expecting_since is None:
                self._expecting_since = asyncio.get_running_loop().time()

    # ── supervision ─────────────────────────────────────────────────────────────────────────────────────────────

    async def _supervise(self) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        try:
            while not self._permanent:
                await self._enter(State.RESTARTING if self.starts else State.STARTING)
                lasted = await self._live_once(loop)
                failures = 0 if lasted >= STABLE_SECONDS else failures + 1
                await self._enter(State.DEAD)
                if not self._permanent:
                    await asyncio.sleep(self._delay(failures))
        except Exception as error:
            self.last_failure, self._permanent = f"the engine's supervision failed: {error}", True
            loop.call_exception_handler({"message": self.last_failure, "exception": error})
            await self._enter(State.DEAD)

    async def _live_once(self, loop: asyncio.AbstractEventLoop) -> float:
        """One engine process from its start to its end; returns the seconds for which it was ready."""
        self.starts += 1
        self._ready, self._cause, self._steps, ready_at = None, None, 0, math.inf
        try:
            self._child = child = await Child.spawn(self._config)
        except OSError as error:
            self.last_failure = f"no process could be started: {error}"
            return 0.0
        watch = asyncio.create_task(self._watch(child))
        try:
            async for batch in child.messages():
                for message in batch:
                    self._take(message)
                if self._ready is not None and self.state is not State.READY:
                    ready_at = loop.time()
                    await self._enter(State.READY)
        except WireError as error:
            self._cause = str(error)
            child.kill()
        except asyncio.CancelledError:
            if self._ready is None:
                child.kill()
            raise
        finally:
            watch.cancel()
            self._lost()
            status = await child.end(FAREWELL_SECONDS)
            self.last_failure = self._cause or f"the engine process ended with status {status}"
        return max(0.0, loop.time() - ready_at)

    async def _watch(self, child: Child) -> None:
        """Kills an engine that makes no progress although it should. Its socket then closes, and that is noticed as any other end.

        A step that computes is not hung, however long it takes within reason: a large one on few cores may need minutes.
        """
        limit, loop = self._config.step_timeout_seconds, asyncio.get_running_loop()
        used, computing_at = 0.0, -math.inf
        while True:
            await asyncio.sleep(limit / WATCHES)
            before, used = used, child.cpu_seconds()
            if used - before > COMPUTING_SHARE * limit / WATCHES:
                computing_at = loop.time()
            since = self._expecting_since
            if since is None:
                continue
            if loop.time() - max(since, computing_at) > limit or loop.time() - since > PATIENCE * limit:
                self._cause = f"no step was completed in {loop.time() - since:.1f} s although requests were open"
                child.kill()
                return

    def _lost(self) -> None:
        self.state = State.DEAD
        self._child, self._ready, self._expecting_since = None, None, None
        self._open.fail_all("the engine ended while this request was open; send it again")

    async def _enter(self, state: State) -> None:
        self.state = state
        async with self._changed:
            self._changed.notify_all()

    # ── what the engine says ────────────────────────────────────────────────────────────────────────────────────

    def _take(self, message: Message) -> None:
        match message:
            case Frame():
                if message.step > self._steps:
                    self._steps, self._expecting_since = message.step, asyncio.get_running_loop().time()
                for request_id in self._open.deliver(message):
                    self.send(Abort(request_id))
                self._on_events(message.events)
            case Health():
                self._steps, self._expecting_since = message.step, None
            case Progress():
                self._on_progress(message.stage, message.fraction)
            case Ready():
                self._ready = message
            case Fatal():
                self._cause, self._permanent, self._fix = message.message, message.permanent, message.fix
            case _:
                raise WireError(f"the engine sent a {type(message).__name__}")
