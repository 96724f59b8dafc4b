"""Stores of answers: who finds what, what goes when, what is left on a disk, and what is no record."""

import asyncio
import json
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from redis_server import PASSWORD, RedisProcess

from ridgeline.config.groups import EngineConfig, ServerConfig
from ridgeline.errors import ConfigError
from ridgeline.server import response_store
from ridgeline.server.errors import ApiError
from ridgeline.server.redis_store import PREFIX, RedisStore
from ridgeline.server.response_store import RECORD_OVERHEAD, Bounds, FileStore, MemoryStore, open_store

ADA, BOB = b"a" * 32, b"b" * 32
Make = Callable[..., Any]


def name(at: int) -> str:
    return f"resp_{at:032x}"


class Clock:
    """What the stores take for now, in seconds since 1970."""

    def __init__(self) -> None:
        self.now = float(os.stat(__file__).st_atime_ns // 10**9) + 10**6

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """One clock for stores and for the ages of files."""
    clock = Clock()
    rename = os.rename

    def at_now(source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        os.utime(source, (clock.now, clock.now), dir_fd=src_dir_fd)
        rename(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(response_store.os, "rename", at_now)
    return clock


@pytest.fixture(params=["memory", "file", "redis"])
def make(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock, redis_server: RedisProcess) -> Make:
    def make(size: int = 1 << 20, seconds: float = 60.0) -> Any:
        bounds = Bounds(size, seconds, clock)
        if request.param == "redis":
            redis.Redis.from_url(redis_server.url, password=PASSWORD).flushall()
            return RedisStore(redis_server.url, PASSWORD, bounds)
        return MemoryStore(bounds) if request.param == "memory" else FileStore(tmp_path / "answers", bounds)

    return make


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_each_key_has_its_own(make: Make) -> None:
    async def run() -> None:
        store = make()
        await store.put(ADA, name(1), b"one")
        await store.put(b"", name(2), b"two")
        assert await store.get(ADA, name(1)) == b"one" and await store.get(b"", name(2)) == b"two"
        for owner in (BOB, b""):
            assert await store.get(owner, name(1)) is None and not await store.delete(owner, name(1))
        await store.put(ADA, name(1), b"other")
        assert await store.get(ADA, name(1)) == b"other"
        assert await store.delete(ADA, name(1)) and await store.get(ADA, name(1)) is None and not await store.delete(ADA, name(1))
        for wrong in ("", "resp_1", "../../etc/passwd", name(2) + "/", name(2).upper(), "resp_" + "é" * 32):
            assert await store.get(b"", wrong) is None and not await store.delete(b"", wrong)
        assert await store.get(b"", name(2)) == b"two"

    asyncio.run(run())


def test_bytes_are_bounded_for_each_key(make: Make, tmp_path: Path) -> None:
    async def run() -> None:
        store = make(size=3 * (1_000 + RECORD_OVERHEAD))
        await store.put(BOB, name(0), bytes(1_000))
        for at in range(1, 6):
            await store.put(ADA, name(at), bytes(1_000))
        assert [at for at in range(1, 6) if await store.get(ADA, name(at)) is not None] == [3, 4, 5]
        assert await store.get(BOB, name(0)) is not None, "one key's answers never make room for another's"
        await store.put(ADA, name(4), bytes(9_000))
        assert [at for at in range(1, 6) if await store.get(ADA, name(at)) is not None] == [3, 5], "what never fits is not stored"
        assert len(files(tmp_path)) in (0, 3)

    asyncio.run(run())


def test_age_is_bounded(make: Make, clock: Clock, tmp_path: Path) -> None:
    async def run() -> None:
        store = make(seconds=60)
        await store.put(ADA, name(1), b"one")
        clock.now += 59
        await store.put(BOB, name(2), b"two")
        assert await store.get(ADA, name(1)) == b"one"
        clock.now += 2
        assert await store.get(ADA, name(1)) is None and await store.get(BOB, name(2)) == b"two"
        await store.put(BOB, name(3), b"three")
        if not isinstance(store, RedisStore):
            assert not store._index.remove(ADA, name(1)) and len(files(tmp_path)) in (0, 2), "it is not only hidden"

    asyncio.run(run())


def test_what_nobody_asks_for_goes_too(make: Make, clock: Clock, tmp_path: Path) -> None:
    async def run() -> None:
        store = make(seconds=0.5)
        if isinstance(store, RedisStore):
            return  # see below: its server does that by its own clock
        await store.put(ADA, name(1), b"one")
        clock.now += 1
        for _ in range(100):
            await asyncio.sleep(0.02)
            if store._index.is_empty and not getattr(store, "_records", None) and not files(tmp_path):
                return
        raise AssertionError("it is still there")

    asyncio.run(run())


def test_a_hundred_at_once(make: Make) -> None:
    async def run() -> None:
        store = make(size=200 * (4_000 + RECORD_OVERHEAD))

        async def one(at: int) -> None:
            owner, record = (ADA, BOB)[at % 2], b"%d" % at * 1_000
            await store.put(owner, name(at), record)
            assert await store.get(owner, name(at)) == record
            if at % 3 == 0:
                assert await store.delete(owner, name(at))

        await asyncio.gather(*map(one, range(100)))
        left = [at for at in range(100) if await store.get((ADA, BOB)[at % 2], name(at)) is not None]
        assert left == [at for at in range(100) if at % 3]

    asyncio.run(run())


def test_files_survive_a_restart(tmp_path: Path, clock: Clock) -> None:
    bounds = Bounds(3 * (1_000 + RECORD_OVERHEAD), 60, clock)

    async def write() -> None:
        store = FileStore(tmp_path / "new" / "answers", bounds)
        for at in range(3):
            await store.put(ADA, name(at), bytes([at]) * 1_000)
            clock.now += 10
        await store.put(b"", name(9), b"nine")

    async def read() -> None:
        store = FileStore(tmp_path / "new" / "answers", bounds)
        assert [await store.get(ADA, name(at)) for at in range(3)] == [bytes([at]) * 1_000 for at in range(3)]
        await store.put(ADA, name(3), bytes(1_000))
        assert await store.get(ADA, name(0)) is None and await store.get(ADA, name(1)) is not None, "what was there counts"

    asyncio.run(write())
    folder = tmp_path / "new" / "answers"
    modes = {stat.S_IMODE(path.stat().st_mode) for path in [folder, *folder.iterdir()]}
    assert modes == {0o700} and {stat.S_IMODE(path.stat().st_mode) for path in files(folder)} == {0o600}
    assert ADA.hex() in os.listdir(folder) and len(files(folder)) == 4
    half = folder / ADA.hex() / f".{name(7)}.aaaa"
    half.write_bytes(b"half")
    (folder / "notes.txt").write_bytes(b"mine")
    asyncio.run(read())
    assert not half.exists() and (folder / "notes.txt").exists()
    clock.now += 45
    asyncio.run(FileStore(folder, bounds).get(ADA, name(1)))
    assert not (folder / ADA.hex() / f"{name(1)}.json").exists(), "too old ones go at the start"


def test_two_servers_share_a_folder(tmp_path: Path, clock: Clock) -> None:
    async def run() -> None:
        first, second = (FileStore(tmp_path / "answers", Bounds(1 << 20, 60, clock)) for _ in "ab")
        await first.put(ADA, name(1), b"one")
        assert await second.get(ADA, name(1)) == b"one" and await second.get(BOB, name(1)) is None
        assert await second.delete(ADA, name(1)) and await first.get(ADA, name(1)) is None and not await first.delete(ADA, name(1))

    asyncio.run(run())


def test_no_link_is_followed(tmp_path: Path, clock: Clock) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    folder, bounds = tmp_path / "answers", Bounds(1 << 20, 10**9, clock)

    async def run() -> None:
        store = FileStore(folder, bounds)
        await store.put(ADA, name(1), b"one")
        (folder / ADA.hex() / f"{name(2)}.json").symlink_to(secret)
        os.mkfifo(folder / ADA.hex() / f"{name(3)}.json", 0o600)
        (folder / BOB.hex()).symlink_to(folder / ADA.hex())
        assert await store.get(ADA, name(2)) is None and await store.get(ADA, name(3)) is None and await store.get(BOB, name(1)) is None
        await store.put(BOB, name(4), b"four")
        assert await store.get(BOB, name(4)) is None and not (folder / ADA.hex() / f"{name(4)}.json").exists()
        await store.put(ADA, name(2), b"two")
        assert await store.get(ADA, name(2)) == b"two" and secret.read_bytes() == b"secret"

    asyncio.run(run())
    link = tmp_path / "link"
    link.symlink_to(folder)
    with pytest.raises(ConfigError, match="cannot be used"):
        FileStore(link, bounds)


def test_folders_that_others_may_read_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "answers"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    with pytest.raises(ConfigError, match=r"0755.*chmod 700"):
        open_store(ServerConfig(response_store="file", response_store_dir=str(folder)))
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="cannot be used"):
        open_store(ServerConfig(response_store="file", response_store_dir=str(tmp_path / "file")))
    assert open_store(ServerConfig(response_store="none")) is None and isinstance(open_store(ServerConfig()), MemoryStore)


def test_a_record_is_whole_or_not_there(tmp_path: Path, clock: Clock) -> None:
    """Readers beside a writer that replaces a record never see a part of one."""
    folder, bounds = tmp_path / "answers", Bounds(1 << 24, 10**9, clock)
    ended, seen = threading.Event(), set[int]()

    async def write() -> None:
        store = FileStore(folder, bounds)
        for at in range(40):
            await store.put(ADA, name(1), bytes([at]) * 50_000)
        ended.set()

    def read() -> None:
        file = folder / ADA.hex() / f"{name(1)}.json"
        while not ended.is_set():
            if file.exists():
                data = file.read_bytes()
                assert len(data) == 50_000 and len(set(data)) == 1
                seen.add(data[0])

    reader = threading.Thread(target=read)
    reader.start()
    asyncio.run(write())
    reader.join()
    assert len(seen) > 1


def test_a_disk_that_is_full_costs_the_record_alone(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    async def run() -> None:
        store = FileStore(tmp_path / "answers", Bounds(1 << 20, 10**9, clock))

        def full(*arguments: Any, **more: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(response_store.os, "rename", full)
        await store.put(ADA, name(1), b"one")
        assert await store.get(ADA, name(1)) is None and "No space left" in caplog.text and not files(tmp_path)

    asyncio.run(run())


def test_files_of_answers(new_site: Any, template: str, tmp_path: Path) -> None:
    folder = tmp_path / "answers"
    config = ServerConfig(chat_template=template, response_store="file", response_store_dir=str(folder))
    site = new_site(EngineConfig('fake:{"vocab": 258}'), config)
    asked = {"input": "hi", "max_output_tokens": 3}
    for more in ({}, {"stream": True}):
        assert site.request("POST", "/v1/responses", json={**asked, **more, "store": False}).status_code == 200
    assert files(folder) == [], "store: false leaves nothing"
    first, second = (site.request("POST", "/v1/responses", json=asked).json()["id"] for _ in "ab")
    assert site.get(f"/v1/responses/{first}").status_code == 200
    (file,) = folder.rglob(f"{first}.json")
    whole = json.loads(file.read_bytes())
    wrong = [json.dumps({**whole, **more}).encode() for more in ({"input": 3}, {"response": {}})]
    for damaged in (b"", b"{", b"\xff" * 99, b"[]", b"[" * 99_999, *wrong):
        file.write_bytes(damaged)
        assert site.get(f"/v1/responses/{first}").status_code == 404
        assert site.request("DELETE", f"/v1/responses/{first}").status_code == 404
        chained = site.request("POST", "/v1/responses", json={**asked, "previous_response_id": first})
        assert chained.json()["error"]["code"] == "previous_response_not_found"
    file.write_bytes(next(folder.rglob(f"{second}.json")).read_bytes())
    assert site.get(f"/v1/responses/{first}").status_code == 404, "another's record is not this one's"
    started = json.loads(next(folder.rglob(f"{second}.json")).read_bytes())
    started["response"]["status"] = "in_progress"
    next(folder.rglob(f"{second}.json")).write_text(json.dumps(started))
    found = site.get(f"/v1/responses/{second}").json()
    assert found["status"] == "failed" and "ended" in found["error"]["message"]


# ── a server that several share ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def shared(redis_server: RedisProcess) -> Callable[..., RedisStore]:
    """Makes a store of a server of its own over the one Redis server, which is empty before."""
    redis.Redis.from_url(redis_server.url, password=PASSWORD).flushall()

    def make(size: int = 1 << 20, seconds: float = 60.0, password: str = PASSWORD) -> RedisStore:
        return RedisStore(redis_server.url, password, Bounds(size, seconds))

    return make


def test_servers_share_answers_and_their_bounds(shared: Callable[..., RedisStore]) -> None:
    async def run() -> None:
        first, second = (shared(3 * (1_000 + RECORD_OVERHEAD)) for _ in "ab")
        for at in range(1, 6):
            await (first, second)[at % 2].put(ADA, name(at), bytes(1_000))
        assert [at for at in range(1, 6) if await first.get(ADA, name(at)) is not None] == [3, 4, 5], "one bound for all servers"
        assert await second.delete(ADA, name(4)) and await first.get(ADA, name(4)) is None and not await first.delete(ADA, name(4))
        await first.lease([name(9)])
        assert await second.is_leased(name(9)) and not await second.is_leased(name(8))

    asyncio.run(run())


def test_nothing_stays_behind_its_age(shared: Callable[..., RedisStore], redis_server: RedisProcess) -> None:
    client = redis.Redis.from_url(redis_server.url, password=PASSWORD)
    asyncio.run(shared(seconds=0.2).put(ADA, name(1), b"one"))
    assert client.dbsize() == 3 and all(0 < client.pttl(key) <= 200 for key in client.keys("*"))


def test_an_index_that_the_server_has_evicted_bounds_again(shared: Callable[..., RedisStore], redis_server: RedisProcess) -> None:
    client = redis.Redis.from_url(redis_server.url, password=PASSWORD)

    async def run() -> None:
        store = shared(3 * (1_000 + RECORD_OVERHEAD))
        for at in range(1, 6):
            await store.put(ADA, name(at), bytes(1_000))
            if at == 2:
                client.delete(*(key for key in client.keys(f"{PREFIX}*") if key.endswith(b"sizes")))
        assert [at for at in range(3, 6) if await store.get(ADA, name(at)) is not None] == [3, 4, 5]

    asyncio.run(run())


def test_records_that_others_made_are_misses(shared: Callable[..., RedisStore], redis_server: RedisProcess) -> None:
    client = redis.Redis.from_url(redis_server.url, password=PASSWORD)

    async def run() -> None:
        store = shared(size=10_000)
        await store.put(ADA, name(1), b"one")
        (key,) = (each for each in client.keys("*") if each.endswith(name(1).encode()))
        for wrong in (b"", b"short", bytes(8), bytes(1 << 20), b"\xff" * 30):
            client.set(key, wrong)
            assert await store.get(ADA, name(1)) is None

    asyncio.run(run())


def test_a_server_that_is_not_there_stores_nothing_and_says_so(
    shared: Callable[..., RedisStore], redis_server: RedisProcess, tmp_path: Path, caplog: Any
) -> None:
    async def run(store: RedisStore) -> None:
        await store.put(ADA, name(1), b"one")
        for work in (store.get(ADA, name(1)), store.delete(ADA, name(1)), store.is_leased(name(1))):
            with pytest.raises(ApiError, match="does not answer now") as error:
                await work
            assert error.value.status == 503 and error.value.headers["Retry-After"]

    asyncio.run(run(RedisStore(f"unix://{tmp_path}/nothing", None, Bounds(1 << 20, 60))))
    asyncio.run(run(shared(password="another")))
    assert caplog.text.count("an answer is not stored") == 2 and "another" not in caplog.text


@pytest.mark.parametrize(
    "url", ["http://x", "redis://10.0.0.1:6379", "rediss://:secret@host", "rediss://host?password=secret", "redis://["]
)
def test_addresses_that_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="--response-store"):
        open_store(ServerConfig(response_store=url))
