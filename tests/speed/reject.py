"""How soon a full server says 429, and what that costs those that it serves: `python tests/speed/reject.py [--bursts 10]`.

Fills the queue of a server with long requests, then sends 400 more at once, each on a connection of its own, again and again. A time is from
before `connect` to the last byte of the answer. The cost is the decode throughput in seconds with a burst, against seconds without, in turn.
Run it on a machine at rest: client, front end and engine share its cores.
"""

import argparse
import os
import selectors
import socket
import sys
import time
from pathlib import Path
from statistics import median, quantiles
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))
from processes import SOURCE, ServerProcess

BODY = b'{"prompt": "Once upon a time", "max_tokens": 3000, "ignore_eos": true}'
REQUEST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
ROWS, WAITING = 16, 16


def connect(url: str) -> socket.socket:
    address = urlsplit(url)
    client = socket.socket()
    client.setblocking(False)
    client.connect_ex((address.hostname, address.port))
    return client


def fill(url: str) -> list[socket.socket]:
    """Connections whose requests take all rows and all places of the queue."""
    clients = []
    for _ in range(ROWS + WAITING):
        clients.append(connect(url))
        clients[-1].setblocking(True)
        clients[-1].sendall(REQUEST)
        time.sleep(0.01)
    return clients


def burst(url: str, count: int) -> list[tuple[float, bytes]]:
    """Seconds and status line of each of so many requests, sent at once."""
    poll, began, answers = selectors.DefaultSelector(), {}, {}
    for _ in range(count):
        now = time.perf_counter()
        client = connect(url)
        began[client], answers[client] = now, b""
        poll.register(client, selectors.EVENT_WRITE)
    found = []
    while len(found) < count:
        for key, events in poll.select(10):
            client = key.fileobj
            assert isinstance(client, socket.socket)
            if events & selectors.EVENT_WRITE:
                client.send(REQUEST)
                poll.modify(client, selectors.EVENT_READ)
                continue
            answers[client] += client.recv(65536)
            head, end, body = answers[client].partition(b"\r\n\r\n")
            if end and b"content-length: %d\r\n" % len(body) in head + b"\r\n":
                found.append((time.perf_counter() - began[client], head.partition(b"\r\n")[0]))
                poll.unregister(client)
                client.close()
    return found


def decoded(server: ServerProcess, seconds: float, count: int) -> tuple[float, list[float]]:
    """Tokens per second in that time, and the times of the burst at its start, of `count` requests."""
    before, began = server.metric("vllm:generation_tokens_total"), time.perf_counter()
    answers = burst(server.url, count) if count else []
    assert {status for _, status in answers} <= {b"HTTP/1.1 429 Too Many Requests"}, answers[:3]
    time.sleep(max(0.0, seconds - (time.perf_counter() - began)))
    after, took = server.metric("vllm:generation_tokens_total"), time.perf_counter() - began
    return (after - before) / took, [each for each, _ in answers]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--bursts", type=int, default=10)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=2.0, help="time of a measurement with a burst, and of one without")
    asked = parser.parse_args()
    flags = ["--max-num-seqs", str(ROWS), "--max-num-queued-reqs", str(WAITING), "--max-model-len", "4096"]
    server = ServerProcess([asked.model, *flags], {**os.environ, "PYTHONPATH": str(SOURCE)})
    try:
        clients = fill(server.url)
        time.sleep(1.0)
        quiet, busy, times = [], [], []
        for number in range(asked.bursts):
            quiet.append(decoded(server, asked.seconds, 0)[0])
            rate, new = decoded(server, asked.seconds, asked.count)
            busy.append(rate)
            times += new
            print(f"burst {number}: p50 {median(new) * 1e3:.0f} ms, p99 {quantiles(new, n=100)[98] * 1e3:.0f}, longest {max(new) * 1e3:.0f}")
        print(f"{len(times)} × 429: p50 {median(times) * 1e3:.1f} ms, p99 {quantiles(times, n=100)[98] * 1e3:.1f}, longest {max(times) * 1e3:.1f}")
        print(f"decode: {median(quiet):.1f} tokens/s without a burst, {median(busy):.1f} in {asked.seconds:g} s with one ({median(busy) / median(quiet):.3f} ×)")
        for each in clients:
            each.close()
    finally:
        server.stop()


if __name__ == "__main__":
    main()
