"""The verdict of a live server against what then happens: its knee, and the gain of its first lever, applied.

    python tests/speed/verdict.py knee [--model demo]      # closed loops of 1 … 12 and back to 1 streams: three minutes at rest
    python tests/speed/verdict.py levers [NAME …]          # servers before and with the lever, in turn: a minute each at rest

Throughput is counted per second of the engine's processor time over its cores, beside the clock's: the first says nearly the same under
other load, the second at rest alone. The measured knee is where the line through seconds per token and stream over streams has as much that
does not depend on these as does; the verdict has turned from bandwidth to computing between two numbers of streams that were tried.

Asked: the verdict turns, and its knee is, within 20 % of the measured one; predicted gain of a lever within 20 % of the realised. It ends
with status 1 where one is missed.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any
from urllib.request import Request, urlopen

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))
from processes import SOURCE, ServerProcess

from ridgeline.observe.knee import fit_line

STREAMS = (1, 2, 3, 4, 6, 8, 12)
NEAR = 0.2
PROMPT, OUTPUT = 64, 64
SETTLE_SECONDS, WINDOW_SECONDS = 3.0, 9.0
"""The verdict is of ten seconds."""
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Load:
    """What a window had: output tokens, seconds of the clock, seconds of the engine's processor time over its cores; `/live` at its end."""

    tokens: int
    seconds: float
    processor: float
    live: dict[str, Any]

    @property
    def rate(self) -> float:
        """Tokens per second of processor time."""
        return self.tokens / self.processor

    @property
    def figures(self) -> dict[str, float]:
        """By the names of levers' figures: the more the better."""
        return {"throughput": self.rate, "itl": self.rate / max(1.0, self.live["verdict"]["batch"])}


class Server:
    """A server, and the processor time of its engine."""

    def __init__(self, model: str, flags: list[str], folder: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(SOURCE), "XDG_RUNTIME_DIR": folder, "XDG_STATE_HOME": folder}
        self.process = ServerProcess([model, *flags], environment)
        children = Path(f"/proc/{self.process.process.pid}/task").glob("*/children")
        pids = [int(pid) for each in children for pid in each.read_text().split()]
        self.engine = next(pid for pid in pids if b"engine.process" in Path(f"/proc/{pid}/cmdline").read_bytes())

    def processor_seconds(self) -> float:
        fields = Path(f"/proc/{self.engine}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS / len(os.sched_getaffinity(0))

    def load(self, streams: int, prompt: int = PROMPT, output: int = OUTPUT) -> Load:
        """So many users, each of whom asks again at once, never what the prefix cache has."""
        stop, counted, rng = threading.Event(), [0], random.Random()

        def user(seed: int) -> None:
            own = random.Random(seed)
            while not stop.is_set():
                body = {
                    "prompt": [own.randint(1_000, 9_000) for _ in range(prompt)],
                    "max_tokens": output,
                    "ignore_eos": True,
                    "stream": True,
                }
                request = Request(f"{self.process.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
                with urlopen(request) as answer:
                    for line in answer:
                        counted[0] += line.startswith(b"data: {")
                        if stop.is_set():
                            return

        users = [threading.Thread(target=user, args=(rng.getrandbits(32),), daemon=True) for _ in range(streams)]
        for each in users:
            each.start()
        time.sleep(SETTLE_SECONDS)
        tokens, began, used = counted[0], time.monotonic(), self.processor_seconds()
        time.sleep(WINDOW_SECONDS)
        found = counted[0] - tokens, time.monotonic() - began, self.processor_seconds() - used
        live = json.loads(self.process.get("/live")[1])
        stop.set()
        for each in users:
            each.join(60)
        return Load(*found, live)


@contextmanager
def serving(model: str, flags: list[str]) -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as folder:
        server = Server(model, flags, folder)
        try:
            yield server
        finally:
            server.process.stop()


def knee(model: str) -> list[str]:
    """Visits each number of streams twice, up and down, so that a slow minute is not all of one; what was missed."""
    seconds, told, missed = dict[int, list[float]](), list[float](), list[str]()
    turns = list[tuple[int, int]]()
    with serving(model, ["--max-model-len", "1024"]) as server:
        for order in (STREAMS, STREAMS[::-1]):
            bounds = dict[int, str]()
            for streams in order:
                found = server.load(streams)
                verdict = found.live["verdict"]
                seconds.setdefault(streams, []).append(streams / found.rate)
                bounds[streams] = verdict["bottleneck"]
                told.append(verdict["knee"] or 0)
                print(f"{streams:3} streams: {found.tokens / found.seconds:7.1f} tokens/s, {found.rate:7.1f} per processor second; "
                      f"{verdict['text']}", flush=True)  # fmt: skip
            low = max((streams for streams in STREAMS if bounds[streams] == "memory"), default=0)
            turns.append((low, min((streams for streams in STREAMS if bounds[streams] == "compute"), default=STREAMS[-1])))
    fixed, row = fit_line({streams: fmean(each) for streams, each in seconds.items()})
    measured, middle = fixed / row, median(told)
    ways = " and ".join(f"{low} and {high} streams" for low, high in turns)
    error = middle / measured - 1
    print(f"knee: measured {measured:.2f}, the verdict says {middle:.3g} ({min(told):.3g} to {max(told):.3g}): {error:+.0%}")
    print(f"it turns between {ways}, up and down")
    if abs(error) > NEAR:
        missed.append(f"knee {error:+.0%}")
    for low, high in turns:
        if not (low < high and high >= (1 - NEAR) * measured and low <= (1 + NEAR) * measured):
            missed.append(f"it turns between {low} and {high}")
    return missed


@dataclass
class Lever:
    """A server that wants one: flags before and with the lever, the words that its name begins with, and the load."""

    now: list[str]
    then: list[str]
    name: str
    streams: int
    prompt: int = PROMPT
    output: int = OUTPUT


SHORT, CACHE = ["--max-model-len", "512"], ["--kv-cache-memory-bytes"]
LEVERS = {
    "rows": Lever([*SHORT, "--max-num-seqs", "2"], [*SHORT, "--max-num-seqs", "4"], "--max-num-seqs 4", 12),
    "more rows": Lever([*SHORT, "--max-num-seqs", "8"], [*SHORT, "--max-num-seqs", "16"], "--max-num-seqs 16", 32),
    "int8": Lever([*SHORT, *CACHE, "16M"], [*SHORT, *CACHE, "16M", "--kv-dtype", "int8"], "--kv-dtype int8", 16, 40, 200),
    "cache": Lever([*SHORT, *CACHE, "16M"], [*SHORT, *CACHE, "32M"], "--kv-cache-memory-bytes × 2", 16, 40, 200),
    "knee": Lever([*SHORT, "--max-num-seqs", "48"], [*SHORT, "--max-num-seqs"], "--max-num-seqs", 48),
}  # fmt: skip
ROUNDS = 2


def lever(label: str, model: str) -> list[str]:
    """Both sides in turn; what was missed."""
    asked, gains, told = LEVERS[label], list[float](), list[tuple[float, str, str]]()
    with serving(model, asked.now) as before:
        first = before.load(asked.streams, asked.prompt, asked.output)
        levers = first.live["verdict"]["levers"]
        wanted = next((each for each in levers if each["name"].startswith(asked.name)), None)
        if wanted is None:
            print(f"{label}: no such lever; {first.live['verdict']['text']}: {[each['name'] for each in levers]}", flush=True)
            return [f"{label}: no lever"]
        then = [*asked.then, wanted["name"].split()[-1]] if asked.then[-1] == asked.name else asked.then
        with serving(model, then) as after:
            for number in range(ROUNDS):
                one = first if not number else before.load(asked.streams, asked.prompt, asked.output)
                other = after.load(asked.streams, asked.prompt, asked.output)
                gains.append(other.figures[wanted["figure"]] / one.figures[wanted["figure"]])
                told.append((wanted["gain"], one.live["verdict"]["text"], other.live["verdict"]["text"]))
    realised = median(gains)
    error = wanted["gain"] / realised - 1
    print(f"{label}: {wanted['name']}, {wanted['figure']}: predicted {wanted['gain']:.2f}, realised {realised:.2f} ({error:+.0%})")
    print(f"  before: {told[0][1]}\n  with it: {told[0][2]}", flush=True)
    return [] if abs(error) <= NEAR else [f"{label}: {error:+.0%}"]


def main() -> None:
    """Prints what was found, and what was missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("knee", "levers"))
    parser.add_argument("names", nargs="*", choices=[*LEVERS, []])
    parser.add_argument("--model", default="demo")
    given = parser.parse_args()
    levers = given.names or LEVERS
    missed = knee(given.model) if given.what == "knee" else [each for name in levers for each in lever(name, given.model)]
    print(f"missed: {', '.join(missed) or 'nothing'}; load average {os.getloadavg()[0]:.1f}")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
