"""The Unix socket of the admin's requests: where it lies, who may connect, and its end.

Owns the rights of the socket (0600 in a folder that nobody else may enter) and the check of each peer: the system says by SO_PEERCRED which
user and process connects, and only the server's own user and root are heard. No request over TCP reaches what is behind it.
"""

import logging
import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from ridgeline.config.env import state_directory
from ridgeline.errors import ConfigError
from ridgeline.observe.logs import with_fields
from ridgeline.server.connection import HttpConnection
from ridgeline.server.listener import Connections, Listener

log = logging.getLogger("ridgeline.audit")
log.setLevel(logging.INFO)  # whatever --log-level says: an audit has no gaps

FLAG: Final = "--admin-socket"
PEER_KEY: Final = "ridgeline.peer"
"""Key in a scope of who asks, as text."""
MAX_CONNECTIONS: Final = 32
SEND_SECONDS: Final = 10.0
"""Time for which an admin may leave an answer unread."""
MAX_PATH_BYTES: Final = 100
"""Bytes of a socket's path, which the system bounds at about 108."""
_CREDENTIALS: Final = struct.Struct("3i")
"""pid, uid, gid, as SO_PEERCRED has them."""


def socket_path(setting: str) -> Path | None:
    """Path of the socket by `--admin-socket`; None: there is none, as on systems that do not say who connects."""
    if setting == "none" or not hasattr(socket, "SO_PEERCRED"):
        return None
    return state_directory() / "admin" / f"{os.getpid()}.sock" if setting == "auto" else Path(setting).expanduser().absolute()


@contextmanager
def admin_socket(setting: str) -> Iterator[socket.socket | None]:
    """The listening socket, removed at the end. Raises ConfigError where a path that was asked for cannot be used; where it was not, a line
    of the log says why there is none."""
    path = socket_path(setting)
    try:
        listening = None if path is None else _bind(path)
    except ConfigError as error:
        if setting != "auto":
            raise
        log.warning("there is no admin socket", extra=with_fields(reason=str(error)))
        listening = None
    if listening is None or path is None:
        yield None
        return
    with listening:
        try:
            yield listening
        finally:
            with suppress(OSError):
                path.unlink()


def _bind(path: Path) -> socket.socket:
    """Binds, with the rights of the owner alone. Raises ConfigError."""
    fix: dict[str, str | None] = {FLAG: None}
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise ConfigError(f"{FLAG} {str(path)!r:.200} is longer than {MAX_PATH_BYTES} bytes, too long for a socket", fix=fix)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.parent.stat()
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            mode = stat.S_IMODE(found.st_mode)
            raise ConfigError(f"others may enter the folder of {FLAG} {str(path)!r:.200} (mode {mode:04o}); run: chmod 700 {path.parent}")
        if path.is_socket() and not _is_served(path):
            path.unlink()  # of a server that was killed
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(str(path))
            path.chmod(0o600)
            listening.listen(MAX_CONNECTIONS)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        raise ConfigError(f"{FLAG} {str(path)!r:.200} cannot be made: {error.strerror}", fix=fix) from None
    return listening


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(str(path)) == 0


class AdminConnection(HttpConnection):
    """A connection whose requests carry who asks. Its address is that text."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast(dict[str, Any], self.scope)[PEER_KEY] = self.address.decode()


class AdminListener(Listener):
    """Accepts connections of this user and of root; others are closed, and told of in the log."""

    def __init__(self, listening: socket.socket, app: ASGIApp) -> None:
        config = uvicorn.Config(
            app, http=AdminConnection, ws="none", lifespan="off", log_config=None, access_log=False, server_header=False,
            proxy_headers=False,
        )  # fmt: skip
        config.load()
        self._state = ServerState()
        connections = Connections(MAX_CONNECTIONS, MAX_CONNECTIONS, SEND_SECONDS)
        super().__init__(listening, connections, partial(AdminConnection, config, self._state, {}, connections), None)

    def close(self) -> None:
        """Accepts nothing more, and closes each connection behind the answer under way."""
        super().close()
        for connection in list(self._state.connections):
            cast(HttpConnection, connection).shutdown()

    def _address_of(self, accepted: socket.socket, peer: Any) -> bytes | None:
        raw = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(raw)
        if uid not in (0, os.geteuid()):
            log.warning("admin connection of another user was closed", extra=with_fields(uid=uid, pid=pid))
            return None
        return f"uid={uid} pid={pid}".encode()
