"""Two models in one server: what sharing costs them, and what unloads leave. `python tests/speed/models.py share|unload`, by hand, 2 min.

share   tokens per second of both busy, over the mean of each busy alone: at rest 0.9 or more is asked
unload  one model is unloaded and loaded again under load of both: failed requests (0), memory behind it over memory before (within 2 %)
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
WARM_ROUNDS = 3


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


def load(url: str, names: tuple[str, ...], until: threading.Event, key: str | None = None) -> dict[str, list[int]]:
    """Streams of four clients per model until the event: (tokens, failures) by model, filled as they come."""
    found = {name: [0, 0] for name in names}

    def client(name: str) -> None:
        body = {"model": name, "prompt": "Once upon a time", "max_tokens": TOKENS, "ignore_eos": True}
        while not until.is_set():
            try:
                tokens = ask(url, "/v1/completions", body, key)
                if not until.is_set():
                    found[name][0] += tokens
            except (HTTPError, OSError):
                found[name][1] += 1

    for name in names:
        for _ in range(4):
            threading.Thread(target=client, args=(name,), daemon=True).start()
    return found


def tokens_per_second(url: str, names: tuple[str, ...], seconds: float) -> dict[str, float]:
    """Of each model, by its counter: from a second behind the begin of the load on."""
    until = threading.Event()
    load(url, names, until)
    time.sleep(1)
    before, began = generated(url), time.monotonic()
    time.sleep(seconds)
    behind, passed = generated(url), time.monotonic() - began
    until.set()
    time.sleep(1)
    seen = behind
    while (now := generated(url)) != seen:  # open answers end before the next load
        seen = now
        time.sleep(1)
    return {name: (behind[name] - before[name]) / passed for name in names}


def generated(url: str) -> dict[str, float]:
    """Tokens that each model has sampled."""
    with urlopen(url + "/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return {name: float(value) for name, value in re.findall(r'vllm:generation_tokens_total{model_name="(\w+)"} (\S+)', text)}


def share(model: str, rounds: int, seconds: float) -> None:
    """Alone, both, alone, both …"""
    ratios = []
    with serving(model) as (url, _):
        for _ in range(rounds):
            alone = [tokens_per_second(url, (name,), seconds)[name] for name in NAMES]
            both = tokens_per_second(url, NAMES, seconds)
            ratios.append(sum(both.values()) / (sum(alone) / len(alone)))
            print(f"alone {alone[0]:.1f} and {alone[1]:.1f}, both {both} tokens/s: {ratios[-1]:.3f}", flush=True)
    print(f"median {sorted(ratios)[len(ratios) // 2]:.3f}")


def anonymous(pid: int) -> int:
    """Anonymous bytes of a process."""
    return int(re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) * 1024  # type: ignore[index]


def memory(pid: int) -> tuple[int, int]:
    """Anonymous bytes of a server's front end, and of all processes below it."""
    below, found = _children(pid), 0
    while below:
        child = below.pop()
        with suppress(OSError, TypeError):  # it has ended meanwhile
            found += anonymous(child)
            below += _children(child)
    return anonymous(pid), found


def _children(pid: int) -> list[int]:
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
                found = load(url, NAMES, until, key)
                time.sleep(3)
                for _ in range(count):
                    ask(url, "/models/unload", {"model": NAMES[1]}, key)
                    ask(url, "/models/load", {"model": NAMES[1]}, key)
                    fronts.append(memory(pid)[0])
                    print(f"{len(fronts):3} front end {fronts[-1] / 1e6:.1f} MB", flush=True)
                until.set()
                time.sleep(5)
                touch(url, key)
                failed += sum(failures for _, failures in found.values())
                answered = sum(tokens for tokens, _ in found.values()) // TOKENS
                sizes.append(settled(pid))
                print(f"{count} loads, {answered} answers, {failed} failed; at rest front end {sizes[-1][0] / 1e6:.1f} MB, all {sum(sizes[-1]) / 1e6:.1f} MB", flush=True)
            (front, below), (front_behind, below_behind) = sizes
            print(
                f"{rounds} unloads: {failed} failed; front end {(front_behind - front) / rounds / 1e6:+.3f} MB a load, "
                f"{front_behind / front:.4f} of before; engines {below_behind / below:.4f}; all {sum(sizes[1]) / sum(sizes[0]):.4f}"
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
