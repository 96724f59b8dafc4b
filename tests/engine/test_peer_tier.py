"""Blocks of another engine over TCP: the same tokens, whatever listens there; nothing for who has not the secret."""

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from statistics import median

import pytest
from tiers import PROMPT, SECRET, STAMP_BYTES, Run, content, poison, shape

from ridgeline.config.peers import parse_listen, parse_peers
from ridgeline.engine.tiers.frames import CHALLENGE_BYTES, GET, HAS, HEAD, MAGIC, NONCE_BYTES, PROOF_BYTES, Session
from ridgeline.engine.tiers.peer import PeerTier
from ridgeline.engine.tiers.peer_server import MOST_STRANGERS, PeerServer
from ridgeline.engine.tiers.seal import Seal
from ridgeline.engine.tiers.shelf import Shelf
from ridgeline.errors import ConfigError

SIZE, LABEL = Seal(SECRET, shape()).value_bytes, Seal(SECRET, shape()).label


@pytest.fixture
def shelf() -> Shelf:
    return Shelf(SIZE, 64 * SIZE)


@pytest.fixture
def server(shelf: Shelf) -> Iterator[PeerServer]:
    found = PeerServer([shelf], SECRET, LABEL, "127.0.0.1", 0)
    yield found
    found.close()
    assert not found._thread.is_alive()


def tier(*ports: int, secret: bytes = SECRET, label: str = LABEL) -> PeerTier:
    return PeerTier([("127.0.0.1", port) for port in ports], secret, label)


def fill(shelf: Shelf, block_bytes: int = STAMP_BYTES) -> tuple[int, ...]:
    """An engine computes the prompt, and keeps it for others."""
    run = Run([shelf], block_bytes=block_bytes)
    shelf.close = lambda: None  # type: ignore[method-assign]
    alone = run.answer("a")
    run.close()
    return alone


@contextmanager
def listening(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """Something that listens, and is no engine of ours."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    opened, _ = listener.accept()
                    with opened, suppress(OSError):
                        answer(opened)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def meet(port: int, secret: bytes = SECRET) -> tuple[socket.socket, Session]:
    """A connection that has proved what it can."""
    opened = socket.create_connection(("127.0.0.1", port), timeout=10)
    challenge = opened.recv(CHALLENGE_BYTES, socket.MSG_WAITALL)
    session = Session(secret, challenge, bytes(NONCE_BYTES))
    opened.sendall(bytes(NONCE_BYTES) + session.hello)
    return opened, session


def test_an_engine_finds_what_another_has_computed(shelf: Shelf, server: PeerServer) -> None:
    alone = fill(shelf)
    run = Run([tier(server.port)], seconds=0.05)
    assert run.answer("b") == alone and run.from_tier == len(PROMPT) // 16 * 16
    assert run.close() == {"fetched": 8, "kept": 0, "bad": 0, "dropped": 0, "failures": 0, "converted": 0, "refused": 0}


def test_the_first_that_has_a_block_gives_it(shelf: Shelf, server: PeerServer) -> None:
    alone, empty = fill(shelf), PeerServer([Shelf(SIZE, SIZE)], SECRET, LABEL, "127.0.0.1", 0)
    with listening(lambda opened: time.sleep(3)) as mute:
        run = Run([tier(empty.port, mute, server.port)], seconds=0.05)
        assert run.answer("b") == alone and run.from_tier == len(PROMPT) // 16 * 16
        run.close()
    empty.close()


def test_without_the_secret_nothing_is_told_and_at_once(shelf: Shelf, server: PeerServer) -> None:
    fill(shelf)
    run = Run([tier(server.port, secret=bytes(32))])
    assert run.answer("b") and not run.from_tier and run.close()["failures"]
    taken = []
    for _ in range(30):
        opened, _session = meet(server.port, bytes(32))
        began = time.perf_counter()
        assert opened.recv(1) == b"", "the connection ends"
        taken.append(time.perf_counter() - began)
        opened.close()
    print(f"refused after {1e3 * median(taken):.2f} ms")
    assert min(taken) < 1e-3


def test_who_listens_without_the_secret_is_not_believed() -> None:
    def pretend(opened: socket.socket) -> None:
        opened.sendall(MAGIC + bytes(NONCE_BYTES))
        opened.recv(NONCE_BYTES + PROOF_BYTES, socket.MSG_WAITALL)
        opened.sendall(bytes(PROOF_BYTES) + b"\1" * 10_000)

    with listening(pretend) as port:
        run = Run([tier(port)])
        assert run.answer("b") and not run.from_tier
        assert run.close()["bad"] == 0, "its answer is not read"


def test_who_has_blocks_of_another_layout_says_so(shelf: Shelf, server: PeerServer) -> None:
    """And is asked for nothing for a minute, while another one is."""
    alone, other = fill(shelf), PeerServer([Shelf(SIZE, SIZE)], SECRET, "another layout", "127.0.0.1", 0)
    run = Run([tier(other.port, server.port)])
    assert run.answer("b") == alone and run.from_tier == len(PROMPT) // 16 * 16
    run.answer("c", (7, *PROMPT))
    assert run.close()["refused"] == 1 == run.metric("ridgeline_tier_refused_total")
    run = Run([tier(other.port)])
    for name in "bcd":
        run.answer(name, (ord(name), *PROMPT))
    counts = run.close()
    assert counts["refused"] == 1 and not counts["failures"] and not run.from_tier
    with closing(tier(server.port, label="another layout")) as asked:
        assert asked.has([b"n" * 32]) == [False] and asked.refused == 1
    other.close()


def test_an_engine_that_is_killed_in_the_middle(shelf: Shelf) -> None:
    """It has brought blocks, is gone, and comes back at the same place."""
    server = PeerServer([shelf], SECRET, LABEL, "127.0.0.1", 0)
    alone, run = fill(shelf), Run([tier(server.port)])
    assert run.answer("a") == alone and run.from_tier
    brought = run.from_tier
    server.close()
    more = (7, *PROMPT)
    assert run.answer("b", more) and run.from_tier == brought and run.answer("c", (8, *PROMPT))
    assert run.close()["failures"]


def test_strangers_are_bounded(server: PeerServer, shelf: Shelf) -> None:
    shelf.put(b"n" * 32, bytes(SIZE))
    strangers = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(MOST_STRANGERS)]
    for each in strangers:
        assert each.recv(CHALLENGE_BYTES)
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as one_more:
        assert one_more.recv(1) == b""
    for each in strangers:
        each.close()
    assert _in_time(lambda: has(server, b"n" * 32))


def has(server: PeerServer, name: bytes) -> bool:
    with closing(tier(server.port)) as asked:
        return asked.has([name]) == [True]


def _in_time(check: Callable[[], bool]) -> bool:
    until = time.monotonic() + 10
    while time.monotonic() < until:
        with suppress(OSError):
            if check():
                return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("rounds", [250, pytest.param(100_000, marks=[pytest.mark.night, pytest.mark.timeout(3_600)])])
def test_what_no_engine_would_send_ends_its_connection(shelf: Shelf, server: PeerServer, rounds: int) -> None:
    rng, (name, data) = random.Random(rounds), (bytes(32), content(1)[1].ljust(SIZE, b"\0"))
    shelf.put(name, data)
    for _ in range(rounds):
        if rng.random() < 0.5:
            opened = socket.create_connection(("127.0.0.1", server.port), timeout=10)
            said = rng.randbytes(rng.choice((64, 65, 200, 3_000)))
        else:
            opened, session = meet(server.port)
            said = _broken(rng, session, name)
        with opened, suppress(ConnectionError):
            opened.sendall(said)
            opened.shutdown(socket.SHUT_WR)
            heard = b""
            while part := opened.recv(65_536):
                heard += part
            assert data not in heard and len(heard) <= CHALLENGE_BYTES + PROOF_BYTES
    assert _in_time(lambda: has(server, name))
    with closing(tier(server.port)) as sound:
        assert sound.has([name]) == [True] and sound.get([name], 1.0, SIZE) == [data]


def _broken(rng: random.Random, session: Session, name: bytes) -> bytes:
    """A frame of an engine with the secret, with something wrong."""
    frame = bytearray(session.request(GET, [name] * rng.randrange(1, 5), SIZE, LABEL.encode()))
    match rng.randrange(4):
        case 0:
            frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)
        case 1:
            del frame[rng.randrange(len(frame)) :]
        case 2:
            count = rng.choice((0, 65, 4_097, 65_535))
            frame[: HEAD.size] = HEAD.pack(rng.choice((0, GET, HAS, 200)), count, rng.getrandbits(32), rng.randbytes(16))
        case 3:
            frame[:] = rng.randbytes(rng.randrange(1, 5_000))
    return bytes(frame)


@pytest.mark.parametrize(
    ("rounds", "block_bytes"),
    [(8, STAMP_BYTES), (2, 1 << 16), pytest.param(8_500, 1 << 16, marks=[pytest.mark.night, pytest.mark.timeout(7_200)])],
)
def test_a_poisoned_engine_changes_no_token(rounds: int, block_bytes: int) -> None:
    """It has the secret of connections, and values that it should not have: at night 102,000 as large as a model's."""
    seal = Seal(SECRET, shape(block_bytes))
    shelf, rng, told = Shelf(seal.value_bytes, 64 * seal.value_bytes), random.Random(rounds), 0
    server, alone = PeerServer([shelf], SECRET, seal.label, "127.0.0.1", 0), fill(shelf, block_bytes)
    values = dict(shelf._values)
    for _ in range(rounds):
        poisoned = dict(values)
        poison(rng, poisoned)
        shelf._values = poisoned
        run = Run([PeerTier([("127.0.0.1", server.port)], SECRET, seal.label)], block_bytes=block_bytes)
        assert run.answer("b") == alone and not run.from_tier
        bad = run.close()["bad"]
        told += bad > 0 and run.metric("ridgeline_tier_bad_blocks_total") == bad
    server.close()
    print(f"{rounds * len(values):,} values of {seal.value_bytes:,} bytes poisoned, 0 wrong tokens, told in {told} rounds")
    assert told >= 0.9 * rounds, "values of another length are not sent, and some rounds have no other"


def test_answers_made_of_anything_change_no_token() -> None:
    rng = random.Random(3)
    secret_of: list[bytes] = []

    def answer(opened: socket.socket) -> None:
        challenge = MAGIC + bytes(NONCE_BYTES)
        opened.sendall(challenge)
        hello = opened.recv(NONCE_BYTES + PROOF_BYTES, socket.MSG_WAITALL)
        session = Session(SECRET, challenge, hello[:NONCE_BYTES])
        opened.sendall(session.welcome)
        while opened.recv(65_536):
            session._count += 1
            flags = bytes(rng.choice((0, 1, 1, 7)) for _ in range(rng.choice((8, 16, 16))))
            opened.sendall(rng.choice((session.answer(flags), rng.randbytes(rng.randrange(1, 400)))) + rng.randbytes(rng.choice((0, SIZE))))
        secret_of.append(hello)

    alone = fill(Shelf(SIZE, 64 * SIZE))
    with listening(answer) as port:
        for _ in range(10):
            run = Run([tier(port)])
            assert run.answer("b") == alone and not run.from_tier
            run.close()


def test_an_engine_that_is_slow_or_gone_is_not_waited_for() -> None:
    alone = fill(Shelf(SIZE, 64 * SIZE))
    with listening(lambda opened: time.sleep(3)) as mute:
        run, began = Run([tier(mute)]), time.monotonic()
        assert run.answer("b") == alone and time.monotonic() - began < 1.0
        assert run.answer("c", (8, *PROMPT)) and time.monotonic() - began < 1.5, "it is left alone for a while"
        run.close()
    gone = Run([tier(mute)])
    assert gone.answer("b") == alone and gone.close()["failures"]


def test_the_shelf_is_bounded_and_keeps_what_is_asked_for() -> None:
    shelf = Shelf(SIZE, 4 * SIZE)
    for number in range(4):
        shelf.put(bytes([number]) * 32, bytes(SIZE))
    shelf.get([b"\0" * 32], 1.0, SIZE)
    for number in range(4, 7):
        shelf.put(bytes([number]) * 32, bytes(SIZE))
    assert shelf.has([bytes([number]) * 32 for number in range(7)]) == [True, False, False, False, True, True, True]


@pytest.mark.parametrize("text", ["", "host", "host:", "host:70000", ":7000", "http://host:1", "host:1=0", "host:1=x", "host:-1"])
def test_addresses_that_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_listen(text)
    assert parse_listen("[::1]:7=0.5") == ("::1", 7, 1 << 29)
    with pytest.raises(ConfigError):
        parse_peers((text,))
