"""The demo model's screened head on the gold prompts: at every position the id of the largest of all logits."""

from pathlib import Path

import numpy as np
import pytest
from demo_model import LONG
from native import NativeDriver

from gold import demo_lines
from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.packing import SCREENED, pack_weights, packed_as
from ridgeline.facts.headers.read import read_model_facts

pytestmark = [
    pytest.mark.skipif(ext.lost() is not None, reason="the native extension is not built"),
]

LAST = 52
"""Positions of a prompt that are compared: the last ones."""


@pytest.mark.parametrize("prompts", [slice(0, LONG), pytest.param(slice(LONG, None), marks=pytest.mark.night)], ids=["short", "long"])
def test_ids_are_those_of_all_logits(demo_file: Path, prompts: slice) -> None:
    facts = read_model_facts(demo_file)
    weights = pack_weights(facts, 2, lambda stage, fraction: None)
    assert packed_as(weights, SCREENED) == ["token_embd.weight"]
    driver = NativeDriver(facts, weights, blocks=2000, threads=2)
    texts = [line["prompt_ids"] + line["ids"] for line in demo_lines()[prompts]]
    for number, ids in enumerate(texts):
        start = max(0, len(ids) - LAST)
        if start:
            driver.runner.run(driver.inputs([(number, ids[:start])], select=[0]), driver.kv)
        for size in (1, 3, 16, LAST):
            part = ids[start : start + size]
            if not part:
                break
            inputs = driver.inputs([(number, part)])
            best = driver.runner.run(inputs, driver.kv, keep=np.ones(len(inputs.select), np.int32))["best"].tolist()
            assert best == driver.runner.run(inputs, driver.kv)["logits"].argmax(axis=1).tolist()
            start += size
    steps, passed, pairs, computed = driver.runner._of(driver.kv).native.screened
    driver.runner.close()
    assert steps > 2 * len(texts) and passed < 10
    assert computed < 0.1 * pairs
