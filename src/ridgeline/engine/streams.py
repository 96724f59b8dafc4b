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

MAX_UNREAD_OUTPUTS: Final = 2048
"""Outputs that may wait for a client to read them; the request of one that leaves more is aborted."""


class Wakeup:
    """Wakes the one task that waits for it. A wait with a timeout costs no timer of its own: one timer serves many waits."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: asyncio.Future[bool] | None = None
        self._deadline = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def set(self) -> None:
        """Ends the wait under way, or else the next one at once."""
        self._is_set = True
        self._end_wait(True)

    async def wait(self, seconds: float | None = None) -> bool:
        """Waits until `set` (True), or until the timeout in seconds (False)."""
        if not self._is_set:
            loop = asyncio.get_running_loop()
            self._deadline = math.inf if seconds is None else loop.time() + seconds
            if self._timer is None and seconds is not None:
                self._timer = loop.call_at(self._deadline, self._on_timer)
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

    def _on_timer(self) -> None:
        """Handles the timer, which may have been armed for an earlier wait: the present one may have time left."""
        self._timer = None
        if self._waiter is None or self._deadline == math.inf:
            return
        loop = asyncio.get_running_loop()
        if loop.time() < self._deadline:
            self._timer = loop.call_at(self._deadline, self._on_timer)
        else:
            self._end_wait(False)

    def _end_wait(self, was_set: bool) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(was_set)


class RequestStream:
    """The stream of one request: its outputs as steps commit, and a `Closed` for each choice. Read it once, by `pop` or by iteration.

    Raises EngineDeadError when the engine ends first, OverloadedError or RequestError when the engine rejects the request.
    """

    def __init__(self, request: Admitted, wakeup: Wakeup | None = None) -> None:
        """`wakeup` is set whenever something arrives; several streams may share one."""
        self.request_id = request.request_id
        self.tenant = request.tenant
        self.open_choices = request.choices
        self._items: deque[Output | Closed] = deque()
        self._error: Exception | None = None
        self._wakeup = wakeup or Wakeup()

    def __aiter__(self) -> "RequestStream":
        return self

    async def __anext__(self) -> Output | Closed:
        while (item := self.pop()) is None:
            if self.is_ended:
                raise StopAsyncIteration
            await self._wakeup.wait()
        return item

    def pop(self) -> Output | Closed | None:
        """Removes and returns the oldest item; None where none has arrived. Raises what ended the stream, after all items before it."""
        if self._items:
            return self._items.popleft()
        if self._error is not None:
            raise self._error
        return None

    @property
    def is_ended(self) -> bool:
        """True if nothing further will arrive."""
        return self.open_choices == 0 or self._error is not None

    @property
    def is_overflowing(self) -> bool:
        """True if more items wait than any client that reads would leave."""
        return len(self._items) > MAX_UNREAD_OUTPUTS

    def put(self, item: Output | Closed) -> None:
        """Appends an item and wakes the reader."""
        self.open_choices -= isinstance(item, Closed)
        self._items.append(item)
        self._wakeup.set()

    def fail(self, error: Exception) -> None:
        """Ends the stream with `error` after what has arrived. Only the first error counts."""
        self._error = self._error or error
        self._wakeup.set()


class OpenRequests:
    """The streams of all requests that are open, by request id.

    choices  open ones of each tenant that has some
    """

    def __init__(self) -> None:
        self.choices: dict[str, int] = {}
        self._streams: dict[str, RequestStream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._streams

    def add(self, request: Admitted, wakeup: Wakeup | None) -> RequestStream:
        """Opens the stream of a new request."""
        stream = self._streams[request.request_id] = RequestStream(request, wakeup)
        self.choices[request.tenant] = self.choices.get(request.tenant, 0) + request.choices
        return stream

    def _subtract(self, tenant: str, choices: int) -> None:
        self.choices[tenant] -= choices
        if not self.choices[tenant]:
            del self.choices[tenant]

    def deliver(self, frame: Frame) -> list[str]:
        """Delivers outputs first: a step's last ids come before the `Closed` that ends their choice.
        Returns the ids of requests to abort, whose clients do not read."""
        slow = []
        for output in frame.outputs:
            stream = self._streams.get(output.request_id)
            if stream is not None:
                stream.put(output)
                if stream.is_overflowing:
                    message = f"{MAX_UNREAD_OUTPUTS} outputs were not read in time; the request was aborted"
                    self._fail(output.request_id, RequestError(message, code="client_too_slow", status=408))
                    slow.append(output.request_id)
        for event in frame.events:
            if isinstance(event, Closed):
                self._end_choice(event)
            elif isinstance(event, Rejected):
                self._reject(event)
        return slow

    def fail_all(self, message: str) -> None:
        """Fails every stream: the engine has ended."""
        for request_id in list(self._streams):
            self._fail(request_id, EngineDeadError(message))

    def _end_choice(self, closed: Closed) -> None:
        stream = self._streams.get(closed.request_id)
        if stream is not None:
            stream.put(closed)
            self._subtract(stream.tenant, 1)
            if stream.is_ended:
                del self._streams[closed.request_id]

    def _reject(self, rejected: Rejected) -> None:
        if rejected.retry_after_seconds is None:
            self._fail(rejected.request_id, RequestError(rejected.message, code="request_rejected"))
        else:
            self._fail(rejected.request_id, OverloadedError(rejected.message, max(1, math.ceil(rejected.retry_after_seconds))))

    def _fail(self, request_id: str, error: Exception) -> None:
        stream = self._streams.pop(request_id, None)
        if stream is not None:
            self._subtract(stream.tenant, stream.open_choices)
            stream.fail(error)
