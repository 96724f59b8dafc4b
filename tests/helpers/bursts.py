"""Many requests at once, each on a connection of its own, by a client that costs little itself."""

import selectors
import socket
import time
from urllib.parse import urlsplit

BODY = b'{"prompt": "Once upon a time", "max_tokens": 3000, "ignore_eos": true}'
REQUEST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)


def connect(url: str) -> socket.socket:
    address = urlsplit(url)
    client = socket.socket()
    client.setblocking(False)
    client.connect_ex((address.hostname, address.port))
    return client


def fill(url: str, count: int) -> list[socket.socket]:
    """Connections of so many requests that last."""
    clients = []
    for _ in range(count):
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
