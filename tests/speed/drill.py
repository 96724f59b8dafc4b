"""Incident drill: a harmful setting is planted in a live server, the flight recorder dumps, the dump is simulated with the settings and
step times in it, `investigate` names the cause, `whatif` predicts what the lever gains, and a server with the lever gets the same requests
at the same moments.

    python tests/speed/drill.py [rows | blocks | chunks | prefix] [--seconds 16]

Some 40 s per fault, all four without an argument. Sockets and processes are real; the device sleeps 10 ms per step and 0.2 ms per token:
what is compared is scheduling and the server, not a processor that others use. At rest: p99 as simulated within 10 % of live, gain of a
lever within 20 % of the realised. It ends with status 1 where one of these is missed.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))
from processes import SOURCE, ServerProcess
from typer.testing import CliRunner

from ridgeline.cli.main import make_app

DEVICE = {"rows": 16, "blocks": 4_000, "max_model_len": 4_096, "step_seconds": 0.01, "token_seconds": 0.0002}
MODEL = "llama-3-8b"
"""For `whatif`: one that has one KV group, as the fake device. Nothing else of it counts: settings are the incident's, and steps take what
they took."""
DEVICE_NAME = "device=h100-sxm"
"""Its speed counts no more than the model's."""
REPLAY_ERROR, GAIN_ERROR = 0.10, 0.20


@dataclass
class Plan:
    """A planted fault. `now`, `then`: the server before and with the lever; `cause`: that `investigate` names first."""

    cause: tuple[str, ...]
    now: "Side"
    then: "Side"
    rate: float
    prompt: tuple[int, int]
    output: tuple[int, int]
    shared: int = 0
    tail: list[int] = field(default_factory=list)


@dataclass
class Side:
    """A server: changes of the device, flags of `serve`, and the same as settings of `whatif`."""

    device: dict[str, Any]
    flags: list[str]
    lever: dict[str, str]


def _rows(count: int) -> Side:
    return Side({"rows": count}, [], {"max_num_seqs": str(count)})


def _blocks(count: int) -> Side:
    return Side({"blocks": count, "max_model_len": 1_000}, [], {"kv_blocks": str(count), "context": "1000"})


def _chunk(tokens: int) -> Side:
    return Side({}, ["--max-num-batched-tokens", str(tokens)], {"max_num_batched_tokens": str(tokens)})


PLANS = {
    "rows": Plan(("rows",), _rows(2), _rows(16), 5.0, (30, 60), (60, 100)),
    "blocks": Plan(("blocks", "preempted", "recompute"), _blocks(100), _blocks(1_000), 4.0, (400, 600), (60, 100)),
    "chunks": Plan(("budget", "turn"), _chunk(32), _chunk(1_024), 2.8, (800, 1_200), (8, 16)),
    "prefix": Plan(
        ("budget", "turn", "others_decode"),
        Side({}, ["--no-enable-prefix-caching"], {}),
        Side({}, [], {"enable_prefix_caching": "true"}),
        6.0, (1_700, 1_900), (8, 16), shared=1_600,
    ),
}  # fmt: skip


@dataclass
class Ask:
    """A request of the load, and what its client saw: seconds to the end of its answer."""

    at: float
    ids: list[int]
    output: int
    seconds: float = float("nan")


def load(plan: Plan, seconds: float, seed: int = 5) -> list[Ask]:
    """Poisson arrivals, the same each time."""
    rng, now, asks = random.Random(seed), 0.0, []
    head = [rng.randint(1, 200) for _ in range(plan.shared)]
    while (now := now + rng.expovariate(plan.rate)) < seconds:
        ids = [*head, *(rng.randint(1, 200) for _ in range(rng.randint(*plan.prompt) - plan.shared))]
        asks.append(Ask(now, ids, rng.randint(*plan.output)))
    return asks


def send(url: str, asks: list[Ask]) -> None:
    """Sends each at its moment; returns when all have been answered."""

    def one(ask: Ask, began: float) -> None:
        time.sleep(max(0.0, began + ask.at - time.monotonic()))
        sent = time.monotonic()
        body = {"prompt": ask.ids, "max_tokens": ask.output, "ignore_eos": True}
        with urlopen(Request(f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})) as answer:
            answer.read()
        ask.seconds = time.monotonic() - sent

    began = time.monotonic() + 0.2
    threads = [threading.Thread(target=one, args=(ask, began)) for ask in asks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def live(side: Side, asks: list[Ask], state: Path) -> Path | None:
    """Serves the requests; the folder that the flight recorder wrote, if it did."""
    words = [f"fake:{json.dumps(DEVICE | side.device)}", "--goodput", "ttft=300ms,itl=1s", "--max-num-queued-reqs", "4096", *side.flags]
    server = ServerProcess(words, {**os.environ, "PYTHONPATH": str(SOURCE), "XDG_RUNTIME_DIR": str(state), "XDG_STATE_HOME": str(state)})
    try:
        send(server.url, asks)
        time.sleep(1.5)  # a look at goodput, and the recorder's thread
    finally:
        server.stop()
    return max((path.parent for path in state.rglob("incident.json")), default=None)


def ridgeline(*words: str) -> dict[str, Any]:
    """A command's answer as JSON."""
    told = CliRunner().invoke(make_app(), [*words, "--json"], catch_exceptions=False)
    assert told.exit_code == 0, told.output
    found: dict[str, Any] = json.loads(told.stdout)
    return found


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def drill(name: str, plan: Plan, seconds: float) -> list[str]:
    """Runs one; prints what was found. What was missed."""
    asks, missed = load(plan, seconds), list[str]()
    with tempfile.TemporaryDirectory() as folder:
        incident = live(plan.now, asks, Path(folder))
        assert incident is not None, f"{name}: no incident was recorded; the fault is not harmful enough"
        count = sum(1 for _ in (incident / "trace.jsonl").open())
        seen = [ask.seconds for ask in asks[:count]]  # the recorder wrote in the middle of it: these had come
        alert = ridgeline("investigate", "FirstTokenLate", "--incident", str(incident))
        words = ["whatif", str(incident), "--model", MODEL, "--today", DEVICE_NAME, "--seeds", "1", "--no-levers"]
        told = ridgeline(*words, *(part for key, value in plan.then.lever.items() for part in ("--set", f"{key}={value}")))
        before, behind = (run["e2e.p99"]["mean"] for run in told["runs"])
        gain = told["runs"][0]["e2e.mean"]["mean"] / told["runs"][1]["e2e.mean"]["mean"]
    again = load(plan, seconds)
    with tempfile.TemporaryDirectory() as folder:
        live(plan.then, again, Path(folder))
    fixed = [ask.seconds for ask in again[:count]]
    real = sum(seen) / sum(fixed)
    p99 = percentile(seen, 0.99)
    print(f"{name}: {count} of {len(asks)} requests in the incident; investigate says {alert['cause']!r}: {alert['lever']}")
    print(f"  p99 live {p99:.3f} s, simulated again {before:.3f} s ({before / p99 - 1:+.0%})")
    print(f"  lever {plan.then.lever}: p99 {percentile(fixed, 0.99):.3f} s live, {behind:.3f} s predicted")
    print(f"  gain predicted {gain:.2f}, realised {real:.2f} ({gain / real - 1:+.0%})", flush=True)
    missed += [] if alert["cause"] in plan.cause else [f"{name}: cause {alert['cause']}"]
    missed += [] if abs(before / p99 - 1) <= REPLAY_ERROR else [f"{name}: p99 {before / p99 - 1:+.0%}"]
    missed += [] if abs(gain / real - 1) <= GAIN_ERROR else [f"{name}: gain {gain / real - 1:+.0%}"]
    return missed


def main() -> None:
    """Prints a drill each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", choices=[*PLANS, []])
    parser.add_argument("--seconds", type=float, default=16)
    given = parser.parse_args()
    missed = [each for name in given.names or PLANS for each in drill(name, PLANS[name], given.seconds)]
    print(f"missed: {', '.join(missed) or 'nothing'}")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
