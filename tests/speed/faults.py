"""Faults planted in a live server with a fake device, twenty trials each: is the first cause of the explanation the planted one?
`python tests/speed/faults.py [TRIALS]`, two minutes. Sockets, the two processes and their clocks are real; steps sleep. On a machine
with other load `host` is found where `decode` was planted, and rightly: steps of 4 ms wait for a processor.
"""

import json
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))
from processes import SOURCE, ServerProcess

FAKE = json.dumps({"rows": 6, "blocks": 600, "max_model_len": 4096, "step_seconds": 0.004, "token_seconds": 0.0001})
Trial = Callable[[str, random.Random], tuple[str, str]]
"""Plants a fault at the address; returns the id of the request that has it, and the part of its explanation that shows it."""


def post(url: str, **body: Any) -> str:
    """The id of a whole completion."""
    data = json.dumps({"prompt": "Once", "max_tokens": 8, "ignore_eos": True, **body}).encode()
    with urlopen(Request(f"{url}/v1/completions", data, {"Content-Type": "application/json"})) as answer:
        return str(json.load(answer)["id"])


def beside(url: str, count: int, **body: Any) -> list[threading.Thread]:
    threads = [threading.Thread(target=post, args=(url,), kwargs=body) for _ in range(count)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    return threads


def long(rng: random.Random, tokens: int) -> list[int]:
    """A prompt that no other shares its beginning with."""
    return [rng.randint(1, 200) for _ in range(16)] + [7] * (tokens - 16)


def rows(url: str, rng: random.Random) -> tuple[str, str]:
    others = beside(url, 6, max_tokens=rng.randint(60, 120))
    name = post(url)
    for other in others:
        other.join()
    return name, "ttft"


def blocks(url: str, rng: random.Random) -> tuple[str, str]:
    others = [beside(url, 1, prompt=long(rng, 3_500), max_tokens=rng.randint(250, 350))[0] for _ in range(2)]
    time.sleep(0.9)  # until their prompts are computed: what the next one lacks is blocks then
    name = post(url, prompt=long(rng, 3_000))
    for other in others:
        other.join()
    return name, "ttft"


def budget(url: str, rng: random.Random) -> tuple[str, str]:
    others = [beside(url, 1, prompt=long(rng, 2_000))[0] for _ in range(2)]
    name = post(url)
    for other in others:
        other.join()
    return name, "ttft"


def others_prefill(url: str, rng: random.Random) -> tuple[str, str]:
    found: list[str] = []
    stream = threading.Thread(target=lambda: found.append(post(url, max_tokens=rng.randint(30, 50))))
    stream.start()
    time.sleep(0.03)
    for other in [beside(url, 1, prompt=long(rng, 2_500))[0] for _ in range(3)]:
        other.join()
    stream.join()
    return found[0], "total"


def decode(url: str, rng: random.Random) -> tuple[str, str]:
    return post(url, max_tokens=rng.randint(60, 120)), "total"


def network(url: str, rng: random.Random) -> tuple[str, str]:
    found, body = urlsplit(url), json.dumps({"prompt": "Once", "max_tokens": 4}).encode()
    with socket.create_connection((found.hostname or "", found.port or 0)) as stream:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        stream.sendall(head.encode() + body[:10])
        time.sleep(rng.uniform(0.2, 0.4))
        stream.sendall(body[10:])
        answer = stream.recv(1 << 16).decode()
    return str(json.loads(answer.partition("\r\n\r\n")[2])["id"]), "ttft"


FAULTS: dict[str, Trial] = {
    "rows": rows, "blocks": blocks, "budget": budget, "others_prefill": others_prefill, "decode": decode, "network": network,
}  # fmt: skip


def main() -> None:
    trials, rng = int(sys.argv[1]) if len(sys.argv) > 1 else 20, random.Random(1)
    server = ServerProcess([f"fake:{FAKE}"], {**os.environ, "PYTHONPATH": str(SOURCE)})
    try:
        for cause, plant in FAULTS.items():
            named = []
            for _ in range(trials):
                name, part = plant(server.url, rng)
                with urlopen(f"{server.url}/v1/requests/{name}/explain") as answer:
                    named.append(json.load(answer)[part]["first"])
            others = sorted({each for each in named if each != cause})
            print(f"{cause}: {named.count(cause)} of {trials}{f', else {others}' if others else ''}", flush=True)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
