"""How soon ports refuse who lacks the token: `python tests/speed/refuse.py [--rounds 500]`.

A server, a router in front of it and the port for other engines' KV blocks are asked without a key, with a wrong one, by a router with a
wrong key, and by an engine with another secret. A time is from the last byte that is sent to the first of the refusal, or to the end of the
connection where that is all there is; connections are made before. Answers with the key, of a route that does nothing, stand beside it.
"""

import argparse
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from processes import SOURCE, ServerProcess

from ridgeline.engine.tiers.frames import CHALLENGE_BYTES, NONCE_BYTES, Session
from ridgeline.engine.tiers.peer_server import PeerServer

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCE)}
KEY = "a-key-of-a-client"
ROUTER_KEY = b"x-ridgeline-router: " + b"0" * 64


def request(path: str, *headers: bytes, body: bytes = b"") -> bytes:
    lines = [b"%b %b HTTP/1.1" % (b"POST" if body else b"GET", path.encode()), b"Host: localhost", b"Connection: close", *headers]
    return b"\r\n".join([*lines, b"Content-Length: %d" % len(body), b"", body])


def once(address: tuple[str, int], said: Callable[[socket.socket], bytes]) -> tuple[float, bytes]:
    """(seconds from the last byte sent to the first heard, the first line)."""
    with socket.create_connection(address, timeout=10) as opened:
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data = said(opened)
        time.sleep(0.002)  # the other side waits, as it does for a stranger
        began = time.perf_counter()
        opened.sendall(data)
        try:
            heard = opened.recv(4_096)
        except ConnectionResetError:
            heard = b""
        return time.perf_counter() - began, heard.partition(b"\r\n")[0]


def hello(opened: socket.socket) -> bytes:
    """What an engine with another secret answers to the challenge."""
    challenge = opened.recv(CHALLENGE_BYTES, socket.MSG_WAITALL)
    return bytes(NONCE_BYTES) + Session(bytes(32), challenge, bytes(NONCE_BYTES)).hello


def measure(title: str, address: tuple[str, int], said: Callable[[socket.socket], bytes], wanted: bytes, rounds: int) -> None:
    seconds, answers = zip(*(once(address, said) for _ in range(rounds)), strict=True)
    assert all(each.startswith(wanted) for each in answers), (title, set(answers))
    p99 = quantiles(seconds, n=100)[98]
    print(f"{title:52}  {wanted.decode() or 'the end':14}  p50 {1e3 * median(seconds):6.2f} ms  p99 {1e3 * p99:6.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=500)
    rounds = parser.parse_args().rounds
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "keys").write_text(f"{KEY}\n")
        (folder / "keys").chmod(0o600)
        shared = ["--api-key-file", str(folder / "keys"), "--router-key-file", str(folder / "key")]
        server = ServerProcess(["fake:{}", *shared], ENVIRONMENT)
        stack.callback(server.stop)
        router = ServerProcess(["--replica", server.url, *shared], ENVIRONMENT, "route")
        stack.callback(router.stop)
        peers = PeerServer([], b"s" * 32, "", "127.0.0.1", 0)
        stack.callback(peers.close)
        right, wrong = (b"Authorization: Bearer " + each for each in (KEY.encode(), b"another"))
        ask = request("/v1/completions", b"Content-Type: application/json", body=b'{"prompt":"a"}')
        for name, process in (("server", server), ("router", router)):
            address = ("127.0.0.1", int(process.url.rpartition(":")[2]))
            asked = [
                ("with the key, a route that does nothing", request("/livez", right), b"HTTP/1.1 200"),
                ("a completion without a key", ask, b"HTTP/1.1 401"),
                ("the models with a wrong one", request("/v1/models", wrong), b"HTTP/1.1 401"),
                ("which blocks it holds, of a client", request("/router/blocks", right), b"HTTP/1.1 403"),
            ]
            if process is server:
                asked.append(("the same, of a router with a wrong key", request("/router/blocks", ROUTER_KEY), b"HTTP/1.1 403"))
            for title, data, wanted in asked:
                measure(f"{name}: {title}", address, lambda _, data=data: data, wanted, rounds)
        measure("blocks for engines: one with another secret", ("127.0.0.1", peers.port), hello, b"", rounds)


if __name__ == "__main__":
    main()
