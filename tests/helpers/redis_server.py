"""Debian's redis-server in memory alone, with a password: on a Unix socket, and behind TLS. `tests/conftest.py` imports the fixtures."""

import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

PASSWORD = "only for tests"


@dataclass(frozen=True)
class RedisProcess:
    url: str
    password_file: str
    process: "subprocess.Popen[bytes]"


@contextmanager
def open_redis(
    folder: Path, url: str, options: Sequence[str], is_ready: Callable[[], bool], where: Sequence[str] = ()
) -> Iterator[RedisProcess]:  # fmt: skip
    """A server with these options. `where`: a command that runs it elsewhere, as `ip netns exec`."""
    password = folder / "password"
    password.write_text(PASSWORD)
    password.chmod(0o600)
    command = [*where, "redis-server", "--save", "", "--requirepass", PASSWORD, *options]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + 20
            while not is_ready() and time.monotonic() < deadline:
                time.sleep(0.01)
            yield RedisProcess(url, str(password), process)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    folder = tmp_path_factory.mktemp("redis")
    path = folder / "socket"
    with open_redis(folder, f"unix://{path}", ["--port", "0", "--unixsocket", str(path), "--unixsocketperm", "700"], path.exists) as server:
        yield server


@contextmanager
def open_tls_redis(folder: Path, address: str = "127.0.0.1", port: int = 0, where: Sequence[str] = ()) -> Iterator[RedisProcess]:
    """A server behind TLS alone, whose certificate is of an authority in `folder` (`ca.pem`). `port` 0: any."""
    certify(folder, address)
    if not port:
        with socket.create_server((address, 0)) as free:
            port = free.getsockname()[1]
    options = [
        "--bind", address, "--port", "0", "--tls-port", str(port), "--tls-auth-clients", "no",
        "--tls-cert-file", "server.pem", "--tls-key-file", "server.key", "--tls-ca-cert-file", "ca.pem",
    ]  # fmt: skip

    def is_ready() -> bool:
        listening = subprocess.run([*where, "cat", "/proc/net/tcp"], capture_output=True, text=True, check=True).stdout
        return f":{port:04X} 00000000:0000 0A" in listening

    with open_redis(folder, f"rediss://{address}:{port}?ssl_ca_certs={folder / 'ca.pem'}", options, is_ready, where) as server:
        yield server


@pytest.fixture(scope="module")
def tls_redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    with open_tls_redis(tmp_path_factory.mktemp("tls")) as server:
        yield server


def certify(folder: Path, address: str) -> None:
    """Makes an authority, and the certificate of a server at an IP address that it has signed."""
    new = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    for words in (
        [*new, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority of a test"],
        [*new, "-keyout", "server.key", "-out", "server.pem", "-subj", "/CN=server of a test", "-CA", "ca.pem", "-CAkey", "ca.key",
         "-addext", f"subjectAltName=IP:{address}", "-addext", "basicConstraints=critical,CA:FALSE"],
    ):  # fmt: skip
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)
