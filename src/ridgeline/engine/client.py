"""The front end's client of the engine: requests in, streams of outputs out, restarts when the engine process dies.

Owns the engine process, the open requests, and the state of the engine as clients may see it. Runs on one asyncio loop; touches no array,
admits nothing. Health is progress: an engine that has work, and whose executor does not move for `step_timeout_seconds`, is killed and
started anew. A long step moves; a process that is stopped, deadlocked or in an endless loop does not. The next engine goes on with what was
open; requests fail only where there will be none, or one with other weights.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Final, NoReturn

from ridgeline.config.groups import EngineConfig
from ridgeline.core.commands import Abort, Close, Command
from ridgeline.core.events import Event
from ridgeline.core.params import Admitted
from ridgeline.engine.child import EngineProcess
from ridgeline.engine.messages import Fatal, Frame, FrameBuffer, Health, Message, Profile, Progress, Ready, TraceSteps, WireError, encode
from ridgeline.engine.open_requests import OpenRequests
from ridgeline.engine.seats import Seat
from ridgeline.engine.streams import Behind, RequestStream, Wakeup
from ridgeline.errors import ConfigError, EngineDeadError

_log: Final = logging.getLogger("ridgeline.engine")
EXIT_TIMEOUT_SECONDS: Final = 5.0
"""Time for an engine that was asked to end, before it is killed."""
STABLE_SECONDS: Final = 10.0
"""An engine that was ready for at least this long, or got a request further, did not fail to start: the next one follows at once."""
CRASH_LOOP_FAILURES: Final = 3
"""Engines in a row that ended early, from which on that is called what it is."""
MAX_FAILED_STARTS: Final = 3
"""Engines in a row that did not come to go on with open requests, after which these wait no longer."""
CHECKS_PER_TIMEOUT: Final = 12
"""Checks of an engine's progress within `step_timeout_seconds`; one more without a beat, and it hangs. Checks are counted, not seconds:
when this process itself was stopped, its engine has not hung meanwhile."""


class State(StrEnum):
    """STARTING: the first engine loads. RESTARTING: a later one does. DEAD: none runs, another may follow after a pause."""

    STARTING = "starting"
    READY = "ready"
    DEAD = "dead"
    RESTARTING = "restarting"


def restart_delay(failures: int) -> float:
    """Seconds before the next start, after this many engines in a row that failed early: 0, 1, 2, 4 … 30."""
    return 0.0 if failures < 1 else min(30.0, 2.0 ** min(failures - 1, 5))


def restarted(config: EngineConfig, restarts: int) -> EngineConfig:
    """Settings of the engine after this many restarts: its recording and trace have files of their own, FILE.restart-1 and so on."""
    if not restarts:
        return config
    record, trace = (file and f"{file}.restart-{restarts}" for file in (config.record, config.trace))
    return replace(config, record=record, trace=trace)


class Changes:
    """Lets tasks wait for a condition that is looked at with each change."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def tell(self) -> None:
        """Something has changed."""
        told, self._next = self._next, asyncio.Event()
        told.set()

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        """Returns when the condition holds."""
        while not condition():
            await self._next.wait()


class EngineClient:
    """One engine process at a time, restarted when it dies.

    on_events    called with the events of each frame, in order (metrics)
    on_progress  called while an engine loads
    seat         its engines' among those of other clients; None: there are no others
    """

    def __init__(
        self,
        config: EngineConfig,
        on_events: Callable[[Sequence[Event]], None] = lambda events: None,
        on_progress: Callable[[str, float], None] = lambda stage, fraction: None,
        delay: Callable[[int], float] = restart_delay,
        seat: Seat | None = None,
    ) -> None:
        self.state = State.STARTING
        self.starts = 0
        self.last_failure: str | None = None
        self.failures = 0
        """Engines in a row that ended within `STABLE_SECONDS` of being ready, or before, and got no request further."""
        self.next_start = 0.0
        """Time of the loop at which the next engine starts, while none runs."""
        self._fix: Mapping[str, str | None] = {}
        self._config = config
        self._on_events = on_events
        self._on_progress = on_progress
        self._delay = delay
        self._seat = seat
        self._open = OpenRequests(on_events)
        self.waiting_before = self._open.waiting_before
        self.drop = self._open.drop
        self._child: EngineProcess | None = None
        self._ready: Ready | None = None
        self.is_checked = False
        """True where its user looks at each engine that is ready, and calls `go_on`."""
        self._has_gone_on = self._got_further = False
        """Since this engine started: `go_on` has been called; and open requests have had an output."""
        self._failed_starts = 0
        self._cause: str | None = None
        self._permanent = False
        self._state_changes = Changes()
        self._buffer = FrameBuffer()
        self._ready_at = math.inf
        self._steps = 0
        self._is_busy = False
        """True from a command until the engine says that it has nothing to do."""
        self._supervisor: asyncio.Task[None] | None = None

    # ── lifecycle ───────────────────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Starts the first engine; returns before it is ready."""
        self._supervisor = asyncio.create_task(self._supervise())

    async def ready(self, after: int = 0) -> Ready:
        """Waits until an engine takes requests that was started after so many others. Raises ConfigError if none ever will."""
        await self._state_changes.wait_for(lambda: self._permanent or (self.state is State.READY and self.starts > after))
        if self._ready is None:
            raise _final_error(self.last_failure, self._fix)
        return self._ready

    async def wait_failed(self) -> NoReturn:
        """Waits until no engine will ever take requests again; raises ConfigError with the reason."""
        await self._state_changes.wait_for(lambda: self.state is State.DEAD and self._permanent)
        raise _final_error(self.last_failure, self._fix)

    @property
    def is_ready(self) -> bool:
        return self.state is State.READY

    @property
    def pid(self) -> int | None:
        """Process id of the engine; None while there is none."""
        return self._child.pid if self._child else None

    async def shutdown(self) -> None:
        """Ends the engine and every open request. Safe to call twice."""
        self._permanent = True
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
            self._supervisor = None
        self._open.fail_all("the engine has been shut down")  # of an engine that was yet to start
        self._set_state(State.DEAD)

    # ── requests ────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def open_requests(self) -> int:
        return len(self._open)

    @property
    def open_choices(self) -> Mapping[str, int]:
        """Open choices of each tenant that has some."""
        return self._open.choices

    def submit(
        self, request: Admitted, wakeup: Wakeup | None = None, *, goes_on: bool = True, behind: Behind | None = None
    ) -> RequestStream:
        """Gives the request to the engine, or to the next one; `wakeup` is set whenever its stream has something new; `goes_on`: in the
        next engine, where this one ends; `behind`: what another server has put out of it. Raises EngineDeadError before the first engine is
        ready, and when no other will be."""
        if self._permanent or self._open.fingerprint is None:
            raise EngineDeadError(f"the engine is {self.state}; try again in a few seconds")
        stream = self._open.add(request, wakeup, goes_on, behind)
        if self.state is State.READY and (admission := stream.admission()) is not None:
            self.send(admission)
        return stream

    def abort(self, request_id: str) -> None:
        """Ends every choice that is still open; the stream then delivers their `Closed`."""
        if request_id in self._open:
            self.send(Abort(request_id))

    def send(self, command: Command | Profile | TraceSteps) -> None:
        """Sends any command to the engine. What means a request that no engine has is carried out at once."""
        is_done = False
        match command:
            case Close():
                is_done = self._open.close(command)
            case Abort():
                is_done = self._open.abort(command)
        if not is_done and self._child is not None and self.state is State.READY:
            if not self._child.writer.is_closing():  # else the engine is dead, and the reader is about to see the end of the socket
                self._child.writer.write(encode(command))
            self._is_busy = self._is_busy or not isinstance(command, (Profile, TraceSteps))

    def go_on(self) -> None:
        """Gives the engine that is ready the open requests that it has not."""
        if not self._has_gone_on:
            self._has_gone_on, self._failed_starts = True, 0
        for admission in self._open.admissions():
            self.send(admission)

    # ── supervision ─────────────────────────────────────────────────────────────────────────────────────────────

    async def _supervise(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while not self._permanent:
                self._set_state(State.RESTARTING if self.starts else State.STARTING)
                ready_seconds = await self._run_once(loop)
                has_served = self._got_further or ready_seconds >= STABLE_SECONDS  # streams that go on wait for the next one
                self.failures = 0 if has_served else self.failures + 1
                delay = self._delay(self.failures)
                self.next_start = loop.time() + delay
                self._set_state(State.DEAD)
                if not self._permanent:
                    if self.failures >= CRASH_LOOP_FAILURES:
                        fields = {"failures_in_a_row": self.failures, "next_start_seconds": delay, "reason": self.last_failure}
                        _log.error("engine keeps ending early", extra={"fields": fields})
                    await asyncio.sleep(delay)
        except Exception as error:
            self.last_failure, self._permanent = f"the engine's supervision failed: {error}", True
            self._open.fail_all("the engine has ended and is not started again")
            loop.call_exception_handler({"message": self.last_failure, "exception": error})
            self._set_state(State.DEAD)

    async def _run_once(self, loop: asyncio.AbstractEventLoop) -> float:
        """Runs one engine process from its start to its end; returns the seconds for which it was ready."""
        self.starts += 1
        self._ready, self._cause, self._steps, self._ready_at = None, None, 0, math.inf
        self._has_gone_on = self._got_further = False
        self._buffer = FrameBuffer()
        try:
            self._child = child = await EngineProcess.spawn(restarted(self._config, self.starts - 1), self._receive, self._seat)
        except OSError as error:
            self.last_failure = f"no process could be started: {error}"
            self._on_lost()
            return 0.0
        watchdog = asyncio.create_task(self._watch_progress(child))
        try:
            await child.ended
        except WireError as error:
            self._cause = str(error)
            child.kill()
        except asyncio.CancelledError:
            if self._ready is None:
                child.kill()
            raise
        finally:
            watchdog.cancel()
            open_requests = len(self._open)
            self._on_lost()
            status = await child.end(EXIT_TIMEOUT_SECONDS)
            if self._seat is not None:
                self._seat.take(works=False)
            self.last_failure = self._cause or f"the engine process ended with status {status}"
        if not self._permanent:
            _log.error("engine ended, and is started again", extra={"fields": {
                "reason": self.last_failure, "open_requests": len(self._open), "ended_requests": open_requests - len(self._open),
            }})  # fmt: skip
        return max(0.0, loop.time() - self._ready_at)

    async def _watch_progress(self, child: EngineProcess) -> None:
        """Kills an engine that does not move although it has work. Its socket then closes, which is handled like any other end.

        A step that moves is not hung, however long it takes: a large one on few cores may need minutes.
        """
        limit = self._config.step_timeout_seconds
        silent, steps = 0, 0
        while silent <= CHECKS_PER_TIMEOUT:
            await asyncio.sleep(limit / CHECKS_PER_TIMEOUT)
            has_moved = child.has_beaten() or self._steps != steps or not self._is_busy
            silent, steps = 0 if has_moved else silent + 1, self._steps
        self._cause = f"the engine hung: its executor has not moved for {limit:g} s although requests were open"
        child.kill()

    def _on_lost(self) -> None:
        """The engine has ended: open requests wait for the next one, unless none will come."""
        self.state = State.DEAD
        self._failed_starts += not self._has_gone_on
        self._child, self._ready, self._is_busy = None, None, False
        self._open.engine_lost()
        if self._permanent or self._failed_starts >= MAX_FAILED_STARTS:
            self._open.fail_all("the engine ended while this request was open; send it again")

    def _set_state(self, state: State) -> None:
        self.state = state
        self._state_changes.tell()

    # ── messages of the engine ──────────────────────────────────────────────────────────────────────────────────

    def _receive(self, data: bytes) -> None:
        """Bytes of the engine that runs. Raises WireError."""
        for message in self._buffer.feed(data):
            self._handle(message)
        if self._ready is not None and self.state is not State.READY:
            self._ready_at = asyncio.get_running_loop().time()
            self._open.on_ready(self._ready.info.kv.fingerprint)
            fields = {"pid": self.pid, "starts": self.starts, "open_requests": len(self._open)}
            _log.info("engine ready", extra={"fields": fields})
            self._set_state(State.READY)
            if not self.is_checked:
                self.go_on()

    def _handle(self, message: Message) -> None:
        match message:
            case Frame():
                self._steps = message.step
                self._got_further = self._got_further or (self._has_gone_on and bool(message.outputs))
                for request_id in self._open.deliver(message):
                    self.send(Abort(request_id))
                self._on_events(message.events)
                if self._open.has_suspect:
                    self.go_on()
            case Health():
                self._steps, self._is_busy = message.step, False
            case Progress():
                self._on_progress(message.stage, message.fraction)
            case Ready():
                self._ready = message
            case Fatal():
                self._cause, self._permanent, self._fix = message.message, message.permanent, message.fix
            case _:
                raise WireError(f"the engine sent a {type(message).__name__}")


def _final_error(failure: str | None, fix: Mapping[str, str | None]) -> ConfigError:
    return ConfigError(failure or "the engine has been shut down", fix=fix)
