"""What stepped activations cost in speed: steps of a model with them, and with one scale for each span of 256, in turn.

    python tests/speed/stepped.py [--model demo] [--tokens 1 16 512] [--seconds 12] [--threads 2]

What an activation function gives has outliers, so parts of 32 of its spans may have a half or a quarter of a span's scale
(`ops/quantised.py`); `tests/speed/perplexity.py --tokens 640` prints what that gains. Up to 32 tokens are one each of as many sequences
behind a prompt of 64, more are a prompt. One step without and one with follow each other, each first in every second pair. Prints for each
number of tokens the medians of a step's milliseconds without and with, and of the pairs' ratios with quartiles, by the clock; and the
median ratio by the processor's time.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, process_time
from unittest.mock import patch

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))
from native import NativeDriver

from ridgeline.compute.cpu.packing import pack_weights
from ridgeline.compute.lowering import lower
from ridgeline.config.env import model_stores
from ridgeline.facts.headers.read import read_model_facts
from ridgeline.facts.hub.source import resolve_model
from ridgeline.text.files import load_tokenizer

TEXT = Path(__file__).resolve().parents[2] / "docs" / "physics.md"
PROMPT, MANY, BLOCKS = 64, 32, 2_048

Step, Times = Callable[[], object], tuple[float, float]


def step_of(driver: NativeDriver, ids: list[int], tokens: int) -> Step:
    """A step of so many tokens, the same each time: it writes what it wrote. Greedy rows: a step's best id is all that is kept."""
    first = len(driver.computed)
    chunks = [(first, ids[:tokens])]
    if tokens <= MANY:
        for row in range(tokens):
            driver.step((first + row, ids[row : row + PROMPT]), select=[PROMPT - 1])
        chunks = [(first + row, [ids[row + PROMPT]]) for row in range(tokens)]
    inputs = driver.inputs(chunks, range(tokens) if tokens <= MANY else [tokens - 1])
    keep = np.ones(len(inputs.select), np.int32)
    return lambda: driver.runner.run(inputs, driver.kv, keep=keep)


def timed(step: Step) -> Times:
    """Milliseconds of a step, by the clock and of the processor."""
    began, spent = perf_counter(), process_time()
    step()
    return (perf_counter() - began) * 1e3, (process_time() - spent) * 1e3


def pairs(plain: Step, stepped: Step, seconds: float) -> Iterator[tuple[Times, Times]]:
    """Times of the one and of the other, four pairs at least."""
    end, number = perf_counter() + seconds, 0
    while number < 4 or perf_counter() < end:
        yield (timed(plain), timed(stepped)) if number % 2 else (timed(stepped), timed(plain))[::-1]
        number += 1


def stepped_products(driver: NativeDriver) -> int:
    return sum(bool(op.attributes["stepped"]) for op in driver.runner.oplist.ops if op.name == "quantise")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 16, 512])
    parser.add_argument("--seconds", type=float, default=12.0, help="Of each number of tokens.")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    asked = parser.parse_args()
    path = resolve_model(asked.model, model_stores())
    facts = read_model_facts(path)
    most = max(*asked.tokens, PROMPT + MANY + 1)
    ids = list(islice(cycle(load_tokenizer(path).encode(TEXT.read_text(), add_bos=True)), most))
    packed = pack_weights(facts, asked.threads, lambda stage, fraction: None)
    with patch.object(lower, "STEPPED_CODES", None):
        plain = NativeDriver(facts, packed, blocks=BLOCKS, threads=asked.threads, tokens=most)
    stepped = NativeDriver(facts, packed, blocks=BLOCKS, threads=asked.threads, tokens=most)
    if stepped_products(plain) or not stepped_products(stepped):
        raise SystemExit(f"{asked.model} has no stepped activations: no matrix behind an activation function has spans of 256")
    print(f"{asked.model}, {stepped_products(stepped)} of its values are stepped, {asked.threads} threads\n")
    print("| tokens | ms without | ms with | ratio | quartiles | by processor time |\n|---|---|---|---|---|---|")
    for tokens in asked.tokens:
        found = list(pairs(step_of(plain, ids, tokens), step_of(stepped, ids, tokens), asked.seconds))
        before, after = (median(each[side][0] for each in found) for side in (0, 1))
        clock, spent = ([after[kind] / before[kind] for before, after in found] for kind in (0, 1))
        low, middle, high = quantiles(clock, n=4)
        print(f"| {tokens} | {before:.2f} | {after:.2f} | {middle:.3f} | {low:.3f}, {high:.3f} | {median(spent):.3f} |", flush=True)


if __name__ == "__main__":
    main()
