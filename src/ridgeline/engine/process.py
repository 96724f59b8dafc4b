"""The engine process: loads, then runs the loop between two reads of its socket. Started by `engine.spawned` only.

Owns the device and everything that is computed. Synchronous, one thread for the loop; a second one waits for the parent's death, and a
third tells the parent that the executor moves, in the middle of a long step too.
Errors that it cannot recover from it reports as `Fatal`, and ends: the parent starts another process.
"""

import cProfile
import gc
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import BinaryIO, get_args

import msgspec

from ridgeline.config.groups import EngineConfig
from ridgeline.core.commands import Command
from ridgeline.engine.compose import start_engine
from ridgeline.engine.engine import Engine
from ridgeline.engine.executor import Executor
from ridgeline.engine.messages import Fatal, Frame, FrameBuffer, Health, Message, Profile, Progress, Ready, TraceSteps, WireError, encode
from ridgeline.engine.seats import Seat
from ridgeline.errors import ConfigError, ModelFormatError, ModelNotFoundError

COMMANDS = get_args(Command)
BEATS_PER_TIMEOUT = 16
"""Looks at the executor within `step_timeout_seconds`."""
READ_BYTES = 1 << 18
IDLE_SECONDS = 1.0
"""Time without work behind which the engine prepares for grammars: at once it would slow the first requests of a batch down."""
REST_SECONDS = 0.02
"""Time without work behind which, later on, memory of the next blocks is touched: the next request of a client that waits comes sooner."""
TOUCHED_BYTES = 64 << 20
"""KV cache that is touched ahead of its use."""
TOUCHED_AT_ONCE = 2 << 20
"""Bytes between two looks for commands: some milliseconds where the machine itself has yet to find the memory."""
NICENESS = 5
"""Lower priority of this process: its threads use all CPU cores, and the front end, which needs little, would wait its turn to answer."""


class Disconnected(Exception):
    """The front end has closed its side."""


class Connection:
    """The engine's end of the socket pair."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._buffer = FrameBuffer()
        self._profiler: cProfile.Profile | None = None
        self.trace: Callable[[str, int], None] | None = None
        """`Executor.trace` of the engine that reads here."""

    def send(self, message: Message) -> None:
        """Blocks until the kernel has taken the frame: a front end that does not read stops the engine rather than filling memory."""
        try:
            self._stream.sendall(encode(message))
        except (BrokenPipeError, ConnectionResetError):
            raise Disconnected from None

    def wait(self, others: Sequence[int], seconds: float | None = None) -> bool:
        """Waits for a command, or until one of the other file descriptors can be read. False: neither came within that time."""
        return any(select.select([self._stream.fileno(), *others], [], [], seconds))

    def receive(self, wait: bool) -> list[Command]:
        """All commands that have arrived; with `wait`, at least one."""
        commands: list[Command] = []
        while True:
            try:
                data = self._stream.recv(READ_BYTES, 0 if wait and not commands else socket.MSG_DONTWAIT)
            except BlockingIOError:
                return commands
            except ConnectionResetError:
                raise Disconnected from None
            if not data:
                raise Disconnected
            for message in self._buffer.feed(data):
                if isinstance(message, Profile):
                    self._profile(message)
                    continue
                if isinstance(message, TraceSteps):
                    if self.trace is not None:
                        with suppress(OSError):
                            self.trace(message.path, message.steps)
                    continue
                if not isinstance(message, COMMANDS):
                    raise WireError(f"the engine was sent a {type(message).__name__}")
                commands.append(message)

    def _profile(self, message: Profile) -> None:
        """Begins to profile this thread, or writes what was found, whole or not at all."""
        if message.path is None:
            self._profiler = cProfile.Profile()
            self._profiler.enable()
        elif self._profiler is not None:
            self._profiler.disable()
            with suppress(OSError):
                part = f"{message.path}.part"
                self._profiler.dump_stats(part)
                os.chmod(part, 0o600)
                os.replace(part, message.path)
            self._profiler = None


def run(engine: Engine, connection: Connection, seat: Seat | None = None) -> None:
    """Runs the loop until the front end closes. Reads without waiting while there is work, waits when there is none."""
    committed, busy, works = 0, False, False
    grammars, rest = engine.executor.grammars, IDLE_SECONDS
    while True:
        if seat is not None and busy != works:
            works = busy
            seat.take(works=works)
        wait = not busy
        if wait and not connection.wait(engine.awaited, rest):
            if grammars is not None:
                grammars.warm_up()
            grammars, rest = None, REST_SECONDS
            _touch_ahead(engine, connection)
        if wait and (awaited := engine.awaited):
            connection.wait(awaited)
            wait = False
        turn = engine.turn(engine.prepare(connection.receive(wait)))
        busy = turn.progressed
        committed += busy
        if turn.outputs or turn.events:
            connection.send(Frame(committed, turn.time, turn.outputs, turn.events))
        if not busy:
            connection.send(Health(committed, turn.time))


def _touch_ahead(engine: Engine, connection: Connection) -> None:
    """Touches the blocks that are allocated next, until a command comes. A prompt whose step meets fresh memory waits for the system."""
    size = max(1, engine.executor.info.kv.block_bytes)
    at_once = max(1, TOUCHED_AT_ONCE // size)
    for first in range(0, TOUCHED_BYTES // size, at_once):
        if connection.wait(engine.awaited, 0):
            return
        engine.touch_next_blocks(first, at_once)


def serve(connection: Connection, config: EngineConfig, beats: int, seat: Seat | None) -> None:
    """Loads, sends `Ready`, runs. Raises `Disconnected` when the front end has gone, anything else when the engine is lost.

    beats  file descriptor of a pipe that gets a byte whenever the executor has moved
    seat   among engines that share the cores; None: there is no other
    """
    engine, decisions = start_engine(config, lambda stage, fraction: connection.send(Progress(stage, fraction)), seat)
    connection.trace = engine.executor.trace
    try:
        gc.collect()
        gc.freeze()  # loaded data stays: a collection that traversed it would delay every client
        threading.Thread(target=_beat, args=(engine.executor, beats, config.step_timeout_seconds), daemon=True).start()
        connection.send(Ready(engine.executor.info, decisions))
        run(engine, connection, seat)
    finally:
        engine.close()


def main(arguments: Sequence[str]) -> None:
    """`arguments`: the numbers of three inherited file descriptors, the socket, the lifeline and the pipe of beats; where engines share
    the cores also that of their seats, and which is this one's. The lifeline's first line is the configuration as JSON; its end means that
    the parent is dead."""
    # Ctrl-C and a service manager's SIGTERM reach the whole group: the parent decides when requests in flight end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    gc.freeze()  # modules, over which the collection in `serve` need not walk
    os.nice(NICENESS)  # before there are other threads, which take it over
    lifeline = os.fdopen(int(arguments[1]), "rb", buffering=0)  # never closed: the thread reads it until this process ends
    with socket.socket(fileno=int(arguments[0])) as stream:
        config = msgspec.json.decode(lifeline.readline(), type=EngineConfig)
        threading.Thread(target=_exit_with_parent, args=(lifeline,), daemon=True).start()
        connection = Connection(stream)
        seat = Seat(int(arguments[3]), int(arguments[4])) if len(arguments) > 3 else None
        try:
            serve(connection, config, int(arguments[2]), seat)
        except Disconnected:
            os._exit(0)  # Python would wait for threads of low priority; all that outlives this process is written
        except (ConfigError, ModelFormatError, ModelNotFoundError) as error:
            connection.send(Fatal(str(error), permanent=True, fix=error.fix))
        except Exception as error:
            connection.send(Fatal(f"{type(error).__name__}: {error}", permanent=False))
            raise


def _beat(executor: Executor, pipe: int, timeout_seconds: float) -> None:
    """Writes a byte whenever the executor has moved since the last look. The parent reads them; a pipe that is full says enough."""
    os.set_blocking(pipe, False)
    seen = executor.beat()
    while True:
        time.sleep(timeout_seconds / BEATS_PER_TIMEOUT)
        now = executor.beat()
        if now != seen:
            seen = now
            with suppress(OSError):
                os.write(pipe, b".")


def _exit_with_parent(lifeline: BinaryIO) -> None:
    """Ends this process at once when the last writer of the lifeline is gone, even in the middle of a long step or while loading."""
    lifeline.read(1)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
