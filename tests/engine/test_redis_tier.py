"""A Redis server between two engines: the same tokens, whatever the server does."""

import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from tiers import PROMPT, SECRET, Run, poison, shape

from ridgeline.engine.tiers.redis import PREFIX, RedisTier, check_address
from ridgeline.engine.tiers.seal import Seal
from ridgeline.errors import ConfigError

PASSWORD = "only for tests"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """Debian's redis-server on a Unix socket, with a password, in memory alone."""
    path = tmp_path_factory.mktemp("redis") / "socket"
    command = ["redis-server", "--port", "0", "--unixsocket", str(path), "--unixsocketperm", "700", "--save", "", "--requirepass", PASSWORD]
    with subprocess.Popen(command, cwd=path.parent, stdout=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + 20
            while not path.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            yield f"unix://{path}", process
        finally:
            process.kill()


def tier(url: str, password: str = PASSWORD) -> RedisTier:
    return RedisTier(url, password, Seal(SECRET, shape()).value_bytes)


def test_engines_share_what_one_has_computed(server: tuple[str, object]) -> None:
    url, _ = server
    first = Run([tier(url)])
    alone = first.answer("a")
    first.close()
    second = Run([tier(url)])
    assert second.answer("b") == alone and second.from_tier == len(PROMPT) // 16 * 16
    counts = second.close()
    assert counts["fetched"] == 8 and not counts.get("bad") and not counts.get("failures")


@pytest.mark.parametrize("rounds", [8, pytest.param(8_500, marks=pytest.mark.night)])
def test_a_poisoned_server_changes_no_token(server: tuple[str, object], rounds: int) -> None:
    url, _ = server
    run = Run([tier(url)])
    alone = run.answer("a")
    run.close()
    client = redis.Redis.from_url(url, password=PASSWORD)
    keys = client.keys(PREFIX + b"*")
    values, rng = {key: client.get(key) for key in keys}, random.Random(rounds)
    for _ in range(rounds):
        poisoned = dict(values)
        poison(rng, poisoned)
        poisoned[keys[0]] = rng.randbytes(1 << 20)
        client.mset(poisoned)
        run = Run([tier(url)])
        assert run.answer("b") == alone and not run.from_tier
        run.close()
    client.delete(*keys)
    client.lpush(keys[0], "not a string")
    run = Run([tier(url)])
    assert run.answer("c") == alone
    run.close()


def test_a_wrong_password_serves_on(server: tuple[str, object]) -> None:
    run = Run([tier(server[0], "another")])
    assert run.answer("a") and run.close()["failures"]


def test_a_server_that_stops_answering_serves_on(server: tuple[str, "subprocess.Popen[bytes]"], tmp_path: Path) -> None:
    url, process = server
    run = Run([tier(url)])
    alone = run.answer("a")
    process.send_signal(19)  # SIGSTOP
    began = time.monotonic()
    assert run.answer("b", (7, *PROMPT)) and time.monotonic() - began < 1.0
    assert run.answer("c", (8, *PROMPT)) and time.monotonic() - began < 1.5, "it is left alone for a while"
    process.send_signal(18)
    run.close()
    gone = Run([tier(f"unix://{tmp_path}/nothing")])
    assert gone.answer("a") == alone and gone.close()["failures"]


@pytest.mark.parametrize("url", ["http://x", "redis://10.0.0.1:6379", "rediss://:secret@host", "rediss://host?password=secret", "redis://"])
def test_addresses_that_are_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        check_address(url)
