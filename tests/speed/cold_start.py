"""A service that is scaled to zero: seconds from the start of a server to the first token of a request that waited for it at the router.

    python tests/speed/cold_start.py [--model demo] [--rounds 3] [--words 1500]

The same prompt each time, to a server without a cache and to one with the blocks of its predecessor (`--kv-cache-dir`), in turn.
"""

import argparse
import json
import os
import socket
import tempfile
import threading
import time
from http.client import HTTPConnection
from statistics import median

from router import ENVIRONMENT

from processes import ServerProcess  # isort: skip  (`router` finds it)


def first_token(address: str, body: str, found: list[float]) -> None:
    """Appends when the first event came."""
    connection = HTTPConnection(address, timeout=300)
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.readline()
    found.append(time.monotonic())
    assert answer.status == 200, answer.read()
    answer.read()
    connection.close()


def start(router: ServerProcess, server: list[str], body: str) -> tuple[float, float]:
    """Seconds from the start of a server until it is ready, and until the request that waited has its first token."""
    found: list[float] = []
    waiting = threading.Thread(target=first_token, args=(router.url.partition("://")[2], body, found))
    waiting.start()
    while "requests_held 1.0" not in router.get("/metrics")[1]:
        time.sleep(0.05)
    began = time.monotonic()
    process = ServerProcess(server, ENVIRONMENT)
    waiting.join()
    process.stop()
    while json.loads(router.get("/router")[1])["replicas"][0]["ready"]:
        time.sleep(0.05)
    return process.ready_seconds, found[0] - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--words", type=int, default=1_500)
    arguments = parser.parse_args()
    body = json.dumps({"prompt": " ".join(f"word{number}" for number in range(arguments.words)), "max_tokens": 1, "stream": True})
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        router = ServerProcess(["--replica", f"http://127.0.0.1:{port}", "--hold-timeout", "300"], ENVIRONMENT, "route")
        plain = [arguments.model, "--port", str(port)]
        ways = {"no cache": plain, "blocks of the one before": [*plain, "--kv-cache-dir", os.path.join(folder, "blocks")]}
        try:
            start(router, ways["blocks of the one before"], body)  # it fills the cache
            rounds = [{name: start(router, way, body) for name, way in ways.items()} for _ in range(arguments.rounds)]
        finally:
            router.stop()
    for name in ways:
        ready, first = (median(each[name][place] for each in rounds) for place in (0, 1))
        print(f"{name:26} ready {ready:6.2f} s  first token {first:6.2f} s  behind ready {first - ready:6.2f} s")


if __name__ == "__main__":
    main()
