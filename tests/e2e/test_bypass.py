"""Nothing that needs a key is answered without one: routes of the table × methods × spellings × credentials × headers that proxies trust,
as bytes over real sockets, to a server and to a router in front of one. A new row of the table is covered by itself."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hostile import Answer, read_answer
from processes import ServerProcess

from ridgeline.server.routers import BLOCKS_PATH
from ridgeline.server.routes import PUBLIC, ROWS

KEY = b"open-sesame"
SAMPLE = 900
PATHS = sorted({row.path.replace("{name:path}", "fake").replace("{id}", "resp_" + "0" * 32) for row in ROWS} | {"/router"})
"""Those of the table, and what a router has beside it."""
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "QUERY", "get")
SPELLINGS: tuple[Callable[[str], str], ...] = (
    lambda path: path,
    lambda path: f"{path}/",
    lambda path: f"/{path}",
    lambda path: f"/.{path}",
    lambda path: f"/x/..{path}",
    lambda path: f"/livez/..{path}",
    lambda path: f"/livez/%2e%2e{path}",
    lambda path: f"/livez%2f..{path}",
    lambda path: f"/livez;{path}",
    lambda path: f"/livez%00{path}",
    lambda path: f"/livez?{path}",
    lambda path: f"/livez%3f{path}",
    lambda path: f"{path}?key=open-sesame&api_key=open-sesame",
    lambda path: f"{path}%2f",
    lambda path: f"{path};a=b",
    lambda path: f"{path}%00",
    lambda path: f"{path}%20",
    lambda path: f"{path}/../livez",
    lambda path: f"{path}%2f..%2f..%2flivez",
    lambda path: f"{path}#/livez",
    lambda path: f"http://localhost{path}",
    lambda path: f"http://evil.example{path}",
    lambda path: f"//livez{path}",
    lambda path: f"\\livez\\..{path}",
    lambda path: path.upper(),
    lambda path: path[:1] + "".join(f"%{ord(letter):02x}" for letter in path[1:]),
    lambda path: path.replace("/", "%2F"),
    lambda path: path.replace("/", "//"),
    lambda path: path.replace("/", "/./"),
    lambda path: path.replace("v1", "v%31"),
)
BEARER = b"Authorization: Bearer "
WRONG: tuple[tuple[bytes, ...], ...] = (
    (), (BEARER + b"wrong",), (b"Authorization: " + KEY,), (b"Authorization: Basic " + KEY,), (b"Authorization: Bearer",), (BEARER + b" ",),
    (BEARER + KEY + b"x",), (BEARER + KEY[:-1],), (BEARER + KEY.upper(),), (BEARER + b"\xe9",),
    (BEARER + b"a" * 9_000,), (BEARER + KEY + b", Bearer " + KEY,), (BEARER + b"Bearer " + KEY,), (b"bearer: " + KEY,), (b"X-Api-Key:",),
    (b"X-Api-Key: " + KEY + b"x",), (b"X-Api-Key: Bearer " + KEY,), (b"Api-Key: null",),
    (b"Cookie: key=" + KEY,), (b"Proxy-Authorization: Bearer " + KEY,),
    (BEARER + b"wrong", BEARER + KEY), (b"X-Api-Key: wrong", b"X-Api-Key: " + KEY), (BEARER + KEY, BEARER + KEY),
    (b"X_Api_Key: " + KEY,), (BEARER + b"sha256:" + sha256(KEY).hexdigest().encode(),), (b"Authorization: Digest Bearer " + KEY,),
    (b"Authorization: Bearer\x0b" + KEY,), (b"X-Forwarded-User: root",),
)  # fmt: skip
RIGHT: tuple[tuple[bytes, ...], ...] = (
    (BEARER + KEY,), (b"authorization: bearer " + KEY,), (b"AUTHORIZATION: BEARER   " + KEY + b"  ",), (b"X-Api-Key: " + KEY,),
    (b"api-key: " + KEY,), (BEARER + b"wrong", b"x-api-key: " + KEY),
)  # fmt: skip
HEADERS: tuple[tuple[bytes, ...], ...] = (
    (), (b"X-HTTP-Method-Override: GET",), (b"X-Original-URL: /livez",), (b"X-Rewrite-URL: /livez", b"X-Original-Method: GET"),
    (b"X-Forwarded-For: 127.0.0.1", b"X-Real-IP: 127.0.0.1", b"Forwarded: for=127.0.0.1"), (b"X-Forwarded-Prefix: /livez",),
    (b"Origin: http://localhost",), (b"Host: localhost/livez",),
    (b"anthropic-version: 2023-06-01",), (b"Referer: http://localhost/", b"Sec-Fetch-Site: same-origin"),
)  # fmt: skip
VERSIONS = (b"HTTP/1.1", b"HTTP/1.0")
Knock = tuple[str, str, tuple[bytes, ...], tuple[bytes, ...], bytes]


def knocks(credentials: tuple[tuple[bytes, ...], ...], count: int, seed: int) -> list[Knock]:
    """So many combinations of method, target, credentials, further headers and version, the same of each path."""
    rng = random.Random(seed)
    return [
        (rng.choice(METHODS), rng.choice(SPELLINGS)(path), rng.choice(credentials), rng.choice(HEADERS), rng.choice(VERSIONS))
        for path in (PATHS[at % len(PATHS)] for at in range(count))
    ]


async def knock(address: tuple[str, int], each: Knock) -> Answer | None:
    """The answer; None where there is none."""
    method, target, credentials, headers, version = each
    hosts = () if any(line.startswith(b"Host:") for line in headers) else (b"Host: localhost",)
    reader, writer = await asyncio.open_connection(*address)
    try:
        head = b"%s %s %s" % (method.encode(), target.encode(), version)
        writer.write(b"\r\n".join((head, *hosts, *credentials, *headers, b"Content-Length: 2", b"Connection: close")) + b"\r\n\r\n{}")
        async with asyncio.timeout(10):
            return await read_answer(reader, method == "HEAD")
    except (OSError, asyncio.IncompleteReadError):
        return None
    finally:
        writer.transport.abort()


async def knock_all(address: tuple[str, int], wanted: list[Knock], check: Callable[[Knock, Answer], None]) -> Counter[int]:
    statuses: Counter[int] = Counter()
    left: Iterator[Knock] = iter(wanted)

    async def work() -> None:
        for each in left:
            if (answer := await knock(address, each)) is not None:
                statuses[answer.status] += 1
                check(each, answer)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(16):
            tasks.create_task(work())
    return statuses


async def run(url: str, count: int) -> None:
    address = (urlsplit(url).hostname or "", urlsplit(url).port or 0)
    open_bodies = set()
    for method, path in PUBLIC:
        answer = await knock(address, (method, path, (), (), VERSIONS[0]))
        assert answer is not None and answer.status == (403 if path == BLOCKS_PATH else 200), path  # which has a key of its own
        open_bodies.add(answer.body)

    def refused(each: Knock, answer: Answer) -> None:
        """What is given without a key is what public routes give, and an error says nothing of what there is."""
        if answer.status == 200:
            assert answer.body in open_bodies, (each, answer)
        else:
            assert answer.status in (400, 401, 403, 431), (each, answer)
            assert KEY not in answer.body and b"This server has" not in answer.body, (each, answer)

    def taken(each: Knock, answer: Answer) -> None:
        assert answer.status != 401 and answer.status < 500, (each, answer)

    wrong, right = knocks(WRONG, count, 1), knocks(RIGHT, count // 5, 2)
    statuses = await knock_all(address, wrong, refused), await knock_all(address, right, taken)
    print(f"{len(wrong)} without the key: {dict(statuses[0])}; {len(right)} with it: {dict(statuses[1])}")
    assert statuses[0][401] > len(wrong) / 3 and statuses[0][200] and statuses[1][200]


@contextmanager
def site(serving: Any, environment: dict[str, str], folder: Path, verb: str) -> Iterator[str]:
    """The address of a server with the key, or of a router in front of one."""
    keys = folder / "keys"
    keys.write_bytes(KEY + b"\n")
    keys.chmod(0o600)
    shared = ["--api-key-file", str(keys), "--router-key-file", str(folder / "router-key")]
    with serving("fake:{}", *shared) as server:
        if verb == "serve":
            yield server.url
            return
        router = ServerProcess(["--replica", server.url, *shared], environment, verb)
        try:
            yield router.url
        finally:
            router.stop()


@pytest.mark.parametrize("verb", ["serve", "route"])
def test_a_sample_of_all_combinations(serving: Any, environment: dict[str, str], tmp_path: Path, verb: str) -> None:
    with site(serving, environment, tmp_path, verb) as url:
        asyncio.run(run(url, SAMPLE))


@pytest.mark.night
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("verb", ["serve", "route"])
def test_a_hundred_thousand_combinations(serving: Any, environment: dict[str, str], tmp_path: Path, verb: str) -> None:
    with site(serving, environment, tmp_path, verb) as url:
        asyncio.run(run(url, 100_000))
