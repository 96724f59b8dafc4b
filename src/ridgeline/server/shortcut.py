"""The short way of new text: from the frame that brings it to the transport, past the task of its stream.

A task is woken for what begins or ends, for errors, for silence, and while its client does not read. New text of a choice that has begun
needs none of that where the task waits for it and the transport takes it: its event is made and written where the frame is read. Both ways
make events by the same function, so that a stream may change between them at any part.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from ridgeline.engine.answer import ChoiceDelta


class BodyWriter(Protocol):
    """Writes parts of a body that has begun. `is_paused`: its client does not read, and what is written would wait for it."""

    @property
    def is_paused(self) -> bool: ...

    def write(self, data: bytes) -> None: ...


class Shortcut:
    """The short way of one stream, from `open` to `close`. `encode` makes payloads of events, as the stream's task has them made."""

    def __init__(self, encode: Callable[[ChoiceDelta], Sequence[bytes]]) -> None:
        self._encode = encode
        self._writer: BodyWriter | None = None
        self._framed: Callable[[bytes], bytes] = bytes

    def open(self, writer: BodyWriter, framed: Callable[[bytes], bytes]) -> None:
        """The answer has begun. `framed` makes bytes of payloads, b"" of those that the client has."""
        self._writer, self._framed = writer, framed

    def close(self) -> None:
        """The answer has ended."""
        self._writer = None

    @property
    def is_open(self) -> bool:
        """True if `tell` may be called now."""
        return self._writer is not None and not self._writer.is_paused

    def tell(self, part: ChoiceDelta) -> None:
        """Writes the events of a part, while it is open. Raises what `encode` raises."""
        for event in self._encode(part):
            if self._writer is not None and (data := self._framed(event)):
                self._writer.write(data)
