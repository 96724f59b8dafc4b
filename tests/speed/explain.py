"""What the ledger costs, and what the prefix cache saves: `python tests/speed/explain.py cost|prefix`, on a machine at rest.

cost    µs of processor time that ledger and prompt log take per step and per request, as shares of steps of the demo, twenty seconds;
        then output tokens per second of `serve demo` at 16 streams with and without them, in turn, and their ratio, three minutes: by
        the clock, and by the processor time of the server's processes, which says nearly the same beside other load
prefix  time to first token of a long prompt cold and warm, with a first token that changes, and what the doctor says was lost;
        and the first request of a server beside later ones: a minute
"""

import argparse
import json
import os
import sys
import time
from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import Request, urlopen

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))
from processes import SOURCE, ServerProcess

from models import processor_seconds
from ridgeline.core import events
from ridgeline.core.params import Admitted
from ridgeline.core.plan import Timings
from ridgeline.observe.ledger import FrontEnd, Ledger
from ridgeline.observe.metrics import Metrics
from ridgeline.observe.prefixes import PromptLog

ROWS, TOKENS = 16, 64
WARM, PAIRS = 2, 16
WITHOUT = """
from ridgeline.observe import ledger, prefixes
ledger.Ledger.apply = lambda self, *told: None
ledger.Ledger.submitted = lambda self, *told: None
prefixes.PromptLog.add = lambda self, *told: None
"""
SYSTEM = "You are a careful assistant of a library. Answer in one sentence, name the shelf, and never guess. " * 40


def step_events(step: int) -> list[events.Event]:
    numbers, ones = tuple(range(ROWS)), array("i", [1]) * ROWS
    return [
        events.Scheduled(step, step * 0.03, numbers, ones, 3, 900, 20), events.Computed(step, step * 0.03 + 0.03, numbers, ones),
        events.StepTimed(step, Timings(run=0.029)),
    ]  # fmt: skip


def cost_of_calls() -> None:
    ledger = Ledger()
    frames = [step_events(step) for step in range(20_000)]
    began = time.process_time()
    for frame in frames:
        ledger.apply(frame)
    per_step = (time.process_time() - began) / len(frames)
    metrics, prompts, prompt = Metrics(on_choice=ledger.choice_ended), PromptLog(), tuple(range(1, 1_001))
    count = 2_000
    began = time.process_time()
    for number in range(count):
        name = f"{number:032x}"
        ledger.submitted(name, FrontEnd(0.0, 0.0, 0.0))
        prompts.add(Admitted(name, (number, *prompt), 1, 1), 16)
        told = [events.Admitted(name, 0.0, 1_001, 1, 0.0), events.Started(name, 0, number, 0.0, False), events.PrefixMiss(name, 0, 0)]
        ledger.apply(told)
        ledger.choice_ended(events.Closed(name, 0, events.Finish.STOP, events.Usage(1, 1), 1.0), _times(metrics, told, name))
        ledger.answered((name,), name, 0.0, (), 0.5)
    per_request = (time.process_time() - began) / count
    shares = f"{per_step / 0.03:.3%} of a step of 30 ms; {per_request / (TOKENS * 0.03 / ROWS):.3%} of a request's {TOKENS} tokens in them"
    print(f"{per_step * 1e6:.1f} µs per step of {ROWS} rows, {per_request * 1e6:.0f} µs per request of 1,000 prompt tokens: {shares}")


def _times(metrics: Metrics, told: list[events.Event], name: str) -> Any:
    for event in told:
        metrics.apply(event)
    return metrics._open[name].choices[0].end(events.Closed(name, 0, events.Finish.STOP, events.Usage(1, 1), 1.0))


@contextmanager
def demo(is_without: bool = False) -> Iterator[ServerProcess]:
    """A server of the demo, with the ledger or without."""
    with TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": f"{folder}:{SOURCE}", "XDG_RUNTIME_DIR": folder}
        if is_without:
            (Path(folder) / "sitecustomize.py").write_text(WITHOUT)
        server = ServerProcess(["demo", "--max-model-len", "4096"], environment)
        try:
            yield server
        finally:
            server.stop()


def ask(url: str, prompt: str, tokens: int) -> tuple[float, str]:
    """Seconds to the first event, and the id."""
    body = json.dumps({"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True}).encode()
    began = time.perf_counter()
    with urlopen(Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})) as answer:
        line = answer.readline()
        first = time.perf_counter() - began
        answer.read()
    return first, json.loads(line[6:])["id"]


def rate(server: ServerProcess) -> tuple[float, float]:
    """Output tokens per second at `ROWS` streams, and per second of processor time."""
    began, spent, tokens = time.perf_counter(), processor_seconds(server.process.pid), ROWS * TOKENS
    with ThreadPoolExecutor(ROWS) as streams:
        list(streams.map(lambda number: ask(server.url, f"Once upon a time {number}", TOKENS), range(ROWS)))
    return tokens / (time.perf_counter() - began), tokens / (processor_seconds(server.process.pid) - spent)


def cost() -> None:
    cost_of_calls()
    with demo() as with_ledger, demo(is_without=True) as without:
        rounds = []
        for number in range(WARM + PAIRS):
            sides = (with_ledger, without) if number % 2 else (without, with_ledger)
            found = {side.url: rate(side) for side in sides}
            rounds.append((found[with_ledger.url], found[without.url]))
    for place, unit in enumerate(("s", "s of processor time")):
        pairs = [(one[place], other[place]) for one, other in rounds[WARM:]]
        ratios, sums = [one / other for one, other in pairs], [sum(1 / each for each in side) for side in zip(*pairs, strict=True)]
        print(f"with {median(each for each, _ in pairs):.0f}, without {median(each for _, each in pairs):.0f} tokens/{unit}, "
              f"ratio {median(ratios):.4f} ({min(ratios):.3f} … {max(ratios):.3f}), of all {sums[1] / sums[0]:.4f}")  # fmt: skip


def prefix() -> None:
    with demo() as server:
        url = server.url
        began_first, _ = ask(url, "Hello", 1)
        rows = []
        for turn in range(5):
            system = f"Turn {turn}. {SYSTEM}"
            cold, _ = ask(url, f"{system} Where is Moby Dick?", 1)
            warm, _ = ask(url, f"{system} Where is Emma?", 1)
            ask(url, f"At 10:{turn + 10}. {system} Where is Emma?", 1)
            again, other = ask(url, f"At 11:{turn + 10}. {system} Where is Emma?", 1)
            with urlopen(f"{url}/v1/requests/{other}/explain") as answer:
                rows.append((cold, warm, again, json.load(answer)["prefix_miss"]))
        hot = median(ask(url, "Hello", 1)[0] for _ in range(20))
    cold, warm, again = (median(each[column] for each in rows) for column in (0, 1, 2))
    lost, miss = median(each[3]["ms"] for each in rows), rows[-1][3]
    print(f"long prompt: cold {cold * 1e3:.0f} ms, warm {warm * 1e3:.0f} ms, {1 - warm / cold:.0%} less")
    told = f"the doctor: {miss['cause']}, {lost:.0f} ms lost, measured {(again - warm) * 1e3:.0f} ms"
    print(f"a time in front of it: {again * 1e3:.0f} ms; {told}")
    print(f"first request of a server {began_first * 1e3:.1f} ms, later ones {hot * 1e3:.1f} ms: {began_first / hot:.1f} times")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("cost", "prefix"))
    {"cost": cost, "prefix": prefix}[parser.parse_args().what]()
