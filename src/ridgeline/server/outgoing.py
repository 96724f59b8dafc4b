"""What leaves a connection: all that one turn of the event loop writes goes out as one.

Owns bytes between an application's write and the socket, for less than a turn. A step brings every stream its token in the same turn: so
all of them are made first and the system calls follow each other, and the last events of an answer are one packet.
"""

import asyncio
from typing import Any, Final

FLUSH_BYTES: Final = 1 << 16
"""What waits no longer: beyond it the transport has to know, so that it can pause who writes."""


class Outgoing:
    """A transport around another. It writes later in the same turn of the loop; all else is the other's."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []
        self._bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Takes bytes; they leave when what is ready to run has run."""
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)
        self._bytes += len(data)
        if self._bytes >= FLUSH_BYTES:
            self._flush()

    def close(self) -> None:
        """Behind what has been written."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        parts, self._parts, self._bytes = self._parts, [], 0
        if parts and not self._transport.is_closing():
            self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))
