"""The loop of the engine process, run in this one: what it does in moments without work."""

import socket
import threading
import time
from contextlib import suppress

import pytest

from ridgeline.config.groups import EngineConfig
from ridgeline.core.commands import Abort
from ridgeline.engine import process
from ridgeline.engine.compose import start_engine
from ridgeline.engine.messages import encode

GRAMMARS = EngineConfig('fake:{"script": [["a", "b"]]}')
IDLE_SECONDS = 0.1


def test_the_vocabulary_is_read_in_the_first_idle_moment_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs seconds of processor time: not while commands come, as in a batch, which may end without a grammar."""
    monkeypatch.setattr(process, "IDLE_SECONDS", IDLE_SECONDS)
    engine, _ = start_engine(GRAMMARS, lambda stage, fraction: None, None)
    warmed = threading.Semaphore(0)
    monkeypatch.setattr(engine.executor.grammars, "warm_up", warmed.release)
    front, back = socket.socketpair()

    def loop() -> None:
        with suppress(process.Disconnected):
            process.run(engine, process.Connection(back))

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    threading.Thread(target=lambda: [None for _ in iter(lambda: front.recv(1 << 16), b"")], daemon=True).start()
    end = time.monotonic() + 4 * IDLE_SECONDS
    while time.monotonic() < end:
        front.sendall(encode(Abort("nobody")))
        time.sleep(IDLE_SECONDS / 40)
    assert not warmed.acquire(blocking=False), "read while commands came"
    assert warmed.acquire(timeout=10), "never read"
    assert not warmed.acquire(timeout=3 * IDLE_SECONDS), "read again"
    front.shutdown(socket.SHUT_RDWR)
    thread.join(timeout=10)
    engine.close()
    front.close()
    back.close()


class Touched:
    """Stands for contents of blocks; keeps which were touched."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    def touch(self, block_ids: list[int]) -> None:
        self.ids += reversed(block_ids)


def test_blocks_that_are_allocated_next_are_touched_ahead() -> None:
    engine, _ = start_engine(GRAMMARS, lambda stage, fraction: None, None)
    engine.executor.blocks = touched = Touched()  # type: ignore[misc, assignment]
    pool = engine.scheduler.cache.pool
    engine.touch_next_blocks(0, 3)
    engine.touch_next_blocks(3, 2)
    assert touched.ids == pool.allocate(5)
    touched.ids.clear()
    engine.touch_next_blocks(len(pool.free) - 1, 3)
    engine.touch_next_blocks(len(pool.free), 3)
    assert touched.ids == [pool.free[0]], "none but the last one is left"
    engine.close()


def test_touching_ends_when_a_command_comes() -> None:
    engine, _ = start_engine(GRAMMARS, lambda stage, fraction: None, None)
    engine.executor.blocks = touched = Touched()  # type: ignore[misc, assignment]
    front, back = socket.socketpair()
    connection = process.Connection(back)
    front.sendall(encode(Abort("nobody")))
    process._touch_ahead(engine, connection)
    assert not touched.ids
    assert connection.receive(wait=True) == [Abort("nobody")]
    process._touch_ahead(engine, connection)
    assert touched.ids
    engine.close()
    front.close()
    back.close()
