"""Limits on connections: who makes room for whom. Without sockets; `tests/trials/test_http.py` has the real ones."""

from typing import Any, cast

import pytest

from ridgeline.errors import ConfigError
from ridgeline.server import listener
from ridgeline.server.connection import HttpConnection
from ridgeline.server.listener import SPARE_CONNECTIONS, Connections, Room, connection_limit
from ridgeline.server.transport import address_of


class Loop:
    now = 0.0

    def time(self) -> float:
        return self.now


class Connection:
    """What a table knows of a connection."""

    def __init__(self, table: Connections, address: bytes, loop: Loop) -> None:
        self.address, self.loop, self._table = address, loop, table
        self.is_dropped = self.has_timed_out = False
        table.add(cast(HttpConnection, self))

    def work(self) -> None:
        self._table.await_server(cast(HttpConnection, self))

    def rest(self, seconds: float = 75.0) -> None:
        self._table.await_client(cast(HttpConnection, self), seconds)

    def drop(self) -> None:
        self.is_dropped = True

    def time_out(self) -> None:
        self.has_timed_out = True


class Site:
    """A table with a clock."""

    def __init__(self, limit: int, per_client: int) -> None:
        self.table, self.loop = Connections(limit, per_client, 10.0), Loop()

    def connect(self, address: bytes = b"a", after: float = 1.0) -> tuple[Room, Connection | None]:
        self.loop.now += after
        room = self.table.make_room(address, self.loop.now)
        return room, Connection(self.table, address, self.loop) if room in (Room.FREE, Room.PROBES) else None

    def fill(self, count: int, address: bytes = b"a") -> list[Connection]:
        made = [self.connect(address)[1] for _ in range(count)]
        return [each for each in made if each is not None]


def test_a_new_connection_takes_the_place_of_the_one_that_owes_longest() -> None:
    site = Site(3, 3)
    first, second, third = site.fill(3)
    first.work()
    first.rest()  # has just been answered
    room, _ = site.connect()
    assert room is Room.FREE and [each.is_dropped for each in (first, second, third)] == [False, True, False]


def test_who_is_at_work_is_not_closed_and_the_next_are_crowded() -> None:
    site = Site(2, 2)
    for each in site.fill(2):
        each.work()
    rooms = []
    for _ in range(SPARE_CONNECTIONS + 1):
        room, made = site.connect()
        rooms.append(room)
        if made is not None:
            made.work()
    assert rooms == [Room.PROBES] * SPARE_CONNECTIONS + [Room.NONE]


def test_a_crowded_connection_that_rests_makes_room_for_another_crowded_one() -> None:
    site = Site(2, 2)
    for each in site.fill(2):
        each.work()
    _, crowded = site.connect()
    assert crowded is not None and site.connect()[0] is Room.PROBES and crowded.is_dropped


def test_nobody_is_closed_before_it_had_a_chance_to_send() -> None:
    site = Site(2, 2)
    young = site.fill(2)
    assert site.connect(after=-0.95)[0] is Room.LATER and not young[0].is_dropped
    assert site.connect(after=0.1)[0] is Room.FREE and young[0].is_dropped


def test_an_address_at_its_limit_displaces_its_own() -> None:
    site = Site(10, 2)
    [other] = site.fill(1, b"b")
    mine = site.fill(2)
    assert site.connect()[0] is Room.FREE and mine[0].is_dropped and not other.is_dropped
    for each in mine:
        each.work()
    assert site.connect(b"b")[0] is Room.FREE


def test_at_the_limit_the_address_with_most_connections_pays() -> None:
    site = Site(4, 4)
    [early] = site.fill(1, b"b")
    many = site.fill(3)
    assert site.connect(b"c")[0] is Room.FREE and many[0].is_dropped and not early.is_dropped


def test_what_is_closed_is_forgotten() -> None:
    site = Site(2, 2)
    for _ in range(10):
        for each in site.fill(2):
            site.table.remove(cast(HttpConnection, each))
            site.table.remove(cast(HttpConnection, each))
            each.rest()
    site.loop.now = 1e9
    site.table.check(site.loop.now)
    assert not any(each.is_dropped or each.has_timed_out for each in site.fill(2))


def test_deadlines() -> None:
    site = Site(9, 9)
    head, idle, busy = (Connection(site.table, b"a", site.loop) for _ in range(3))
    idle.rest(75.0)
    busy.work()
    site.table.check(9.9)
    assert not head.has_timed_out
    site.table.check(10.0)
    assert head.has_timed_out and not idle.has_timed_out
    site.table.check(1e9)
    assert idle.has_timed_out and not busy.has_timed_out


def test_a_line_about_limits_at_most_every_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    site = Site(1, 1)
    with caplog.at_level("WARNING", "ridgeline"):
        for second in range(25):
            site.connect()
            site.table.check(second)
    assert len(caplog.records) == 3
    assert sum(each.__dict__["fields"]["closed"] for each in caplog.records) == 21


@pytest.mark.parametrize(("soft", "hard", "expected", "raised"), [
    (200, 200, 200 - 122, 200), (1024, 524_288, 4096, 4096 + 122), (1024, 2048, 2048 - 122, 2048), (1 << 20, 1 << 20, 4096, None),
])  # fmt: skip
def test_files_are_left_for_everything_else(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, expected: int, raised: int | None
) -> None:
    import resource

    given: list[Any] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: given.append(limits))
    monkeypatch.setattr(listener.os, "listdir", lambda path: [""] * 10)
    assert connection_limit(4096) == expected
    assert given == ([] if raised is None else [(raised, hard)])


def test_too_few_files_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda which: (64, 64))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: None)
    with pytest.raises(ConfigError, match="at most 64 files may be open"):
        connection_limit(4096)


def test_an_ipv6_client_is_its_network() -> None:
    assert address_of("2001:db8:1:2:3::4") == address_of("2001:db8:1:2::9") != address_of("2001:db8:1:3::9")
    assert address_of("::ffff:1.2.3.4") != address_of("::ffff:1.2.3.5")
    assert address_of("fe80::1%eth0") == address_of("fe80::2")
