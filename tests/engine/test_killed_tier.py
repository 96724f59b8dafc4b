"""Writers of a file of blocks that are killed: every start succeeds, and a block is the right one or none."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from processes import ServerProcess
from tiers import SECRET, content, file_tier, shape

from ridgeline.engine.tiers.seal import Seal

ROOT = Path(__file__).parents[2]
KEPT, VALUES = 24, 64
"""Values that the file holds, and that are written to it in turn."""
WRITER = """
import sys
from itertools import count
from pathlib import Path
sys.path.insert(0, "tests/helpers")
from tiers import SECRET, Seal, content, file_tier, shape
most, size, values = map(int, sys.argv[2:])
seal = Seal(SECRET, shape(size))
sealed = [(seal.name(held.key, 0), seal.close(held, data)) for held, data in (content(number, size) for number in range(values))]
tier = file_tier(Path(sys.argv[1]), most, size)
print(len(tier), flush=True)
for number in count(int.from_bytes(sealed[0][0][:2], "little")):
    tier.put(*sealed[number % values])
"""


def checked(folder: Path, most: int, size: int) -> tuple[int, int]:
    """Values that a start finds, and those of them that are torn."""
    tier, seal, found, torn = file_tier(folder, most, size), Seal(SECRET, shape(size)), 0, 0
    for number in range(VALUES):
        held, data = content(number, size)
        (value,) = tier.get([seal.name(held.key, 0)], 1.0, seal.value_bytes)
        if value is not None:
            opened = seal.open(held, value)
            assert opened in (data, None), "a wrong block"
            found, torn = found + 1, torn + (opened is None)
    assert found == len(tier)
    tier.close()
    return found, torn


@pytest.mark.parametrize(
    ("times", "size"),
    [
        (3, 1 << 18),
        *(pytest.param(50, size, marks=[pytest.mark.night, pytest.mark.timeout(1_200)]) for size in (1 << 16, 1 << 18, 1 << 20)),
    ],
)
def test_killed_while_it_writes(tmp_path: Path, times: int, size: int) -> None:
    """Each kill is followed by a start that looks at every block, and by another one that goes on writing."""
    rng, torn, most = random.Random(times), 0, 4_096 + KEPT * (size + 200)
    arguments = [sys.executable, "-c", WRITER, str(tmp_path / "kv"), *map(str, (most, size, VALUES))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
    for number in range(times):
        with subprocess.Popen(arguments, cwd=ROOT, env=environment, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            assert (int(writer.stdout.readline()) > 0) == (number > 0)
            time.sleep(0.05 + 0.1 * rng.random())
            writer.kill()
        found, damaged = checked(tmp_path / "kv", most, size)
        assert found >= KEPT - 2 and damaged <= 1, "the one that was being written"
        torn += damaged
    print(f"{times} kills, {size:,} bytes a block: {torn} blocks torn, none wrong, every start works")
    assert torn or times < 50


def answers(url: str, prompts: list[list[int]]) -> list[str]:
    """Texts of greedy answers, asked for at once."""
    with ThreadPoolExecutor(len(prompts)) as pool:
        return [*pool.map(lambda prompt: _answer(url, prompt), prompts)]


def _answer(url: str, prompt: list[int]) -> str:
    import httpx

    body = {"prompt": prompt, "max_tokens": 8, "temperature": 0}
    return str(httpx.post(f"{url}/v1/completions", json=body, timeout=120).raise_for_status().json()["choices"][0]["text"])


@pytest.mark.night
@pytest.mark.timeout(900)
def test_a_server_that_is_killed_while_it_writes(tmp_path: Path, serving: Callable[..., Any], demo_server: ServerProcess) -> None:
    """The whole server, ten times: the next one answers with the same tokens, of blocks that the one before has kept."""
    rng, hits, bad, folder = random.Random(10), 0.0, 0.0, tmp_path / "kv"
    flags = ["demo", "--max-model-len", "1024", "--kv-cache-memory-bytes", str(128 << 20), "--kv-cache-dir", str(folder)]
    before: list[list[int]] = []
    for _ in range(10):
        with serving(*flags) as server:
            if before:
                assert answers(server.url, before) == answers(demo_server.url, before)
                hits += server.metric("ridgeline_tier_hits_total", 'tier="file"')
                bad += server.metric("ridgeline_tier_bad_blocks_total", 'tier="file"')
            before = [[rng.randrange(300, 200_000) for _ in range(400)] for _ in range(4)]
            with ThreadPoolExecutor(1) as pool:
                asked = pool.submit(answers, server.url, before)
                _wait_for_writes(folder)
                time.sleep(0.2 * rng.random())
                engine = server.engine_pid()
                for victim in (server.process.pid, engine):
                    os.kill(victim, signal.SIGKILL)
                asked.exception()
                server.process.wait()
    print(f"10 kills of a server: {hits:.0f} tokens brought by the next ones, {bad:.0f} blocks bad, no answer different")
    assert hits >= 10 * 16


def _wait_for_writes(folder: Path) -> None:
    """Until blocks come into the file."""

    def blocks() -> int:
        return sum(each.stat().st_blocks for each in folder.iterdir())

    first, end = blocks(), time.monotonic() + 60
    while blocks() <= first:
        assert time.monotonic() < end, "nothing is written"
        time.sleep(0.001)
