"""The engine in this process: runs its loop while answers are awaited, and passes each turn's outputs to the open requests.

Owns the engine, the open requests and the commands of its next turn. Knows no text. One thread at a time.
"""

import select
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, Protocol, TypeVar

from ridgeline.config.groups import EngineConfig
from ridgeline.core.commands import Abort, Admit, Close, Command, Output
from ridgeline.core.events import Closed, Rejected
from ridgeline.core.params import Admitted
from ridgeline.engine.compose import Progress, start_engine
from ridgeline.engine.engine import Turn
from ridgeline.engine.executor import ExecutorInfo
from ridgeline.engine.outputs import LLMRequest, RequestOutput
from ridgeline.errors import EngineDeadError

CHOICES_PER_ROW: Final = 4
"""Choices submitted to the engine at once, per row: enough for the scheduler to choose from, few enough to stay cheap."""


class OpenRequest(Protocol):
    """A request that collects its answer."""

    request: Admitted

    @property
    def open_choices(self) -> int:
        """Number of choices that have not ended."""
        ...

    def process(self, item: Output | Closed) -> Close | None:
        """Adds what came; returns the close that the engine waits for, if it does."""
        ...

    def reject(self, message: str) -> None:
        """Ends the request: the engine rejected it."""
        ...


Asked = TypeVar("Asked", bound=OpenRequest)


class LocalEngine:
    """Several callers may have open requests: each turn of the loop serves them all."""

    def __init__(self, config: EngineConfig, on_progress: Progress) -> None:
        self._engine, self.decisions = start_engine(config, on_progress)
        self._open: dict[str, OpenRequest] = {}
        self._commands: list[Command] = []
        self._is_in_turn = self._has_progressed = False
        self._closed = False

    @property
    def info(self) -> ExecutorInfo:
        """Facts about the executor."""
        return self._engine.executor.info

    @property
    def idle(self) -> bool:
        """True if no request is open and no step is in flight."""
        return not self._open and self._engine.idle

    def check_open(self) -> None:
        """Raises EngineDeadError after `close`, which a failed step calls too."""
        if self._closed:
            raise EngineDeadError("this LLM is closed; make another one")

    def run(self, requests: Iterable[Asked]) -> Iterator[Asked]:
        """Yields each request when it is answered, in the order given. None stays open, even after an error."""
        self.check_open()
        waiting, submitted = deque(requests), deque[Asked]()
        max_open_choices = CHOICES_PER_ROW * self.info.rows
        try:
            while waiting or submitted:
                while waiting and sum(request.open_choices for request in self._open.values()) < max_open_choices:
                    submitted.append(waiting.popleft())
                    self._submit(submitted[-1])
                self._turn()
                while submitted and not submitted[0].open_choices:
                    yield submitted.popleft()
        finally:
            self._abort(submitted)

    def stream(self, request: LLMRequest) -> Iterator[RequestOutput]:
        """Yields new output as it comes; the last one is `finished`. Dropping the iterator aborts the request."""
        self.check_open()
        self._submit(request)
        try:
            finished = False
            while not finished:
                if request.open_choices:
                    self._turn()
                if request.has_new_output:
                    output = request.output()
                    finished = output.finished
                    yield output
        finally:
            self._abort([request])

    def abort(self) -> None:
        """Ends every request at the next turn; each keeps its output so far, its finish_reason is "abort". A signal handler may call it."""
        self._commands += [Abort(name) for name in tuple(self._open)]

    def close(self) -> None:
        """Frees the model. Safe to call twice."""
        self._closed = True
        self._open.clear()
        self._engine.close()

    def _submit(self, request: OpenRequest) -> None:
        self._open[request.request.request_id] = request
        self._commands.append(Admit(request.request))

    def _abort(self, requests: Iterable[OpenRequest]) -> None:
        """Aborts what is still open, and collects steps in flight where no other caller does. Python may drop an iterator during a turn:
        then the next turn aborts."""
        self._commands += [Abort(name) for each in requests if (name := each.request.request_id) in self._open]
        if not self._is_in_turn and not self._closed:
            while self._commands or (not self._open and self._engine.in_flight):
                self._turn()

    def _turn(self) -> None:
        """Runs one turn. One that is interrupted, by an error or by Ctrl-C, leaves the device in an unknown state: it closes the engine."""
        self.check_open()
        if not self._has_progressed and not self._commands and (awaited := self._engine.awaited):
            select.select(awaited, [], [])
        commands, self._commands = self._commands, []
        self._is_in_turn = True
        try:
            turn = self._engine.turn(self._engine.prepare(commands))
            self._has_progressed = turn.progressed
            self._deliver(turn)
        except BaseException:
            self.close()
            raise
        finally:
            self._is_in_turn = False

    def _deliver(self, turn: Turn) -> None:
        for output in turn.outputs:
            close = self._open[output.request_id].process(output)
            if close is not None:
                self._commands.append(close)
        for event in turn.events:
            if isinstance(event, Closed):
                self._open[event.request_id].process(event)
            elif isinstance(event, Rejected):
                self._open[event.request_id].reject(event.message)
            else:
                continue
            if not self._open[event.request_id].open_choices:
                del self._open[event.request_id]
