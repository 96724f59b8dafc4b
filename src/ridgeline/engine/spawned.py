"""An engine process, its sockets and its pipes, before an event loop has to do with it; and one that a command starts ahead of the server.

Imports of a server take half a second, in which the engine can load: a command that knows its model starts it first, and the client whose
settings are the same takes it. It knows nothing of that, and dies with this process as any engine does. Its own imports come first, so it
is told its settings behind them: what finds its model is imported here meanwhile.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace

from ridgeline.config.env import child_environment, model_stores
from ridgeline.config.groups import FAKE_PREFIX, EngineConfig
from ridgeline.engine.seats import Seat
from ridgeline.errors import RidgelineError


@dataclass(frozen=True, slots=True)
class Spawned:
    """A process, and this process's ends of its socket pair, its lifeline and the pipe of its beats."""

    process: "subprocess.Popen[bytes]"
    stream: socket.socket
    lifeline: int
    beats: int

    def configure(self, config: EngineConfig) -> None:
        """Tells it its settings, for which it waits. Raises OSError."""
        from msgspec import json

        os.write(self.lifeline, json.encode(config) + b"\n")

    def discard(self) -> None:
        """Ends it, which nobody talks to."""
        self.stream.close()
        os.close(self.lifeline)
        os.close(self.beats)
        self.process.kill()
        self.process.wait()


def spawn(seat: Seat | None = None) -> Spawned:
    """Starts `python -m ridgeline.engine.process`, which inherits one end of a socket pair and of two pipes, the memory of the seats where
    it has one, what `child_environment` lets through, and nothing else. Raises OSError."""
    parent_socket, child_socket = socket.socketpair()
    read_end, lifeline = os.pipe()
    beats, beats_end = os.pipe()
    inherited = child_socket.fileno(), read_end, beats_end
    seats = () if seat is None else (seat.descriptor,)
    numbers = inherited if seat is None else (*inherited, seat.descriptor, seat.number)
    try:
        process = subprocess.Popen(
            # -P: the working directory is no place to import from.
            [sys.executable, "-P", "-m", "ridgeline.engine.process", *map(str, numbers)],
            stdin=subprocess.DEVNULL, pass_fds=(*inherited, *seats), env=child_environment(),
            process_group=0,  # Ctrl-C in the terminal is the parent's alone, even before the child can ignore it.
        )  # fmt: skip
    except BaseException:
        parent_socket.close()
        os.close(lifeline)
        os.close(beats)
        raise
    finally:
        child_socket.close()
        os.close(read_end)
        os.close(beats_end)
    parent_socket.setblocking(False)
    os.set_blocking(beats, False)
    return Spawned(process, parent_socket, lifeline, beats)


_ahead: list[tuple[EngineConfig, Spawned]] = []
"""The engine that `started_ahead` has started, and its settings, until it is taken."""


@contextmanager
def started_ahead(config: EngineConfig) -> Iterator[None]:
    """Within it the engine of these settings starts, where its model lies here and needs no check; whoever starts it tells of any fault.
    Behind it, one that nobody took ends."""
    with suppress(RidgelineError, OSError), ExitStack() as unless_kept:
        spawned = spawn()
        unless_kept.callback(spawned.discard)
        found = _of_model_here(config)
        if found is not None:
            spawned.configure(found)
            _ahead.append((found, spawned))
            unless_kept.pop_all()
    try:
        yield
    finally:
        while _ahead:
            _ahead.pop()[1].discard()


def _of_model_here(config: EngineConfig) -> EngineConfig | None:
    """The settings with the path of their model, as a server has them; None where it must be fetched, assembled or checked first."""
    from ridgeline.facts.hub.packaged import PACKAGED, assembled_model
    from ridgeline.facts.hub.source import find_here

    name, stores = config.model, model_stores()
    if name.startswith(FAKE_PREFIX):
        return config
    if config.expect_sha256 is not None or (name in PACKAGED and assembled_model(name, stores.cache) is None):
        return None
    path = find_here(name, stores)
    return None if path is None else replace(config, model=str(path))


def take(config: EngineConfig, seat: Seat | None) -> Spawned:
    """The engine that was started ahead with the same settings; else a new one, and the other ends. Raises OSError."""
    while _ahead:
        known, spawned = _ahead.pop()
        if seat is None and known == config:
            return spawned
        spawned.discard()
    spawned = spawn(seat)
    try:
        spawned.configure(config)
    except BaseException:
        spawned.discard()
        raise
    return spawned
