"""What `ridgeline route` costs: milliseconds added to the first token, and streamed events per second of one core.

    python tests/speed/router.py [--requests 400] [--streams 32] [--tokens 1000]

Requests go to a fake model directly and through the router in turn, on connections that are kept. Events are counted against the
processor time of the router's process, which other programs disturb little. Both with and without the key by which streams go on at
another replica.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from processes import SOURCE, ServerProcess

FAKE = "fake:" + json.dumps({"rows": 32, "max_model_len": 4096, "blocks": 8192, "step_seconds": 0.004})
"""Its streams come as one event per read, as those of a model do."""
HERTZ = os.sysconf("SC_CLK_TCK")


def first_token(connection: HTTPConnection, body: str) -> float:
    """Seconds from a request to its first event."""
    began = time.perf_counter()
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.readline()
    seconds = time.perf_counter() - began
    answer.read()
    return seconds


def stream(address: str, tokens: int) -> int:
    """Reads one long stream; its number of events."""
    connection = HTTPConnection(address, timeout=120)
    body = {"prompt": "a" * 99, "max_tokens": tokens, "ignore_eos": True, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    events = connection.getresponse().read().count(b"data: ")
    connection.close()
    return events


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / HERTZ


def measure(server: ServerProcess, router: ServerProcess, arguments: argparse.Namespace) -> dict[str, float]:
    addresses = [each.url.partition("://")[2] for each in (server, router)]
    direct, routed = (HTTPConnection(address, timeout=30) for address in addresses)
    pairs, before = [], processor_seconds(router.process.pid)
    for number in range(arguments.requests + 20):
        body = json.dumps({"prompt": f"{number} " * 300, "max_tokens": 1, "stream": True})
        order = [(direct, 0), (routed, 1)] if number % 2 else [(routed, 1), (direct, 0)]
        found = {place: first_token(connection, body) for connection, place in order}
        if number >= 20:
            pairs.append((found[0], found[1]))
    per_request = (processor_seconds(router.process.pid) - before) / (arguments.requests + 20)
    before, began = processor_seconds(router.process.pid), time.monotonic()
    with ThreadPoolExecutor(arguments.streams) as pool:
        events = sum(pool.map(lambda _: stream(addresses[1], arguments.tokens), range(arguments.streams)))
    spent = processor_seconds(router.process.pid) - before
    return {
        "first token, direct, ms": 1e3 * median(one for one, _ in pairs),
        "first token, routed, ms": 1e3 * median(other for _, other in pairs),
        "added, median of pairs, ms": 1e3 * median(other - one for one, other in pairs),
        "router's processor time per request, ms": 1e3 * per_request,
        "events per second": events / (time.monotonic() - began),
        "events per second of the router's core": events / spent,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=1_000)
    arguments = parser.parse_args()
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    with tempfile.TemporaryDirectory() as folder:
        for key in ([], ["--router-key-file", f"{folder}/key"]):
            server = ServerProcess([FAKE, "--no-enable-prefix-caching", *key], environment)
            router = ServerProcess(["--replica", server.url, *key], environment, "route")
            try:
                print("with the key" if key else "without a key")
                for name, value in measure(server, router, arguments).items():
                    print(f"  {name:42}{value:12.2f}")
            finally:
                router.stop()
                server.stop()


if __name__ == "__main__":
    main()
