"""Expiries by worth: what a server that evicts what expires next loses."""

from pathlib import Path
from random import Random

import pytest
import redis
from evictions import chain, hits, name
from redis_server import PASSWORD, open_redis

from ridgeline.engine.tiers.lifetimes import FORGETTING_SECONDS, KEPT_SECONDS, LEVEL, Lifetimes
from ridgeline.engine.tiers.redis import PREFIX, RedisTier
from ridgeline.engine.tiers.worth import Place

VALUE = bytes(1 << 16)


class Clock:
    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class Server:
    """One that evicts what expires next of so many that it looks at."""

    def __init__(self, lifetimes: Lifetimes, clock: Clock, samples: int = 10) -> None:
        self.lifetimes, self.clock = lifetimes, clock
        self.expiries: dict[bytes, int] = {}
        self._samples, self._random = samples, Random(1)
        self._names: list[bytes] = []
        self._at: dict[bytes, int] = {}

    def enter(self, key: bytes, place: Place) -> None:
        self._at[key] = len(self._names)
        self._names.append(key)
        self.expiries[key] = 0
        self.told(key, place)

    def told(self, key: bytes, place: Place) -> None:
        for each, expiry in self.lifetimes.enter(key, place):
            if each in self.expiries:
                self.expiries[each] = max(expiry, self.expiries[each])

    def use(self, key: bytes) -> None:
        self.expiries[key] = max(self.expiries[key], self.lifetimes.use(self.expiries[key]))

    def evict(self) -> bytes:
        some = self._random.sample(self._names, min(len(self._names), self._samples))
        key = min(some, key=lambda each: self.expiries[each])
        at, last = self._at.pop(key), self._names.pop()
        if last != key:
            self._names[at], self._at[last] = last, at
        del self.expiries[key]
        return key


class Recent(Server):
    """The same by last use, as `allkeys-lru` does."""

    _uses = 0

    def told(self, key: bytes, place: Place) -> None:
        self.use(key)

    def use(self, key: bytes) -> None:
        self._uses += 1
        self.expiries[key] = self._uses


def test_a_prompt_loses_its_end_first_however_long_it_took() -> None:
    clock = Clock()
    server = Server(Lifetimes(1_000.0, clock), clock, samples=100)
    for number, (key, place) in enumerate(chain(1, 60)):
        clock.now += 30 * number
        server.enter(key, place)
        order = sorted(server.expiries, key=lambda each: server.expiries[each], reverse=True)
        assert order == [name(at) for at in range(1, number + 2)]
    for key in [name(at) for at in range(1, 31)]:
        server.use(key)
    assert [server.evict() for _ in range(60)] == [name(at) for at in range(60, 0, -1)]


def test_expiries_tell_uses_age_and_price() -> None:
    clock = Clock()
    lifetimes, unit = Lifetimes(1_000.0, clock), 1_000 * FORGETTING_SECONDS
    (_, first), *none = lifetimes.enter(name(1), Place())
    assert not none and 0 <= first - 1_000 * (clock.now + KEPT_SECONDS) <= LEVEL
    assert lifetimes.use(first) - first == pytest.approx(0.69 * unit, abs=LEVEL), "twice used: worth twice as much"
    assert lifetimes.enter(name(2), Place(b"", 1_000))[0][1] - first == pytest.approx(0.69 * unit, abs=LEVEL + 1_000), "and twice as dear"
    clock.now += 10 * FORGETTING_SECONDS
    assert lifetimes.use(first) - first == pytest.approx(10 * unit, abs=2 * LEVEL), "a use ten times as long ago says nothing"


def test_a_server_evicts_the_ends_of_what_is_asked_for_least(tmp_path: Path) -> None:
    """A real one, which looks at most of what it has."""
    options = ["--port", "0", "--unixsocket", str(tmp_path / "socket"), "--maxmemory-policy", "volatile-ttl", "--maxmemory-samples", "64"]
    with open_redis(tmp_path, f"unix://{tmp_path}/socket", options, (tmp_path / "socket").exists) as server:
        client = redis.Redis.from_url(server.url, password=PASSWORD)
        tier = RedisTier(server.url, PASSWORD)
        asked, once, later = chain(1, 16), chain(100, 16), chain(200, 16)
        for key, place in (*asked, *once):
            tier.put(key, VALUE, place)
        used = client.info("memory")["used_memory"]
        for _ in range(3):
            assert all(tier.get([key for key, _ in asked], 1.0, len(VALUE)))
        assert all(tier.has([key for key, _ in asked]))
        client.config_set("maxmemory", used + 4 * len(VALUE))
        for key, place in later:
            tier.put(key, VALUE, place)
        there = {kind: tier.has([key for key, _ in values]) for kind, values in (("asked", asked), ("once", once), ("later", later))}
        tier.close()
        assert all(there["asked"]) and 4 <= sum(there["once"]) + sum(there["later"]) < 24, there
        assert all(0 < client.pttl(PREFIX + key) < 2_000 * KEPT_SECONDS for key, _ in asked), "nothing stays for ever"
        for values in (there["once"], there["later"][:-1]):  # whatever the last one made room of
            assert values == sorted(values, reverse=True), "of a prompt the end goes first"


@pytest.mark.parametrize("capacity", [400, 1_000, 2_000, 4_000])
def test_expiries_keep_more_than_last_uses(capacity: int) -> None:
    """Where a server looks at ten values for each that it evicts, as far as it can."""
    found = []
    for kind in (Server, Recent):
        clock = Clock()
        rule = kind(Lifetimes(24_000.0, clock), clock)
        found.append(hits(rule, capacity, 200, 24_000.0, lambda time, clock=clock: setattr(clock, "now", Clock.now + 100 * time))[0])
    print(f"{capacity} blocks: {found[0]:.3f} of the prompts' blocks by expiry, {found[1]:.3f} by last use")
    assert found[0] > found[1]
