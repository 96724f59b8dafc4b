"""Frames between the server and a sandbox process: JSON objects over a socket pair, each behind its length. Owns no process."""

import json
import select
import socket
import struct
from time import monotonic
from typing import Any, Final

MAX_FRAME_BYTES: Final = 32 << 20
_LENGTH = struct.Struct("<I")
CHUNK_BYTES: Final = 1 << 16


class FrameError(Exception):
    """A frame that cannot be sent or read."""


def frame(value: dict[str, Any]) -> bytes:
    """The bytes of one object. Raises `FrameError` where it is too large or too deep."""
    return framed(encoded(value))


def encoded(value: dict[str, Any]) -> bytes:
    """An object as JSON. Raises `FrameError` where it is too deep."""
    try:
        return json.dumps(value).encode("ascii")
    except (RecursionError, TypeError, ValueError) as error:
        raise FrameError(f"cannot be sent as JSON ({type(error).__name__})") from None


def framed(data: bytes) -> bytes:
    """The frame of an object that is JSON already. Raises `FrameError` where it is too large."""
    if len(data) > MAX_FRAME_BYTES:
        raise FrameError(f"has {len(data)} bytes as JSON, at most {MAX_FRAME_BYTES} are supported")
    return _LENGTH.pack(len(data)) + data


def send(stream: socket.socket, data: bytes, deadline: float | None = None) -> None:
    """Writes one frame; a `deadline` (monotonic seconds) is that of a stream that does not block. Raises `TimeoutError` behind it."""
    left = memoryview(data)
    while left:
        try:
            left = left[stream.send(left) :]
        except BlockingIOError:
            _wait(stream, select.POLLOUT, deadline)


def receive(stream: socket.socket, deadline: float | None = None) -> dict[str, Any] | None:
    """Reads one object; None at the end of the stream. `deadline` as in `send`. Raises `FrameError`, and `TimeoutError` behind it.

    Each frame is the answer to one, so nothing comes behind it, and length and object are read together: each system call lets another
    thread have the interpreter.
    """
    data = bytearray()
    while (value := arrived(data)) is None:
        chunk = _chunk(stream, deadline)
        if not chunk:
            return None
        data += chunk
    return value


def arrived(data: bytearray) -> dict[str, Any] | None:
    """The object of a whole frame; None where bytes of it are yet to come. Raises `FrameError`."""
    if len(data) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack_from(data)
    if length > MAX_FRAME_BYTES:
        raise FrameError(f"a frame of {length} bytes, at most {MAX_FRAME_BYTES} are supported")
    if len(data) < _LENGTH.size + length:
        return None
    if len(data) > _LENGTH.size + length:
        raise FrameError("bytes behind a frame")
    try:
        value = json.loads(data[_LENGTH.size :])
    except (RecursionError, ValueError) as error:
        raise FrameError(f"a frame that is not JSON ({type(error).__name__})") from None
    if not isinstance(value, dict):
        raise FrameError(f"a frame that contains a {type(value).__name__}")
    return value


def _chunk(stream: socket.socket, deadline: float | None) -> bytes:
    while True:
        try:
            return stream.recv(CHUNK_BYTES)
        except BlockingIOError:
            _wait(stream, select.POLLIN, deadline)


def _wait(stream: socket.socket, event: int, deadline: float | None) -> None:
    left = None if deadline is None else deadline - monotonic()
    if left is not None and left <= 0:
        raise TimeoutError
    poll = select.poll()
    poll.register(stream, event)
    poll.poll(None if left is None else left * 1_000)
