"""The engine process as its parent sees it: started, measured, ended. Knows no message and no request."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Final

import msgspec

from ridgeline.config.env import child_environment
from ridgeline.config.groups import EngineConfig
from ridgeline.engine.seats import Seat

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
        """Starts `python -m ridgeline.engine.process`, which inherits one end of a socket pair and of two pipes, the memory of the seats
        where it has one, what `child_environment` lets through, and nothing else. `on_data` is called with what it writes."""
        parent_socket, child_socket = socket.socketpair()
        read_end, lifeline = os.pipe()
        beats, beats_end = os.pipe()
        inherited = child_socket.fileno(), read_end, beats_end
        seats = () if seat is None else (seat.descriptor,)
        numbers = inherited if seat is None else (*inherited, seat.descriptor, seat.number)
        process = None
        try:
            process = subprocess.Popen(
                # -P: the working directory is no place to import from.
                [sys.executable, "-P", "-m", "ridgeline.engine.process", *map(str, numbers)],
                stdin=subprocess.DEVNULL, pass_fds=(*inherited, *seats), env=child_environment(),
                process_group=0,  # Ctrl-C in the terminal is the parent's alone, even before the child can ignore it.
            )  # fmt: skip
            os.write(lifeline, msgspec.json.encode(config) + b"\n")
            parent_socket.setblocking(False)
            os.set_blocking(beats, False)
            loop = asyncio.get_running_loop()
            writer, link = await loop.create_unix_connection(lambda: Link(on_data), sock=parent_socket)
        except BaseException:
            parent_socket.close()
            os.close(lifeline)
            os.close(beats)
            if process is not None:
                process.kill()
                process.wait()
            raise
        finally:
            child_socket.close()
            os.close(read_end)
            os.close(beats_end)
        return cls(process, lifeline, beats, writer, link)

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
