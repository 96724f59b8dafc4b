"""Early selection: a step that computes the end of its last layer for selected positions alone gives them the bits of one that does not."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from checkpoints import VOCAB
from native import NativeDriver

from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.cache import allocate_native_kv
from ridgeline.compute.cpu.packing import pack, pack_weights
from ridgeline.compute.cpu.phases import phases
from ridgeline.compute.cpu.runner import NativeRunner
from ridgeline.compute.dummy import dummy_step
from ridgeline.compute.graph import SELECTED, Axis, Handle, OpList, Recorder, Weight, WeightFormat
from ridgeline.compute.load.record import record
from ridgeline.compute.lowering.early import ATTENDED, select_early
from ridgeline.compute.lowering.fuse import fuse_residuals
from ridgeline.compute.lowering.lower import PASSES, lower
from ridgeline.compute.ops.definition import floats
from ridgeline.compute.ops.table import OPS, check, taken_as_arrays
from ridgeline.compute.runner import finite_tokens
from ridgeline.compute.states import RecurrentShape, allocate_states
from ridgeline.core.plan import KVGroup, KVShape
from ridgeline.facts.headers.read import read_model_facts
from ridgeline.facts.headers.rope import select_rope
from ridgeline.facts.model import CachedHeads, ModelFacts

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


HIDDEN = 16


def hybrid(kinds: str) -> OpList:
    """A list of a layer for each letter, attention or a recurrence, without feed-forward parts."""
    g = Recorder(OPS)
    x = g.embed(g.input.ids, Weight("token_embd.weight", (VOCAB, HIDDEN)))
    for layer, kind in enumerate(kinds):
        matrix = partial(_matrix, g, layer)
        if kind == "a":
            g.kv_write(matrix(x, "k"), matrix(x, "v"), layer=layer)
            mixed = g.attention(matrix(x, "q"), head_dim=HIDDEN, scale=1.0, layer=layer)
        else:
            c = g.short_conv(matrix(x, "qkv", 24), Weight(f"blk.{layer}.conv.weight", (24, 4)), layer=layer)
            gates = (Weight(f"blk.{layer}.{name}.weight", (2,)) for name in ("dt", "a"))
            mixed = g.gated_delta(c, matrix(x, "beta", 2), matrix(x, "alpha", 2), *gates, key_heads=1, key_dim=4, layer=layer)
        x = g.add(x, matrix(mixed, "o"))
    hidden = g.rms_norm(x, Weight("output_norm.weight", (HIDDEN,)), eps=1e-6)
    g.tap("hidden", hidden)
    return g.finish("step", logits=g.linear(g.select(hidden), Weight("output.weight", (VOCAB, HIDDEN))))


def _matrix(g: Recorder, layer: int, x: Handle, name: str, width: int = HIDDEN) -> Handle:
    made: Handle = g.linear(x, Weight(f"blk.{layer}.{name}.weight", (width, x.width)))
    return made


@pytest.mark.parametrize("kinds", ["ar", "rr", "rar", "ra"])
def test_nothing_moves_in_front_of_a_recurrence(kinds: str) -> None:
    """Also where it stands behind the last attention, or where there is none: what it makes of all tokens is what is looked at."""
    whole = hybrid(kinds)
    early = select_early(whole, {})
    check(early)
    last = "attention" if kinds[-1] == "a" else "gated_delta"
    number = next(number for number, op in reversed(list(enumerate(whole.ops))) if op.name == last)
    assert early.ops[: number + 1] == whole.ops[: number + 1]
    assert {early.values[made].axis for op in early.ops[number + 1 :] for made in op.outputs} == {SELECTED}
    assert early.taps[ATTENDED] == whole.ops[number].outputs[0] == f"{last}.{len(kinds) - 1}"


@native
@pytest.mark.parametrize("kept", ["tails", "states"])
@pytest.mark.parametrize("layer", [0, 2])
def test_a_state_that_is_not_finite_is_reported(layer: int, kept: str) -> None:
    """One number of a state, in front of the attention or behind it: its row is reported, sampling or not, and no other row."""
    step = hybrid("rar")
    weights: dict[str, Any] = {}
    with ThreadPoolExecutor(1) as pool:
        for weight in (weight for op in step.ops for weight in op.weights):
            array = floats(len(weights), *weight.shape, size=weight.shape[-1] ** -0.5)
            vector = weight.name in taken_as_arrays(step)
            weights[weight.name] = array if vector else pack("F32", array.view(np.uint8), array.shape, pool)
    shape = KVShape((KVGroup("full", (1,), 0),), 4, 8, b"")
    runner = NativeRunner(step, weights, shape, tokens=16, selected=16, vocab=VOCAB, threads=2)
    states = allocate_states(dict.fromkeys((0, 2), RecurrentShape(4, 24, 2, 4, 8)), 2, 1)
    kv = replace(allocate_native_kv(shape, CachedHeads(1, HIDDEN), "f32"), states=states)

    def finite(start: int, count: int, select: list[int]) -> list[bool]:
        inputs = replace(dummy_step([count, count], groups=1, block_tokens=4, starts=[start] * 2, row_blocks=4),
                         select=np.array(select, np.int32), state_rows=np.array([1, 0], np.int32))  # fmt: skip
        found: list[bool] = runner.run(inputs, kv)["finite"].tolist()
        return found

    assert finite(0, 5, [4]) == [True] * 10
    getattr(states, kept)[layer][1, 0].reshape(-1)[3] = np.nan
    assert finite(5, 2, []) == [False] * 2 + [True] * 2
    assert finite(7, 1, [1]) == [False, True]
    runner.close()


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
