"""Two models in one server: what sharing costs them, and what unloads leave. `python tests/speed/models.py share|unload`, by hand.

share   4 clients of each model. In turn: the first model alone, the second alone, both at once. What is divided: the tokens per second of
        both together, by the mean of those of each alone. 1: two share the machine's time without loss; at rest 0.9 or more is asked.
        Beside it the processor time of a token, of all processes, which other work on the machine disturbs less. 3 min
unload  one model is unloaded and loaded again under load of both. What is compared, at rest, both loaded, both KV caches written whole:
        anonymous memory of the front end, of the engines, of all, behind the loads over before; and failed requests (0). 10 min
"""

import argparse
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

NAMES = ("first", "second")
TOKENS = 128
KV_BYTES = 48 << 20
"""Of each model's KV cache: small, so that it is soon written whole."""
PROMPT_TOKENS, TOKEN_BYTES = 1_900, 18 << 10
"""Of a prompt that writes it, and of a token in it, at least as many as the demo's."""
WARM_ROUNDS, SHORT = 10, 24
"""Loads before memory is compared, and tokens of the answers meanwhile. In the first ones the front end's heap grows by some 18 MB: what
requests have put between parts of a model keeps its pages. From the tenth on it stays as it is."""


@contextmanager
def serving(model: str, *flags: str) -> Iterator[tuple[str, int]]:
    """(address, process) of a server that has the model twice."""
    program = "import sys; sys.argv[0] = 'ridgeline'; from ridgeline.cli.main import main; main()"
    command = [sys.executable, "-c", program, "serve", *(f"{name}={model}" for name in NAMES), "--port", "0", "--admin-socket", "none"]
    command += ["--max-model-len", "2k", "--max-num-seqs", "8", *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        found = next((match for line in lines if (match := re.search(r"serves .* at (http://\S+)|url=(http://\S+)", line))), None)
        if found is None:
            raise SystemExit("the server did not start")
        threading.Thread(target=lambda: [None for _ in lines], daemon=True).start()
        try:
            yield found[1] or found[2], process.pid
        finally:
            process.terminate()


def ask(url: str, path: str, body: dict[str, object], key: str | None = None) -> int:
    """Tokens of an answer; raises HTTPError."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    with urlopen(Request(url + path, json.dumps(body).encode(), headers), timeout=300) as answer:
        return int(json.load(answer).get("usage", {}).get("completion_tokens", 0))


def load(
    url: str, names: tuple[str, ...], until: threading.Event, key: str | None = None, clients: int = 4, length: int = TOKENS
) -> dict[str, list[int]]:
    """Answers of so many tokens to clients of each model until the event: (tokens, failures) by model, filled as they come."""
    found = {name: [0, 0] for name in names}

    def client(name: str) -> None:
        body = {"model": name, "prompt": "Once upon a time", "max_tokens": length, "ignore_eos": True}
        while not until.is_set():
            try:
                tokens = ask(url, "/v1/completions", body, key)
                if not until.is_set():
                    found[name][0] += tokens
            except (HTTPError, OSError):
                found[name][1] += 1

    for name in names:
        for _ in range(clients):
            threading.Thread(target=client, args=(name,), daemon=True).start()
    return found


def tokens_per_second(url: str, pid: int, names: tuple[str, ...], seconds: float) -> tuple[float, float]:
    """(tokens per second of all these models, by their counters; milliseconds of processors for each), from a second behind the begin of
    the load on."""
    until = threading.Event()
    load(url, names, until)
    time.sleep(1)
    before, used, began = sum(generated(url).values()), processor_seconds(pid), time.monotonic()
    time.sleep(seconds)
    behind, used_behind, passed = sum(generated(url).values()), processor_seconds(pid), time.monotonic() - began
    until.set()
    time.sleep(1)
    seen = behind
    while (now := sum(generated(url).values())) != seen:  # open answers end before the next load
        seen = now
        time.sleep(1)
    return (behind - before) / passed, 1e3 * (used_behind - used) / max(1.0, behind - before)


def processor_seconds(pid: int) -> float:
    """Of a process and those below it."""
    own = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(own[11]) + int(own[12])) / os.sysconf("SC_CLK_TCK") + sum(map(processor_seconds, children(pid)))


def generated(url: str) -> dict[str, float]:
    """Tokens that each model has sampled."""
    with urlopen(url + "/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return {name: float(value) for name, value in re.findall(r'vllm:generation_tokens_total{model_name="(\w+)"} (\S+)', text)}


def share(model: str, rounds: int, seconds: float) -> None:
    """Alone, both, alone, both …"""
    ratios, costs = list[float](), list[float]()
    with serving(model) as (url, pid):
        for _ in range(rounds):
            alone = [tokens_per_second(url, pid, (name,), seconds) for name in NAMES]
            both, cost = tokens_per_second(url, pid, NAMES, seconds)
            speed, alone_cost = (sum(each) / len(NAMES) for each in zip(*alone, strict=True))
            ratios.append(both / speed)
            costs.append(cost / alone_cost)
            print(
                f"alone {alone[0][0]:.1f} and {alone[1][0]:.1f} tokens/s, {alone_cost:.1f} ms of processors a token; "
                f"both together {both:.1f}, {cost:.1f} ms: {ratios[-1]:.3f}, processors {costs[-1]:.3f}", flush=True,
            )  # fmt: skip
    print(f"median: tokens/s {sorted(ratios)[len(ratios) // 2]:.3f} of one alone, processor time {sorted(costs)[len(costs) // 2]:.3f}")


def anonymous(pid: int) -> int:
    """Anonymous bytes of a process."""
    return int(re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) * 1024  # type: ignore[index]


def memory(pid: int) -> tuple[int, int]:
    """Anonymous bytes of a server's front end, and of all processes below it."""
    below, found = children(pid), 0
    while below:
        child = below.pop()
        with suppress(OSError, TypeError):  # it has ended meanwhile
            found += anonymous(child)
            below += children(child)
    return anonymous(pid), found


def children(pid: int) -> list[int]:
    """Processes that a process has started and that run."""
    return [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]


def touch(url: str, key: str) -> None:
    """Writes every block of both models' KV caches, so that what they take later is no growth."""
    for name in NAMES:
        for number in range(2 * KV_BYTES // (PROMPT_TOKENS * TOKEN_BYTES)):
            ask(url, "/v1/completions", {"model": name, "prompt": [300 + number] * PROMPT_TOKENS, "max_tokens": 1}, key)


def settled(pid: int) -> tuple[int, int]:
    """Memory at rest: the least of some seconds, in which what requests held is given back."""
    time.sleep(3)
    return min((memory(pid) for _ in range(5) if time.sleep(0.5) is None), key=sum)


def unload(model: str, rounds: int) -> None:
    """Unloads one of two models again and again under load. Memory is compared at rest, both loaded and both caches written whole."""
    key_file = Path("/tmp") / f"ridgeline-models-{os.getpid()}.keys"
    key_file.touch(0o600)
    key_file.write_text("boss secret-of-an-admin scope=admin\n")
    key = "secret-of-an-admin"
    try:
        with serving(model, "--api-key-file", str(key_file), "--kv-cache-memory-bytes", str(KV_BYTES)) as (url, pid):
            sizes, failed = list[tuple[int, int]](), 0
            for count in (WARM_ROUNDS, rounds):
                until, fronts = threading.Event(), list[int]()
                found = load(url, NAMES, until, key, 2, SHORT)
                time.sleep(1)
                for _ in range(count):
                    ask(url, "/models/unload", {"model": NAMES[1]}, key)
                    ask(url, "/models/load", {"model": NAMES[1]}, key)
                    fronts.append(memory(pid)[0])
                    print(f"{len(fronts):3} front end {fronts[-1] / 1e6:.1f} MB", flush=True)
                until.set()
                time.sleep(5)
                touch(url, key)
                failed += sum(failures for _, failures in found.values())
                answered = sum(tokens for tokens, _ in found.values()) // SHORT
                sizes.append(settled(pid))
                front, below = (size / 1e6 for size in sizes[-1])
                print(f"{count} loads, {answered} answers, {failed} failed; front end {front:.1f} MB, engines {below:.1f} MB", flush=True)
            (front, below), (front_behind, below_behind) = sizes
            print(
                f"{rounds} unloads: {failed} failed; front end {front_behind / front:.4f} of before, "
                f"{(front_behind - front) / rounds / 1e6:+.3f} MB a load; engines {below_behind / below:.4f}; "
                f"all {sum(sizes[1]) / sum(sizes[0]):.4f}"
            )
    finally:
        key_file.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("share", "unload"))
    parser.add_argument("--model", default="demo")
    parser.add_argument("--rounds", type=int, default=0, help="3 comparisons, 50 unloads")
    parser.add_argument("--seconds", type=float, default=8.0)
    given = parser.parse_args()
    if given.what == "share":
        share(given.model, given.rounds or 3, given.seconds)
    else:
        unload(given.model, given.rounds or 50)


if __name__ == "__main__":
    main()
