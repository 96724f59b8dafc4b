"""The stream of one open request on the front end's side: its outputs, the wakeup of its reader, and what it can be continued from.

Owns what has arrived and is not read yet, and its bound. One asyncio loop; knows no process and no socket.
"""

import asyncio
import math
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ridgeline.core.commands import Admit, Close, Delivered, Output
from ridgeline.core.events import Closed, Finish, Usage
from ridgeline.core.params import Admitted

MAX_UNREAD_OUTPUTS: Final = 2048
"""Outputs that may wait for a client to read them; the request of one that leaves more is aborted."""


class Wakeup:
    """Wakes the one task that waits for it. A wait with a timeout costs no timer of its own: one timer serves many waits."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None  # asked for once: it costs a system call
        self._is_set = False
        self.is_awaited = False
        """The task waits, and has nothing to wake for."""
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
            loop = self._loop = self._loop or asyncio.get_running_loop()
            self._deadline = math.inf if seconds is None else loop.time() + seconds
            if self._timer is None and seconds is not None:
                self._timer = loop.call_at(self._deadline, self._on_timer)
            self._waiter = loop.create_future()
            self.is_awaited = True
            try:
                if not await self._waiter:
                    return False
            finally:
                self._waiter, self.is_awaited = None, False
        self._is_set = False
        return True

    def postpone(self, seconds: float | None) -> None:
        """The timeout of the wait under way begins now."""
        if seconds is not None and self._loop is not None:
            self._deadline = self._loop.time() + seconds

    def close(self) -> None:
        """Frees the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        """Handles the timer, which may have been armed for an earlier wait: the present one may have time left."""
        self._timer = None
        if self._loop is None or self._waiter is None or self._deadline == math.inf:
            return
        if self._loop.time() < self._deadline:
            self._timer = self._loop.call_at(self._deadline, self._on_timer)
        else:
            self._end_wait(False)

    def _end_wait(self, was_set: bool) -> None:
        self.is_awaited = False
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(was_set)


class OpenChoice:
    """A choice that is not closed, as far as it has arrived.

    ids, scored, cached_tokens  as in `core.commands.Delivered`
    is_settled  it has been preempted or has lost an engine since it first ran: what is cached from then on is not its prompt's
    has_ended   its last output has arrived; in the two-phase close its `Close` follows
    is_left     it had ended, and its engine has too: no engine knows it
    close       the `Close` that was sent and is not confirmed
    kept        of `ids` the last so many, which are kept from a reader who wants the answer whole
    """

    __slots__ = ("cached_tokens", "close", "has_ended", "ids", "is_left", "is_settled", "kept", "scored")

    def __init__(self) -> None:
        self.ids = array("i")
        self.scored = self.kept = 0
        self.cached_tokens: int | None = None
        self.is_settled = self.has_ended = self.is_left = False
        self.close: Close | None = None

    def on_cached(self, tokens: int) -> None:
        """Counts prompt tokens from the prefix cache; 0 notes that it runs."""
        if not self.is_settled:
            self.cached_tokens = (self.cached_tokens or 0) + tokens


@dataclass(frozen=True, slots=True)
class Behind:
    """The part of a request's answer that another server has put out.

    items   outputs and ends of choices, in order
    cached  choice → prompt tokens that came from that server's prefix cache
    """

    items: Sequence[Output | Closed]
    cached: Mapping[int, int]


class RequestStream:
    """The stream of one request: its outputs as steps commit, and a `Closed` for each choice. Read it once, by `pop` or by iteration.

    Raises EngineDeadError when no engine will go on with it, OverloadedError or RequestError when the engine rejects the request.

    choices      those that are not closed, by number
    has_engine   the engine that runs now has it
    is_heard, is_started  of that engine: it has said that it has the request; that a choice has a row
    is_aborted   its client wants no more of it
    goes_on      in the next engine, where one ends
    blame        see `engine.open_requests`; any output ends it
    engines      number of those that have had it
    on_output    offered what brings ids or more while nothing older waits, where it arrives: True: it has been read, and wakes nobody
    """

    def __init__(self, request: Admitted, wakeup: Wakeup | None = None) -> None:
        """`wakeup` is set whenever something arrives; several streams may share one."""
        self.request = request
        self.choices = {number: OpenChoice() for number in range(request.choices)}
        self._all = tuple(self.choices.values())
        self.has_engine = self.is_heard = self.is_started = self.is_aborted = False
        self.goes_on = True
        self.blame = 0
        self.engines = 0
        self.on_output: Callable[[Output], bool] | None = None
        self._on_first: Callable[[], None] | None = None
        self._items: deque[Output | Closed] = deque()
        self._error: Exception | None = None
        self._wakeup = wakeup or Wakeup()

    @property
    def cached_tokens(self) -> int:
        """Tokens of the first choice's prompt that came from the prefix cache, as far as the engine has said. Its end may be here before
        its first output is read."""
        return self.cached_of(0)

    def cached_of(self, choice: int) -> int:
        """The same of any choice."""
        return self._all[choice].cached_tokens or 0

    def go_behind(self, behind: Behind) -> None:
        """Takes over what another server has put out, as if its engine had been one of this one's."""
        for item in behind.items:
            if isinstance(item, Closed):
                del self.choices[item.choice]
            else:
                self.choices[item.choice].ids.extend(item.ids)
                self.choices[item.choice].has_ended = item.end is not None
        for number, tokens in behind.cached.items():
            self._all[number].cached_tokens = tokens
        self.engines = 1
        self.engine_lost()

    def read_whole(self, on_first: Callable[[], None]) -> None:
        """The reader wants the answer whole: he is woken at a choice's end alone, and then has its ids in one output; `on_first` is called
        when the first come. Not where he looks for stop strings, which end a choice before the engine does."""
        self._on_first = None if self.request.two_phase else on_first

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
        return not self.choices or self._error is not None

    @property
    def continued(self) -> int:
        """Number of engines that went on with it after one had ended."""
        return max(0, self.engines - 1)

    @property
    def is_overflowing(self) -> bool:
        """True if more items wait than any client that reads would leave."""
        return len(self._items) > MAX_UNREAD_OUTPUTS

    def put(self, output: Output) -> None:
        """Appends an output and wakes the reader, unless it is to be read with a later one."""
        choice, ids = self.choices[output.choice], output.ids
        choice.ids.extend(ids)
        self.blame = 0
        if self.on_output is not None and not self._items and self.on_output(output):
            return
        if self._on_first is not None and _is_plain(output):
            if len(choice.ids) == len(ids):
                self._on_first()
            choice.kept += len(ids)
            return
        if choice.kept:
            output = output._replace(ids=tuple(choice.ids[-choice.kept - len(output.ids) :]))
            choice.kept = 0
        if output.prompt_logprobs is not None:
            choice.scored += len(output.prompt_logprobs)
        if output.end is not None:
            choice.has_ended = True
        self._items.append(output)
        self._wakeup.set()

    def close(self, closed: Closed) -> None:
        """Ends a choice and wakes the reader."""
        choice = self.choices.pop(closed.choice)
        if choice.kept:
            self._items.append(Output(self.request.request_id, closed.choice, tuple(choice.ids[-choice.kept :])))
            choice.kept = 0
        self._items.append(closed)
        self._wakeup.set()

    @property
    def has_begun(self) -> bool:
        """True once a choice has had a row, in this engine or in one before."""
        return self.is_started or self.continued > 0

    def fail(self, error: Exception) -> None:
        """Ends the stream with `error` after what has arrived. Only the first error counts."""
        self._error = self._error or error
        self._wakeup.set()

    def admission(self) -> Admit | None:
        """The command that gives the request to an engine: behind what has been delivered, where an engine had it before. None where no
        choice has anything to come."""
        going = {number: choice for number, choice in self.choices.items() if not choice.is_left}
        if not going:
            return None
        self.has_engine = True
        self.engines += 1
        if self.engines == 1:
            return Admit(self.request)
        delivered = [Delivered(number, tuple(each.ids), each.scored, each.cached_tokens) for number, each in going.items()]
        return Admit(self.request, tuple(delivered))

    def engine_lost(self) -> None:
        """Takes the request from an engine that has ended."""
        self.has_engine = self.is_heard = self.is_started = False
        for choice in self.choices.values():
            choice.is_left = choice.has_ended
            choice.is_settled = choice.cached_tokens is not None

    def closed(self, number: int, reason: Finish, keep: int, now: float) -> Closed:
        """The end of a choice that no engine has, with its first `keep` outputs."""
        choice = self.choices[number]
        usage = Usage(len(self.request.prompt), min(keep, len(choice.ids)), choice.cached_tokens or 0)
        return Closed(self.request.request_id, number, reason, usage, now)


def _is_plain(output: Output) -> bool:
    """True if it has ids and nothing else."""
    return bool(output.ids) and output.end is None and output.logprobs is None and output.prompt_logprobs is None
