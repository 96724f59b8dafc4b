"""Four servers behind `ridgeline route`, behind nginx with least connections, and in the simulator, on one trace like Mooncake's.

    python tests/speed/affinity.py [--requests 800] [--rate 12] [--exact]

The servers are fake models that take the time of some H100 with 8 B weights. Prints of each way the share of prompt tokens that came from
caches, and the time to the first token, p50; some two minutes a way. Sessions begin at a constant rate, so that fewer requests are over
before half of the rate is there. `--exact`: the router by what servers hold, in place of nginx.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from shutil import which
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from conversations import conversations
from processes import SOURCE, ServerProcess

from ridgeline.config.groups import EngineConfig
from ridgeline.core.params import Limits
from ridgeline.core.plan import KVGroup, KVShape
from ridgeline.core.step_time import StepSeconds
from ridgeline.planning.objectives import Objective
from ridgeline.sim.fleet.durations import ConstantDurations
from ridgeline.sim.fleet.fleet import FleetConfig
from ridgeline.sim.fleet.replica import ReplicaConfig
from ridgeline.sim.fleet.service import Service
from ridgeline.sim.fleet.traffic import CONTENT_BLOCK, Arrival

REPLICAS, ROWS, BLOCK_TOKENS, BLOCKS, BUDGET, LONGEST = 4, 64, 64, 6_000, 4_096, 32_768
STEP_SECONDS, TOKEN_SECONDS = 0.008, 0.00004
FAKE = "fake:" + json.dumps({
    "rows": ROWS, "blocks": BLOCKS, "block_tokens": BLOCK_TOKENS, "max_model_len": LONGEST, "step_seconds": STEP_SECONDS,
    "token_seconds": TOKEN_SECONDS,
})  # fmt: skip
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCE)}
NGINX = """
daemon off; master_process off; pid nginx.pid; error_log error.log; worker_processes 1;
events {{ worker_connections 2048; }}
http {{
  access_log off; client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;
  upstream replicas {{ least_conn; {servers} keepalive 64; }}
  server {{
    listen 127.0.0.1:{port}; client_max_body_size 16m; client_body_buffer_size 1m;
    location / {{ proxy_pass http://replicas; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
                  proxy_set_header Host 127.0.0.1; }}
  }}
}}
"""


@dataclass(frozen=True)
class Figures:
    """Share of prompt tokens from caches; time to the first token, p50, in seconds."""

    hits: float
    first: float

    def __str__(self) -> str:
        return f"hits {self.hits:.3f}  first token {self.first * 1e3:7.1f} ms"


def simulated(trace: Sequence[Arrival], routing: str, replicas: int = REPLICAS) -> Figures:
    """The simulator's prediction; with one replica of all caches and four times as fast."""
    share = REPLICAS // replicas
    depth = EngineConfig(FAKE).depth  # as the servers have it: a prompt waits for the steps in flight
    limits = Limits(ROWS, BUDGET, ROWS, depth=depth, max_model_len=LONGEST, max_waiting=1 << 20, prefix_caching=True)
    token = TOKEN_SECONDS / share
    server = ReplicaConfig(
        limits, KVShape((KVGroup("full", (0,)),), BLOCK_TOKENS, share * BLOCKS, b"affinity"), ConstantDurations(STEP_SECONDS, token),
        seconds=StepSeconds(STEP_SECONDS, token, token),
    )  # fmt: skip
    report = Service(FleetConfig(server, replicas, routing), 1).run(tuple(trace)).report(Objective())
    return Figures(report.cached_share, report.ttft.p50)


def ids_of(arrival: Arrival) -> list[int]:
    """A prompt of bytes: each block of content begins with its number, and what no other prompt has comes last."""
    found: list[int] = []
    for block in arrival.blocks:
        found += block.to_bytes(4, "little")
        found += ((7 * place + block) % 256 for place in range(CONTENT_BLOCK - 4))
    own = hash((arrival.time, arrival.prompt)) & 0xFFFF_FFFF
    return [*found, *own.to_bytes(4, "little"), *([1] * CONTENT_BLOCK)][: arrival.prompt]


def ask(address: str, arrival: Arrival, begin: float) -> tuple[int, int, float]:
    """(prompt tokens, those from a cache, seconds to the first token) of a request that is sent when it is due."""
    body = json.dumps({
        "prompt": ids_of(arrival), "max_tokens": arrival.output, "ignore_eos": True, "stream": True,
        "stream_options": {"include_usage": True},
    })  # fmt: skip
    time.sleep(max(0.0, begin + arrival.time - time.monotonic()))
    connection, began, first = HTTPConnection(address, timeout=300), time.monotonic(), 0.0
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    usage = {}
    for line in connection.getresponse():
        if line.startswith(b"data: {"):
            first = first or time.monotonic() - began
            if b'"prompt_tokens"' in line:
                usage = json.loads(line[6:])["usage"]
    connection.close()
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], first


@contextmanager
def nginx(urls: Sequence[str]) -> Iterator[str]:
    """The address of nginx in front of servers."""
    with tempfile.TemporaryDirectory() as folder:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        settings = Path(folder) / "nginx.conf"
        settings.write_text(NGINX.format(port=port, servers=" ".join(f"server {each.partition('://')[2]};" for each in urls)))
        command = [which("nginx") or "/usr/sbin/nginx", "-p", folder, "-c", str(settings)]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            try:
                time.sleep(0.5)
                yield f"127.0.0.1:{port}"
            finally:
                process.kill()


def live(trace: Sequence[Arrival], by_prefix: bool, *more: str) -> Figures:
    """Fresh servers behind the router, with `more` settings, or behind nginx."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        keys = ["--router-key-file", f"{folder}/key"]
        shared = ["--max-num-batched-tokens", str(BUDGET), *keys, "--cache-secret-file", f"{folder}/secret"]
        servers = [ServerProcess([FAKE, *shared], ENVIRONMENT) for _ in range(REPLICAS)]
        for each in servers:
            stack.callback(each.stop)
        urls = [each.url for each in servers]
        if by_prefix:
            router = ServerProcess([*(word for url in urls for word in ("--replica", url)), *keys, *more], ENVIRONMENT, "route")
            stack.callback(router.stop)
            address = router.url.partition("://")[2]
        else:
            address = stack.enter_context(nginx(urls))
        begin = time.monotonic() + 1.0
        with ThreadPoolExecutor(512) as pool:
            found = list(pool.map(lambda arrival: ask(address, arrival, begin), trace))
    prompts, cached, first = zip(*found, strict=True)
    return Figures(sum(cached) / sum(prompts), median(first))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=800)
    parser.add_argument("--rate", type=float, default=12.0)
    parser.add_argument("--exact", action="store_true")
    arguments = parser.parse_args()
    trace = conversations(1, arguments.requests, rate=arguments.rate, pause=15.0)
    print(
        f"{len(trace)} requests in {trace[-1].time:.0f} s, {sum(each.prompt for each in trace) / len(trace):,.0f} prompt tokens in the mean"
    )
    print(f"simulated, one server of all caches  {simulated(trace, 'least-requests', 1)}")
    predicted = simulated(trace, "cache-aware")
    print(f"simulated, cache-aware               {predicted}")
    print(f"simulated, least requests            {simulated(trace, 'least-requests')}", flush=True)
    found = live(trace, by_prefix=True)
    print(f"ridgeline route                      {found}", flush=True)
    if arguments.exact:
        exact = live(trace, True, "--exact-affinity", FAKE)
        print(f"ridgeline route --exact-affinity     {exact}")
        print(f"hits over those by what was sent {exact.hits / found.hits:.3f}, first token {exact.first / found.first:.2f}")
        return
    other = live(trace, by_prefix=False)
    print(f"nginx, least connections             {other}")
    print(f"first token over nginx's {found.first / other.first:.2f}; hits over predicted {found.hits / predicted.hits:.3f}")


if __name__ == "__main__":
    main()
