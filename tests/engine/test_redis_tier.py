"""A Redis server between two engines: the same tokens, whatever the server does."""

import random
import time
from pathlib import Path

import pytest
import redis
from redis_server import PASSWORD, RedisProcess
from tiers import PROMPT, SECRET, Run, poison, shape

from ridgeline.engine.tiers.redis import PREFIX, RedisTier
from ridgeline.engine.tiers.seal import Seal
from ridgeline.errors import ConfigError


def tier(url: str, password: str = PASSWORD) -> RedisTier:
    return RedisTier(url, password, Seal(SECRET, shape()).value_bytes)


def test_engines_share_what_one_has_computed(redis_server: RedisProcess) -> None:
    url = redis_server.url
    first = Run([tier(url)])
    alone = first.answer("a")
    first.close()
    second = Run([tier(url)])
    assert second.answer("b") == alone and second.from_tier == len(PROMPT) // 16 * 16
    counts = second.close()
    assert counts["fetched"] == 8 and not counts.get("bad") and not counts.get("failures")


@pytest.mark.parametrize("rounds", [8, pytest.param(8_500, marks=[pytest.mark.night, pytest.mark.timeout(3_600)])])
def test_a_poisoned_server_changes_no_token(redis_server: RedisProcess, rounds: int) -> None:
    url = redis_server.url
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


@pytest.mark.parametrize("url", ["http://x", "redis://10.0.0.1:6379", "rediss://:secret@host", "rediss://host?password=secret", "redis://"])
def test_addresses_that_are_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        tier(url)
