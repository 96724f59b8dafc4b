"""The parent's handle of one engine process: starts it, reads and writes its frames, notices its end, buries it.

Owns the process, its socket and its lifeline; never decides when to start another one and knows nothing of requests.
"""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import msgspec

from ridgeline.config.groups import EngineConfig
from ridgeline.engine.messages import FrameBuffer, Message, encode

READ_BYTES: Final = 1 << 18
FAREWELL_SECONDS: Final = 5.0
"""How long an engine that was asked to end may take before it is killed."""


class Child:
    """One engine process. It dies when the write end of its lifeline, which only this process has, is closed."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", lifeline: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._lifeline = lifeline
        self._reader = reader
        self._writer = writer

    @classmethod
    async def spawn(cls, config: EngineConfig) -> "Child":
        """Starts `python -m ridgeline.engine.process`, which inherits one end of a socket pair and of a pipe, and nothing else."""
        ours, theirs = socket.socketpair()
        read_end, lifeline = os.pipe()
        process = None
        try:
            process = subprocess.Popen(
                # -P: the working directory is no place to import from.
                [sys.executable, "-P", "-m", "ridgeline.engine.process", str(theirs.fileno()), str(read_end)],
                stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(), read_end),
                process_group=0,  # Ctrl-C in the terminal is the parent's alone, even before the child can ignore it.
            )
            os.write(lifeline, msgspec.json.encode(config) + b"\n")
            ours.setblocking(False)
            reader, writer = await asyncio.open_unix_connection(sock=ours)
        except BaseException:
            ours.close()
            os.close(lifeline)
            if process is not None:
                process.kill()
                process.wait()
            raise
        finally:
            theirs.close()
            os.close(read_end)
        return cls(process, lifeline, reader, writer)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: Message) -> None:
        """Queues a frame. To a dead engine it is lost: `messages` ends and says so."""
        if not self._writer.is_closing():
            self._writer.write(encode(message))

    async def messages(self) -> AsyncIterator[list[Message]]:
        """Messages in the batches in which they arrive, until the engine's end of the socket closes. Raises `WireError`."""
        buffer = FrameBuffer()
        while True:
            try:
                data = await self._reader.read(READ_BYTES)
            except ConnectionResetError:
                return
            if not data:
                return
            yield buffer.feed(data)

    def cpu_seconds(self) -> float:
        """Processor time that the process has used; 0 where the system does not say."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        """Ends the process now, whatever it is doing, stopped or not."""
        self._process.kill()

    async def end(self, patience_seconds: float) -> int:
        """Closes the socket, waits so long for the process to end, then kills it. Returns its exit status; safe to call twice."""
        self._writer.close()
        try:
            return await asyncio.to_thread(self._process.wait, patience_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return await asyncio.to_thread(self._process.wait)
        finally:
            if self._lifeline >= 0:
                os.close(self._lifeline)
                self._lifeline = -1
