"""Seconds from the start of a server's process to the first token of a request, ours and llama.cpp's in turn.

    python tests/speed/starts.py FILE.gguf [--rounds 5] [--threads 2]

The peer is the server of PyPI's `xllamacpp` (llama.cpp as a wheel), warmed up as it does by default. The file is read once before, so that
both find it in the system's page cache; each writes its address into a pipe. Our sources are compiled once before, as pip compiles those of
a wheel: under PYTHONDONTWRITEBYTECODE a clone would compile them anew at every start. Asked: no more than the peer's.
"""

import json
import os
import re
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from compileall import compile_dir
from pathlib import Path
from statistics import median
from time import perf_counter
from urllib.request import Request, urlopen

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from experts import ask, peer_command
from processes import COMMAND, SOURCE

IDS = list(range(1000, 1008))
ADDRESS = re.compile(r"(?:^| serves .* at )(http://[0-9.:]+)")


def complete(address: str) -> None:
    body = {"prompt": IDS, "max_tokens": 1, "temperature": 0}
    with urlopen(Request(f"{address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})) as response:
        assert json.load(response)["usage"]["completion_tokens"] == 1


def seconds_of(command: list[str], ask_at: Callable[[str], object]) -> float:
    """From the start of the process, which writes its address into a pipe, to the end of an answer of one token."""
    began = perf_counter()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            ask_at(next(found[1] for line in process.stdout if (found := ADDRESS.search(line))))
            took = perf_counter() - began
        finally:
            process.terminate()  # and waits, so that the next one finds the memory free
    return took


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    Path(options.file).read_bytes()
    compile_dir(SOURCE / "ridgeline", quiet=1)
    own = [*COMMAND, "serve", options.file, "--port", "0", "--threads", str(options.threads)]
    peer = peer_command(options.file, options.threads, 1), lambda address: ask(address, len(IDS), 1, 0)
    ways: dict[str, tuple[list[str], Callable[[str], object]]] = {"ours": (own, complete), "llama.cpp": peer}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(options.rounds + 1):  # the first one warms
        for name in sorted(ways, reverse=bool(number % 2)):
            seconds[name].append(seconds_of(*ways[name]))
    for name, found in seconds.items():
        print(f"{name:10} {median(found[1:]):.2f} s ({min(found[1:]):.2f} … {max(found[1:]):.2f})")
    ratios = [mine / other for mine, other in zip(seconds["ours"][1:], seconds["llama.cpp"][1:], strict=True)]
    print(f"ours over llama.cpp {median(ratios):.2f} ({min(ratios):.2f} … {max(ratios):.2f})")


if __name__ == "__main__":
    main()
