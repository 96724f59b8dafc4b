"""A network with routed experts: its meaning, the bits of a sequence whatever runs beside it, and its lists as runners lower them."""

from collections.abc import Sequence

import numpy as np
import pytest
from routed import ARRAYS, CHOICES, ROUTING, VOCAB, RoutedDriver, direct, routed_list

from ridgeline.compute.cpu.phases import phases
from ridgeline.compute.exact.self_test import check_exactness
from ridgeline.compute.exact.threads import Team
from ridgeline.compute.graph import SELECTED, TOKENS, Recorder, Weight, WeightFormat
from ridgeline.compute.lowering.early import select_early
from ridgeline.compute.lowering.lower import lower, split_routing
from ridgeline.compute.ops.table import OPS, check, taken_as_arrays
from ridgeline.compute.quant.weight import CodedWeight, DenseWeight

IDS = np.random.default_rng(5).integers(0, VOCAB, 80).tolist()
WEIGHTS = {name: DenseWeight(array) for name, array in ARRAYS.items()}
CODED = {name: WeightFormat("Q8_0", "i8") for name, array in ARRAYS.items() if array.ndim > 1 and "bias" not in name}


@pytest.fixture(scope="module")
def alone() -> np.ndarray:
    """Logits of the first forty ids of one sequence, in one step."""
    return RoutedDriver(weights=WEIGHTS).step((0, IDS[:40]))


def test_it_computes_what_it_says(alone: np.ndarray) -> None:
    expected = direct(IDS[:40])
    assert np.abs(alone - expected).max() < 2e-5 * np.abs(expected).max()


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("chunks", [[40], [1] * 40, [3, 17, 1, 16, 3]])
def test_no_company_changes_a_bit(alone: np.ndarray, chunks: Sequence[int], threads: int) -> None:
    """Chunks of a sequence among others, which choose the same experts and different ones."""
    driver = RoutedDriver(weights=WEIGHTS, threads=threads)
    found, start = [], 0
    for number, count in enumerate(chunks):
        beside = [(1 + number % 3, IDS[number : number + 1 + number % 20])]
        step = driver.step(*beside, (0, IDS[start : start + count]), (9, IDS[40 + number : 41 + number]))
        found.append(step[len(beside[0][1]) : len(beside[0][1]) + count])
        start += count
    assert np.concatenate(found).tobytes() == alone.tobytes()
    driver.runner.close()


def test_this_machine_is_exact() -> None:
    assert RoutedDriver(weights=WEIGHTS).runner.exactness().exact
    assert check_exactness([(32, 64)], [], Team()).exact


def test_values_have_a_row_per_choice() -> None:
    oplist = routed_list()
    check(oplist)
    axes = {op.name: {oplist.values[name].axis for name in op.outputs} for op in oplist.ops}
    assert axes["linear_experts"] == axes["glu"] == {TOKENS * CHOICES} and axes["route"] == axes["combine"] == {TOKENS}
    assert oplist.values["blk.0.ffn_gate_inp.ids"].dtype == "i32" and oplist.values["blk.0.ffn_gate_inp.weights"].width == CHOICES
    biases = {name for name in ARRAYS if name.endswith(".bias")}
    assert taken_as_arrays(oplist) == biases | {name for name, array in ARRAYS.items() if array.ndim == 1}


@pytest.mark.parametrize("runner", ["native", "native, all tokens"])
def test_lowered_lists_select_and_quantise_once(runner: str) -> None:
    """One `quantise` per token for all its experts, gate and up in one phase; early selection takes S · k as it takes S."""
    lowered = lower(routed_list(), runner, CODED)
    check(lowered)
    ops = [op.name for op in lowered.ops]
    assert ops.count("route_logits") == ops.count("combine") == len(ROUTING) and not {"route", "linear_experts"} & set(ops)
    assert ops.count("linear_experts_codes") == 3 * len(ROUTING)
    read = [op.inputs[0] for op in lowered.ops if op.name == "linear_experts_codes"]
    assert len(set(read)) == 2 * len(ROUTING)  # gate and up read one, down another
    # The router's product reads the codes that gate and up read.
    routers = [op.inputs[0] for op in lowered.ops if op.name == "linear_codes" and "ffn_gate_inp" in op.weights[0].name]
    assert set(routers) < set(read)
    made = [phase for phase in phases(lowered) if phase.kind == "experts"]
    assert [len(phase.ops) for phase in made] == [2, 1] * len(ROUTING)
    last = SELECTED if runner == "native" else TOKENS
    assert [phase.axis for phase in made] == [TOKENS * CHOICES] * (2 * len(ROUTING) - 2) + [last * CHOICES] * 2


def test_early_selection_keeps_every_bit(alone: np.ndarray) -> None:
    early = select_early(split_routing(routed_list(), {}), {})
    check(early)
    driver = RoutedDriver(weights=WEIGHTS, oplist=early)
    inputs = driver.inputs([(1, IDS[50:59]), (0, IDS[:40])], [8, 9, 12, 48])
    values = driver.runner.values(inputs, driver.kv)
    assert values[early.outputs["logits"]][1:].tobytes() == alone[[0, 3, 39]].tobytes()
    for name, array in values.items():
        if name in early.values:
            assert array.shape == early.values[name].shape(inputs.sizes)


def test_a_value_of_choices_is_selected_by_tokens() -> None:
    """An op behind the last attention may read what has k rows per token and was made before it."""
    g, w = Recorder(OPS), {name: Weight(name, array.shape) for name, array in ARRAYS.items()}
    x = g.embed(g.input.ids, w["token_embd.weight"])
    experts, weights = g.route(x, w["blk.0.ffn_gate_inp.weight"], k=CHOICES)
    y = g.linear_experts(x, experts, w["blk.0.ffn_gate_exps.weight"])
    q = g.linear(x, w["blk.0.attn_q.weight"])
    g.kv_write(g.linear(x, w["blk.0.attn_k.weight"]), g.linear(x, w["blk.0.attn_v.weight"]), layer=0)
    o = g.attention(q, layer=0, head_dim=16, scale=0.25)
    mixed = g.combine(g.glu(y, g.linear_experts(o, experts, w["blk.0.ffn_up_exps.weight"]), "silu"), weights)
    g.tap("hidden", mixed)
    g.tap("gate", y)
    oplist = g.finish("step", logits=g.scale(g.select(mixed), 2.0))
    early = select_early(oplist, {})
    check(early)
    found = [op for op in early.ops if op.name == "select"]
    assert {op.attributes["factor"] for op in found} == {1, CHOICES}
    results = []
    for each in (oplist, early):
        driver = RoutedDriver(weights=WEIGHTS, oplist=each)
        inputs = driver.inputs([(0, IDS[:9])], [2, 5])
        results.append(driver.runner.values(inputs, driver.kv)[each.outputs["logits"]])
    assert results[0].tobytes() == results[1].tobytes()


def test_experts_that_are_stored_as_codes() -> None:
    """One matrix behind the other: each part is a matrix by itself."""
    array = ARRAYS["blk.0.ffn_gate_exps.weight"]
    stored = CodedWeight("F32", array.shape, np.ascontiguousarray(array).reshape(-1, array.shape[2]).view(np.uint8))
    assert np.array_equal(stored.dense(), array)
    for number in (0, 3, len(array) - 1):
        assert stored.part(number).shape == array.shape[1:]
        assert np.array_equal(stored.part(number).dense(), DenseWeight(array).part(number).dense())


def test_the_recorder_refuses_what_does_not_fit() -> None:
    g = Recorder(OPS)
    x = g.embed(g.input.ids, Weight("table", (9, 64)))
    experts, weights = g.route(x, Weight("router", (6, 64)), k=2)
    y = g.linear_experts(x, experts, Weight("gate", (6, 32, 64)))
    for wrong in (
        lambda: g.route(x, Weight("router", (6, 32)), k=2),
        lambda: g.route(x, Weight("router", (6, 64)), k=7),
        lambda: g.route(x, Weight("router", (6, 64)), k=3, groups=3, groups_kept=1),
        lambda: g.route(x, Weight("router", (6, 64)), k=1, groups=4),
        lambda: g.route(x, Weight("router", (6, 64)), k=1, scores="softmax_chosen", bias_selects=True),
        lambda: g.route(x, Weight("router", (6, 64)), Weight("bias", (5,)), k=1),
        lambda: g.linear_experts(y, experts, Weight("down", (6, 64, 64))),
        lambda: g.linear_experts(x, experts, Weight("gate", (6, 32, 64)), Weight("bias", (6, 64))),
        lambda: g.linear_experts(g.select(x), experts, Weight("gate", (6, 32, 64))),
        lambda: g.combine(x, weights),
    ):
        with pytest.raises(ValueError, match=r"wide|differ"):
            wrong()
    with pytest.raises(TypeError, match="missing"):
        g.route(x, Weight("router", (6, 64)))
