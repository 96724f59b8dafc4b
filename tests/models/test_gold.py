"""The demo model against llama.cpp, and two mutants of it that must not pass.

llama.cpp rounds activations to eight bits, so its log-probabilities differ from exact ones by 0.05 in the median; one key more
or less among 512 moves them by 0.004. No agreement with it can tell a window of 511, so the edge of the window is checked
by what a step reads: the key 511 behind matters, the key 512 behind does not (llama.cpp masks a key from 512 on).
"""

import copy
import dataclasses
from pathlib import Path

import numpy as np
import pytest
from demo_model import LONG, Demo, complaints
from tiny import Driver

from gold import demo_lines
from ridgeline.compute.exact.runner import NumpyRunner
from ridgeline.compute.load.record import record
from ridgeline.compute.load.weights import load_weights
from ridgeline.facts.headers.read import read_model_facts

PAST_WINDOW = 530
"""Tokens of the long prompt: a window of 512 and some."""
TELLING = [0, 1, 2]
"""Prompts in which fourteen of 88 clear first choices differ with another RoPE base."""


@pytest.fixture(scope="module")
def demo(demo_file: Path) -> Demo:
    facts = read_model_facts(demo_file)
    prompts = demo_lines()
    assert len(prompts) == 10 and len(prompts[LONG]["prompt_ids"]) == 1249
    return Demo(facts, load_weights(facts, 1 << 40, 2, lambda stage, fraction: None), prompts)


@pytest.fixture(scope="module")
def right(demo: Demo) -> Driver:
    """The model as it is, with the beginning of the long prompt in its cache."""
    driver = demo.driver(demo.facts)
    driver.step((LONG, demo.prompts[LONG]["prompt_ids"][:PAST_WINDOW]), select=[0])
    return driver


def edge_complaints(driver: Driver, window: int) -> list[str]:
    """What is wrong with the window of the layers that have one: `driver` holds more than it, one step is taken and taken back."""
    length = driver.computed[LONG]

    def last_step() -> np.ndarray:
        driver.computed[LONG] = length - 1
        return driver.step((LONG, [236787]))

    def with_poison(distance: int) -> np.ndarray:
        """The step when V at this distance is not a number in every group with a window."""
        groups = [group for group, kind in enumerate(driver.shape.groups) if kind.kind == "window"]
        slots = [driver.slot(LONG, group, length - 1 - distance) for group in groups]
        kept = driver.kv.pool[:, 1, slots].copy()
        driver.kv.pool[:, 1, slots] = np.nan
        poisoned = last_step()
        driver.kv.pool[:, 1, slots] = kept
        return poisoned

    clean = last_step()
    assert np.isfinite(clean).all()
    found = [] if np.array_equal(with_poison(window), clean) else [f"the key {window} behind is seen"]
    return found if np.isnan(with_poison(window - 1)).all() else [*found, f"the key {window - 1} behind is not seen"]


@pytest.mark.parametrize(
    "numbers",
    [range(4), pytest.param(range(4, LONG), marks=pytest.mark.night), pytest.param([LONG], marks=pytest.mark.night)],
    ids=["day", "others", "long"],
)
def test_agrees(demo: Demo, numbers: list[int], record_property) -> None:
    """The native runner is asked about all prompts by day, in `test_gold_native.py`."""
    scores = demo.score(demo.driver(demo.facts), list(numbers))
    for score in scores:
        record_property(f"prompt {score.number}: median difference of log-probability", round(score.median, 4))
        print(f"prompt {score.number}: {score.clear - score.missed} of {score.clear} agree, median difference {score.median:.4f}")
    assert complaints(scores) == []
    assert max(score.median for score in scores) < 0.1


def test_the_window_is_512(demo: Demo, right: Driver) -> None:
    assert demo.facts.window == 512 and edge_complaints(right, 512) == []


def test_the_global_rope_base_in_local_layers_fails(demo: Demo) -> None:
    wrong = dataclasses.replace(demo.facts, rope={"full": demo.facts.rope["full"], "window": demo.facts.rope["full"]})
    assert complaints(demo.score(demo.driver(wrong), TELLING))


@pytest.mark.parametrize("window", [511, 513])
def test_another_window_fails(demo: Demo, right: Driver, window: int) -> None:
    """Steps on the right model's cache: what differs is only what the step reads."""
    wrong = record(dataclasses.replace(demo.facts, window=window))["step"]
    mutant = copy.copy(right)
    mutant.runner = NumpyRunner(wrong, demo.weights, right.shape)
    assert edge_complaints(mutant, 512)
