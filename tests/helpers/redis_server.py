"""Debian's redis-server on a Unix socket, with a password, in memory alone. `tests/conftest.py` imports the fixture."""

import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

PASSWORD = "only for tests"


@dataclass(frozen=True)
class RedisProcess:
    url: str
    password_file: str
    process: "subprocess.Popen[bytes]"


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    folder = tmp_path_factory.mktemp("redis")
    path, password = folder / "socket", folder / "password"
    password.write_text(PASSWORD)
    password.chmod(0o600)
    command = ["redis-server", "--port", "0", "--unixsocket", str(path), "--unixsocketperm", "700", "--save", "", "--requirepass", PASSWORD]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + 20
            while not path.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            yield RedisProcess(f"unix://{path}", str(password), process)
        finally:
            process.kill()
