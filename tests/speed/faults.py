"""Faults planted in live servers with a fake device, twenty trials each: is the first cause of the explanation the planted one?

    python tests/speed/faults.py [TRIALS] [CAUSE …]      # five minutes for all, at rest

Sockets, processes and their clocks are real; the device sleeps. Its steps are as long as those of a real model, and whoever has to be in
the way is there before the request is sent, so that other load on the machine seldom adds as much as what was planted; what it adds is
`host`, and rightly.

`tests/e2e/test_planted_faults.py` runs it: every cause once by day, twenty times by night.
"""

import json
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))
from processes import SOURCE, ServerProcess

DEVICE = {"rows": 6, "blocks": 200, "max_model_len": 1_536, "step_seconds": 0.02, "token_seconds": 0.0003}
CHATS = {"rows": 6, "blocks": 2_000, "max_model_len": 8_192, "step_seconds": 0.002, "script": [["zzz", "{}"]]}
TEMPLATE = """{% for _ in range(messages[-1].content | length) %}{% for _ in range(200) %}{% set _ = 1 %}{% endfor %}{% endfor -%}
{{ messages[-1].content }}"""
"""Takes as long as the message is."""
Trial = Callable[[str, random.Random], tuple[str, str]]
"""Plants a fault at the address; returns the id of the request that has it, and the part of its explanation that shows it."""


def post(url: str, route: str = "completions", **body: Any) -> str:
    """The id of a whole completion."""
    first = {"prompt": "Once", "ignore_eos": True} if route == "completions" else {}
    data = json.dumps({**first, "max_tokens": 8, **body}).encode()
    try:
        with urlopen(Request(f"{url}/v1/{route}", data, {"Content-Type": "application/json"})) as answer:
            return str(json.load(answer)["id"])
    except HTTPError as error:
        raise AssertionError(error.read().decode()) from None


class Stream(threading.Thread):
    """A streamed completion; `begun`: its first token is there."""

    def __init__(self, url: str, **body: Any) -> None:
        super().__init__()
        asked = {"prompt": "Once", "ignore_eos": True, "max_tokens": 8, "stream": True, **body}
        self._asked = Request(f"{url}/v1/completions", json.dumps(asked).encode(), {"Content-Type": "application/json"})
        self.begun = threading.Event()
        self.name = ""
        self.start()

    def run(self) -> None:
        with urlopen(self._asked) as answer:
            self.name = json.loads(answer.readline().removeprefix(b"data: "))["id"]
            self.begun.set()
            answer.read()

    def ended(self) -> str:
        """The id of the answer, once it is whole."""
        self.join()
        return self.name


@contextmanager
def beside(streams: list[Stream], url: str, *, begun: bool = True) -> Iterator[None]:
    """Others that are there: they have their first tokens or, not `begun`, the server has them."""
    for stream in streams:
        if begun:
            stream.begun.wait()
    while not begun:
        with urlopen(f"{url}/load") as answer:
            begun = json.load(answer)["server_load"] >= len(streams)
    yield
    for stream in streams:
        stream.join()


def long(rng: random.Random, tokens: int) -> list[int]:
    """A prompt that no other shares its beginning with."""
    return [rng.randint(1, 200) for _ in range(16)] + [7] * (tokens - 16)


def rows(url: str, rng: random.Random) -> tuple[str, str]:
    with beside([Stream(url, max_tokens=rng.randint(20, 30)) for _ in range(6)], url):
        return post(url), "ttft"


def blocks(url: str, rng: random.Random) -> tuple[str, str]:
    with beside([Stream(url, prompt=long(rng, 1_100), max_tokens=rng.randint(40, 50)) for _ in range(2)], url):
        return post(url, prompt=long(rng, 1_000)), "ttft"


def budget(url: str, rng: random.Random) -> tuple[str, str]:
    with beside([Stream(url, prompt=long(rng, rng.randint(1_100, 1_300))) for _ in range(2)], url, begun=False):
        return post(url), "ttft"


def others_prefill(url: str, rng: random.Random) -> tuple[str, str]:
    probe = Stream(url, max_tokens=rng.randint(12, 18))
    probe.begun.wait()
    for other in [Stream(url, prompt=long(rng, 1_000), max_tokens=2) for _ in range(3)]:
        other.join()
    return probe.ended(), "total"


def decode(url: str, rng: random.Random) -> tuple[str, str]:
    return post(url, max_tokens=rng.randint(20, 30)), "total"


def network(url: str, rng: random.Random) -> tuple[str, str]:
    found, body = urlsplit(url), json.dumps({"prompt": "Once", "max_tokens": 4}).encode()
    with socket.create_connection((found.hostname or "", found.port or 0)) as stream:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        stream.sendall(head.encode() + body[:10])
        time.sleep(rng.uniform(0.2, 0.4))
        stream.sendall(body[10:])
        answer = stream.recv(1 << 16).decode()
    return str(json.loads(answer.partition("\r\n\r\n")[2])["id"]), "ttft"


def template(url: str, rng: random.Random) -> tuple[str, str]:
    message = "".join(rng.choices("abcdefgh ", k=rng.randint(1_500, 2_500)))
    return post(url, "chat/completions", messages=[{"role": "user", "content": message}], max_tokens=4), "ttft"


def prefill(url: str, rng: random.Random) -> tuple[str, str]:
    return post(url, prompt=long(rng, rng.randint(1_100, 1_400))), "ttft"


def grammar(url: str, rng: random.Random) -> tuple[str, str]:
    """A schema that nobody has sent before."""
    names = [f"{rng.getrandbits(60):x}" for _ in range(rng.randint(60, 90))]
    fields = {name: {"type": "string", "pattern": f"^({name}|[a-f]{{5,30}}[0-9]{{1,20}}{name[::-1]})+$"} for name in names}
    schema = {"type": "object", "properties": fields, "required": names, "additionalProperties": False}
    asked = {"type": "json_schema", "json_schema": {"name": "planted", "schema": schema}}
    return post(url, messages=[{"role": "user", "content": "zzz"}], route="chat/completions", response_format=asked, max_tokens=4), "ttft"


def slow_reader(url: str, rng: random.Random) -> tuple[str, str]:
    """Its system takes 32 kB, and the server's little more: what that keeps follows the size of segments. It reads on when the answer has
    long been computed."""
    found, body = urlsplit(url), b'{"prompt": "p", "max_tokens": 700, "stream": true, "ignore_eos": true, "logprobs": 20}'
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 15)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
        client.connect((found.hostname or "", found.port or 0))
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        began, text = time.monotonic(), bytearray()
        while b"\n" not in text.partition(b"data: ")[2]:
            text += client.recv(256)
        name = str(json.loads(text.partition(b"data: ")[2].partition(b"\n")[0])["id"])
        while _running(url):
            time.sleep(0.2)
        time.sleep(rng.uniform(1.0, 1.3) * (time.monotonic() - began))
        while b"[DONE]" not in text[-64:]:
            text += client.recv(1 << 20)
    return name, "total"


def _running(url: str) -> float:
    """Requests that have a row."""
    with urlopen(f"{url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("vllm:num_requests_running"))


def explanation(url: str, name: str) -> dict[str, Any]:
    """What the server says of a request."""
    with urlopen(f"{url}/v1/requests/{name}/explain") as answer:
        return dict(json.load(answer))


def preempted(url: str, rng: random.Random) -> tuple[str, str]:
    """Two rows; two requests of a higher class take them."""
    probe = Stream(url, max_tokens=10, priority=5)
    probe.begun.wait()
    for other in [Stream(url, max_tokens=rng.randint(20, 30), priority=-5) for _ in range(2)]:
        other.join()
    return probe.ended(), "total"


def host(url: str, rng: random.Random) -> tuple[str, str]:
    """The engine's process stands still, between steps that take next to nothing."""
    probe, engine = Stream(url, max_tokens=300), _engine_of(url)
    probe.begun.wait()
    for _ in range(8):
        os.kill(engine, signal.SIGSTOP)
        time.sleep(rng.uniform(0.04, 0.08))
        os.kill(engine, signal.SIGCONT)
        time.sleep(0.01)
    return probe.ended(), "total"


ENGINES: dict[str, int] = {}
"""Process of the engine by the address of its server."""


def _engine_of(url: str) -> int:
    return ENGINES[url]


FAULTS: dict[str, Trial] = {
    each.__name__: each
    for each in (
        rows,
        blocks,
        budget,
        others_prefill,
        decode,
        network,
        template,
        prefill,
        grammar,
        slow_reader,
        preempted,
        host,
    )
}
SERVERS: dict[str, list[str]] = {
    "plain": [f"fake:{json.dumps(DEVICE)}", "--max-num-batched-tokens", "256"],
    "chats": [f"fake:{json.dumps(CHATS)}", "--send-timeout", "60"],
    "two rows": [f"fake:{json.dumps(DEVICE | {'rows': 2})}", "--scheduling-policy", "priority"],
}
WHERE: dict[str, str] = {**dict.fromkeys(("template", "grammar", "slow_reader", "host"), "chats"), "preempted": "two rows"}
"""Which server a cause is planted in, where that is not the plain one."""


@contextmanager
def servers(causes: Iterable[str]) -> Iterator[dict[str, str]]:
    """Addresses of the servers that the causes need, by name."""
    running: list[ServerProcess] = []
    urls: dict[str, str] = {}
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
        file.write(TEMPLATE)
        file.flush()
        try:
            for name in {WHERE.get(cause, "plain") for cause in causes}:
                template = ["--chat-template", file.name] if name == "chats" else []
                running.append(ServerProcess([*SERVERS[name], *template], {**os.environ, "PYTHONPATH": str(SOURCE)}))
                urls[name] = running[-1].url
                children = Path(f"/proc/{running[-1].process.pid}/task").glob("*/children")
                found = [int(pid) for each in children for pid in each.read_text().split()]
                ENGINES[urls[name]] = next(pid for pid in found if b"engine.process" in Path(f"/proc/{pid}/cmdline").read_bytes())
            yield urls
        finally:
            for each in running:
                each.stop()


def first_causes(cause: str, url: str, trials: int, rng: random.Random) -> list[str]:
    """What explanations name first of requests in which the cause was planted."""
    named = []
    for _ in range(trials):
        name, part = FAULTS[cause](url, rng)
        named.append(explanation(url, name)[part]["first"])
    return named


def main() -> None:
    """Prints a line per cause."""
    trials, causes = int(sys.argv[1]) if len(sys.argv) > 1 else 20, sys.argv[2:] or [*FAULTS]
    rng = random.Random(1)
    with servers(causes) as urls:
        for cause in causes:
            began = time.monotonic()
            named = first_causes(cause, urls[WHERE.get(cause, "plain")], trials, rng)
            others = sorted({each for each in named if each != cause})
            told = f", else {others}" if others else ""
            print(f"{cause}: {named.count(cause)} of {trials}{told}; {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
