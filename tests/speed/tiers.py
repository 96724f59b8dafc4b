"""Prompts behind a restart, with their KV blocks in a tier and without:

    python tests/speed/tiers.py [file] [redis] [tls] [peer] [--prompts 16]

One process per engine. Cold computes the prompts and keeps them; warm is a new engine over what the first has left, or still holds. Prints
the time to the first token of each prompt sent alone, of all at once, the seconds of the start, and whether the ids are the same. Two
minutes a tier at rest.
"""

import argparse
import json
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from redis_server import open_tls_redis


def measure(settings: dict[str, Any], prompts: int, tokens: int, seed: int) -> None:
    """Prints the times of one engine, which ends with its input."""
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
    print(json.dumps({"start": start, "alone": statistics.median(alone), "together": together, "ids": ids}), flush=True)
    sys.stdin.read()  # what it holds may be for another engine, until that one is done
    llm.close()


@contextmanager
def run(settings: dict[str, Any], arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measures in a process of its own, which is there until the end of the context."""
    asked = json.dumps([settings, arguments.prompts, arguments.tokens, arguments.seed])
    command = [sys.executable, __file__, "--measure", asked]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield next(json.loads(line) for line in process.stdout if line.startswith("{"))


def compare(name: str, settings: dict[str, Any], warm_settings: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Prints cold, warm and their ratio. The second engine comes behind the first, or beside it where its settings are others."""
    with ExitStack() as stack:
        cold = stack.enter_context(run(settings, arguments))
        if settings == warm_settings:
            stack.close()
        warm = stack.enter_context(run(warm_settings, arguments))
    for key, what in (("alone", "first token, alone"), ("together", "all at once, to the last first token"), ("start", "start")):
        print(f"{name}: {what}: cold {cold[key]:.3f} s, restored {warm[key]:.3f} s, ratio {warm[key] / cold[key]:.3f}")
    print(f"{name}: the same ids: {cold['ids'] == warm['ids']}")


def main() -> None:
    """Runs the tiers that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tiers", nargs="*", default=["file", "redis", "tls", "peer"])
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--measure")
    arguments = parser.parse_args()
    if arguments.measure:
        measure(*json.loads(arguments.measure))
        return
    with tempfile.TemporaryDirectory() as folder:
        if "file" in arguments.tiers:
            kept = {"kv_cache_dir": f"{folder}/kv"}
            compare("file", kept, kept, arguments)
        if "redis" in arguments.tiers:
            path = Path(folder) / "socket"
            command = ["redis-server", "--port", "0", "--unixsocket", str(path), "--save", ""]
            with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL) as server:
                while not path.exists():
                    time.sleep(0.01)
                shared = {"kv_cache_redis": f"unix://{path}", "kv_cache_secret_file": f"{folder}/secret"}
                compare("redis", shared, shared, arguments)
                server.kill()
        if "tls" in arguments.tiers:
            with open_tls_redis(Path(folder)) as server:
                password = {"kv_cache_redis_password_file": server.password_file, "kv_cache_secret_file": f"{folder}/secret"}
                shared = {"kv_cache_redis": server.url, **password}
                compare("redis behind TLS", shared, shared, arguments)
        if "peer" in arguments.tiers:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                address = f"127.0.0.1:{listener.getsockname()[1]}"
            secret = {"kv_cache_secret_file": f"{folder}/peers"}
            compare("peer", {"kv_cache_listen": address, **secret}, {"kv_cache_peers": (address,), **secret}, arguments)


if __name__ == "__main__":
    main()
