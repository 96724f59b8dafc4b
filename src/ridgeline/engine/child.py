"""The engine process as its parent sees it: started, measured, ended. Knows no message and no request."""

import asyncio
import os
import subprocess
from collections.abc import Callable
from typing import Final

from ridgeline.config.groups import EngineConfig
from ridgeline.engine.seats import Seat
from ridgeline.engine.spawned import take

PIPE_BYTES: Final = 1 << 16
"""Bytes that a pipe holds: a read takes all beats."""


class Link(asyncio.Protocol):
    """This process's end of the socket pair: what arrives is passed on where it arrives, as a step has to wake no task but its readers'.

    ended  done at the end of the stream, with the exception of `on_data` where it raised one
    """

    def __init__(self, on_data: Callable[[bytes], None]) -> None:
        self._on_data = on_data
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        if self.ended.done():
            return
        try:
            self._on_data(data)
        except Exception as error:
            self.ended.set_exception(error)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


class EngineProcess:
    """One engine process. It dies when the write end of its lifeline, which only this process has, is closed.

    writer, ended  of this process's end of the socket pair (`Link`)
    """

    def __init__(self, process: "subprocess.Popen[bytes]", lifeline: int, beats: int, writer: asyncio.WriteTransport, link: Link) -> None:
        self._process = process
        self._lifeline = lifeline
        self._beats = beats
        self.writer = writer
        self.ended = link.ended

    @classmethod
    async def spawn(cls, config: EngineConfig, on_data: Callable[[bytes], None], seat: Seat | None = None) -> "EngineProcess":
        """Starts an engine, or takes the one that was started ahead. `on_data` is called with what it writes. Raises OSError."""
        spawned = take(config, seat)
        try:
            loop = asyncio.get_running_loop()
            writer, link = await loop.create_unix_connection(lambda: Link(on_data), sock=spawned.stream)
        except BaseException:
            spawned.discard()
            raise
        return cls(spawned.process, spawned.lifeline, spawned.beats, writer, link)

    @property
    def pid(self) -> int:
        return self._process.pid

    def has_beaten(self) -> bool:
        """True if the executor has moved since the last call. Its process looks `BEATS_PER_TIMEOUT` times per step timeout."""
        try:
            return bool(os.read(self._beats, PIPE_BYTES))
        except BlockingIOError:
            return False

    def kill(self) -> None:
        """Ends the process now, whatever it is doing, stopped or not."""
        self._process.kill()

    async def end(self, timeout_seconds: float) -> int:
        """Closes the socket, waits for the process to end, and kills it after the timeout. Returns its exit status; safe to call twice."""
        self.writer.close()
        try:
            return await asyncio.to_thread(self._process.wait, timeout_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return await asyncio.to_thread(self._process.wait)
        finally:
            if self._lifeline >= 0:
                os.close(self._lifeline)
                os.close(self._beats)
                self._lifeline = -1
