"""Answers other engines that ask for blocks: a thread with an event loop of its own, never the engine's loop.

Who cannot prove that it has the secret is told nothing beyond a challenge and is gone with its answer to it; who gives none is gone after a
second. Connections are bounded, and so is what waits for one that does not read.
"""

import asyncio
import hmac
import secrets
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from ridgeline.engine.tiers.frames import (
    GET,
    HEAD,
    HELLO_BYTES,
    MAGIC,
    NONCE_BYTES,
    REFUSED,
    THERE,
    Session,
    rest_bytes,
)
from ridgeline.engine.tiers.tier import Tier

PROOF_SECONDS: Final = 1.0
FRAME_SECONDS: Final = 5.0
"""Seconds for the rest of a request, and for its answer to be read."""
MOST_STRANGERS: Final = 64
"""Connections that have yet to prove themselves; the next ones are closed."""
MOST_PEERS: Final = 256
UNSENT_BYTES: Final = 1 << 20
"""Bytes of an answer that wait for their reader before more is written."""


class PeerServer:
    """Serves the values of `tiers`, the nearest first, until `close`. `label`: of their layout; who asks for another is told so."""

    def __init__(self, tiers: Sequence[Tier], secret: bytes, label: str, host: str, port: int) -> None:
        """Raises OSError where the address cannot be listened on."""
        self._tiers, self._secret, self._label = tuple(tiers), secret, label.encode()
        self._strangers = self._peers = 0
        self._tasks: set[asyncio.Task[None]] = set()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=128)
        self.port: int = self._socket.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._ending = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="ridgeline-peers", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends all connections. Safe to call twice."""
        if not self._loop.is_closed():
            with suppress(RuntimeError):  # it closes just now
                self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join(FRAME_SECONDS)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._listen())

    async def _listen(self) -> None:
        server = await asyncio.start_server(self._meet, sock=self._socket, limit=UNSENT_BYTES)
        await self._ending.wait()
        server.close()
        for task in self._tasks:
            task.cancel()

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            writer.transport.set_write_buffer_limits(UNSENT_BYTES)
            if self._strangers < MOST_STRANGERS and (session := await self._know(reader, writer)) is not None:
                self._peers += 1
                try:
                    await self._answer_all(session, reader, writer)
                finally:
                    self._peers -= 1
        except (OSError, EOFError, TimeoutError, asyncio.CancelledError):  # it has gone, or is none of ours: there is nobody to tell
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _know(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Session | None:
        """The session of an engine that has the secret; None for any other."""
        challenge = MAGIC + secrets.token_bytes(NONCE_BYTES)
        self._strangers += 1
        try:
            writer.write(challenge)
            async with asyncio.timeout(PROOF_SECONDS):
                hello = await reader.readexactly(HELLO_BYTES)
        finally:
            self._strangers -= 1
        session = Session(self._secret, challenge, hello[:NONCE_BYTES])
        if self._peers >= MOST_PEERS or not hmac.compare_digest(hello[NONCE_BYTES:], session.hello):
            return None
        writer.write(session.welcome)
        return session

    async def _answer_all(self, session: Session, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers requests, one after the other. Raises OSError for what is none."""
        while True:
            head = await reader.readexactly(HEAD.size)
            async with asyncio.timeout(FRAME_SECONDS):
                kind, names, value_bytes, label = session.read_request(head, await reader.readexactly(rest_bytes(head)))
                if label != self._label:
                    writer.write(session.answer(bytes((REFUSED,)) * len(names)))
                    continue
                values = await asyncio.to_thread(self._find, kind, names, value_bytes)
                writer.write(session.answer(bytes(THERE if value is not None else 0 for value in values)))
                if kind == GET:
                    for value in values:
                        if value is not None:
                            writer.write(value)
                            await writer.drain()

    def _find(self, kind: int, names: Sequence[bytes], value_bytes: int) -> list[bytes | None]:
        """The values of a length; what is there of those that are only asked about, as b""."""
        found: list[bytes | None] = [None] * len(names)
        is_get = kind == GET
        for tier in self._tiers:
            missing = [place for place, value in enumerate(found) if value is None]
            wanted = [names[place] for place in missing]
            with suppress(OSError):
                values = tier.get(wanted, FRAME_SECONDS, value_bytes) if is_get else [b"" if there else None for there in tier.has(wanted)]
                for place, value in zip(missing, values, strict=True):
                    if value is not None and (not is_get or len(value) == value_bytes):
                        found[place] = value
        return found
