"""The engine process as its parent sees it: started, measured, ended. Knows no message and no request."""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import msgspec

from ridgeline.config.groups import EngineConfig


class EngineProcess:
    """One engine process. It dies when the write end of its lifeline, which only this process has, is closed.

    reader, writer  this process's end of the socket pair
    """

    def __init__(
        self, process: "subprocess.Popen[bytes]", lifeline: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._lifeline = lifeline
        self.reader = reader
        self.writer = writer

    @classmethod
    async def spawn(cls, config: EngineConfig) -> "EngineProcess":
        """Starts `python -m ridgeline.engine.process`, which inherits one end of a socket pair and of a pipe, and nothing else."""
        parent_socket, child_socket = socket.socketpair()
        read_end, lifeline = os.pipe()
        process = None
        try:
            process = subprocess.Popen(
                # -P: the working directory is no place to import from.
                [sys.executable, "-P", "-m", "ridgeline.engine.process", str(child_socket.fileno()), str(read_end)],
                stdin=subprocess.DEVNULL, pass_fds=(child_socket.fileno(), read_end),
                process_group=0,  # Ctrl-C in the terminal is the parent's alone, even before the child can ignore it.
            )  # fmt: skip
            os.write(lifeline, msgspec.json.encode(config) + b"\n")
            parent_socket.setblocking(False)
            reader, writer = await asyncio.open_unix_connection(sock=parent_socket)
        except BaseException:
            parent_socket.close()
            os.close(lifeline)
            if process is not None:
                process.kill()
                process.wait()
            raise
        finally:
            child_socket.close()
            os.close(read_end)
        return cls(process, lifeline, reader, writer)

    @property
    def pid(self) -> int:
        return self._process.pid

    def cpu_seconds(self) -> float:
        """CPU time that the process has used; 0 where the system does not say."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

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
                self._lifeline = -1
