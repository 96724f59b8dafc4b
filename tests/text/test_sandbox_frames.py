"""Frames between the server and a process that is not trusted."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from ridgeline.text.sandbox_frames import MAX_FRAME_BYTES, FrameError, frame, receive, send


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The server's end, which does not block, and that of the process, which does."""
    mine, other = socket.socketpair()
    mine.setblocking(False)
    with mine, other:
        yield mine, other


def test_a_large_frame_there_and_back(ends: tuple[socket.socket, socket.socket]) -> None:
    mine, other = ends
    value = {"text": "ä" * (1 << 20)}
    echo = threading.Thread(target=lambda: send(other, frame(receive(other) or {})))
    echo.start()
    send(mine, frame(value), time.monotonic() + 10)
    assert receive(mine, time.monotonic() + 10) == value
    echo.join()


def test_a_frame_in_pieces(ends: tuple[socket.socket, socket.socket]) -> None:
    mine, other = ends
    data = frame({"a": 1})

    def trickle() -> None:
        for at in range(len(data)):
            other.send(data[at : at + 1])
            time.sleep(0.001)

    pieces = threading.Thread(target=trickle)
    pieces.start()
    assert receive(mine, time.monotonic() + 10) == {"a": 1}
    pieces.join()


def test_an_answer_is_read_at_once(ends: tuple[socket.socket, socket.socket]) -> None:
    mine, other = ends
    send(other, frame({"a": 1}))
    reads = []

    class Counted(socket.socket):
        def recv(self, *arguments: int) -> bytes:  # type: ignore[override]
            reads.append(arguments)
            return super().recv(*arguments)

    with Counted(fileno=mine.detach()) as counted:
        assert receive(counted, time.monotonic() + 10) == {"a": 1} and len(reads) == 1


@pytest.mark.parametrize("data", [frame({}) + b"x", frame({}) + frame({}), b"\x02\0\0\0[]", b"\x01\0\0\0{", b"\0\0\0\0"])
def test_what_is_no_answer(ends: tuple[socket.socket, socket.socket], data: bytes) -> None:
    mine, other = ends
    other.send(data)
    with pytest.raises(FrameError):
        receive(mine, time.monotonic() + 10)


def test_a_length_without_bounds(ends: tuple[socket.socket, socket.socket]) -> None:
    mine, other = ends
    other.send((MAX_FRAME_BYTES + 1).to_bytes(4, "little"))
    with pytest.raises(FrameError, match="at most"):
        receive(mine, time.monotonic() + 10)


def test_the_end_of_the_stream(ends: tuple[socket.socket, socket.socket]) -> None:
    mine, other = ends
    other.send(frame({"a": 1})[:6])
    other.close()
    assert receive(mine, time.monotonic() + 10) is None


def test_nobody_answers_and_nobody_reads(ends: tuple[socket.socket, socket.socket]) -> None:
    mine, _ = ends
    with pytest.raises(TimeoutError):
        receive(mine, time.monotonic() + 0.02)
    with pytest.raises(TimeoutError):
        send(mine, bytes(1 << 22), time.monotonic() + 0.02)
