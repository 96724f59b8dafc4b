"""Early selection: a step that computes the end of its last layer for selected positions alone gives them the bits of one that does not."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from checkpoints import VOCAB
from native import NativeDriver

from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.packing import pack_weights
from ridgeline.compute.cpu.phases import phases
from ridgeline.compute.graph import SELECTED, Axis, OpList, WeightFormat
from ridgeline.compute.load.record import record
from ridgeline.compute.lowering.early import ATTENDED, select_early
from ridgeline.compute.lowering.fuse import fuse_residuals
from ridgeline.compute.lowering.lower import PASSES, lower
from ridgeline.compute.ops.table import check
from ridgeline.compute.runner import finite_tokens
from ridgeline.facts.headers.read import read_model_facts
from ridgeline.facts.headers.rope import select_rope
from ridgeline.facts.model import ModelFacts

NAMES = ["llama3", "qwen2", "qwen3moe", "deepseek2", "gpt_oss", "gemma2", "gemma3", "phi3-long", "gpt2", "starcoder2"]
"""With norms behind projections and without, biases, latent attention, a cap on logits, learned positions."""

IDS = np.random.default_rng(12).integers(0, VOCAB, 90).tolist()

native = pytest.mark.skipif(ext.lost() is not None, reason="the native extension is not built")


@pytest.fixture(scope="module")
def facts(stored) -> Callable[[str], ModelFacts]:
    return lambda name: select_rope(read_model_facts(stored(name, "Q8_0")), 256)[0]


@pytest.fixture(scope="module")
def opened(facts) -> Callable[[str], NativeDriver]:
    """A driver over packed Q8_0 weights, for each name one."""
    made: dict[str, NativeDriver] = {}

    def of(name: str) -> NativeDriver:
        if name not in made:
            found = facts(name)
            weights = pack_weights(found, 1, lambda stage, fraction: None)
            made[name] = NativeDriver(found, weights, threads=2, tokens=128)  # type: ignore[arg-type]
        return made[name]

    return of


def kinds(oplist: OpList, axis: Axis) -> list[str]:
    """Ops whose outputs have so many rows."""
    return [op.name for op in oplist.ops if any(oplist.values[name].axis == axis for name in op.outputs)]


@pytest.mark.parametrize("name", NAMES)
def test_all_ops_behind_the_last_attention_move(facts, name: str) -> None:
    whole = record(facts(name))["step"]
    early = select_early(whole, {})
    check(early)
    number = next(number for number, op in reversed(list(enumerate(whole.ops))) if op.name == "attention")
    assert early.ops[: number + 1] == whole.ops[: number + 1]
    behind = [op for op in early.ops[number + 1 :] if op.name != "select"]
    assert [op.name for op in behind] == [op.name for op in whole.ops[number + 1 :] if op.name != "select"]
    assert {early.values[made].axis.kind for op in early.ops[number + 1 :] for made in op.outputs} == {SELECTED.kind}
    chosen = [op.inputs[0] for op in early.ops if op.name == "select"]
    assert len(chosen) == 2 and chosen[0] == whole.ops[number].outputs[0]  # and the residual stream
    assert early.outputs == whole.outputs
    (selected,) = (op.outputs[0] for op in whole.ops if op.name == "select")
    assert early.taps == {"selected": selected, ATTENDED: chosen[0]}
    assert {made for op in early.ops for made in (*op.inputs, *op.outputs)} == set(early.values)
    assert select_early(early, {}) == early


@pytest.mark.parametrize("name", NAMES)
def test_steps_have_one_barrier_less(facts, name: str) -> None:
    """The selection stands with the ops behind the attention, where whole steps stop for it once more."""
    step = record(facts(name))["step"]
    formats = {weight.name: WeightFormat("Q8_0", "i8") for op in step.ops for weight in op.weights}
    early, whole = (lower(step, runner, formats) for runner in ("native", "native, all tokens"))
    assert len(phases(early)) == len(phases(whole)) - 1
    assert kinds(whole, SELECTED).count("linear_codes") == 1 < kinds(early, SELECTED).count("linear_codes") <= 5


def test_what_others_read_stays(facts) -> None:
    """A tap, here the last layer's gated product, is made for all tokens, and so is all that it is made from; of the end too."""
    step = record(facts("gemma3"))["step"]
    gated = [op.outputs[0] for op in step.ops if op.name == "glu"][-1]
    early = select_early(replace(step, taps={**step.taps, "gated": gated}), {})
    check(early)
    assert early.taps["gated"] == gated
    assert kinds(early, SELECTED) == ["select", "linear", "rms_norm", "select", "add", "rms_norm", "linear"]
    last = step.taps["hidden"]
    assert select_early(replace(step, taps={**step.taps, "same": last}), {}).taps == {**step.taps, "same": last}


def test_lists_without_attention_or_selection_stay(facts) -> None:
    step = record(facts("llama3"))["step"]
    for gone in ("attention", "select"):
        shorter = step.with_ops(tuple(op for op in step.ops if op.name != gone))
        assert select_early(shorter, {}) == shorter


@native
@pytest.mark.parametrize("name", NAMES)
def test_both_plans_give_the_same_bits(opened, name: str) -> None:
    """Prompts, their ends, chunks beside single tokens, several positions of a row; with the tap and without."""
    driver = opened(name)
    numbers = iter(range(10))

    def same(chunks: Sequence[tuple[int, Sequence[int]]], select: Sequence[int]) -> None:
        inputs = driver.inputs(chunks, select)
        whole = driver.runner.run(inputs, driver.kv, ("hidden",))
        wanted, hidden = whole["logits"].copy(), whole["hidden"].copy()
        one = np.ones(len(select), np.int32)
        best = driver.runner.run(inputs, driver.kv, ("hidden",), keep=one).get("best")
        found = driver.runner.run(inputs, driver.kv)
        assert np.array_equal(found["logits"].view(np.uint32), wanted.view(np.uint32)) and found["logits"].shape == (len(select), VOCAB)
        assert found["finite"].all() and whole["finite"].all() and len(found["finite"]) == len(inputs.ids)
        assert np.array_equal(driver.runner.logits(hidden[list(select)]), wanted)
        assert best is None or np.array_equal(driver.runner.run(inputs, driver.kv, keep=one)["best"], best)

    a, b, c = (next(numbers) for _ in "abc")
    same([(a, IDS)], [len(IDS) - 1])
    same([(b, IDS[:30])], [])
    same([(a, [7]), (b, IDS[30:60]), (c, IDS[:5])], [0, 35])
    same([(a, [9]), (b, [3]), (c, [4])], [0, 1, 2])
    same([(a, [5, 6, 7, 8]), (b, [1]), (c, IDS[5:12])], [1, 2, 3, 4, 7, 11])
    same([(c, IDS[12:20])], list(range(8)))


@native
@pytest.mark.parametrize("name", ["llama3", "qwen2", "phi3-long"])
def test_products_that_add_a_residual_change_no_bit(facts, opened, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    fused = opened(name)
    assert len([op for op in fused.runner.oplist.ops if op.name == "linear_codes_add"]) == 2 * fused.facts.layers
    passes = {runner: tuple(each for each in found if each is not fuse_residuals) for runner, found in PASSES.items()}
    monkeypatch.setattr("ridgeline.compute.lowering.lower.PASSES", passes)
    apart = NativeDriver(fused.facts, fused.weights, threads=2, tokens=128)
    assert not [op for op in apart.runner.oplist.ops if op.name.endswith("_add")]
    for chunks in ([(60, IDS)], [(60, [3]), (61, IDS[:20])], [(60, [4]), (61, [5])]):
        assert fused.step(*chunks).tobytes() == apart.step(*chunks).tobytes()


@native
@pytest.mark.parametrize("part", [0, 1], ids=["key", "value"])
@pytest.mark.parametrize("layer", [0, -1])
def test_a_row_that_is_not_finite_is_reported(opened, layer: int, part: int) -> None:
    """One number of a cached key or value is none: whoever sees it is reported, sampling or not, and no other row."""
    driver = opened("gemma3")
    layer = range(driver.facts.layers)[layer]
    group, index = next((number, g.layers.index(layer)) for number, g in enumerate(driver.shape.groups) if layer in g.layers)
    bad, good = (10 + 4 * layer + 2 * part + each for each in range(2))
    assert driver.runner.run(driver.inputs([(bad, IDS[:20]), (good, IDS[:20])], []), driver.kv)["finite"].all()
    block_id, offset = divmod(driver.slot(bad, group, 19), driver.block_tokens)
    driver.kv.pool[index, part, block_id, 0, offset, 3] = 0x7FC0
    for chunks, select in (([(good, [3]), (bad, [4])], [0, 1]), ([(good, [3]), (bad, [4, 5])], [0]), ([(good, [3, 4]), (bad, [5, 6])], [])):
        inputs = driver.inputs(chunks, select)
        for taps in ((), ("hidden",)):
            finite = driver.runner.run(inputs, driver.kv, taps)["finite"]
            assert finite.tolist() == (inputs.row_of_token == 0).tolist()


@native
def test_what_only_a_selected_token_computes_is_looked_at(opened) -> None:
    """A norm behind the last attention that makes infinities: rows that select are reported, and with the tap every row."""
    driver = opened("llama3")
    weight = driver.weights["output_norm.weight"]
    kept, weight[5] = weight[5], np.inf  # type: ignore[index]
    try:
        inputs = driver.inputs([(30, IDS[:4]), (31, IDS[:4]), (32, IDS[:1])], [7])
        assert driver.runner.run(inputs, driver.kv)["finite"].tolist() == [token != 7 for token in range(9)]
        assert not driver.runner.run(inputs, driver.kv, ("hidden",))["finite"].any()
    finally:
        weight[5] = kept  # type: ignore[index]


def test_finite_tokens() -> None:
    values = np.zeros((4, 3), np.float32)
    assert finite_tokens(values).tolist() == [True] * 4
    for number in (np.nan, np.inf, -np.inf):
        values[:] = 1
        values[1, 2] = values[3, 0] = number
        assert finite_tokens(values).tolist() == [True, False, True, False]
    assert finite_tokens(values[:0]).tolist() == []
