"""Two layers of real widths: launched one by one and replayed as graphs they give the same bits, at sizes beside every bucket's edge."""

import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from machine import TINY, open_machine
from say import say
from tiny_sizes import TINY_CONFIG, TINY_SPARSE

from ridgeline.compute.cuda.bench.model import RandomModel, Types
from ridgeline.compute.cuda.device import Device
from ridgeline.facts.headers.checkpoint import read_config_facts
from ridgeline.facts.headers.read import find_config
from ridgeline.facts.model import ModelFacts
from ridgeline.models.table import MEASURED, SPARSE

LAYERS = 2
ROWS = (1, 3) if TINY else (1, 2, 31, 32, 33, 64, 256)
MIXED = ((2, 5),) if TINY else ((40, 128), (40, 513), (40, 2048))
"""(rows that decode, tokens of the step): the rest is one prompt."""
VERIFIED = (2,) if TINY else (1, 31, 64)
"""Rows of steps that verify drafts."""
DRAFTS = 1 if TINY else 4
CONTEXT = 8 if TINY else 600
TYPES = ("f32",) if TINY else ("bf16", "fp8")


def two_layers(name: str) -> ModelFacts:
    """A known model's widths."""
    with TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        given = find_config(name) if not TINY else TINY_CONFIG if name == MEASURED else TINY_SPARSE
        config.write_text(json.dumps(json.loads(given.read_text()) | {"num_hidden_layers": LAYERS}))
        return read_config_facts(config)


class Held:
    """Stands for a graph where there are none."""

    def __init__(self, run: Any) -> None:
        self.replay = run


def step(model: RandomModel, counts: list[int], starts: list[int]) -> tuple[list[int], torch.Tensor]:
    """The ids of a step over ids of its own, and its logits."""
    inputs, sampling = model._inputs(counts, starts)
    ids = np.random.default_rng(len(counts)).integers(0, model.facts.tokens, len(inputs.ids)).astype(np.int32)
    runner = model.runner
    found, finite = runner.read(runner.launch(replace(inputs, ids=ids), sampling))
    assert finite.all(), f"{int((~finite).sum())} rows are not finite"
    return found, torch.from_numpy(runner.logits_of(list(range(len(counts)))))


def compare(model: RandomModel, eager: dict[str, Any], name: str, counts: list[int], starts: list[int]) -> dict[str, Any]:
    """The step again, over graphs, beside what it gave without."""
    ids, logits = step(model, counts, starts)
    before, numbers = eager[name]
    wrong = int((logits.view(torch.int32) != numbers.view(torch.int32)).sum())
    others = sum(mine != theirs for mine, theirs in zip(ids, before, strict=True))
    assert not others and not wrong, f"{wrong} of {logits.numel()} logits and {others} ids differ"
    return {"equal": True, "graphs": model.runner.graphs}


def check(dtype: str, device: Device, name: str = MEASURED) -> None:
    """All sizes in one type: eager first, then captured."""
    known = {"dtype": dtype, "model": name}
    tokens = max(*(total for _, total in MIXED), (1 + DRAFTS) * max(VERIFIED))
    kv = "fp8" if dtype == "fp8" else dtype
    made: dict[str, Any] = {}
    kept: list[RandomModel] = []

    def build() -> dict[str, Any]:
        sizes = {"tokens": tokens, "rows": max(ROWS), "positions": CONTEXT + tokens, "drafts": DRAFTS}
        model = RandomModel(two_layers(name), Types(dtype, kv), device, **sizes)
        kept.append(model)
        return {"weights_bytes": model.weights_bytes, "step_bytes": model.runner.nbytes}

    say({"smoke": "start", **known}, build)
    sizes = {f"{rows} rows": ([1] * rows, [CONTEXT] * rows) for rows in ROWS}
    # The prompt begins where others write: no step reads what an earlier one of other ids wrote.
    sizes |= {f"{rows} rows with drafts": ([1 + DRAFTS] * rows, [CONTEXT] * rows) for rows in VERIFIED}
    sizes |= {f"{rows} rows in {total} tokens": ([1] * rows + [total - rows], [CONTEXT] * (rows + 1)) for rows, total in MIXED}

    def run(size: str) -> dict[str, Any]:
        made[size] = step(kept[0], *sizes[size])
        return {"finite": True}

    for size in sizes:
        say({"smoke": "eager", **known, "size": size}, lambda size=size: run(size))

    def capture() -> dict[str, Any]:
        if not device.real:
            kept[0].runner._graphs.capture = lambda run, pool: Held(run)
        kept[0].runner.warm_up(lambda stage, part: None)
        return {"graphs": kept[0].runner.graphs}

    say({"smoke": "capture", **known}, capture)
    for size, counts in sizes.items():
        if size in made:
            say({"smoke": "graph", **known, "size": size}, lambda size=size, counts=counts: compare(kept[0], made, size, *counts))


if __name__ == "__main__":
    machine = open_machine()
    for kind in TYPES:
        check(kind, machine)
    check(TYPES[0], machine, SPARSE)
