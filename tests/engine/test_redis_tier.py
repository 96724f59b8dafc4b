"""A Redis server between two engines: the same tokens, whatever the server does."""

import random
import time
from pathlib import Path

import pytest
import redis
from redis_server import PASSWORD, RedisProcess, certify, open_redis
from tiers import PROMPT, STAMP_BYTES, Run, poison

from ridgeline.engine.tiers.redis import PREFIX, RedisTier
from ridgeline.errors import ConfigError


def tier(url: str, password: str = PASSWORD, block_bytes: int = STAMP_BYTES) -> RedisTier:
    return RedisTier(url, password)


@pytest.mark.parametrize("fixture", ["redis_server", "tls_redis_server"])
def test_engines_share_what_one_has_computed(fixture: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue(fixture).url
    first = Run([tier(url)])
    alone = first.answer("a")
    first.close()
    second = Run([tier(url)])
    assert second.answer("b") == alone and second.from_tier == len(PROMPT) // 16 * 16
    counts = second.close()
    assert counts["fetched"] == 8 and not counts.get("bad") and not counts.get("failures")


def test_nothing_is_said_to_a_server_that_nobody_vouches_for(tls_redis_server: RedisProcess, tmp_path: Path) -> None:
    """One with a certificate of another authority, or of another name; and TLS is spoken, or nothing."""
    certify(tmp_path, "127.0.0.1")
    plain = tls_redis_server.url.partition("?")[0]
    urls = (f"{plain}?ssl_ca_certs={tmp_path}/ca.pem", plain, tls_redis_server.url.replace("127.0.0.1", "localhost"), f"redis{plain[6:]}")
    for url in urls:
        run = Run([tier(url)])
        assert run.answer("a") and not run.from_tier and run.close()["failures"], url


@pytest.mark.parametrize(
    ("rounds", "block_bytes"),
    [(8, STAMP_BYTES), (2, 1 << 16), pytest.param(8_500, 1 << 16, marks=[pytest.mark.night, pytest.mark.timeout(7_200)])],
)
def test_a_poisoned_server_changes_no_token(redis_server: RedisProcess, rounds: int, block_bytes: int) -> None:
    """At night 102,000 values as large as a model's."""
    url = redis_server.url
    client = redis.Redis.from_url(url, password=PASSWORD)
    client.flushall()
    run = Run([tier(url, block_bytes=block_bytes)], block_bytes=block_bytes)
    alone = run.answer("a")
    run.close()
    keys = client.keys(PREFIX + b"*")
    values, rng, told = {key: client.get(key) for key in keys}, random.Random(rounds), 0
    for number in range(rounds):
        poisoned = dict(values)
        poison(rng, poisoned)
        if number % 2:
            poisoned[rng.choice(keys)] = rng.randbytes(1 << 20)
        client.mset(poisoned)
        run = Run([tier(url, block_bytes=block_bytes)], block_bytes=block_bytes)
        assert run.answer("b") == alone and not run.from_tier
        bad = run.close()["bad"]
        told += bad > 0 and run.metric("ridgeline_tier_bad_blocks_total") == bad
    print(f"{rounds * len(keys):,} values of {len(values[keys[0]]):,} bytes poisoned, 0 wrong tokens, told in {told} rounds")
    assert told >= 0.9 * rounds, "one whose thread did not get its turn in time has looked at none"
    client.delete(*keys)
    client.lpush(keys[0], "not a string")
    run = Run([tier(url, block_bytes=block_bytes)], block_bytes=block_bytes)
    assert run.answer("c") == alone
    run.close()
    client.flushall()


def test_a_server_that_is_killed_in_the_middle_serves_on(tmp_path: Path) -> None:
    """It is there, and brings blocks; then it is gone, and then it is there again."""
    options = ["--port", "0", "--unixsocket", str(tmp_path / "socket")]
    with open_redis(tmp_path, f"unix://{tmp_path}/socket", options, (tmp_path / "socket").exists) as server:
        first = Run([tier(server.url)])
        alone = [first.answer(str(number), (number, *PROMPT)) for number in range(3)]
        first.close()
        run = Run([tier(server.url)])
        assert run.answer("a", (0, *PROMPT)) == alone[0] and run.from_tier
        brought = run.from_tier
        server.process.kill()
        server.process.wait()
        assert [run.answer(f"b{number}", (number, *PROMPT)) for number in range(3)] == alone and run.from_tier == brought
        assert run.close()["failures"] and run.metric("ridgeline_tier_failures_total")


def test_a_wrong_password_serves_on(redis_server: RedisProcess) -> None:
    run = Run([tier(redis_server.url, "another")])
    assert run.answer("a") and run.close()["failures"]


def test_a_server_that_stops_answering_serves_on(redis_server: RedisProcess, tmp_path: Path) -> None:
    url, process = redis_server.url, redis_server.process
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


@pytest.mark.parametrize("url", [
    "http://x", "redis://10.0.0.1:6379", "redis://[2001:db8::1]:6379", "rediss://:secret@host", "rediss://host?password=secret", "redis://",
    "rediss://host?ssl_cert_reqs=none", "rediss://host?ssl_check_hostname=False", "rediss://host?socket_timeout=60", "redis://127.0.0.1?host=x",
])  # fmt: skip
def test_addresses_that_are_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        tier(url)
