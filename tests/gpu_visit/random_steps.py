"""Random steps of two layers of real widths: launched one by one, each read at once, and as graphs with two in flight. Ids are the same."""

from collections import deque
from typing import Any

import numpy as np
import torch
from machine import TINY, open_machine
from say import say
from smoke import Held, two_layers

from ridgeline.compute.cuda.bench.model import RandomModel, Types
from ridgeline.compute.cuda.device import Device
from ridgeline.models.table import MEASURED

STEPS = 6 if TINY else 500
ROWS, PROMPT, CONTEXT = (3, 4, 8) if TINY else (64, 700, 900)
TYPES = ("f32",) if TINY else ("bf16", "fp8")
PROMPTS, TOP_P = 0.25, 0.9

Shape = tuple[list[int], list[int], float | None]
"""Tokens of each row, positions before them, and top-p or None."""


def shapes() -> list[Shape]:
    """Rows of one token, in every fourth step beside a prompt; greedy or not."""
    random, found = np.random.default_rng(7), list[Shape]()
    for _ in range(STEPS):
        rows = int(random.integers(1, ROWS + 1))
        counts, starts = [1] * rows, random.integers(0, CONTEXT, rows).tolist()
        if random.random() < PROMPTS:
            counts[-1] = int(random.integers(2, PROMPT))
        found.append((counts, starts, TOP_P if random.random() < 0.5 else None))
    return found


def run(model: RandomModel, steps: list[Shape], depth: int) -> list[tuple[list[int], bool]]:
    """Ids of each step, and whether all of it was finite."""
    flights, found = deque[Any](), []
    for counts, starts, top_p in steps:
        flights.append(model.runner.launch(*model._inputs(counts, starts, top_p)))
        while len(flights) >= depth:
            ids, finite = model.runner.read(flights.popleft())
            found.append((ids, bool(finite.all())))
    found += [(ids, bool(finite.all())) for ids, finite in map(model.runner.read, flights)]
    return found


def compare(dtype: str, device: Device) -> dict[str, Any]:
    """Both runs, over the same cache."""
    sizes = {"tokens": ROWS + PROMPT, "rows": ROWS, "positions": CONTEXT + PROMPT}
    model = RandomModel(two_layers(MEASURED), Types(dtype, "fp8" if dtype == "fp8" else dtype), device, **sizes)
    cache = model.runner._launches.cache
    assert cache is not None
    before, steps = cache.pool.clone(), shapes()
    eager = run(model, steps, 1)
    if not device.real:
        model.runner._graphs.capture = lambda run, pool: Held(run)
    model.runner.warm_up(lambda stage, part: None)
    cache.pool.copy_(before)
    model.runner.ids.kept.ids.zero_()
    device.settle()
    graphs = run(model, steps, 2)
    wrong = [number for number, (mine, theirs) in enumerate(zip(graphs, eager, strict=True)) if mine != theirs]
    assert all(finite for _, finite in eager), f"steps are not finite: {[n for n, (_, finite) in enumerate(eager) if not finite][:20]}"
    assert not wrong, f"{len(wrong)} of {STEPS} steps differ, first {[steps[number] for number in wrong[:2]]}"
    return {"equal": True, "steps": STEPS, "graphs": model.runner.graphs}


if __name__ == "__main__":
    machine = open_machine()
    for kind in TYPES:
        say({"random steps": kind}, lambda kind=kind: compare(kind, machine))
        if machine.real:
            torch.cuda.empty_cache()
