"""What the front end costs, in processor time of the server's process alone: `python tests/speed/front_end.py cost`, two minutes.

    cost     µs per streamed token at 1, 16 and 32 streams, completions and chats; ms per short request that is not streamed
    against  output tokens per second at 32 streams over HTTP and of `LLM` in another process, in turn, and their ratio

`cost` has a fake engine whose steps take 10 ms; with `--model demo` the weights drive the front end out of the caches, as they do in use.
`--before PYTHON` has a server of another checkout asked in turn: the interpreter of an environment in which that one is installed, as an
editable install comes before `PYTHONPATH`.
Its figures count user and system time of every thread. `against` takes the demo: run it on a machine at rest, six minutes.
"""

import argparse
import json
import os
import selectors
import socket
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))
from processes import SOURCE, ServerProcess

FAKE = json.dumps({"rows": 64, "blocks": 8192, "max_model_len": 4096, "step_seconds": 0.01})
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
PROMPT = "Once upon a time"
OFFLINE = """
import json, sys, time
from ridgeline import LLM, SamplingParams
llm = LLM(sys.argv[1], max_num_seqs=32)
params = SamplingParams(max_tokens=int(sys.argv[2]), ignore_eos=True, temperature=0.0)
prompts = [f"{sys.argv[3]} {number}" for number in range(32)]
llm.generate(prompts[:1], params)
for _ in sys.stdin:
    began = time.perf_counter()
    count = sum(len(each.outputs[0].token_ids) for each in llm.generate(prompts, params))
    print(count / (time.perf_counter() - began), flush=True)
"""


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far, its threads' that have ended not counted."""
    return sum(int(task.read_text().split()[0]) for task in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def post(path: str, body: dict[str, object]) -> bytes:
    data = json.dumps(body).encode()
    return b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
        path.encode(), len(data), data
    )  # fmt: skip


def ask(url: str, requests: list[list[bytes]]) -> float:
    """Seconds for all requests: a connection for each list, whose requests follow each other. A client that costs little."""
    address, poll, began = urlsplit(url), selectors.DefaultSelector(), time.perf_counter()
    for each in requests:
        client = socket.create_connection((address.hostname, address.port))
        client.sendall(each[0])
        poll.register(client, selectors.EVENT_READ, [b"", each[1:]])
    left = len(requests)
    while left:
        for key, _ in poll.select(30):
            client, state = key.fileobj, key.data
            assert isinstance(client, socket.socket)
            data = client.recv(1 << 16)
            assert data, state[0]
            state[0] = (state[0] + data)[-4096:]
            if not is_whole(state[0]):
                continue
            assert b" 200 OK" in data[:20] or not data.startswith(b"HTTP"), data
            if state[1]:
                state[0] = b""
                client.sendall(state[1].pop(0))
            else:
                poll.unregister(client)
                client.close()
                left -= 1
    return time.perf_counter() - began


def is_whole(data: bytes) -> bool:
    """True at the end of a stream, or of a body with a length that came with its head."""
    if data.endswith(b"0\r\n\r\n"):
        return True
    head, end, body = data.partition(b"\r\n\r\n")
    return bool(end) and b"content-length: %d\r\n" % len(body) in head + b"\r\n"


def bodies(kind: str, tokens: int, stream: bool) -> bytes:
    body: dict[str, object] = {"max_tokens": tokens, "stream": stream, "ignore_eos": True, "temperature": 0}
    if kind == "chat":
        return post("/v1/chat/completions", {**body, "messages": [{"role": "user", "content": PROMPT}]})
    return post("/v1/completions", {**body, "prompt": PROMPT})


def cost(model: str, tokens: int, rounds: int, pythons: list[str]) -> None:
    """Of servers of each of these interpreters, in turn."""
    servers: list[ServerProcess] = []
    with TemporaryDirectory() as folder:
        template = Path(folder) / "template.jinja"
        template.write_text(TEMPLATE)
        try:
            for python in pythons:
                environment = {**os.environ, "PYTHONPATH": str(SOURCE)} if python == sys.executable else {**os.environ}
                servers.append(ServerProcess([model, "--chat-template", str(template)], environment, python=python))
                ask(servers[-1].url, [[bodies(kind, 4, True)] * 20 for kind in ("completions", "chat")])
            for kind in ("completions", "chat"):
                for streams in (1, 16, 32):
                    requests = [[bodies(kind, tokens, True)]] * streams
                    compare(f"{kind}, {streams} streams, µs per token", servers, requests, tokens * streams / 1e6, rounds)
                requests = [[bodies(kind, 4, False)] * 20] * 16
                compare(f"{kind}, not streamed, 4 tokens, 16 at once, ms per request", servers, requests, 20 * 16 / 1e3, rounds)
        finally:
            for server in servers:
                server.stop()


def compare(title: str, servers: list[ServerProcess], requests: list[list[bytes]], number: float, rounds: int) -> None:
    """Prints the processor time of these requests over `number`, by server: median, least and most; and the ratio of the last to the
    first."""
    found: list[list[float]] = [[] for _ in servers]
    for turn in range(rounds):
        for each, server in [*zip(found, servers, strict=True)][:: -1 if turn % 2 else 1]:
            before = cpu_seconds(server.process.pid)
            ask(server.url, requests)
            each.append((cpu_seconds(server.process.pid) - before) / number)
    told = "; ".join(f"{median(each):.2f} ({min(each):.2f}–{max(each):.2f})" for each in found)
    ratios = [last / first for first, last in zip(found[0], found[-1], strict=True)]
    print(f"{title}: {told}" + (f"; ratio {median(ratios):.3f}" if len(found) > 1 else ""), flush=True)


def against(model: str, tokens: int, rounds: int) -> None:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-c", OFFLINE, model, str(tokens), PROMPT]
    offline = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    server = ServerProcess([model, "--max-num-seqs", "32"], environment)
    assert offline.stdin is not None and offline.stdout is not None
    asked = {"max_tokens": tokens, "stream": True, "ignore_eos": True, "temperature": 0}
    requests = [[post("/v1/completions", {**asked, "prompt": f"{PROMPT} {number}"})] for number in range(32)]
    ratios = []
    try:
        for number in range(rounds + 1):  # the first, in which pages are touched, is not counted
            offline.stdin.write("\n")
            offline.stdin.flush()
            alone = float(offline.stdout.readline())
            served = 32 * tokens / ask(server.url, requests)
            if number:
                ratios.append(served / alone)
                print(f"LLM {alone:.1f} tokens/s, serve {served:.1f}: {ratios[-1]:.3f}", flush=True)
        print(f"serve over LLM, median: {median(ratios):.3f}")
    finally:
        offline.stdin.close()
        offline.wait(30)
        server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("cost", "against"))
    parser.add_argument("--model", help="a model instead of the fake one, or of the demo")
    parser.add_argument("--tokens", type=int, default=256, help="of each stream")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--before", help="the Python of another checkout, whose server has the same requests in turn")
    asked = parser.parse_args()
    if asked.what == "cost":
        before = [] if asked.before is None else [asked.before]
        cost(asked.model or "fake:" + FAKE, asked.tokens, asked.rounds, [*before, sys.executable])
    else:
        against(asked.model or "demo", asked.tokens, asked.rounds)


if __name__ == "__main__":
    main()
