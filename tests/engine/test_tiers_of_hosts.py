"""Engines on two hosts share blocks: from one to the other over TCP, and through a server behind TLS."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hosts import Host, two_hosts
from processes import SOURCE
from redis_server import open_tls_redis
from tiny import write_tiny

PROMPT = [3 + number * 7 % 90 for number in range(200)]
PEERS_PORT, REDIS_PORT = 7_000, 6_380
ENGINE = """
import json, sys
from ridgeline.core.params import SamplingParams
from ridgeline.engine.llm import LLM
from ridgeline.engine.tiers import opening, patience, peer
patience.SHARE = 1e5  # the model is so small that computing takes less than asking
peer.CONNECT_SECONDS = peer.CALL_SECONDS = 5.0
opening.MOST_SECONDS = 20.0
given = json.loads(sys.argv[1])
given |= {"runner": "numpy", "kv_dtype": "f32", "max_model_len": 256, "max_num_seqs": 2, "kv_cache_memory_bytes": 8 << 20}
with LLM(given.pop("model"), **given) as llm:
    for line in sys.stdin:
        found = llm.generate([json.loads(line)], SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True))[0]
        store = llm._engine._engine.store
        counts = {name: dict(each) for name, each in store.counts.items()}
        print(json.dumps([found.outputs[0].token_ids, found.num_cached_tokens or 0, counts, store._written.empty()]), flush=True)
"""


class Engine:
    """An engine's process on a host."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def answer(self, prompt: list[int]) -> tuple[list[int], int, dict[str, dict[str, int]], bool]:
        """Ids, tokens from a cache, what tiers have done, and whether nothing is left to be written to them, but for one block."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(prompt)}\n")
        self._process.stdin.flush()
        ids, cached, counts, is_written = json.loads(self._process.stdout.readline())
        return ids, cached, counts, is_written


@contextmanager
def engine(host: Host, **settings: Any) -> Iterator[Engine]:
    command = [*host.where, sys.executable, "-c", ENGINE, json.dumps(settings)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": str(SOURCE)}) as process:
        try:
            yield Engine(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(20)


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    with two_hosts() as found:
        yield found


def test_blocks_go_from_host_to_host(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    here, there = hosts
    whole = (len(PROMPT) - 1) // 16 * 16
    common = {"model": str(write_tiny(tmp_path / "tiny.gguf")), "kv_cache_secret_file": str(tmp_path / "secret")}
    with open_tls_redis(tmp_path, here.address, REDIS_PORT, here.where) as server:
        shared = {"kv_cache_redis": server.url, "kv_cache_redis_password_file": server.password_file}
        with (
            engine(here, **common, **shared, kv_cache_listen=f"{here.address}:{PEERS_PORT}") as first,
            engine(there, **common, kv_cache_peers=[f"{here.address}:{PEERS_PORT}"]) as second,
            engine(there, **common, **shared) as third,
        ):
            ids, cached, kept, is_written = first.answer(PROMPT)
            assert cached == 0
            while not is_written or kept["shelf"]["kept"] != kept["redis"]["kept"]:  # behind its answer, to one after the other
                *_, kept, is_written = first.answer([5, 6, 7])
            for asked, tier in ((second, "peer"), (third, "redis")):
                found, cached, counts, _ = asked.answer(PROMPT)
                assert (found, cached) == (ids, whole) and counts[tier]["fetched"], tier
                assert not counts[tier]["bad"] and not counts[tier]["failures"], tier
