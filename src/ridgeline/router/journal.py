"""The journal that a router keeps of a stream, so that another replica can go on with it: the replica's records, as bytes, and the number
of events that the client has. It reads neither records nor events. See `server.relay`, which writes and reads the records."""

from typing import Final

from ridgeline.router.upstream import Headers
from ridgeline.server.relay import MARK, MAX_JOURNAL_BYTES
from ridgeline.server.routers import CONTINUE_HEADER, KEY_HEADER, LINES_HEADER

_STOP: Final = b"\n\n"
_STOPS: Final = {b"text/event-stream": _STOP, b"application/x-ndjson": b"\n"}
_IDLE: Final = (b":", b"event: ping\n")
"""Beginnings of what keeps a connection, which is no event."""


class Journal:
    """One stream: bytes of replicas in, bytes for the client out.

    events   that the client has
    is_over  an event has come that nothing stands in front of: the end of a stream, or one that cannot go on
    """

    def __init__(self, key: bytes | None, *, lines: bool = False) -> None:
        """`key`: the router's, as 32 bytes; None: replicas tell nothing, and their bytes are passed on as they are. `lines`: they tell of
        streams of lines too, for which `follow` must be called."""
        self._key = None if key is None else key.hex().encode()
        self._lines = lines
        self._is_lined = False
        self._mark: bytes | None = None
        """Records of the line that comes next, in a stream of lines."""
        self._records: list[bytes] = []
        self._bytes = 0
        self._rest: list[bytes] = []
        """Parts of an event that is not whole yet, as it came: one of many MB is joined once."""
        self.events = 0
        self.is_over = False

    @property
    def headers(self) -> Headers:
        """Headers of a request, by which a replica knows this router and what it goes on with."""
        if self._key is None:
            return []
        own = [(KEY_HEADER, self._key), *([(LINES_HEADER, b"1")] if self._lines else [])]
        return [*own, (CONTINUE_HEADER, b"%d %d" % (self._bytes + 1, self.events))] if self._records else own

    def follow(self, stop: bytes) -> bool:
        """Follows an answer whose events end so; False for one of which no replica tells."""
        self._is_lined = self._lines and stop == b"\n"
        return self._key is not None and (self._is_lined or stop == _STOP)

    @property
    def can_continue(self) -> bool:
        """True if another replica could go on: this one has told what of its answer does not follow from the request, or nothing at all."""
        return self._key is not None and not self.is_over and (bool(self._records) or not self.events)

    @property
    def is_whole(self) -> bool:
        """True if a stream that could go on has ended, and its connection broke before it said so."""
        return self.is_over and bool(self._records)

    def body(self, body: bytes) -> bytes:
        """The body of a request, behind the records."""
        return b"[" + b",".join(self._records) + b"]" + body if self._records else body

    def take(self, data: bytes) -> bytes:
        """The part of a replica's bytes that goes to the client: whole events, without what is the router's."""
        if self._key is None:
            return data
        if self._is_lined:
            return self._take_lines(data)
        end = self._rest[-1][-1:] if self._rest else b""
        self._rest.append(data)
        if _STOP not in end + data:
            return b""
        *events, rest = b"".join(self._rest).split(_STOP)
        self._rest = [rest]
        passed = []
        for event in events:
            if event.startswith(MARK):
                line, _, event = event.partition(b"\n")
                self.events += 1
                if len(line) > len(MARK):
                    self._note(line[len(MARK) :])
            elif not event.startswith(_IDLE):
                self.is_over = True
            passed.append(event + _STOP)
        return b"".join(passed)

    def _take_lines(self, data: bytes) -> bytes:
        """The same of lines. Spaces in front of one are signs of life, and go on at once."""
        *lines, rest = b"".join((*self._rest, data)).split(b"\n")
        passed = []
        for line in lines:
            if (told := line.lstrip(b" ")).startswith(MARK):
                self._mark = told[len(MARK) :]
                continue
            if self._mark is None:
                self.is_over = self.is_over or bool(told)
            else:
                self.events += 1
                if self._mark:
                    self._note(self._mark)
                self._mark = None
            passed.append(line + b"\n")
        if not rest.strip(b" "):
            passed.append(rest)
            rest = b""
        self._rest = [rest]
        return b"".join(passed)

    def end(self) -> bytes:
        """The rest that is left when a replica has ended its answer."""
        rest, self._rest = b"".join(self._rest), []
        return rest

    def lose(self) -> None:
        """Forgets what has come of an event whose replica is gone."""
        self._rest, self._mark = [], None

    def _note(self, records: bytes) -> None:
        self._bytes += len(records) + 1
        if self._bytes < MAX_JOURNAL_BYTES:
            self._records.append(records)
        else:
            self._records.clear()


def stop_of(headers: Headers) -> bytes:
    """The bytes behind each event of a stream; b"" for an answer that is none."""
    kind = next((value for name, value in headers if name == b"content-type"), b"")
    return _STOPS.get(kind.partition(b";")[0], b"")
