"""Requests to the admin socket of a server on this machine: which server, its key, what it says."""

import json
import socket
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlencode

import typer

from ridgeline.errors import ConfigError, nearest

if TYPE_CHECKING:
    from ridgeline.server.running import RunningServer

MAX_ANSWER_BYTES: Final = 16 << 20
MAX_KEY_BYTES: Final = 4_096
SERVER: Final = typer.Option("--server", help="Process number, port, model, or path of the socket [the only one that runs].")
KEY_FILE: Final = typer.Option("--key-file", help="File with a key that has scope=admin, where the server asks for one.")
ServerOption = Annotated[str | None, SERVER]
KeyOption = Annotated[Path | None, KEY_FILE]


def ask_admin(
    server: str | None, key_file: Path | None, method: str, path: str, body: dict[str, Any] | None = None, seconds: float = 60.0
) -> Any:
    """The answer of a server's admin socket, as JSON. Raises ConfigError where there is no such server, and with the server's own words."""
    where = find_socket(server)
    headers = {"Host": "localhost"}
    if key_file is not None:
        headers["Authorization"] = f"Bearer {read_key(key_file)}"
    connection = _UnixConnection(where, seconds)
    try:
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        answer = connection.getresponse()
        status, text = answer.status, answer.read(MAX_ANSWER_BYTES)
    except TimeoutError:
        raise ConfigError(f"the server at {where} did not answer within {seconds:g} s") from None
    except (OSError, HTTPException) as error:
        raise ConfigError(f"the server at {where} cannot be asked: {error!s:.200}; `ridgeline ps` lists those that run") from None
    finally:
        connection.close()
    found = json.loads(text)
    if status != 200:
        raise ConfigError(str(found["error"]["message"]))
    return found


def of_model(path: str, model: str | None) -> str:
    """The path of a request about one of several models; None: the first."""
    return path if model is None else f"{path}?{urlencode({'model': model})}"


def find_socket(server: str | None) -> str:
    """The path of the admin socket of a server that runs. Raises ConfigError."""
    from ridgeline.config.env import state_directory
    from ridgeline.server.running import running_servers

    if server is not None and Path(server).is_socket():
        return server
    running = running_servers(state_directory())
    found = running if server is None else [each for each in running if server in _names(each)]
    listed = ", ".join(f"{each.pid} ({each.model}, {each.url})" for each in running) or "none"
    if not found:
        near = nearest(server or "", [name for each in running for name in _names(each)])
        hint = f"; did you mean {near}?" if near else ""
        raise ConfigError(f"no server of yours {'runs' if server is None else f'is {server[:100]!r}'}{hint} (running: {listed})")
    if len(found) > 1:
        raise ConfigError(f"several servers run; choose with --server PID: {listed}")
    if found[0].admin is None:
        raise ConfigError(f"the server {found[0].pid} has no admin socket: it was started with --admin-socket none, or its log says why")
    return found[0].admin


def _names(server: "RunningServer") -> tuple[str, ...]:
    return str(server.pid), server.model, server.url, server.url.rpartition(":")[2]


def read_key(file: Path) -> str:
    """The key in a file. Raises ConfigError where it holds no key, or more."""
    try:
        with file.expanduser().open("rb") as opened:
            key = opened.read(MAX_KEY_BYTES).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--key-file {str(file)!r:.200} cannot be read: {error!s:.100}") from None
    if not key.isprintable() or " " in key or not key:
        raise ConfigError(f"--key-file {str(file)!r:.200} must hold one key and nothing else")
    return key


class _UnixConnection(HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, seconds: float) -> None:
        super().__init__("localhost", timeout=seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
