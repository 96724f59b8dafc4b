"""All open requests on the front end's side, which survive the engine that has them.

Owns what becomes of them when an engine ends: closes and aborts that it has not confirmed are carried out here, all else goes on in the
next engine behind what has been delivered. A request that ends engines must not end them for ever: what an engine had when it ended, and
what got no further in it, is blamed. Suspects are given to the next engines one at a time, each when the one before has brought an output,
so that an engine which ends names the request that ends it. One asyncio loop; knows no process and no socket.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from ridgeline.core.commands import Abort, Admit, Close
from ridgeline.core.events import Admitted as AdmittedEvent
from ridgeline.core.events import Closed, Event, Finish, Preempted, PrefixHit, Rejected, Started
from ridgeline.core.params import Admitted
from ridgeline.engine.messages import Frame
from ridgeline.engine.streams import MAX_UNREAD_OUTPUTS, Behind, RequestStream, Wakeup
from ridgeline.errors import EngineDeadError, OverloadedError, RequestError

BLAME: Final = 4
"""Blame of a request that had a row when its engine ended, or of which that engine had told nothing yet. One that waited is blamed with
1."""
SUSPECT: Final = 2 * BLAME
MAX_BLAME: Final = 4 * BLAME
"""Blame of a request that three engines have gone on with in a row, all of which ended before it got further, as the first had."""


class OpenRequests:
    """The streams of all requests that are open, by request id.

    choices      open ones of each tenant that has some
    fingerprint  of the weights that they began with; None before an engine was ready
    on_events    called with the ends that no engine tells
    """

    def __init__(
        self, on_events: Callable[[Sequence[Event]], None] = lambda events: None, now: Callable[[], float] = time.monotonic
    ) -> None:
        """`now` is the engines' clock."""
        self.choices: dict[str, int] = {}
        self.fingerprint: bytes | None = None
        self._on_events = on_events
        self._now = now
        self._streams: dict[str, RequestStream] = {}
        self._suspect: RequestStream | None = None
        """The suspect that the engine has and that has brought no output yet."""
        self._unread: dict[str, dict[int, Closed]] = {}
        """Ends of choices, by number, of requests that failed while an engine had them; told where it ends before it tells them."""
        self._handlers: dict[type, Callable[[RequestStream, Any], None]] = {
            Closed: self._end_choice,
            Rejected: self._reject,
            **dict.fromkeys((AdmittedEvent, PrefixHit, Started, Preempted), self._note),
        }

    def __len__(self) -> int:
        return len(self._streams)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._streams

    def add(self, request: Admitted, wakeup: Wakeup | None, goes_on: bool = True, behind: Behind | None = None) -> RequestStream:
        """Opens the stream of a new request; without `goes_on` it ends with its engine. `behind`: what another server has put out of it.
        Raises RequestError for one that is open."""
        if request.request_id in self._streams:
            raise RequestError(f"request {request.request_id:.100} has not ended here yet", code="cannot_continue", status=409)
        stream = RequestStream(request, wakeup)
        stream.goes_on = goes_on
        if behind is not None:
            stream.go_behind(behind)
        if stream.choices:
            self._streams[request.request_id] = stream
            self.choices[request.tenant] = self.choices.get(request.tenant, 0) + len(stream.choices)
        return stream

    def waiting_before(self, tenant: str, now: float, latest: float) -> int:
        """Choices of a tenant whose first token should come by `latest` and still can: they go first where targets order requests. Those
        without a target are not counted."""
        waiting = [each.request for each in self._streams.values() if not each.is_started and each.request.tenant == tenant]
        return sum([each.choices for each in waiting if each.ttft_ms and now <= (each.arrived or now) + each.ttft_ms / 1e3 <= latest])

    def on_ready(self, fingerprint: bytes) -> None:
        """An engine takes requests. If it has other weights than the one before, what is open fails."""
        if self.fingerprint not in (None, fingerprint):
            self.fail_all("the model's weights have changed while this request was open; send it again")
        self.fingerprint = fingerprint

    # ── towards the engine ──────────────────────────────────────────────────────────────────────────────────────

    def admissions(self) -> Iterator[Admit]:
        """Admissions that the engine that runs now shall have and has not: in the order in which requests came, of suspects one at a
        time."""
        if self._suspect is not None and (not self._suspect.blame or self._suspect.is_ended):
            self._suspect = None
        for stream in list(self._streams.values()):
            if stream.has_engine:
                continue
            if stream.blame >= SUSPECT:
                if self._suspect is not None:
                    continue
                self._suspect = stream
            if (admission := stream.admission()) is not None:
                yield admission

    @property
    def has_suspect(self) -> bool:
        """True if the engine had a suspect when `admissions` was last asked: others may wait for its output."""
        return self._suspect is not None

    def close(self, command: Close) -> bool:
        """Notes a close. True if it has been carried out: no engine has the choice."""
        stream = self._streams.get(command.request_id)
        choice = None if stream is None else stream.choices.get(command.choice)
        if stream is None or choice is None:
            return False
        choice.close = command
        if stream.has_engine and not choice.is_left:
            return False
        self._close_here(stream, stream.closed(command.choice, command.reason, command.keep, self._now()))
        return True

    def abort(self, command: Abort) -> bool:
        """Notes an abort. True if it has been carried out: no engine has the request."""
        stream = self._streams.get(command.request_id)
        if stream is None:
            return False
        stream.is_aborted = True
        self._close_finished(stream)
        return not stream.has_engine

    def engine_lost(self) -> None:
        """Takes all requests from an engine that has ended, and fails those that are to blame."""
        self._suspect = None
        for ends in self._unread.values():
            self._on_events(list(ends.values()))
        self._unread.clear()
        for stream in [each for each in self._streams.values() if each.has_engine]:
            stream.blame += 1 if stream.is_heard and not stream.is_started else BLAME
            stream.engine_lost()
            self._close_finished(stream)
            if not stream.is_ended and not stream.goes_on:
                self._fail(stream, EngineDeadError("the engine ended while it had this request"), tell=True)
            elif not stream.is_ended and stream.blame >= MAX_BLAME:
                message = "the engine ended again and again while it had this request, which got no further; send another one"
                self._fail(stream, RequestError(message, code="engine_failed", status=500), tell=True)

    def fail_all(self, message: str) -> None:
        """Fails every stream: no engine will go on with them."""
        for stream in list(self._streams.values()):
            self._fail(stream, EngineDeadError(message), tell=True)

    def drop(self, error: Exception, stream: RequestStream | None = None) -> list[str]:
        """Fails a stream, or all. Returns the ids of those that the engine has, and has yet to end: they are to be aborted."""
        streams = list(self._streams.values()) if stream is None else [stream]
        ids = [each.request.request_id for each in streams if each.has_engine]
        for each in streams:
            if each.has_engine:
                each.is_aborted = True
                self._close_finished(each)
                now, choices = self._now(), each.choices.items()
                ends = {number: each.closed(number, Finish.ABORT, len(choice.ids), now) for number, choice in choices}
                self._unread[each.request.request_id] = ends
            self._fail(each, error, tell=not each.has_engine)
        return ids

    def _close_finished(self, stream: RequestStream) -> None:
        """Carries out what no engine will: closes and aborts of choices that the engine does not have."""
        gone = [(number, choice) for number, choice in stream.choices.items() if choice.is_left or not stream.has_engine]
        for number, choice in gone:
            if choice.close is not None:
                self._close_here(stream, stream.closed(number, choice.close.reason, choice.close.keep, self._now()))
            elif stream.is_aborted:
                self._close_here(stream, stream.closed(number, Finish.ABORT, len(choice.ids), self._now()))

    def _close_here(self, stream: RequestStream, closed: Closed) -> None:
        self._end_choice(stream, closed)
        self._on_events([closed])

    # ── from the engine ─────────────────────────────────────────────────────────────────────────────────────────

    def deliver(self, frame: Frame) -> list[str]:
        """Delivers outputs first: a step's last ids come before the `Closed` that ends their choice.
        Returns the ids of requests to abort, whose clients do not read."""
        slow, streams, handlers = list[str](), self._streams, self._handlers
        for output in frame.outputs:
            stream = streams.get(output.request_id)
            if stream is not None:
                stream.put(output)
                if stream.is_overflowing:
                    message = f"{MAX_UNREAD_OUTPUTS} outputs were not read in time; the request was aborted"
                    slow += self.drop(RequestError(message, code="client_too_slow", status=408), stream)
        for event in frame.events:
            handler = handlers.get(type(event))
            if handler is not None and (stream := streams.get(event.request_id)) is not None:  # type: ignore[union-attr]
                handler(stream, event)
            elif type(event) is Closed and (ends := self._unread.get(event.request_id)) is not None:
                ends.pop(event.choice, None)
                if not ends:
                    del self._unread[event.request_id]
        return slow

    def _note(self, stream: RequestStream, event: AdmittedEvent | PrefixHit | Started | Preempted) -> None:
        """Notes how far the engine has come with a request."""
        match event:
            case AdmittedEvent():
                stream.is_heard = True
            case PrefixHit():
                stream.choices[event.choice].on_cached(event.tokens)
            case Started():
                stream.is_started = True
                stream.choices[event.choice].on_cached(0)
            case Preempted():
                stream.choices[event.choice].is_settled = True

    def _end_choice(self, stream: RequestStream, closed: Closed) -> None:
        stream.close(closed)
        _subtract(self.choices, stream.request.tenant, 1)
        if stream.is_ended:
            del self._streams[closed.request_id]

    def _reject(self, stream: RequestStream, rejected: Rejected) -> None:
        error: Exception = RequestError(rejected.message, code="request_rejected")
        if rejected.retry_after_seconds is not None:
            error = OverloadedError(rejected.message, max(1, math.ceil(rejected.retry_after_seconds)))
        self._fail(stream, error, tell=stream.continued > 0)

    def _fail(self, stream: RequestStream, error: Exception, tell: bool = False) -> None:
        """Fails a stream. `tell`: no engine tells the end of its choices."""
        del self._streams[stream.request.request_id]
        _subtract(self.choices, stream.request.tenant, len(stream.choices))
        stream.fail(error)
        if tell:
            now = self._now()
            self._on_events([stream.closed(number, Finish.ERROR, len(each.ids), now) for number, each in stream.choices.items()])


def _subtract(counts: dict[str, int], tenant: str, choices: int) -> None:
    counts[tenant] -= choices
    if not counts[tenant]:
        del counts[tenant]
