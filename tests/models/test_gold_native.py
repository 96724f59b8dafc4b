"""The demo model on the native runner against llama.cpp: integers for weights and activations, KV rounded to bf16 or to eight bits."""

from pathlib import Path

import pytest
from demo_model import LONG, Demo, complaints
from native import NativeDriver

from gold import demo_lines
from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.packing import pack_weights
from ridgeline.facts.headers.read import read_model_facts

pytestmark = [
    pytest.mark.skipif(ext.lost() is not None, reason="the native extension is not built"),
]


@pytest.fixture(scope="module")
def demo(demo_file: Path) -> Demo:
    facts = read_model_facts(demo_file)
    return Demo(facts, pack_weights(facts, 2, lambda stage, fraction: None), demo_lines())


@pytest.mark.parametrize(("kv_dtype", "numbers"), [("bf16", range(LONG + 1)), ("int8", range(LONG)), ("f32", range(LONG))])
def test_agrees(demo: Demo, kv_dtype: str, numbers: range) -> None:
    driver = NativeDriver(demo.facts, demo.weights, blocks=1500, threads=2, kv_dtype=kv_dtype)
    scores = [score for number in numbers for score in demo.score(driver, [number])]
    driver.runner.close()
    assert complaints(scores) == []
    assert max(score.median for score in scores) < 0.15


def test_a_wrong_weight_fails(demo: Demo) -> None:
    """Two layers' norms exchanged: the comparison can fail."""
    first, second = "blk.3.attn_norm.weight", "blk.9.attn_norm.weight"
    wrong = {**demo.weights, first: demo.weights[second], second: demo.weights[first]}
    driver = NativeDriver(demo.facts, wrong, blocks=1500, threads=2)
    assert complaints([score for number in range(3) for score in demo.score(driver, [number])])
