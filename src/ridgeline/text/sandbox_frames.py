"""Frames between the server and a sandbox process: JSON objects over a socket pair, each behind its length. Owns no process."""

import json
import socket
import struct
from time import monotonic
from typing import Any, Final

MAX_FRAME_BYTES: Final = 32 << 20
_LENGTH = struct.Struct("<I")
_CHUNK_BYTES: Final = 1 << 20


class FrameError(Exception):
    """A frame that cannot be sent or read."""


def frame(value: dict[str, Any]) -> bytes:
    """The bytes of one object. Raises `FrameError` where it is too large or too deep."""
    try:
        data = json.dumps(value).encode("ascii")
    except (RecursionError, TypeError, ValueError) as error:
        raise FrameError(f"cannot be sent as JSON ({type(error).__name__})") from None
    if len(data) > MAX_FRAME_BYTES:
        raise FrameError(f"has {len(data)} bytes as JSON, at most {MAX_FRAME_BYTES} are supported")
    return _LENGTH.pack(len(data)) + data


def send(stream: socket.socket, data: bytes, deadline: float | None = None) -> None:
    """Writes one frame. Raises `TimeoutError` after `deadline` (monotonic seconds)."""
    _wait_until(stream, deadline)
    stream.sendall(data)


def receive(stream: socket.socket, deadline: float | None = None) -> dict[str, Any] | None:
    """Reads one object; None at the end of the stream. Raises `FrameError`, and `TimeoutError` after `deadline`."""
    head = _exactly(stream, _LENGTH.size, deadline)
    if head is None:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > MAX_FRAME_BYTES:
        raise FrameError(f"a frame of {length} bytes, at most {MAX_FRAME_BYTES} are supported")
    data = _exactly(stream, length, deadline)
    if data is None:
        return None
    try:
        value = json.loads(data)
    except (RecursionError, ValueError) as error:
        raise FrameError(f"a frame that is not JSON ({type(error).__name__})") from None
    if not isinstance(value, dict):
        raise FrameError(f"a frame that contains a {type(value).__name__}")
    return value


def _exactly(stream: socket.socket, count: int, deadline: float | None) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        _wait_until(stream, deadline)
        chunk = stream.recv(min(count - len(data), _CHUNK_BYTES))
        if not chunk:
            return None
        data += chunk
    return bytes(data)


def _wait_until(stream: socket.socket, deadline: float | None) -> None:
    if deadline is None:
        stream.settimeout(None)
        return
    left = deadline - monotonic()
    if left <= 0:
        raise TimeoutError
    stream.settimeout(left)
