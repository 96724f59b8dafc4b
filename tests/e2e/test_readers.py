"""Clients that ask and do not read, and clients that hang up: the others keep their pace, and nothing is left behind."""

import json
import random
import selectors
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from ridgeline.observe.ledger import MAX_NAMES, MAX_REQUESTS

FAKE = 'fake:{"rows": 96, "blocks": 40000, "max_model_len": 16384, "step_seconds": %s}'
EVENTS = 1_800
"""Events that fill the buffers between engine and client."""
STEP_BYTES, ROW_BYTES = 65, 8
BODY = b'{"prompt": "p", "max_tokens": %d, "stream": true, "ignore_eos": true, "n": %d}'


def ask(server: Any, tokens: int, choices: int = 1) -> socket.socket:
    """A request on a new connection, for which its system holds 128 kB: else it takes megabytes, and it is not seen that nobody reads."""
    address, body = urlsplit(server.url), BODY % (tokens, choices)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    client.connect((address.hostname, address.port))
    client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    return client


def read_for(clients: list[socket.socket], seconds: float) -> float:
    """Events per second that all clients read together."""
    poll, events, began = selectors.DefaultSelector(), 0, time.monotonic()
    for each in clients:
        poll.register(each, selectors.EVENT_READ)
    while (left := began + seconds - time.monotonic()) > 0:
        for key, _ in poll.select(left):
            data = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
            assert data, "a client that reads was cut off"
            events += data.count(b"data: ")
    return events / seconds


def is_reset(client: socket.socket) -> bool:
    """True if the connection is, behind what has arrived."""
    try:
        while client.recv(1 << 16):
            pass
    except ConnectionResetError:
        return True
    return False


def files(server: Any) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


def memory(server: Any) -> int:
    """Resident bytes of the front end."""
    return int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) * 4096


def logged(server: Any) -> int:
    """Bytes in which the ledger remembers steps, and the rows of each where they are not those of the step before."""
    return round(STEP_BYTES * server.metric("ridgeline_steps_total") + ROW_BYTES * server.metric("vllm:iteration_tokens_total_sum"))


def until(holds: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.1)


def disconnect(server: Any, count: int, at_once: int = 25) -> None:
    """Clients that hang up at random moments: before the head is sent, behind it, in the middle of the stream; half of them with RST."""
    rng, address = random.Random(count), urlsplit(server.url)
    for _ in range(count // at_once):
        clients = []
        for _ in range(at_once):
            kind = rng.randrange(4)
            clients.append(ask(server, 500) if kind else socket.create_connection((address.hostname, address.port)))
            if kind == 3:
                clients[-1].recv(200)
        for each in clients:
            if rng.random() < 0.5:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            each.close()


def stall(server: Any, readers: int, stalled: int, choices: int, rate: float, timeout: float) -> float:
    """Throughput of readers beside clients that stall, each of so many choices, over that before; `rate`: tokens per second of a choice;
    `timeout`: the server's, for a client that does not read."""
    reading = [ask(server, 16_000) for _ in range(readers)]
    alone = read_for(reading, 100 / rate)
    silent = [ask(server, 16_000 // choices, choices) for _ in range(stalled)]
    beside = read_for(reading, EVENTS / rate / choices + 1 + timeout)
    until(lambda: server.output().count("error=client_too_slow") == stalled, 15)
    assert server.metric("ridgeline_http_requests_total", 'error="client_too_slow"') == stalled
    assert server.metric("vllm:num_requests_running") == readers, "a row is still at work for a client that does not read"
    assert server.output().count("its client does not read") == stalled
    for each in silent:
        with closing(each):
            assert is_reset(each)
    for each in reading:
        each.close()
    return beside / alone


def fill_ledger(server: Any) -> None:
    """Asks until what the server remembers of requests and choices is full, and the tables of both have grown once more, as Python's do
    when a third of their places were used and left: memory is judged behind that."""
    address, clients = urlsplit(server.url), 16

    def ask_on() -> None:
        with closing(HTTPConnection(address.hostname or "", address.port, timeout=60)) as http:
            for _ in range(4 * MAX_REQUESTS // 3 // clients + 10):
                http.request("POST", "/v1/completions", json.dumps({"prompt": "p", "max_tokens": 1, "n": MAX_NAMES // MAX_REQUESTS}))
                assert http.getresponse().read().startswith(b'{"id"')

    with ThreadPoolExecutor(clients) as pool:
        for each in [pool.submit(ask_on) for _ in range(clients)]:
            each.result()


def leave(server: Any, disconnects: int) -> int:
    """Bytes by which memory grew, but for the log of steps; files are as many as before."""

    def is_idle() -> bool:
        return not server.metric("vllm:num_requests_running") and not server.metric("vllm:num_requests_waiting")

    disconnect(server, max(25, disconnects // 10))
    until(is_idle, 10)
    open_files, resident = files(server), memory(server) - logged(server)
    disconnect(server, disconnects)
    until(is_idle, 10)
    until(lambda: files(server) <= open_files, 10)
    assert "incident" not in server.output() and "Traceback" not in server.output()
    return memory(server) - logged(server) - resident


def test_who_does_not_read_is_closed_and_who_hangs_up_leaves_nothing(serving: Callable[..., Any]) -> None:
    with serving(FAKE % 0.005, "--send-timeout", "1") as server:
        print(f"beside 5 that stall: {stall(server, 2, 5, 8, 200, 1):.3f}")
        leave(server, 200)


@pytest.mark.night
@pytest.mark.alone
@pytest.mark.timeout(600)
def test_64_that_do_not_read(serving: Callable[..., Any]) -> None:
    """Steps of 20 ms: what 80 rows cost more than 16 is then the engine's, and nothing here."""
    with serving(FAKE % 0.02) as server:
        ratio = stall(server, 16, 64, 1, 50, 10)
        print(f"beside 64 that stall: {ratio:.3f}")
        assert ratio >= 0.95


@pytest.mark.night
@pytest.mark.timeout(1800)
def test_10_000_that_hang_up(serving: Callable[..., Any]) -> None:
    with serving(FAKE % 0.02) as server:
        fill_ledger(server)
        grown = leave(server, 10_000)
        print(f"memory grew by {grown / 1e6:.2f} MB, but for steps")
        assert grown < 2e6
