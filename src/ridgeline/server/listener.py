"""The listening socket: accepts connections within limits, and closes those whose clients take too long.

Owns the number of connections, in all and per client address. At a limit a new connection takes the place of the one whose client has owed
bytes longest, so that silent sockets shut nobody out; where all are at work, a few more are taken, on which only probes are answered. Files
of the process are never used up: the limit is below that of the system.
"""

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from typing import Any, Final, NamedTuple

from ridgeline.errors import ConfigError
from ridgeline.observe.logs import with_fields
from ridgeline.server.connection import HEAD_TIMEOUT_SECONDS, HttpConnection
from ridgeline.server.transport import Writes, address_of

log = logging.getLogger("ridgeline.server")

ACCEPTS_PER_TURN: Final = 32
"""Connections accepted in one iteration of the event loop, so that those that are open get their turn."""
SPARE_CONNECTIONS: Final = 16
"""Connections beyond the limit, for probes."""
RESERVED_FILES: Final = 64 + ACCEPTS_PER_TURN
"""Files kept for everything else: a new engine, the template's processes, sockets that are about to be closed."""
MIN_CONNECTIONS: Final = 16
CHECK_SECONDS: Final = 1.0
"""Time between two looks for clients that take too long."""
ACCEPT_PAUSE_SECONDS: Final = 0.02
"""Pause after an error of the system, such as a lack of files, and where there is room in a moment."""
SEND_BUFFER_BYTES: Final = 1 << 17
"""Bytes of an answer that the system takes before the client has (Linux doubles it). Left to itself it takes some 4 MB: a client that
does not read would show minutes later, and hold its row meanwhile."""
LEAST_PATIENCE_SECONDS: Final = 0.1
"""Time that every client has before its connection is closed for another's. New ones wait in the system's queue meanwhile."""
WARNING_SECONDS: Final = 10.0
"""Least time between two lines about limits."""


def connection_limit(wanted: int) -> int:
    """Connections that the system's limit on open files allows, at most `wanted`; the limit is raised as far as the system lets it be.

    Raises ConfigError where too few are possible.
    """
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + len(os.listdir("/dev/fd")) + RESERVED_FILES + SPARE_CONNECTIONS
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        wanted -= needed - soft
    if wanted < MIN_CONNECTIONS:
        raise ConfigError(f"at most {soft} files may be open (ulimit -n), which leaves room for {max(0, wanted)} connections; allow 1024")
    return wanted


class Room(Enum):
    """Room for a new connection: room as for any; for probes alone; some in a moment, when the clients of others have had a chance
    to send something; none."""

    FREE = auto()
    PROBES = auto()
    LATER = auto()
    NONE = auto()


class Turn(NamedTuple):
    """The time since which a client owes bytes, and the time until which it may."""

    since: float
    deadline: float


class Connections:
    """All connections, and which of their clients owe bytes: a handshake, the rest of a request, or the next one."""

    def __init__(self, limit: int, limit_per_address: int, send_timeout: float) -> None:
        self.send_timeout = send_timeout
        self.writes = Writes()
        self._limit = limit
        self._limit_per_address = min(limit, limit_per_address)
        self._all: set[HttpConnection] = set()
        self._addresses: dict[bytes, int] = {}
        """Connections of each client address."""
        self._owing: dict[HttpConnection, Turn] = {}
        """Those whose clients owe bytes, or do not read theirs, longest first."""
        self._displaced = 0
        """Connections closed to make room since the last line about them."""
        self._warned_at = -WARNING_SECONDS

    def make_room(self, address: bytes, now: float) -> Room:
        """Makes room for one more connection from there, by closing others where needed."""
        while (is_address_full := self._addresses.get(address, 0) >= self._limit_per_address) or len(self._all) >= self._limit:
            busiest = address if is_address_full else max(self._addresses, key=self._addresses.__getitem__)
            longest = next((each for each in self._owing if each.address == busiest), None)
            if longest is None and not is_address_full:
                longest = next(iter(self._owing), None)
            if longest is None:
                return Room.PROBES if len(self._all) < self._limit + SPARE_CONNECTIONS else Room.NONE
            if now - self._owing[longest].since < LEAST_PATIENCE_SECONDS:
                return Room.LATER
            self.remove(longest)
            longest.drop()
            self._displaced += 1
        return Room.FREE

    def add(self, connection: HttpConnection) -> None:
        """A connection that has been accepted."""
        self._all.add(connection)
        self._addresses[connection.address] = self._addresses.get(connection.address, 0) + 1
        self.await_client(connection, HEAD_TIMEOUT_SECONDS)

    def remove(self, connection: HttpConnection) -> None:
        """The connection is closed, or about to be."""
        if connection in self._all:
            self._all.remove(connection)
            self._owing.pop(connection, None)
            count = self._addresses[connection.address] = self._addresses[connection.address] - 1
            if not count:
                del self._addresses[connection.address]

    def await_client(self, connection: HttpConnection, seconds: float) -> None:
        """Calls `time_out` unless `await_server` or `remove` is called within that time."""
        self._owing.pop(connection, None)
        if connection in self._all:
            now = connection.loop.time()
            self._owing[connection] = Turn(now, now + seconds)

    def await_server(self, connection: HttpConnection) -> None:
        """The client may take its time from now on."""
        self._owing.pop(connection, None)

    def check(self, now: float) -> None:
        """Ends connections whose clients have taken too long, and says in the log where limits were met."""
        for connection in [connection for connection, turn in self._owing.items() if turn.deadline <= now]:
            self._owing.pop(connection, None)
            connection.time_out()
        if self._displaced and now - self._warned_at >= WARNING_SECONDS:
            text = "connections were closed to make room: --max-connections or --max-connections-per-client is reached"
            log.warning(text, extra=with_fields(closed=self._displaced, open=len(self._all), limit=self._limit))
            self._displaced, self._warned_at = 0, now


MakeConnection = Callable[[socket.socket, bytes, bool], HttpConnection]
"""Makes the protocol of an accepted socket, of its client's address, and of whether it is one too many."""


class Listener:
    """Accepts connections of one socket, from `start` to `close`. The methods are those of an asyncio server."""

    def __init__(self, listening: socket.socket, connections: Connections, make: MakeConnection, tls: ssl.SSLContext | None) -> None:
        self._socket = listening
        self._connections = connections
        self._make = make
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._opening: set[asyncio.Task[object]] = set()
        self._is_closed = False

    def start(self) -> None:
        """Returns at once."""
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)  # accepted sockets have it from this one
        self._listen()
        self._check()

    def close(self) -> None:
        """Accepts nothing more. Clients of open connections keep their deadlines."""
        self._is_closed = True
        self._loop.remove_reader(self._socket.fileno())

    async def wait_closed(self) -> None:
        """Returns at once: connections have been ended by uvicorn."""
        if self._timer is not None:
            self._timer.cancel()

    def _listen(self) -> None:
        if not self._is_closed:
            self._loop.add_reader(self._socket.fileno(), self._accept_some)

    def _check(self) -> None:
        self._connections.check(self._loop.time())
        self._timer = self._loop.call_later(CHECK_SECONDS, self._check)

    def _accept_some(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                accepted, peer = self._socket.accept()
                address = self._address_of(accepted, peer)
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.warning("no connection can be accepted", extra=with_fields(reason=error.strerror))
                self._pause(self._listen)
                return
            if address is None:
                accepted.close()
            elif not self._place(accepted, address):
                return

    def _address_of(self, accepted: socket.socket, peer: Any) -> bytes | None:
        """Address of a connection, for limits and logs; None: it is closed."""
        return address_of(peer[0])

    def _place(self, accepted: socket.socket, address: bytes) -> bool:
        """Opens the connection, or closes it where there is no room. False: it waits, and so do those behind it."""
        room = Room.NONE if self._is_closed else self._connections.make_room(address, self._loop.time())
        if room is Room.LATER:
            self._pause(partial(self._place_again, accepted, address))
            return False
        if room in (Room.FREE, Room.PROBES):
            self._open(accepted, self._make(accepted, address, room is Room.PROBES))
        else:
            accepted.close()
        return True

    def _place_again(self, accepted: socket.socket, address: bytes) -> None:
        if self._place(accepted, address):
            self._listen()

    def _pause(self, then: Callable[[], None]) -> None:
        self._loop.remove_reader(self._socket.fileno())
        self._loop.call_later(ACCEPT_PAUSE_SECONDS, then)

    def _open(self, accepted: socket.socket, connection: HttpConnection) -> None:
        accepted.setblocking(False)
        self._connections.add(connection)
        opening = self._loop.connect_accepted_socket(
            lambda: connection, accepted, ssl=self._tls, ssl_handshake_timeout=HEAD_TIMEOUT_SECONDS if self._tls else None
        )

        def opened(task: "asyncio.Task[object]") -> None:
            self._opening.discard(task)
            if task.cancelled() or task.exception() is not None:  # no handshake; most often a client without TLS
                self._connections.remove(connection)
                accepted.close()

        task = self._loop.create_task(opening)
        self._opening.add(task)
        task.add_done_callback(opened)
