"""Malformed requests to a router: what is wrong with them is answered as a server would, quickly, and nothing is left behind. What its
short way takes, the server's parser reads alike, and the guard lets in."""

import json
import random
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import httptools
import pytest
from hostile import Tally, send_all
from malformed import Malformed
from processes import ServerProcess

from ridgeline.core.routing import ROUTING
from ridgeline.router.attempts import Hedge
from ridgeline.router.metrics import RouterMetrics
from ridgeline.router.prompts import NO_SESSIONS
from ridgeline.router.proxy import Proxy
from ridgeline.router.replicas import Replicas
from ridgeline.router.roster import Named
from ridgeline.router.short_way import ShortWay
from ridgeline.router.upstream import HOP_BY_HOP
from ridgeline.server.auth import AccessGuard
from ridgeline.server.errors import ApiError
from ridgeline.server.keys import ApiKeys

FAKE = 'fake:{"blocks": 300, "max_model_len": 192, "windows": [0, 32], "vocab": 258, "script": [["@@", "x"]]}'
MAX_GROWTH_MB = 24.0
ADMIN = "key-of-an-admin"
KEY = b"key-of-a-client"
NIGHT = [pytest.mark.night, pytest.mark.timeout(1_800)]


@pytest.fixture
def keys(tmp_path: Path) -> str:
    """A file of keys, of two tenants."""
    path = tmp_path / "keys"
    path.write_text(f"admin {ADMIN} scope=admin\nclient {KEY.decode()} tenant=one\n")
    path.chmod(0o600)
    return str(path)


@pytest.fixture
def router(environment: dict[str, str], tmp_path: Path, keys: str, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    """In front of one server, with a key for both, and keys of clients or none."""
    shared = ["--router-key-file", str(tmp_path / "key"), *(["--api-key-file", keys] if request.param else [])]
    server = ServerProcess([FAKE, *shared], environment)
    try:
        started = ServerProcess(["--replica", server.url, *shared], environment, "route")
        yield started
        started.stop()
    finally:
        server.stop()


def open_requests(router: ServerProcess) -> int:
    connection = HTTPConnection(router.url.partition("://")[2], timeout=30)
    try:
        connection.request("GET", "/router", headers={"Authorization": f"Bearer {ADMIN}"})
        found: int = json.loads(connection.getresponse().read())["replicas"][0]["requests"]
        return found
    finally:
        connection.close()


def footprint(router: ServerProcess) -> tuple[float, int]:
    """(resident MB, open requests) of the router."""
    end = time.monotonic() + 10
    while (requests := open_requests(router)) and time.monotonic() < end:
        time.sleep(0.05)
    return int(Path(f"/proc/{router.process.pid}/statm").read_text().split()[1]) * 4_096 / 1e6, requests


@pytest.mark.parametrize(
    ("router", "total"), [(True, 1_000), *(pytest.param(is_keyed, 100_000, marks=NIGHT) for is_keyed in (False, True))],
    indirect=["router"], ids=["with keys", "without, by night", "with keys, by night"],
)  # fmt: skip
def test_malformed_requests_to_a_router(router: ServerProcess, total: int) -> None:
    tallies, found = list[Tally](), list[tuple[float, int]]()
    for numbers in (range(total // 2), range(total // 2, total)):
        tallies.append(send_all(router.url, 11, numbers, b"Bearer " + KEY))
        found.append(footprint(router))
    print([dict(sorted(each.statuses.items())) for each in tallies], f"slowest {max(each.slowest for each in tallies):.2f} s", found)
    assert not any(each.problems for each in tallies), [dict(list(each.problems.items())[:10]) for each in tallies]
    assert [requests for _, requests in found] == [0, 0] and found[1][0] - found[0][0] < MAX_GROWTH_MB
    assert all(each.statuses[200] > total / 40 and each.statuses[400] > total / 10 and each.streams for each in tallies)
    assert "Traceback" not in router.output(), router.output()[-2_000:]


# ── what the short way reads ────────────────────────────────────────────────────────────────────────────────────────

CREDENTIALS = (
    b"Bearer " + KEY, b"Bearer " + KEY, b"bearer   " + KEY, b"Bearer " + KEY[:-1], b"Bearer " + KEY + b"\x0b", b"Basic " + KEY, b"",
    b"Bearer " + KEY + b"\r\nAuthorization: Bearer x", b"Bearer x\r\nX-Api-Key: " + KEY, b"x\r\nX-Ridgeline-Router: " + b"0" * 64,
)  # fmt: skip
INSERTED = (
    b"\r\n",
    b"\n",
    b"\r",
    b"\0",
    b" ",
    b"\t",
    b":",
    b"\xff",
    b"Content-Length: 1\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"HTTP/1.1",
)


class Parsed:
    """A request as the server's parser reads it. Raises HttpParserError."""

    def __init__(self, data: bytes) -> None:
        self.headers, self.body, self.path, self.is_whole = list[tuple[bytes, bytes]](), b"", b"", False
        self.parser = httptools.HttpRequestParser(self)
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.is_whole = True


@pytest.mark.parametrize("total", [2_000, pytest.param(100_000, marks=NIGHT)])
def test_the_short_way_takes_what_the_parser_and_the_guard_take(keys: str, total: int) -> None:
    replicas, metrics, hedge = Replicas([Named("http://127.0.0.1:1")], ROUTING["least-requests"]), RouterMetrics(), Hedge(None)
    proxy = Proxy(replicas, metrics, bytes(32))
    guard = AccessGuard(proxy, "127.0.0.1", ApiKeys(None, keys), frozenset())
    way = ShortWay(proxy, guard, replicas, metrics, bytes(32), NO_SESSIONS, hedge)
    makers, dice, taken, refused = [Malformed(21, each) for each in CREDENTIALS], random.Random(21), 0, 0
    for number in range(total):
        data = dice.choice(makers).request(number).data
        if dice.random() < 0.3:
            at, end = dice.randrange(max(1, data.find(b"\r\n\r\n"))), dice.choice((0, 0, 1, 3))
            data = data[:at] + dice.choice(INSERTED) + data[at + end :]
        if (read := way.read(data)) is None:
            refused += 1
            continue
        taken += 1
        head, begin, end = read
        found = Parsed(data[:end])
        assert found.parser.get_method() == b"POST" and found.path == head.row.path.encode() and found.parser.should_keep_alive(), data
        assert len(data) < end or (found.is_whole and found.body == data[begin:end]), data
        caller = guard.caller({"method": "POST", "path": head.row.path, "headers": found.headers})
        assert not isinstance(caller, ApiError) and caller.tenant.encode() == head.tenant == b"one", data
        names = [line.partition(b":")[0].lower() for line in head.passed.split(b"\r\n") if line]
        assert HOP_BY_HOP.isdisjoint(names) and len(names) == len(set(names)), data
    print(f"{taken} of {total} went the short way")
    assert taken > total / 20 and refused > total / 20
