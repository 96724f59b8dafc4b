"""Prompts behind a restart, with their KV blocks in a tier and without: `python tests/speed/tiers.py [file] [redis] [--prompts 16]`.

One process per engine. Cold computes the prompts and keeps them; warm is a new engine over what the first has left. Prints the time to the
first token of each prompt sent alone, of all at once, the seconds of the start, and whether the ids are the same. Two minutes at rest.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def measure(settings: dict[str, Any], prompts: int, tokens: int, seed: int) -> dict[str, Any]:
    """Times of one engine."""
    from ridgeline.core.params import SamplingParams
    from ridgeline.engine.llm import LLM

    began = time.perf_counter()
    llm = LLM("demo", max_model_len=tokens + 64, **settings)
    start, rng = time.perf_counter() - began, random.Random(seed)
    texts = [[rng.randrange(300, 200_000) for _ in range(tokens)] for _ in range(prompts)]
    params = SamplingParams(max_tokens=1, temperature=0)
    llm.generate([texts[0][:64]], params)
    alone, ids = [], []
    for text in texts[: prompts // 2]:
        began = time.perf_counter()
        ids.append(list(llm.generate([text], params)[0].outputs[0].token_ids))
        alone.append(time.perf_counter() - began)
    began = time.perf_counter()
    found = llm.generate(texts[prompts // 2 :], params)
    together = time.perf_counter() - began
    ids += [list(each.outputs[0].token_ids) for each in found]
    llm.close()
    return {"start": start, "alone": statistics.median(alone), "together": together, "ids": ids}


def run(settings: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """Measures in a process of its own."""
    asked = json.dumps([settings, arguments.prompts, arguments.tokens, arguments.seed])
    done = subprocess.run([sys.executable, __file__, "--measure", asked], check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(name: str, settings: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Prints cold, warm and their ratio."""
    cold, warm = run(settings, arguments), run(settings, arguments)
    for key, what in (("alone", "first token, alone"), ("together", "all at once, to the last first token"), ("start", "start")):
        print(f"{name}: {what}: cold {cold[key]:.3f} s, restored {warm[key]:.3f} s, ratio {warm[key] / cold[key]:.3f}")
    print(f"{name}: the same ids: {cold['ids'] == warm['ids']}")


def main() -> None:
    """Runs the tiers that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tiers", nargs="*", default=["file", "redis"])
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--measure")
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(*json.loads(arguments.measure))))
        return
    with tempfile.TemporaryDirectory() as folder:
        if "file" in arguments.tiers:
            compare("file", {"kv_cache_dir": f"{folder}/kv"}, arguments)
        if "redis" in arguments.tiers:
            socket = Path(folder) / "socket"
            command = ["redis-server", "--port", "0", "--unixsocket", str(socket), "--save", ""]
            with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL) as server:
                while not socket.exists():
                    time.sleep(0.01)
                shared = {"kv_cache_redis": f"unix://{socket}", "kv_cache_secret_file": f"{folder}/secret"}
                compare("redis", shared, arguments)
                server.kill()


if __name__ == "__main__":
    main()
