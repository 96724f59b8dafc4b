"""Streams beside prompts that ask a Redis tier in trouble, against a server without a tier: time between tokens, p50 and p99.

    python tests/speed/tier_faults.py [--rounds 4] [--streams 4] [--prompts 8]

as well   no tier either: how much two processes differ that do the same
slow      its server is stopped: no call is answered
gone      there is no server
poisoned  every value of the prompts is there, with one bit changed

One process a way, all of them with the same requests, in turn; quantiles are of the gaps of all rounds, as one round has few steps beyond
its p99 (streams share them). Four to six minutes for four rounds.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.client import HTTPConnection
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

import redis
from processes import SOURCE, ServerProcess

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCE)}
TOKENS, PROMPT_TOKENS, EVERY_SECONDS = 384, 400, 0.5


def ask(url: str, prompt: list[int], tokens: int) -> tuple[str, list[float]]:
    """The text of an answer, and the seconds between its events."""
    connection = HTTPConnection(url.partition("://")[2], timeout=120)
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    texts, times = [], []
    for line in connection.getresponse():
        if line.startswith(b"data: {"):
            times.append(time.monotonic())
            texts.append(json.loads(line[6:])["choices"][0]["text"])
    connection.close()
    return "".join(texts), [later - sooner for sooner, later in pairwise(times)]


def load(url: str, streams: list[list[int]], prompts: list[list[int]]) -> tuple[list[str], list[float]]:
    """All texts, and the times between tokens of the streams, beside which a prompt comes every half second."""
    with ThreadPoolExecutor(len(streams) + len(prompts)) as pool:
        long = [pool.submit(ask, url, each, TOKENS) for each in streams]
        short = []
        for each in prompts:
            time.sleep(EVERY_SECONDS)
            short.append(pool.submit(ask, url, each, 1))
        answers = [each.result() for each in long]
        return [text for text, _ in answers] + [each.result()[0] for each in short], [gap for _, gaps in answers for gap in gaps]


def poison(client: "redis.Redis") -> int:
    """Changes a bit of every value; their number."""
    keys = client.keys("ridgeline:kv:*")
    for key in keys:
        value = bytearray(client.get(key))
        value[random.randrange(len(value))] ^= 1
        client.set(key, bytes(value))
    return len(keys)


def quantiles(rounds: list[list[float]]) -> tuple[float, float]:
    """p50 and p99 of the times of all rounds."""
    times = sorted(each for times in rounds for each in times)
    return times[len(times) // 2], times[int(0.99 * len(times))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--prompts", type=int, default=12)
    arguments = parser.parse_args()
    rng = random.Random(1)

    def texts(count: int) -> list[list[int]]:
        return [[rng.randrange(300, 200_000) for _ in range(PROMPT_TOKENS)] for _ in range(count)]

    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        sockets = {name: f"{folder}/{name}" for name in ("slow", "gone", "poisoned")}
        stores = {}
        for name in ("slow", "poisoned"):
            command = ["redis-server", "--port", "0", "--unixsocket", sockets[name], "--save", ""]
            stores[name] = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
            stack.callback(stores[name].kill)

        def start(name: str | None) -> ServerProcess:
            tier = [] if name is None else ["--kv-cache-redis", f"unix://{sockets[name]}", "--kv-cache-secret-file", f"{folder}/secret"]
            server = ServerProcess(["demo", "--max-model-len", "1k", *tier], ENVIRONMENT)
            stack.callback(server.stop)
            return server

        ways = {"no tier": start(None), "as well": start(None), **{name: start(name) for name in sockets}}
        writer, client = start("poisoned"), redis.Redis(unix_socket_path=sockets["poisoned"])
        stores["slow"].send_signal(signal.SIGSTOP)
        gaps: dict[str, list[list[float]]] = {name: [] for name in ways}
        different = poisoned = 0
        for number in range(arguments.rounds + 1):
            streams, prompts = texts(arguments.streams), texts(arguments.prompts)
            for each in prompts:
                ask(writer.url, each, 1)
            time.sleep(1.0)  # it writes them behind its answers
            poisoned += poison(client)
            order = rng.sample(list(ways), len(ways))
            answers = {name: load(ways[name].url, streams, prompts) for name in order}
            different += sum(answers[name][0] != answers["no tier"][0] for name in ways)
            if number:  # the first round warms
                for name, (_, times) in answers.items():
                    gaps[name].append(times)
            client.flushall()
        plain = quantiles(gaps["no tier"])
        for name, rounds in gaps.items():
            half, most = quantiles(rounds)
            each = " ".join(f"{quantiles([own])[1] / quantiles([none])[1]:.3f}" for own, none in zip(rounds, gaps["no tier"], strict=True))
            bad = 0.0 if name not in sockets else ways[name].metric("ridgeline_tier_bad_blocks_total")
            print(f"{name:9} p50 {1e3 * half:6.2f} ms  p99 {1e3 * most:6.2f} ms", end="  ")
            print(f"over no tier {half / plain[0]:.3f} {most / plain[1]:.3f}  p99 of rounds {each}  bad {bad:.0f}")
        print(f"answers that are different: {different}; values poisoned: {poisoned}")
        stores["slow"].send_signal(signal.SIGCONT)


if __name__ == "__main__":
    main()
