"""The front end's side of the engine: requests in, streams of outputs out, and what becomes of both when the engine dies.

Owns the open requests and the state of the engine as clients may see it. Runs on one asyncio loop; touches no array, admits nothing.
Health is progress: an engine that has work, commits no step and does not compute for `step_timeout_seconds` is killed and started anew.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Final

from ridgeline.config.groups import EngineConfig
from ridgeline.core.commands import Abort, Admit, Close, Command, Output
from ridgeline.core.events import Closed, Event, Finish, Rejected
from ridgeline.core.params import Admitted
from ridgeline.engine.child import FAREWELL_SECONDS, Child
from ridgeline.engine.messages import Fatal, Frame, Health, Message, Progress, Ready, WireError
from ridgeline.errors import ConfigError, EngineDeadError, OverloadedError, RequestError

BUFFERED_OUTPUTS: Final = 2048
"""Outputs that wait for a client to read them; one that lets more pile up is aborted."""
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


class RequestStream:
    """What comes of one request: its outputs as steps commit, and a `Closed` for each choice. Iterate it once.

    Raises EngineDeadError when the engine ends first, OverloadedError or RequestError when the engine refuses.
    """

    def __init__(self, request: Admitted) -> None:
        self.request_id = request.request_id
        self._open_choices = request.choices
        self._items: deque[Output | Closed] = deque()
        self._error: Exception | None = None
        self._arrived = asyncio.Event()

    def __aiter__(self) -> "RequestStream":
        return self

    async def __anext__(self) -> Output | Closed:
        while not self._items:
            if self._error is not None:
                raise self._error
            if self.ended:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        return self._items.popleft()

    @property
    def ended(self) -> bool:
        """Nothing further will arrive."""
        return self._open_choices == 0 or self._error is not None

    @property
    def overflowing(self) -> bool:
        """More waits to be read than any client that reads would leave."""
        return len(self._items) > BUFFERED_OUTPUTS

    def put(self, item: Output | Closed) -> None:
        self._open_choices -= isinstance(item, Closed)
        self._items.append(item)
        self._arrived.set()

    def fail(self, error: Exception) -> None:
        """Ends the stream with `error` after what has arrived. Only the first error counts."""
        self._error = self._error or error
        self._arrived.set()


class OpenRequests:
    """The streams of all requests that are open, by request id."""

    def __init__(self) -> None:
        self._streams: dict[str, RequestStream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._streams

    def add(self, request: Admitted) -> RequestStream:
        stream = self._streams[request.request_id] = RequestStream(request)
        return stream

    def deliver(self, frame: Frame) -> list[str]:
        """Outputs first: a step's last ids come before the `Closed` that ends their choice.
        Returns who does not read and is to be aborted."""
        unread = []
        for output in frame.outputs:
            stream = self._streams.get(output.request_id)
            if stream is not None:
                stream.put(output)
                if stream.overflowing:
                    message = f"{BUFFERED_OUTPUTS} outputs were not read in time; the request was aborted"
                    self._fail(output.request_id, RequestError(message, code="client_too_slow", status=408))
                    unread.append(output.request_id)
        for event in frame.events:
            if isinstance(event, Closed):
                self._end_choice(event)
            elif isinstance(event, Rejected):
                self._refuse(event)
        return unread

    def fail_all(self, message: str) -> None:
        """The engine is gone."""
        for request_id in list(self._streams):
            self._fail(request_id, EngineDeadError(message))

    def _end_choice(self, closed: Closed) -> None:
        stream = self._streams.get(closed.request_id)
        if stream is not None:
            stream.put(closed)
            if stream.ended:
                del self._streams[closed.request_id]

    def _refuse(self, rejected: Rejected) -> None:
        if rejected.retry_after_seconds is None:
            self._fail(rejected.request_id, RequestError(rejected.message, code="request_rejected"))
        else:
            self._fail(rejected.request_id, OverloadedError(rejected.message, max(1, math.ceil(rejected.retry_after_seconds))))

    def _fail(self, request_id: str, error: Exception) -> None:
        stream = self._streams.pop(request_id, None)
        if stream is not None:
            stream.fail(error)


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

    def submit(self, request: Admitted) -> RequestStream:
        """Sends the request. Raises EngineDeadError while no engine is ready."""
        if self.state is not State.READY:
            raise EngineDeadError(f"the engine is {self.state}; try again in a few seconds")
        stream = self._open.add(request)
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
