"""Inter-token latency of streams while another client throws schemas and grammars that cost much, against the same streams without:

    python tests/speed/bombs.py [MODEL] [--streams 4] [--throwers 8] [--seconds 20] [--rounds 2]

Prints p50, p99 and the longest pause, in turn without and with, and what became of the bombs.
"""

import asyncio
import os
import sys
import time
from argparse import ArgumentParser
from collections import Counter
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from bombs import BOMBS
from processes import ServerProcess
from streams import note_pauses

LINE = "{:8} {:>10} {:>10} {:>10} {:>9}   {}"


async def listen(client: httpx.AsyncClient, until: float, pauses: list[float]) -> None:
    """Streams one answer after the other; notes the time between their events."""
    while time.monotonic() < until:
        body = {"prompt": "Once upon a time", "max_tokens": 128, "ignore_eos": True, "temperature": 0.7}
        await note_pauses(client, body, pauses)


async def throw(client: httpx.AsyncClient, until: float, first: int, statuses: Counter[int]) -> None:
    """Sends all bombs in turn, each a little different, so that none is known."""
    names, number = [*BOMBS], first
    while time.monotonic() < until:
        number += 1
        body = {"prompt": f"x{number}", "max_tokens": 16, "temperature": 1.5, "structured_outputs": dict(BOMBS[names[number % len(names)]])}
        if "regex" in body["structured_outputs"]:
            body["structured_outputs"]["regex"] += f"|zz{number}"
        statuses[(await client.post("/v1/completions", json=body)).status_code] += 1


async def measure(url: str, streams: int, throwers: int, seconds: float) -> str:
    pauses: list[float] = []
    statuses: Counter[int] = Counter()
    until = time.monotonic() + seconds
    neighbour = httpx.AsyncHTTPTransport(local_address="127.0.0.2")
    async with (
        httpx.AsyncClient(base_url=url, timeout=120) as client,
        httpx.AsyncClient(base_url=url, timeout=120, transport=neighbour) as attacker,
        asyncio.TaskGroup() as tasks,
    ):
        for _ in range(streams):
            tasks.create_task(listen(client, until, pauses))
        for at in range(throwers):
            tasks.create_task(throw(attacker, until, 7 * at, statuses))
    pauses.sort()
    p50, p99 = (pauses[int(len(pauses) * share)] * 1e3 for share in (0.5, 0.99))
    figures = (f"{p50:.1f} ms", f"{p99:.1f} ms", f"{pauses[-1] * 1e3:.0f} ms", len(pauses), dict(statuses))
    return LINE.format("with" if throwers else "without", *figures)


def main() -> None:
    parser = ArgumentParser()
    parser.add_argument("model", nargs="?", default="demo")
    for name, value in (("streams", 4), ("throwers", 8), ("seconds", 20), ("rounds", 2)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    server = ServerProcess([given.model, "--max-model-len", "2048"], {**os.environ})
    try:
        print(LINE.format("bombs", "p50", "p99", "longest", "events", "statuses of the bombs"))
        for _ in range(given.rounds):
            for throwers in (0, given.throwers):
                print(asyncio.run(measure(server.url, given.streams, throwers, given.seconds)), flush=True)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
