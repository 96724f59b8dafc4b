"""Streams beside prompts that ask a tier in trouble, against a server without a tier: time between tokens, and to the first one.

    python tests/speed/tier_faults.py [redis] [peer] [--rounds 4] [--streams 4] [--prompts 12]

as well   no tier either: how much two processes differ that do the same
slow      what it asks, a Redis server or another engine, is stopped: no call is answered
absent    there is nothing
killed    it brings blocks, and is killed (-9) when half of the prompts have come
poisoned  every value of the prompts is there, with one bit changed

One process a way, all of them with the same requests, in turn; quantiles are of the gaps of all rounds, as one round has few steps beyond
its p99 (streams share them). Two to three minutes a round with both tiers at rest, and one round more that warms.
"""

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

import redis
from processes import SOURCE, ServerProcess

from ridgeline.config.secret import read_secret
from ridgeline.engine.tiers.peer_server import PeerServer
from ridgeline.engine.tiers.redis import PREFIX
from ridgeline.engine.tiers.shelf import Shelf

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCE)}
TOKENS, PROMPT_TOKENS, EVERY_SECONDS = 384, 400, 0.5
FAULTS = ("slow", "absent", "killed", "poisoned")
SHELF_BYTES = 256 << 20


def ask(url: str, prompt: list[int], tokens: int) -> tuple[str, float, list[float]]:
    """The text of an answer, the seconds to its first event, and those between its events."""
    connection = HTTPConnection(url.partition("://")[2], timeout=120)
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    texts, times = [], [time.monotonic()]
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    for line in connection.getresponse():
        if line.startswith(b"data: {"):
            times.append(time.monotonic())
            texts.append(json.loads(line[6:])["choices"][0]["text"])
    connection.close()
    first, *gaps = (later - sooner for sooner, later in pairwise(times))
    return "".join(texts), first, gaps


Load = tuple[list[str], list[float], list[float]]
"""Texts, seconds to the prompts' first tokens, seconds between the streams' tokens."""


def load(url: str, streams: list[list[int]], prompts: list[list[int]], halfway: Callable[[], None]) -> Load:
    """Streams beside which a prompt comes every half second; `halfway` is called when half of them have."""
    with ThreadPoolExecutor(len(streams) + len(prompts)) as pool:
        long = [pool.submit(ask, url, each, TOKENS) for each in streams]
        short = []
        for number, each in enumerate(prompts):
            time.sleep(EVERY_SECONDS)
            if number == len(prompts) // 2:
                halfway()
            short.append(pool.submit(ask, url, each, 1))
        answers, firsts = [each.result() for each in long], [each.result() for each in short]
    return [text for text, *_ in answers + firsts], [first for _, first, _ in firsts], [gap for *_, gaps in answers for gap in gaps]


class Site:
    """The servers. Attributes: `urls` by way; `values`, what the source has kept of a round's prompts."""

    def __init__(self, tiers: list[str], folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self.tiers, self.ways = tiers, {"no tier": self._serve(), "as well": self._serve()}
        self._redis: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("source", *(("slow", "killed", "poisoned") if "redis" in tiers else ())):
            self._start_redis(name)
        self._ports = dict(zip(FAULTS, self._free_ports(len(FAULTS)), strict=True))
        self.source = self._serve(
            *("--kv-cache-redis", self._socket("source"), "--kv-cache-dir", f"{folder}/kv"),
            *("--kv-cache-listen", f"127.0.0.1:{self._ports['slow']}"),
        )
        for tier in tiers:
            for fault in FAULTS:
                where = self._socket(fault) if tier == "redis" else f"127.0.0.1:{self._ports[fault]}"
                self.ways[f"{tier} {fault}"] = self._serve(f"--kv-cache-{'redis' if tier == 'redis' else 'peers'}", where)
        self._victim: ServerProcess | None = None
        self._poisoned: Shelf | None = None

    def fill(self, prompts: list[list[int]]) -> int:
        """Has the prompts' blocks kept, whole and with a bit changed, wherever ways look for them. Returns how many are poisoned."""
        source = self._client("source")
        source.flushall()
        for each in prompts:
            ask(self.source.url, each, 1)
        time.sleep(1.0)  # it writes them behind its answers
        values = {key: source.get(key) for key in source.keys(f"{PREFIX.decode()}*")}
        poisoned = {key: _changed(value) for key, value in values.items()}
        if "redis" in self.tiers:
            if self._redis["killed"].poll() is not None:
                self._start_redis("killed")
            for name, kept in (("killed", values), ("poisoned", poisoned)):
                self._client(name).flushall()
                for key, value in kept.items():
                    self._client(name).set(key, value)
        if "peer" in self.tiers:
            self._fill_peers(prompts, {key.removeprefix(PREFIX): value for key, value in poisoned.items()})
        return len(poisoned) * len(self.tiers)

    def _fill_peers(self, prompts: list[list[int]], poisoned: dict[bytes, bytes]) -> None:
        if self._victim is None:
            self._victim = self._serve("--kv-cache-listen", f"127.0.0.1:{self._ports['killed']}")
        for each in prompts:
            ask(self._victim.url, each, 1)
        if self._poisoned is None:
            self._poisoned = Shelf(max(map(len, poisoned.values())), SHELF_BYTES)
            (label,) = (each.stem for each in (self._folder / "kv").glob("*.kv"))
            secret = read_secret(f"{self._folder}/secret", "--kv-cache-secret-file")
            server = PeerServer([self._poisoned], secret, label, "127.0.0.1", self._ports["poisoned"])
            self._stack.callback(server.close)
        for name in [*self._poisoned._values]:
            self._poisoned.forget(name)
        for name, value in poisoned.items():
            self._poisoned.put(name, value)

    @contextmanager
    def fault(self, way: str) -> Iterator[Callable[[], None]]:
        """Has a way's trouble; what is yielded is to be called halfway."""
        tier, _, fault = way.partition(" ")
        pid = None
        if fault == "slow":
            pid = self._redis["slow"].pid if tier == "redis" else self.source.engine_pid()
            os.kill(pid, signal.SIGSTOP)
        try:
            yield (lambda: self._kill(tier)) if fault == "killed" else lambda: None
        finally:
            if pid is not None:
                os.kill(pid, signal.SIGCONT)

    def _kill(self, tier: str) -> None:
        if tier == "redis":
            self._redis["killed"].kill()
            self._redis["killed"].wait()
        elif self._victim is not None:
            engine, victim, self._victim = self._victim.engine_pid(), self._victim, None
            for pid in (victim.process.pid, engine):
                os.kill(pid, signal.SIGKILL)
            victim.process.wait()

    def _serve(self, *tier: str) -> ServerProcess:
        secret = ["--kv-cache-secret-file", f"{self._folder}/secret"] if tier else []
        server = ServerProcess(["demo", "--max-model-len", "1k", *tier, *secret], ENVIRONMENT)
        self._stack.callback(lambda: server.process.poll() is None and server.stop())
        return server

    def _start_redis(self, name: str) -> None:
        path = Path(self._socket(name).removeprefix("unix://"))
        path.unlink(missing_ok=True)
        command = ["redis-server", "--port", "0", "--unixsocket", str(path), "--save", ""]
        self._redis[name] = process = subprocess.Popen(command, cwd=self._folder, stdout=subprocess.DEVNULL)
        self._stack.callback(process.kill)
        while not path.exists():
            time.sleep(0.01)

    def _socket(self, name: str) -> str:
        return f"unix://{self._folder}/{name}"

    def _client(self, name: str) -> "redis.Redis":
        return redis.Redis.from_url(self._socket(name))

    @staticmethod
    def _free_ports(count: int) -> list[int]:
        with ExitStack() as stack:
            return [stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(count)]


def _changed(value: bytes) -> bytes:
    """The value with one bit changed."""
    found = bytearray(value)
    found[random.randrange(len(found))] ^= 1 << random.randrange(8)
    return bytes(found)


def quantile(rounds: list[list[float]], share: float) -> float:
    times = sorted(each for times in rounds for each in times)
    return times[int(share * len(times))]


def report(site: Site, gaps: dict[str, list[list[float]]], firsts: dict[str, list[list[float]]]) -> None:
    """Prints a line a way: milliseconds, and how many times those without a tier."""
    plain = {
        name: quantile(found["no tier"], share) for name, found, share in (("p50", gaps, 0.5), ("p99", gaps, 0.99), ("first", firsts, 0.5))
    }
    for name, rounds in gaps.items():
        half, most, first = quantile(rounds, 0.5), quantile(rounds, 0.99), quantile(firsts[name], 0.5)
        each = " ".join(f"{quantile([own], 0.99) / quantile([none], 0.99):.3f}" for own, none in zip(rounds, gaps["no tier"], strict=True))
        print(f"{name:14} between tokens p50 {1e3 * half:6.2f} ms {half / plain['p50']:.3f}, p99 {1e3 * most:6.2f} ms", end=" ")
        print(f"{most / plain['p99']:.3f} (rounds {each}); to the first p50 {1e3 * first:6.1f} ms {first / plain['first']:.3f}", end="")
        if name.partition(" ")[0] in site.tiers:
            bad, hits = (site.ways[name].metric(f"ridgeline_tier_{what}_total") for what in ("bad_blocks", "hits"))
            print(f"; {bad:.0f} blocks bad, {hits:.0f} tokens brought", end="")
        print()


def main() -> None:
    """Measures all ways of the tiers that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tiers", nargs="*", default=["redis", "peer"])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--prompts", type=int, default=12)
    arguments = parser.parse_args()
    rng = random.Random(1)

    def texts(count: int) -> list[list[int]]:
        return [[rng.randrange(300, 200_000) for _ in range(PROMPT_TOKENS)] for _ in range(count)]

    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        site = Site(arguments.tiers, Path(folder), stack)
        gaps: dict[str, list[list[float]]] = {name: [] for name in site.ways}
        firsts: dict[str, list[list[float]]] = {name: [] for name in site.ways}
        different = poisoned = 0
        for number in range(arguments.rounds + 1):
            streams, prompts = texts(arguments.streams), texts(arguments.prompts)
            poisoned += site.fill(prompts)
            answers = {}
            for name in rng.sample(list(site.ways), len(site.ways)):
                with site.fault(name) as halfway:
                    answers[name] = load(site.ways[name].url, streams, prompts, halfway)
            different += sum(texts != answers["no tier"][0] for texts, *_ in answers.values())
            if number:  # the first round warms
                for name, (_, first, between) in answers.items():
                    firsts[name].append(first)
                    gaps[name].append(between)
        report(site, gaps, firsts)
        print(f"answers that are different: {different}; values poisoned: {poisoned}")


if __name__ == "__main__":
    main()
