"""Seconds from the start of a server's process to the first token of a request, ours and llama.cpp's in turn.

    python tests/speed/starts.py FILE.gguf [--rounds 5] [--threads 2]

The peer is the server of PyPI's `xllamacpp` (llama.cpp as a wheel), warmed up as it does by default. The file is read once before, so that
both find it in the system's page cache. Asked: no more than the peer's.
"""

import json
import os
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from urllib.request import Request, urlopen

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from experts import ask
from processes import ServerProcess

IDS = list(range(1000, 1008))


def ours(options: Namespace) -> float:
    began = perf_counter()
    server = ServerProcess([options.file, "--threads", str(options.threads)], dict(os.environ))
    body = {"prompt": IDS, "max_tokens": 1, "temperature": 0}
    with urlopen(Request(f"{server.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})) as response:
        assert json.load(response)["usage"]["completion_tokens"] == 1
    took = perf_counter() - began
    server.stop()
    return took


def theirs(options: Namespace) -> float:
    began = perf_counter()
    command = [sys.executable, str(Path(__file__).with_name("experts.py")), options.file, "--threads", str(options.threads), "--peer", "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        address = next(line.strip() for line in process.stdout if line.startswith("http"))
        ask(address, len(IDS), 1, 0)
        took = perf_counter() - began
        process.kill()
    return took


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    Path(options.file).read_bytes()
    ways: dict[str, Callable[[Namespace], float]] = {"ours": ours, "llama.cpp": theirs}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(options.rounds + 1):  # the first one warms
        for name in sorted(ways, reverse=bool(number % 2)):
            seconds[name].append(ways[name](options))
    for name, found in seconds.items():
        print(f"{name:10} {median(found[1:]):.2f} s ({min(found[1:]):.2f} … {max(found[1:]):.2f})")
    ratios = [mine / other for mine, other in zip(seconds["ours"][1:], seconds["llama.cpp"][1:], strict=True)]
    print(f"ours over llama.cpp {median(ratios):.2f} ({min(ratios):.2f} … {max(ratios):.2f})")


if __name__ == "__main__":
    main()
