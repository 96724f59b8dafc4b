"""Checkpoints whose inputs are grouped out of order, on the native runner: integers all the way, each product exactly its formula."""

from pathlib import Path

import numpy as np
import pytest
from native import NativeDriver
from quantised import SCHEMES
from quantised_models import PROMPT, write
from tiny import Driver, log_softmax

from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.packing import PackedWeight, pack_weights, widened
from ridgeline.compute.load.weights import load_weights, map_weights
from ridgeline.compute.ops.gather import reorder
from ridgeline.compute.ops.quantised import linear_codes, quantise
from ridgeline.compute.quant.bits import Groups
from ridgeline.compute.quant.grouped import GroupedWeight
from ridgeline.facts.model import ModelFacts

pytestmark = pytest.mark.skipif(ext.lost() is not None, reason="the native extension is not built")

CASES = [
    ("llama", "gptq-4-32-act-order"), ("phi3", "gptq-4-64-asymmetric-v2"), ("llama-biases", "packed-4-64-act-order"),
    ("llama", "gptq-8-32-asymmetric-v1"),
]  # fmt: skip


def quiet(stage: str, fraction: float) -> None: ...


def driver_of(facts: ModelFacts) -> NativeDriver:
    return NativeDriver(facts, pack_weights(facts, 2, quiet), threads=2, kv_dtype="f32")


def integers(stored: GroupedWeight, span: int) -> Groups:
    """As kernels see it, in the order of the codes: zeros belong to the integers, a group's scale stands once for every span of it."""
    codes = stored.integers(slice(None)).astype(np.int16) - stored.zeros.repeat(stored.size, axis=1)
    return Groups(codes, stored.scales.astype(np.float32).repeat(stored.size // span, axis=1))


@pytest.mark.parametrize(("model", "name"), CASES)
def test_every_product_is_its_formula_bit_for_bit(model: str, name: str, tmp_path: Path) -> None:
    """On the runner's own activations: those in the order of the file's groups, quantised, times the file's integers."""
    _, _, facts = write(tmp_path, model, SCHEMES[name])
    driver, mapped = driver_of(facts), map_weights(facts)
    driver.computed.clear()
    values = driver.runner.values(driver.inputs([(0, PROMPT)]), driver.kv)
    made = {value: op for op in driver.runner.oplist.ops for value in op.outputs}
    ordered = 0
    for op in driver.runner.oplist.ops:
        if op.name not in ("linear_codes", "linear_codes_add"):
            continue
        weight = mapped[op.weights[0].name]
        assert isinstance(weight, GroupedWeight)
        read = made[op.inputs[0]].inputs[0]
        x = values[made[read].inputs[0]] if made[read].name == "reorder" else values[read]
        if weight.order is not None:
            ordered += 1
            x = reorder(x, weight.order)  # type: ignore[assignment,arg-type]
        group, span = made[op.inputs[0]].attributes["group"], driver.weights[op.weights[0].name].span
        expected = linear_codes(*quantise(x, group=group), integers(weight, span))  # type: ignore[misc]
        expected = values[op.inputs[3]] + expected if op.name == "linear_codes_add" else expected
        assert np.array_equal(values[op.outputs[0]].view(np.uint32), expected.view(np.uint32)), str(op)  # type: ignore[union-attr]
    assert ordered == sum(isinstance(each, GroupedWeight) and each.order is not None for each in mapped.values()) > 8


@pytest.mark.parametrize(("model", "name"), CASES[:2])
def test_nothing_is_kept_as_fp32_and_logits_are_near_those_of_fp32(model: str, name: str, tmp_path: Path) -> None:
    _, _, facts = write(tmp_path, model, SCHEMES[name])
    driver = driver_of(facts)
    assert not widened(facts, driver.weights)
    assert {w.kind for w in driver.weights.values() if isinstance(w, PackedWeight) and w.order} == {f"INT{SCHEMES[name].bits}"}
    exact = Driver(facts, load_weights(facts, 1 << 40, 2, quiet))
    ours, theirs = (log_softmax(each.step((0, PROMPT))) for each in (driver, exact))
    apart = np.abs(ours - theirs)
    assert apart.mean() < 0.04 and apart.max() < 0.6  # activations of 8 bits


def test_matrices_that_share_an_order_share_their_codes(tmp_path: Path) -> None:
    """Of a fused matrix the parts have one order; it is kept once, and what they read is brought into it once."""
    _, _, facts = write(tmp_path, "phi3", SCHEMES["gptq-4-64-asymmetric-v2"])
    driver = driver_of(facts)
    ops = [op for op in driver.runner.oplist.ops if op.name == "reorder"]
    assert len(ops) == 4 * facts.layers  # queries, keys and values; the attention's output; gate and up; down
    assert sum(name.endswith(".order") for name in driver.weights) == 4 * facts.layers
