"""One trace, played to two routers of two engines each, step by step: what each of them chose for every request.

A request is sent when the one before has been given to a replica. First bytes are waited for behind bursts of one to three requests, which
they come too late for; streams are closed by the client, at random. So loads are the same at the same requests, whatever time these take.
"""

import json
import socket
import threading
import time
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from random import Random
from typing import Any
from urllib.request import Request, urlopen

STEP_SECONDS = 0.4
"""Of the engines' model: a burst is over before its first answer begins."""
BURSTS, MOST_OPEN = 40, 6
NAMED = "trace-"
"""Beginning of the ids of its requests."""
SETTLED_SECONDS = 0.3
"""From the closing of a stream until its router has counted that."""


class Stream(threading.Thread):
    """A stream that is read until it is closed. has_begun: its first event has come."""

    def __init__(self, address: str, body: str, headers: dict[str, str]) -> None:
        super().__init__(daemon=True)
        self.has_begun = threading.Event()
        self._connection = HTTPConnection(address, timeout=60)
        self._body, self._headers = body, {"Content-Type": "application/json", **headers}

    def run(self) -> None:
        """Reads."""
        try:
            self._connection.request("POST", "/v1/completions", self._body, self._headers)
            answer = self._connection.getresponse()
            assert answer.status == 200, answer.read()
            while line := answer.readline():
                if line.startswith(b"data: "):
                    self.has_begun.set()
        except (OSError, ValueError):  # closed
            pass

    def close(self) -> None:
        """The client goes."""
        if self._connection.sock is not None:
            self._connection.sock.shutdown(socket.SHUT_RDWR)
        self.join(10)


def bodies(seed: int) -> list[list[str]]:
    """Bursts of requests whose prompts begin alike, of several lengths."""
    rng = Random(seed)
    begins = [f"{number} " * rng.randrange(200, 1_500) for number in range(10)]
    found = []
    for burst in range(BURSTS):
        prompts = [rng.choice(begins) + f"{burst}.{each} " * rng.randrange(10, 600) for each in range(rng.randint(1, 3))]
        found.append([json.dumps({"model": "slow", "prompt": text, "max_tokens": 3_000, "stream": True}) for text in prompts])
    return found


def play(address: str, headers: dict[str, str], chosen: Callable[[], list[tuple[int, Any]]], seed: int = 1) -> list[tuple[int, Any]]:
    """Plays the trace. `chosen`: (replica, loads of all before) of every request that has been given to one so far; it is asked before each
    is sent, too. Returns what it says at the end."""
    rng, open_streams, sent = Random(seed), list[Stream](), 0
    for burst in bodies(seed):
        begun = [Stream(address, body, headers | {"x-request-id": f"{NAMED}{sent + number}"}) for number, body in enumerate(burst)]
        for stream in begun:
            assert len(chosen()) == sent
            stream.start()
            sent += 1
            end = time.monotonic() + 30
            while len(chosen()) < sent:
                assert time.monotonic() < end, f"request {sent} of {address} went to no replica"
                time.sleep(0.005)
        assert not any(stream.has_begun.is_set() for stream in begun), "an answer began within a burst: the machine is too busy"
        assert all(stream.has_begun.wait(30) for stream in begun)
        open_streams += begun
        while len(open_streams) > MOST_OPEN or (open_streams and rng.random() < 0.4):
            open_streams.pop(rng.randrange(len(open_streams))).close()
        time.sleep(SETTLED_SECONDS)
    for stream in open_streams:
        stream.close()
    return chosen()


class RouteWatch:
    """What `ridgeline route` has chosen, as its own page tells: whose open requests have become one more."""

    def __init__(self, url: str, authorization: str) -> None:
        """`authorization`: of an admin."""
        self._asked = Request(f"{url}/router", headers={"Authorization": authorization})
        self._loads = self._read()
        self._found: list[tuple[int, Any]] = []

    def __call__(self) -> list[tuple[int, Any]]:
        now = self._read()
        for number, (before, after) in enumerate(zip(self._loads, now, strict=True)):
            if after[0] > before[0]:
                self._found.append((number, self._loads))
        self._loads = now
        return self._found

    def _read(self) -> list[list[int]]:
        with urlopen(self._asked, timeout=10) as answer:
            told = json.load(answer)["replicas"]
        return [[each[name] for name in ("requests", "waiting_tokens", "held_tokens")] for each in told]


def recorded(path: Path) -> list[tuple[int, Any]]:
    """What Serve's router has chosen, of the trace's requests that a replica has taken: its place among those that were there, as others
    had been before."""
    told = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    own = [each for each in told if each["request"].startswith(NAMED)]
    loads = {each["request"]: each["loads"] for each in own if each["what"] == "chosen"}
    taken = [(each["replica"], loads[each["request"]]) for each in own if each["what"] == "taken"]
    return [([number for number, *_ in before].index(replica), [load for _, *load in before]) for replica, before in taken]
