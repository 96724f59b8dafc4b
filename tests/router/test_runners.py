"""Streams of real runners whose replica is killed: what goes on elsewhere has the same bits, log-probabilities included, whatever the
prefix cache of either has."""

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from processes import ServerProcess
from relayed import alike, events
from tiny import Tiny, write_tiny

PREFIX = "Whatever is said here is said to all of them, and fills some blocks of the cache. " * 3
FREE = {"max_tokens": 300, "ignore_eos": True, "stream_options": {"include_usage": True}}
ASKED: list[dict[str, Any]] = [
    {"prompt": PREFIX + "a", "temperature": 0, "logprobs": 3},
    {"prompt": PREFIX + "b", "temperature": 1.0, "seed": 11, "top_p": 0.95},
    {"prompt": PREFIX + "c", "temperature": 0.8, "seed": 12, "n": 2, "logprobs": 0},
    {"prompt": [PREFIX + "d", "another one"], "temperature": 1.0, "seed": 13, "presence_penalty": 0.5},
]
FIRST = 30
"""Lines that each client has before a replica is killed."""
CACHED = re.compile(r',?"prompt_tokens_details":\{[^}]*\}')


@pytest.fixture
def start(environment: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Starts a replica, or a router, with the key that all of them share."""
    with ExitStack() as stack:

        def begin(*arguments: str, verb: str = "serve") -> ServerProcess:
            made = ServerProcess([*arguments, "--router-key-file", str(tmp_path / "key")], environment, verb)
            stack.callback(lambda: made.process.poll() is None and made.stop())
            return made

        yield begin


def told(stream: str) -> list[str]:
    """A stream without what tells of caches and times."""
    return CACHED.sub("", alike(stream)).split("\n\n")


def ask(url: str, number: int, tokens: int, on_event: Callable[[], None] = lambda: None) -> list[str]:
    return told(events(url, "/v1/completions", ASKED[number] | FREE | {"max_tokens": tokens}, on_event))


def kill_under_streams(pool: ThreadPoolExecutor, router: ServerProcess, doomed: ServerProcess, tokens: int) -> list[Future[list[str]]]:
    """One stream of each, whose replica is killed when all have begun."""
    begun = threading.Semaphore(0)

    def one(number: int) -> list[str]:
        count = iter(range(1, 1 << 20))
        return ask(router.url, number, tokens, lambda: begun.release() if next(count) == FIRST else None)

    streams = [pool.submit(one, number) for number in range(len(ASKED))]
    for _ in ASKED:
        assert begun.acquire(timeout=60)
    doomed.process.kill()
    doomed.process.wait()
    return streams


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("runner", "tokens"), [("numpy", 120), ("native", 300)])
def test_a_killed_replica_changes_no_bit(start: Callable[..., ServerProcess], tmp_path: Path, runner: str, tokens: int) -> None:
    """Of two streams the other replica has computed the same before, of two it has nothing but the prefix, of one not even that."""
    served = [str(write_tiny(tmp_path / "base.gguf", Tiny(context=1024))), "--max-model-len", "1024", "--runner", runner]
    with ThreadPoolExecutor(len(ASKED)) as pool:
        doomed, other = pool.map(lambda _: start(*served), range(2))
        router = start("--replica", f"{doomed.url}=1000", "--replica", other.url, verb="route")
        ask(router.url, 0, 1)  # its prefix is cached there
        before = {number: ask(other.url, number, tokens) for number in (0, 1)}
        found = [each.result() for each in kill_under_streams(pool, router, doomed, tokens)]
    assert router.metric("ridgeline_router_continued_answers_total") == len(ASKED), "each was cut"
    assert found == [before.get(number) or ask(other.url, number, tokens) for number in range(len(ASKED))]
    assert doomed.process.returncode == -9 and other.metric("vllm:prefix_cache_hits_total") > 0


@pytest.mark.night
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("model", "runner", "kills", "tokens"),
    [("tiny", "numpy", 40, 300), ("tiny", "native", 40, 300), ("demo", "native", 20, 60), ("demo", "numpy", 2, 30)],
)
def test_many_killed_replicas_change_no_bit(
    start: Callable[..., ServerProcess], tmp_path: Path, demo_file: Path, model: str, runner: str, kills: int, tokens: int
) -> None:
    """One of two in turn, which comes back with an empty cache."""
    path = str(demo_file) if model == "demo" else str(write_tiny(tmp_path / "base.gguf", Tiny(context=1024)))
    served = [path, "--max-model-len", "1024", "--runner", runner, "--kv-cache-memory-bytes", str(128 << 20)]
    replicas = [start(*served) for _ in range(2)]
    ports = [each.url.rpartition(":")[2] for each in replicas]
    wanted = [ask(replicas[0].url, number, tokens) for number in range(len(ASKED))]
    router = start("--routing", "round-robin", *(word for each in replicas for word in ("--replica", each.url)), verb="route")
    with ThreadPoolExecutor(len(ASKED)) as pool:
        for number in range(kills):
            place = number % 2
            streams = kill_under_streams(pool, router, replicas[place], tokens)
            assert [each.result(timeout=300) for each in streams] == wanted, f"kill {number}"
            replicas[place] = start(*served, "--port", ports[place])
    assert router.metric("ridgeline_router_continued_answers_total") >= kills
