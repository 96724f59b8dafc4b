"""What the router of a large fleet bears, measured on this machine with the code of `ridgeline route`: choices, the size of its index, and
what replicas tell of their caches (`--exact-affinity`), by a real server's answers. `python docs/scale.py router` prints it.
"""

import asyncio
import json
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from os import environ
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final
from urllib.request import Request, urlopen

import msgspec

from ridgeline.config.secret import read_router_key
from ridgeline.core.prefix_cache import DIGEST_BYTES, block_keys
from ridgeline.core.routing import ROUTING, ReplicaLoad
from ridgeline.router.chooser import MOST_PARTS, Chooser
from ridgeline.router.holdings import ASK_SECONDS, Holdings
from ridgeline.router.prompts import BYTES_PER_TOKEN, Prompt, read_prompt
from ridgeline.router.upstream import Headers, Upstream
from ridgeline.server.blocks import BlockChanges
from ridgeline.server.routers import BLOCKS_PATH, KEY_HEADER, PREFIX_HEADER, ids_digest

PROMPT_TOKENS: Final = 500
OUTPUT_TOKENS: Final = 40
BLOCK_TOKENS: Final = 16
BLOCKS: Final = 1_600
"""Blocks of a replica: those of an L4 beside llama-3-8b in bf16."""
PREFIXES: Final = 200
FLEETS: Final = (4, 100, 1_000)
ROOT: Final = bytes(32)
FAKE: Final = "fake:" + json.dumps({"rows": 8, "blocks": BLOCKS, "max_model_len": 2048})


class Traffic:
    """Completions as texts and as ids: instructions that some share, then what is nobody else's."""

    def __init__(self, shared_tokens: int, seed: int = 1) -> None:
        self._rng = Random(seed)
        self._shared = shared_tokens
        self._instructions = [self._text(shared_tokens) for _ in range(PREFIXES)]
        self.instructions = [self._ids(shared_tokens) for _ in range(PREFIXES)]

    def body(self) -> bytes:
        """The next one."""
        own = self._text(PROMPT_TOKENS - self._shared)
        return json.dumps({"model": "m", "prompt": self._rng.choice(self._instructions) + own}).encode()

    def prompt(self) -> Prompt:
        """The next one as a router reads it."""
        return read_prompt("/v1/completions", self.body(), b"")

    def ids(self) -> list[int]:
        """The next one's ids."""
        return self._rng.choice(self.instructions) + self._ids(PROMPT_TOKENS - self._shared)

    def _text(self, tokens: int) -> str:
        return self._rng.randbytes(tokens * BYTES_PER_TOKEN // 2).hex()

    def _ids(self, tokens: int) -> list[int]:
        return [self._rng.randrange(32, 250) for _ in range(tokens)]


def choices(replicas: int, shared_tokens: int, requests: int, *, is_exact: bool = False) -> float:
    """Choices per second of processor time among so many replicas. `is_exact`: each has told of blocks, and prompts have ids."""
    traffic, chooser, loads = Traffic(shared_tokens), Chooser(ROUTING["cache-aware"], seed=1), [ReplicaLoad(n) for n in range(replicas)]
    prompts = [traffic.prompt() for _ in range(requests)]
    if is_exact:
        prompts = [each._replace(ids=traffic.ids(), scope=b"scope") for each in prompts]
        chooser.held = told(replicas, traffic.instructions, prompts[0])
    began = time.process_time()
    for each in prompts:
        number, cached = chooser.choose(loads, each)
        loads[number].waiting_tokens += each.tokens - cached
    return requests / (time.process_time() - began)


def told(replicas: int, instructions: list[list[int]], prompt: Prompt) -> Holdings:
    """Holdings of replicas each of which has told of a tenth of the instructions, and how prompts like this one are named."""
    rng, found = Random(1), Holdings()
    digests = [b"".join(key[:DIGEST_BYTES] for key in block_keys(ROOT, ids, BLOCK_TOKENS)) for ids in instructions]
    for number in range(replicas):
        found.apply(number, BlockChanges("e", 0, True, BLOCK_TOKENS, "f", b"".join(rng.sample(digests, PREFIXES // 10)), b""))
    found.hear(prompt, 0, [(PREFIX_HEADER.encode(), f"{ROOT.hex()} {ids_digest(prompt.ids).hex()}".encode())])
    return found


def index_bytes(shared_tokens: int, requests: int) -> tuple[float, float]:
    """(bytes, parts) of the index per request that it has learnt."""
    told, chooser, load = Traffic(shared_tokens), Chooser(ROUTING["round-robin"]), ReplicaLoad(0)
    parts = set().union(*(told.prompt().chain for _ in range(requests)))
    again = Traffic(shared_tokens)
    held = _traced(lambda: [chooser.choose([load], again.prompt()) for _ in range(requests)])
    return held / requests, len(parts) / requests


def held_bytes(replicas: int) -> float:
    """Bytes per digest of the blocks of replicas whose caches are full."""
    rng, held = Random(1), Holdings()

    def hear() -> None:
        for number in range(replicas):
            held.apply(number, BlockChanges("e", 0, True, BLOCK_TOKENS, "f", rng.randbytes(BLOCKS * DIGEST_BYTES), b""))

    return _traced(hear) / (replicas * BLOCKS)


def _traced(work: Callable[[], object]) -> int:
    """Bytes that are left of what was allocated in it."""
    tracemalloc.start()
    work()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held


@dataclass(frozen=True)
class Gossip:
    """A replica's answers to a router's question which blocks have come and gone.

    empty_bytes         of question and answer, heads included, where nothing has
    digest_bytes        more of an answer per digest
    empty_us, digest_us processor time of the router: of a question, and more per digest
    """

    empty_bytes: int
    digest_bytes: float
    empty_us: float
    digest_us: float


def gossip(questions: int = 1_000, prompts: int = 150) -> Gossip:
    """Measured on a real server that has just computed so many prompts."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))
    from processes import SOURCE, ServerProcess

    with TemporaryDirectory() as folder:
        key = read_router_key(f"{folder}/key")
        assert key is not None
        server = ServerProcess([FAKE, "--router-key-file", f"{folder}/key"], {**environ, "PYTHONPATH": str(SOURCE)})
        try:
            return asyncio.run(_ask(server.url, [(KEY_HEADER, key.hex().encode())], questions, prompts))
        finally:
            server.stop()


async def _ask(url: str, headers: Headers, questions: int, prompts: int) -> Gossip:
    held, upstream, traffic = Holdings(), Upstream(url), Traffic(0)

    async def timed(times: int) -> float:
        began = time.process_time()
        for _ in range(times):
            assert await held.ask(0, upstream, headers)
        return (time.process_time() - began) / times * 1e6

    _, known = await _answer(upstream, headers, BlockChanges("", 0, True, 0, "", b"", b""))
    await timed(20)
    empty_us, (empty_bytes, known) = await timed(questions), await _answer(upstream, headers, known)
    await asyncio.to_thread(_complete, url, [traffic.ids() for _ in range(prompts)])
    told_bytes, changes = await _answer(upstream, headers, known)
    told_us = await timed(1)
    upstream.close()
    digests = len(changes.added + changes.removed) // DIGEST_BYTES
    return Gossip(empty_bytes, (told_bytes - empty_bytes) / digests, empty_us, (told_us - empty_us) / digests)


def _complete(url: str, prompts: list[list[int]]) -> None:
    for ids in prompts:
        body = json.dumps({"prompt": ids, "max_tokens": OUTPUT_TOKENS, "ignore_eos": True}).encode()
        with urlopen(Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"}), timeout=60) as answer:
            answer.read()


async def _answer(upstream: Upstream, headers: Headers, known: BlockChanges) -> tuple[int, BlockChanges]:
    """(bytes of a question and its answer, what it tells) where so much is known."""
    question = upstream.request("GET", f"{BLOCKS_PATH}?epoch={known.epoch}&since={known.upto}".encode(), [], b"", headers)
    reader, writer = await asyncio.open_connection(*upstream.authority.decode().split(":"))
    writer.write(question)
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line.partition(b":")[2]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
    body = await reader.readexactly(length)
    writer.close()
    return len(question) + len(head) + length, msgspec.json.decode(body, type=BlockChanges)


def report(peak: float, shared_tokens: int) -> list[str]:
    """Lines with the figures, for a fleet whose peak is so many requests per second."""
    found = []
    for replicas in FLEETS:
        guessed, exact = (choices(replicas, shared_tokens, 3_000 if replicas < 1_000 else 1_000, is_exact=each) for each in (False, True))
        found.append(f"router {replicas:5} replicas: {guessed:,.0f} choices per second and core, {exact:,.0f} with --exact-affinity")
    for shared in (0, shared_tokens):
        size, parts = index_bytes(shared, 5_000)
        seconds = MOST_PARTS / (peak * parts)
        found.append(
            f"router index, {shared} of {PROMPT_TOKENS} tokens shared: {size:,.0f} bytes in {parts:.2f} new parts per request learnt; "
            f"{MOST_PARTS:,} parts are {seconds:,.0f} s of {peak:,.0f} requests per second, in {MOST_PARTS / parts * size / 1e6:,.0f} MB"
        )
    digest, replicas = held_bytes(20), max(FLEETS)
    found.append(
        f"router holdings: {BLOCKS:,} digests per replica, {digest:.0f} bytes each: "
        f"{BLOCKS * replicas * digest / 1e6:,.0f} MB of {replicas:,} replicas"
    )
    told, blocks = gossip(), peak * (PROMPT_TOKENS + OUTPUT_TOKENS) / BLOCK_TOKENS
    asked, digests = replicas / ASK_SECONDS, 2 * blocks  # full caches: each block that comes has one go
    found.append(
        f"router gossip: {told.empty_bytes} bytes and {told.empty_us:.0f} µs per question, {told.digest_bytes:.1f} bytes and "
        f"{told.digest_us:.2f} µs per digest; {replicas:,} replicas at the peak: {asked:,.0f} questions and {digests:,.0f} digests, "
        f"{(asked * told.empty_bytes + digests * told.digest_bytes) / 1e6:.2f} MB and "
        f"{(asked * told.empty_us + digests * told.digest_us) / 1e6:.2f} s of a core per second"
    )
    return found
