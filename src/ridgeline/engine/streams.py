"""Streams of open requests on the front end's side: each one's outputs, and the wakeup of its reader.

Owns what has arrived and is not read yet, and its bound. One asyncio loop; knows no process and no socket.
"""

import asyncio
import math
from collections import deque
from typing import Final

from ridgeline.core.commands import Output
from ridgeline.core.events import Closed, Rejected
from ridgeline.core.params import Admitted
from ridgeline.engine.messages import Frame
from ridgeline.errors import EngineDeadError, OverloadedError, RequestError

BUFFERED_OUTPUTS: Final = 2048
"""Outputs that wait for a client to read them; one that lets more pile up is aborted."""


class Wakeup:
    """Wakes the one task that waits for it. A wait that must not be long costs no timer of its own: one timer outlives many waits."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: asyncio.Future[bool] | None = None
        self._until = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def set(self) -> None:
        """The wait under way ends, or else the next one at once."""
        self._is_set = True
        self._end_wait(True)

    async def wait(self, seconds: float | None = None) -> bool:
        """Waits until `set`, then True, or for so many seconds, then False."""
        if not self._is_set:
            loop = asyncio.get_running_loop()
            self._until = math.inf if seconds is None else loop.time() + seconds
            if self._timer is None and seconds is not None:
                self._timer = loop.call_at(self._until, self._look)
            self._waiter = loop.create_future()
            try:
                if not await self._waiter:
                    return False
            finally:
                self._waiter = None
        self._is_set = False
        return True

    def close(self) -> None:
        """Frees the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """A timer armed for an earlier wait is due: the present one may have time left."""
        self._timer = None
        if self._waiter is None or self._until == math.inf:
            return
        loop = asyncio.get_running_loop()
        if loop.time() < self._until:
            self._timer = loop.call_at(self._until, self._look)
        else:
            self._end_wait(False)

    def _end_wait(self, was_set: bool) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(was_set)


class RequestStream:
    """The stream of one request: its outputs as steps commit, and a `Closed` for each choice. Read it once, by `take` or by iteration.

    Raises EngineDeadError when the engine ends first, OverloadedError or RequestError when the engine refuses.
    """

    def __init__(self, request: Admitted, wakeup: Wakeup | None = None) -> None:
        """`wakeup` is set whenever something arrives; several streams may share one."""
        self.request_id = request.request_id
        self._open_choices = request.choices
        self._items: deque[Output | Closed] = deque()
        self._error: Exception | None = None
        self._wakeup = wakeup or Wakeup()

    def __aiter__(self) -> "RequestStream":
        return self

    async def __anext__(self) -> Output | Closed:
        while (item := self.take()) is None:
            if self.ended:
                raise StopAsyncIteration
            await self._wakeup.wait()
        return item

    def take(self) -> Output | Closed | None:
        """The oldest that has arrived; None: nothing has. Raises what ended the stream, once all that came before was taken."""
        if self._items:
            return self._items.popleft()
        if self._error is not None:
            raise self._error
        return None

    @property
    def ended(self) -> bool:
        """True if nothing further will arrive."""
        return self._open_choices == 0 or self._error is not None

    @property
    def overflowing(self) -> bool:
        """More waits to be read than any client that reads would leave."""
        return len(self._items) > BUFFERED_OUTPUTS

    def put(self, item: Output | Closed) -> None:
        """Something has arrived."""
        self._open_choices -= isinstance(item, Closed)
        self._items.append(item)
        self._wakeup.set()

    def fail(self, error: Exception) -> None:
        """Ends the stream with `error` after what has arrived. Only the first error counts."""
        self._error = self._error or error
        self._wakeup.set()


class OpenRequests:
    """The streams of all requests that are open, by request id."""

    def __init__(self) -> None:
        self._streams: dict[str, RequestStream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._streams

    def add(self, request: Admitted, wakeup: Wakeup | None) -> RequestStream:
        """The stream of a new request."""
        stream = self._streams[request.request_id] = RequestStream(request, wakeup)
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
                self._reject(event)
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

    def _reject(self, rejected: Rejected) -> None:
        if rejected.retry_after_seconds is None:
            self._fail(rejected.request_id, RequestError(rejected.message, code="request_rejected"))
        else:
            self._fail(rejected.request_id, OverloadedError(rejected.message, max(1, math.ceil(rejected.retry_after_seconds))))

    def _fail(self, request_id: str, error: Exception) -> None:
        stream = self._streams.pop(request_id, None)
        if stream is not None:
            stream.fail(error)
