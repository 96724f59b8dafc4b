"""Ridgeline on a Ray cluster of two nodes, each a set of processes here: a replica is killed under streams, and Serve starts another.

Run by hand with `make ray`, as Ray is 490 MB installed. Prints what it saw; ends with 1 where a request failed, or was answered otherwise.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from operator import eq
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

HERE = Path(__file__).resolve().parents[2]
API_KEY = "a-key-of-a-client"
STORE_BYTES = 80 << 20
ADDRESS = "http://127.0.0.1:8123"
STREAMS, ROUNDS = 8, 2
ENGINE = "ray::ServeReplica:ridgeline:Engine"


def ask(seed: int, key: str = API_KEY, model: str = "fake") -> str:
    """The text of one stream. Raises for an error in it."""
    body = {
        "model": model,
        "prompt": f"{seed} " * 300,
        "max_tokens": 200,
        "seed": seed,
        "temperature": 1,
        "ignore_eos": True,
        "stream": True,
    }
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    with urlopen(Request(f"{ADDRESS}/v1/completions", json.dumps(body).encode(), headers), timeout=60) as answer:
        events = [line[6:] for line in answer.read().decode().splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]", events[-1]
    return "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1])


def engines() -> list[int]:
    """Process ids of the replicas of this cluster."""
    found = subprocess.run(["pgrep", "-f", "--", ENGINE], capture_output=True, text=True, check=False).stdout.split()
    return [int(each) for each in found]


def kill_one(pool: ThreadPoolExecutor, wanted: list[str]) -> tuple[int, float]:
    """Kills a replica under all streams. Number of answers that are wrong, and seconds until another one is there."""
    before = engines()
    streams = [pool.submit(ask, seed) for seed in range(STREAMS)]
    time.sleep(1.0)
    os.kill(before[0], signal.SIGKILL)
    killed = time.monotonic()
    wrong = 0
    for stream, text in zip(streams, wanted, strict=True):
        try:
            wrong += stream.result() != text
        except Exception as error:
            print(repr(error))
            wrong += 1
    while len(set(engines()) - {before[0]}) < len(before):
        time.sleep(0.2)
    return wrong, time.monotonic() - killed


def refusals() -> list[int]:
    """Statuses without a key, and with a wrong one."""
    found = []
    for key in ("", "wrong"):
        try:
            ask(0, key)
        except HTTPError as error:
            found.append(error.code)
    return found


def decisions(seed: int = 1, requests: int = 2_000, replicas: int = 4) -> tuple[list[int], list[int]]:
    """The choices of Serve's router and of `ridgeline route` for the same requests, whose answers begin and end at the same times."""
    from ray_serve import PolicyRouter

    from ridgeline.core.routing import ROUTING
    from ridgeline.router.chooser import LoadShare
    from ridgeline.router.prompts import read_prompt
    from ridgeline.router.replicas import Replicas, Turn
    from ridgeline.router.roster import Named

    rng, found = Random(seed), ([], [])
    bodies = [json.dumps({"prompt": f"{rng.randrange(40)} " * rng.randrange(100, 2_000) + str(turn)}).encode() for turn in range(requests)]
    serve_router: Any = PolicyRouter.__new__(PolicyRouter)
    serve_router.initialize_state()
    there = [SimpleNamespace(replica_id=f"r{number}", routing_stats={}) for number in range(replicas)]
    route = Replicas([Named(f"http://127.0.0.1:{number + 1}") for number in range(replicas)], ROUTING["cache-aware"])
    for each in route.all:
        each.is_ready = True
    under_way = deque[tuple[int, LoadShare, Turn]]()
    for number, body in enumerate(bodies):
        prompt = read_prompt("/v1/completions", body, b"")
        pending = SimpleNamespace(
            args=[prompt, LoadShare()],
            kwargs={},
            metadata=SimpleNamespace(internal_request_id=str(number)),
            routing_context=SimpleNamespace(),
        )
        chosen = asyncio.run(serve_router.choose_replicas(there, pending))[0][0]
        serve_router.on_request_routed(pending, chosen.replica_id, None)
        choice = route.choose(prompt, set())
        assert choice is not None
        turn = choice[0].serving(prompt.tokens, choice[1])
        found[0].append(int(chosen.replica_id[1:]))
        found[1].append(choice[0].number)
        under_way.append((number, pending.args[1], turn))
        if rng.random() < 0.8:
            _, *begun = under_way[rng.randrange(len(under_way))]
            for each in begun:
                each.first_byte()
        while len(under_way) > 16:
            ended, _, other = under_way.popleft()
            serve_router.on_request_completed("", str(ended))
            other.end()
    return found


def wanted_replicas(requests: int, good: float, waiting: float = 0.0) -> float:
    """Replicas that the scaler of two wants, for so many open requests, so many of which wait, of 100 tokens so many in time."""
    from ray_serve import scale

    told = {"good": {"a": good, "b": 0.0}, "tokens": {"a": 60.0, "b": 40.0}, "waiting": {"a": waiting}}
    return scale(SimpleNamespace(aggregated_metrics=told, total_num_requests=requests, current_num_replicas=2))[0]


def main() -> int:
    with TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        keys.write_text(API_KEY + "\n")
        keys.chmod(0o600)
        os.environ.update(
            RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=os.urandom(32).hex(), RIDGELINE_RAY_API_KEY_FILE=str(keys),
            PYTHONPATH=os.pathsep.join([str(HERE / "deploy"), os.environ.get("PYTHONPATH", "")]),
        )  # fmt: skip
        sys.path.insert(0, str(HERE / "deploy"))
        return run()


def run() -> int:
    import ray
    import ray_serve
    from ray import serve
    from ray.cluster_utils import Cluster

    more: dict[str, Any] = {"object_store_memory": STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 3, **more})
    cluster.add_node(num_cpus=2, object_store_memory=STORE_BYTES)
    try:
        ray.init(address=cluster.address)
        serve.start(http_options={"host": "127.0.0.1", "port": 8123})
        serve.run(ray_serve.make_app('fake:{"step_seconds": 0.01}', 'other=fake:{"step_seconds": 0.01}'), name=ray_serve.APPLICATION)
        ours, theirs = decisions()
        with ThreadPoolExecutor(STREAMS) as pool:
            others = set(pool.map(lambda seed: ask(seed, model="other"), range(STREAMS)))
            refused, wanted = refusals(), list(pool.map(ask, range(STREAMS)))
            rounds = [kill_one(pool, wanted) for _ in range(ROUNDS)]
        wrong = sum(each for each, _ in rounds)
        print(f"nodes: {len(ray.nodes())}; without a key, with a wrong one: {refused}; killed {ROUNDS} replicas under {STREAMS} streams")
        print(f"failed or different: {wrong}; seconds until another replica was there: {[round(each, 1) for _, each in rounds]}")
        print(f"choices like those of ridgeline route: {sum(map(eq, ours, theirs))} of {len(ours)}")
        scaled = [wanted_replicas(*each) for each in ((16, 100.0), (48, 100.0), (16, 100.0, 64.0), (16, 50.0), (1, 50.0))]
        assert scaled == [1, 3, 4, 3, 1 / 16], scaled
        return int(bool(wrong) or refused != [401, 401] or ours != theirs or len(others) != STREAMS)
    finally:
        serve.shutdown()
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    sys.exit(main())
