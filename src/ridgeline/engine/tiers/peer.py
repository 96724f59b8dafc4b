"""The tier of other engines: blocks that they have computed, asked for over TCP when a prompt wants them. Nothing is written to them.

They are asked at once and answer as they can; who does not answer in time, or answers with what no engine with the secret would, is left
alone for a while. What is read is as long as this side says, whatever the other one sends.
"""

import hmac
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from typing import Final, ParamSpec, TypeVar

from ridgeline.engine.tiers.frames import (
    CHALLENGE_BYTES,
    GET,
    HAS,
    MAGIC,
    MOST_NAMES,
    NONCE_BYTES,
    PROOF_BYTES,
    TAG_BYTES,
    BadFrame,
    OtherLayout,
    Session,
)
from ridgeline.engine.tiers.worth import NOWHERE, Place

CALL_SECONDS: Final = 1.0
"""Seconds that a question may take altogether. Requests wait less: their fetch has a deadline of its own."""
CONNECT_SECONDS: Final = 0.2
GRACE_SECONDS: Final = 0.005
"""Seconds for an answer that has come while another engine was waited for."""
ALONE_SECONDS: Final = 5.0
"""Seconds for which an engine that failed is not asked."""
REFUSED_SECONDS: Final = 60.0
"""The same for one with blocks of another layout, which it has until it ends."""
P = ParamSpec("P")
T = TypeVar("T")


class Peer:
    """One other engine, and the connection to it."""

    def __init__(self, host: str, port: int, secret: bytes, label: str) -> None:
        self._address = (host, port)
        self._secret = secret
        self._label = label.encode()
        self._socket: socket.socket | None = None
        self._session: Session | None = None
        self._until = 0.0
        """Until this time of the clock it is left alone."""
        self.refused = 0
        """Times that it has said that its blocks have another layout."""

    def attempt(self, call: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T | None:
        """Returns the result of `call`; None where it is left alone, or fails, whatever has come of an answer."""
        if time.monotonic() < self._until:
            return None
        try:
            return call(*arguments, **options)
        except OtherLayout:
            self.refused += 1
            self.leave(REFUSED_SECONDS)
        except OSError:
            self.leave()
        return None

    def leave(self, seconds: float = ALONE_SECONDS) -> None:
        """Ends the connection, and asks it for nothing for a while."""
        self._until = time.monotonic() + seconds
        self.close()

    def ask(self, kind: int, names: Sequence[bytes], deadline: float, value_bytes: int = 0) -> Session:
        """Sends a question; `value_bytes` of those that it wants. Raises OSError."""
        if self._session is None:
            self._session = self._connect(min(deadline, time.monotonic() + CONNECT_SECONDS))
        self._send(self._session.request(kind, names, value_bytes, self._label), deadline)
        return self._session

    def hear(self, session: Session, count: int, deadline: float) -> list[bool]:
        """Hears which of the names that were asked for are there. Raises OSError."""
        return session.read_answer(bytes(self._read(count + TAG_BYTES, deadline)))

    def get(self, names: Sequence[bytes], deadline: float, size: int) -> dict[bytes, bytes]:
        """Values of these that it has, each of `size` bytes. Raises OSError."""
        flags = self.hear(self.ask(GET, names, deadline, size), len(names), deadline)
        there = [name for name, flag in zip(names, flags, strict=True) if flag]
        data = self._read(len(there) * size, deadline)
        return {name: bytes(data[place * size : (place + 1) * size]) for place, name in enumerate(there)}

    def close(self) -> None:
        """Ends the connection; the next question makes another."""
        opened, self._socket, self._session = self._socket, None, None
        if opened is not None:
            opened.close()

    def _connect(self, deadline: float) -> Session:
        """A connection whose other side has the secret too. Raises OSError."""
        self._socket = socket.create_connection(self._address, _left(deadline))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        challenge = bytes(self._read(CHALLENGE_BYTES, deadline))
        if not challenge.startswith(MAGIC):
            raise BadFrame("no engine listens there")
        nonce = secrets.token_bytes(NONCE_BYTES)
        session = Session(self._secret, challenge, nonce)
        self._send(nonce + session.hello, deadline)
        if not hmac.compare_digest(self._read(PROOF_BYTES, deadline), session.welcome):
            raise BadFrame("the engine that listens there has another secret")
        return session

    def _send(self, data: bytes, deadline: float) -> None:
        assert self._socket is not None
        self._socket.settimeout(_left(deadline))
        self._socket.sendall(data)

    def _read(self, count: int, deadline: float) -> bytearray:
        assert self._socket is not None
        data = bytearray(count)
        view = memoryview(data)
        while view:
            self._socket.settimeout(_left(deadline))
            got = self._socket.recv_into(view)
            if not got:
                raise OSError("the connection has ended")
            view = view[got:]
        return data


class PeerTier:
    """Implements `Tier` over other engines.

    secret  of the tier; `label` of the layout of values
    """

    name = "peer"
    takes = False

    def __init__(self, addresses: Sequence[tuple[str, int]], secret: bytes, label: str) -> None:
        self._peers = [Peer(host, port, secret, label) for host, port in addresses]
        self._holders: dict[bytes, Peer] = {}
        """Peers that hold what was asked about last."""

    def might_have(self, name: bytes) -> bool:
        return True

    def has(self, names: Sequence[bytes]) -> list[bool]:
        deadline = time.monotonic() + CALL_SECONDS
        self._holders = {}
        answered = False
        for first in range(0, len(names), MOST_NAMES[HAS]):
            part = names[first : first + MOST_NAMES[HAS]]
            asked = [(peer, peer.attempt(peer.ask, HAS, part, deadline)) for peer in self._peers]
            for peer, session in asked:
                if session is None:
                    continue
                until = max(deadline, time.monotonic() + GRACE_SECONDS)
                found = peer.attempt(peer.hear, session, len(part), until)
                answered = answered or found is not None
                for name, there in zip(part, found or (False,) * len(part), strict=True):
                    if there:
                        self._holders.setdefault(name, peer)
        if names and not answered and not self.refused:
            raise OSError("no other engine answers")
        return [name in self._holders for name in names]

    @property
    def refused(self) -> int:
        """See `Tier.refused`."""
        return sum(peer.refused for peer in self._peers)

    def get(self, names: Sequence[bytes], seconds: float, value_bytes: int) -> list[bytes | None]:
        deadline = time.monotonic() + min(seconds, CALL_SECONDS)
        values: dict[bytes, bytes] = {}
        for peer in self._peers:
            held = [name for name in names if self._holders.get(name) is peer]
            for first in range(0, len(held), MOST_NAMES[GET]):
                values.update(peer.attempt(peer.get, held[first : first + MOST_NAMES[GET]], deadline, value_bytes) or {})
        return [values.get(name) for name in names]

    def put(self, name: bytes, value: bytes, place: Place = NOWHERE) -> None:
        """Nothing: other engines ask for what they want."""

    def forget(self, name: bytes) -> None:
        """Leaves alone who had it."""
        if (peer := self._holders.pop(name, None)) is not None:
            peer.leave()

    def close(self) -> None:
        for peer in self._peers:
            peer.close()


def _left(deadline: float) -> float:
    """Seconds to the deadline. Raises TimeoutError, an OSError, behind it."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the deadline is over")
    return left
