"""What `ridgeline route` costs: milliseconds added to the first token, and streamed events per second of one core.

    python tests/speed/router.py [--requests 400] [--streams 32] [--tokens 1000] [--before PYTHON]

Requests go to a replica directly and by every way in turn, on connections that are kept: through the router, with and without the key by
which streams go on at another replica, and beside it through what has less to do, as the floor: nginx, and a relay of bytes. The replica is
one that takes the same time for each (`steady.py`), and a fake model, whose steps differ by more than any way adds: so each figure has its
standard error. Processor time per request, of user and kernel, is disturbed less by other programs; events are counted against it too.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from math import sqrt
from pathlib import Path
from random import Random
from shutil import which
from statistics import median, quantiles

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from processes import SOURCE, ServerProcess

FAKE = "fake:" + json.dumps({"rows": 32, "max_model_len": 4096, "blocks": 8192, "step_seconds": 0.004})
"""Its streams come as one event per read, as those of a model do."""
WARMING = 20
"""Requests that are not counted."""
SPREAD = 0.93
"""Standard error of a median, by the quartiles' distance over the root of the number, of what is normally distributed."""
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCE)}
NGINX = """
daemon off; master_process off; pid nginx.pid; error_log error.log; worker_processes 1;
events {{ worker_connections 256; }}
http {{
  access_log off; client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;
  upstream replica {{ server {upstream}; keepalive 64; }}
  server {{
    listen 127.0.0.1:{port}; keepalive_requests 100000; client_max_body_size 16m;
    location / {{
      proxy_pass http://replica; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host {upstream};
      proxy_buffering off;
    }}
  }}
}}
"""


@dataclass(frozen=True)
class Way:
    """An address by which the model is reached, and the process there."""

    name: str
    address: str
    pid: int

    def processor_ms(self) -> float:
        """Milliseconds that threads of the process have computed, as the scheduler counts them."""
        return sum(int((each / "schedstat").read_text().split()[0]) for each in Path(f"/proc/{self.pid}/task").iterdir()) / 1e6


@contextmanager
def beside(name: str, program: str, *arguments: str) -> Iterator[Way]:
    """A program of this folder that prints its port."""
    command = [sys.executable, str(Path(__file__).with_name(program)), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Way(name, f"127.0.0.1:{process.stdout.readline().strip()}", process.pid)
        finally:
            process.kill()


def relay(upstream: str) -> AbstractContextManager[Way]:
    """A relay of bytes in Python: what the event loop alone adds."""
    return beside("relay of bytes", "relay.py", upstream.rpartition(":")[2])


@contextmanager
def nginx(upstream: str, folder: str) -> Iterator[Way]:
    """nginx with one process, no log and connections that are kept."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    settings = Path(folder) / "nginx.conf"
    settings.write_text(NGINX.format(port=port, upstream=upstream))
    command = [which("nginx") or "/usr/sbin/nginx", "-p", folder, "-c", str(settings)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            yield Way("nginx", f"127.0.0.1:{port}", process.pid)
        finally:
            process.kill()


@contextmanager
def router(upstream: str, name: str, *more: str, python: str | None = None) -> Iterator[Way]:
    """`ridgeline route`, that of this checkout or of another `python`'s environment."""
    environment = ENVIRONMENT if python is None else {**os.environ, "PYTHONPATH": ""}
    process = ServerProcess(["--replica", f"http://{upstream}", *more], environment, "route", python)
    try:
        yield Way(name, process.url.partition("://")[2], process.process.pid)
    finally:
        process.stop()


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


def first_tokens(ways: Sequence[Way], requests: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Of each way its name and figures; the first is the one that the others add to."""
    connections = [HTTPConnection(way.address, timeout=30) for way in ways]
    seconds = [list[float]() for _ in ways]
    for number in range(-WARMING, requests):
        if number == 0:
            before = [way.processor_ms() for way in ways]
        body = json.dumps({"prompt": f"{number} " * 300, "max_tokens": 1, "stream": True})
        for place in Random(number).sample(range(len(ways)), len(ways)):  # what a way leaves behind meets another one each time
            taken = first_token(connections[place], body)
            if number >= 0:
                seconds[place].append(taken)
    for way, begun, found in zip(ways, before, seconds, strict=True):
        spent = (way.processor_ms() - begun) / requests
        added = [1e3 * (one - direct) for one, direct in zip(found, seconds[0], strict=True)]
        low, half, high = quantiles(added, n=4)
        error = SPREAD * (high - low) / sqrt(requests)
        yield way.name, {"p50, ms": 1e3 * median(found), "added, ms": half, "±": error, "processor, ms": spent}


def events(way: Way, streams: int, tokens: int) -> dict[str, float]:
    """Events per second of long streams at once, and per second of the process's processor time."""
    before, began = way.processor_ms(), time.monotonic()
    with ThreadPoolExecutor(streams) as pool:
        found = sum(pool.map(lambda _: stream(way.address, tokens), range(streams)))
    seconds, spent = time.monotonic() - began, way.processor_ms() - before
    return {"events/s": found / seconds, "events/s and core": 1e3 * found / spent if spent else 0.0}


def measure_steady(requests: int, before: str | None) -> None:
    """Prints what ways add to a replica that takes the same time for each request."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        direct = stack.enter_context(beside("steady replica", "steady.py"))
        begun = [relay(direct.address), nginx(direct.address, folder), router(direct.address, "router")]
        if before is not None:
            begun += [router(direct.address, "router before", python=before)]
        show_first_tokens([direct, *(stack.enter_context(each) for each in begun)], requests)


def show_first_tokens(ways: Sequence[Way], requests: int) -> None:
    for name, found in first_tokens(ways, requests):
        show(name, found)


def show(name: str, found: dict[str, float]) -> None:
    print(f"{name:20}", *(f"{figure} {value:10,.2f}" for figure, value in found.items()), sep="  ", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=1_000)
    parser.add_argument("--before", help="the Python of another environment, whose router is asked in turn")
    arguments = parser.parse_args()
    measure_steady(arguments.requests, arguments.before)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        key = ["--router-key-file", f"{folder}/key"]
        server = ServerProcess([FAKE, "--no-enable-prefix-caching", *key], ENVIRONMENT)
        stack.callback(server.stop)
        upstream = server.url.partition("://")[2]
        begun = [
            relay(upstream), nginx(upstream, folder), router(upstream, "router"), router(upstream, "router with a key", *key),
            router(upstream, "router, exact", *key, "--exact-affinity", FAKE),
            router(upstream, "router of two", "--replica", server.url.replace("127.0.0.1", "localhost")),
        ]  # fmt: skip
        if arguments.before is not None:
            begun += [router(upstream, "router before", python=arguments.before)]
        ways = [Way("fake model", upstream, server.process.pid), *(stack.enter_context(each) for each in begun)]
        show_first_tokens(ways, arguments.requests)
        for way in ways[3:]:
            show(way.name, events(way, arguments.streams, arguments.tokens))


if __name__ == "__main__":
    main()
