"""Lowering keeps values and names; `diff` names the first op that differs."""

import dataclasses

import numpy as np
import pytest
from tiny import Driver, open_tiny

from ridgeline.compute.exact import runner as numpy_runner
from ridgeline.compute.exact.cache import allocate_kv
from ridgeline.compute.exact.runner import NumpyRunner
from ridgeline.compute.graph import Op, OpList, WeightFormat
from ridgeline.compute.liveness import last_uses
from ridgeline.compute.load.record import record
from ridgeline.compute.lowering.fuse import RESIDUAL, fuse_residuals
from ridgeline.compute.lowering.lower import head_of, lower, quantise_activations, share_rotations
from ridgeline.compute.ops.table import check
from ridgeline.compute.runner import diff
from ridgeline.errors import ModelFormatError
from ridgeline.facts.model import Rope

FLOATS, CODES = WeightFormat("F32"), WeightFormat("Q8_0", "i8")
IDS = np.random.default_rng(1).integers(0, 300, 21).tolist()


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    return Driver(*open_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))


def runner_of(driver: Driver, oplist: OpList) -> NumpyRunner:
    return NumpyRunner(oplist, driver.weights, driver.shape)


def both(driver: Driver, a: NumpyRunner, b: NumpyRunner, **options: float):
    driver.computed.clear()
    inputs = driver.inputs([(0, IDS[:15]), (1, IDS[15:])])
    caches = [allocate_kv(driver.shape, driver.facts.cached) for _ in "ab"]
    return diff(a, b, inputs, *caches, **options)


def test_the_numpy_runner_runs_the_semantic_list(driver: Driver) -> None:
    oplist = record(driver.facts)["step"]
    assert lower(oplist, "numpy") == oplist


def test_rotations_are_computed_once_and_keep_every_bit(driver: Driver) -> None:
    semantic = record(driver.facts)["step"]
    shared = share_rotations(semantic, {})
    names = [op.name for op in shared.ops]
    assert names.count("rotation") == len(set(driver.facts.rope.values())) == 2
    assert names.count("rotate") == 2 * driver.facts.layers and "rope" not in names
    assert (shared.outputs, shared.taps) == (semantic.outputs, semantic.taps) and share_rotations(shared, {}) == shared
    assert both(driver, runner_of(driver, shared), runner_of(driver, semantic)) is None


def test_codes_are_made_once_for_every_value_that_products_of_integers_read(driver: Driver) -> None:
    semantic = record(driver.facts)["step"]
    formats = {w.name: CODES if "ffn" in w.name or "attn_q" in w.name else FLOATS for op in semantic.ops for w in op.weights}
    lowered = quantise_activations(semantic, formats)
    made = [op for op in lowered.ops if op.name == "quantise"]
    assert len(made) == len({op.inputs for op in made}) == 3 * driver.facts.layers
    assert {op.weights[0].name for op in lowered.ops if op.name == "linear_codes"} == {
        op.weights[0].name for op in semantic.ops if op.name == "linear" and formats[op.weights[0].name] == CODES
    }
    assert quantise_activations(semantic, dict.fromkeys(formats, WeightFormat("BF16"))) == semantic


def test_the_widest_span_of_those_that_read_a_value_is_its_group(driver: Driver) -> None:
    """Of each order by itself; 32 where no matrix says more."""
    semantic = record(driver.facts)["step"]
    formats = {w.name: FLOATS if "norm" in w.name else WeightFormat("INT4", "i8") for op in semantic.ops for w in op.weights}
    spans = {"blk.0.attn_k": 128, "blk.0.attn_v": 256, "blk.1.attn_k": 128, "blk.2.ffn_up": 64}
    formats |= {f"{name}.weight": WeightFormat("INT4", "i8", span) for name, span in spans.items()}
    formats |= {"blk.2.attn_k.weight": WeightFormat("INT4", "i8", 256, "an order")}
    lowered = quantise_activations(semantic, formats)
    groups = {op.outputs: op.attributes["group"] for op in lowered.ops if op.name == "quantise"}
    of = {op.weights[0].name: groups[op.inputs] for op in lowered.ops if op.name == "linear_codes"}
    wide = {f"blk.0.attn_{part}.weight": 256 for part in "qkv"} | {f"blk.1.attn_{part}.weight": 128 for part in "qkv"}
    wide |= {"blk.2.attn_k.weight": 256, "blk.2.ffn_gate.weight": 64, "blk.2.ffn_up.weight": 64}
    assert of == dict.fromkeys(of, 32) | wide


@pytest.mark.parametrize(("span", "stepped"), [(256, True), (128, False), (32, False)])
def test_values_of_activation_functions_are_stepped_in_spans_of_256(driver: Driver, span: int, stepped: bool) -> None:
    semantic = record(driver.facts)["step"]
    lowered = quantise_activations(semantic, {w.name: WeightFormat("Q4_K", "i8", span) for op in semantic.ops for w in op.weights})
    made = {name: op.name for op in semantic.ops for name in op.outputs}
    found = {op.inputs[0]: op.attributes["stepped"] for op in lowered.ops if op.name == "quantise"}
    assert {name for name, value in found.items() if value} == ({name for name in found if made[name] == "glu"} if stepped else set())


def sums(oplist: OpList) -> list[str]:
    """What each sum adds to the residual stream, or the product that adds itself."""
    made = {name: op for op in oplist.ops for name in op.outputs}
    found = [op for op in oplist.ops if op.name in ("add", *RESIDUAL.values())]
    return [made[op.inputs[1]].name if op.name == "add" else op.name for op in found]


def test_residuals_are_added_where_nothing_else_reads_the_product(driver: Driver) -> None:
    """With Gemma's norm between, or a bias, nothing is fused; nor is a product that is a tap, or that is read twice."""
    facts = driver.facts
    semantic = record(facts)["step"]
    assert fuse_residuals(semantic, {}) == semantic
    plain = dataclasses.replace(facts, architecture="llama", final_softcap=0.0)
    llama = record(plain)["step"]
    fused = fuse_residuals(llama, {})
    check(fused)
    assert sums(llama) == ["linear"] * 2 * facts.layers and sums(fused) == ["linear_add"] * 2 * facts.layers
    assert len(fused.ops) == len(llama.ops) - 2 * facts.layers
    coded = fuse_residuals(quantise_activations(llama, {w.name: CODES for op in llama.ops for w in op.weights}), {})
    check(coded)
    assert sums(coded) == ["linear_codes_add"] * 2 * facts.layers
    first = next(op for op in llama.ops if op.name == "linear" and "attn_output" in op.weights[0].name)
    for other in (
        dataclasses.replace(llama, taps={**llama.taps, "product": first.outputs[0]}),
        llama.with_ops((*llama.ops, Op("scale", first.outputs, ("twice",), {"factor": 2.0}))),
    ):
        assert sums(fuse_residuals(other, {})) == ["linear"] + ["linear_add"] * (2 * facts.layers - 1)
    swapped = tuple(dataclasses.replace(op, inputs=op.inputs[::-1]) if op.name == "add" else op for op in llama.ops)
    assert fuse_residuals(llama.with_ops(swapped), {}).ops == swapped


def test_values_are_dropped_after_their_last_use(driver: Driver) -> None:
    oplist = record(driver.facts)["step"]
    dropped = last_uses(oplist)
    made = [name for op in oplist.ops for name in op.outputs]
    results = {*oplist.outputs.values(), *oplist.taps.values()}
    assert sorted(name for names in dropped for name in names) == sorted({*made, "ids", "positions"} - results)
    for number, names in enumerate(dropped):
        assert not {name for op in oplist.ops[number + 1 :] for name in op.inputs} & set(names)


def test_the_head_begins_behind_the_selection(driver: Driver) -> None:
    oplist = record(driver.facts)["step"]
    assert [op.name for op in oplist.ops[head_of(oplist) :]] == ["linear"]
    with pytest.raises(ValueError, match="its tap 'hidden'"):
        head_of(dataclasses.replace(oplist, taps={"hidden": "scale.1"}))
    with pytest.raises(ValueError, match="its tap 'hidden'"):
        head_of(oplist.with_ops(oplist.ops[:-2]))
    late = dataclasses.replace(oplist.ops[-1], inputs=(oplist.taps["hidden"],))
    with pytest.raises(ValueError, match="before the selection"):
        head_of(oplist.with_ops((*oplist.ops[:-1], late)))


def replaced(oplist: OpList, number: int, **attributes: float | Rope) -> OpList:
    op = oplist.ops[number]
    wrong = dataclasses.replace(op, attributes={**op.attributes, **attributes})
    return oplist.with_ops((*oplist.ops[:number], wrong, *oplist.ops[number + 1 :]))


@pytest.mark.parametrize(
    ("kind", "change"), [("rope", {"rope": Rope(20_000.0, 16)}), ("attention", {"window": 3}), ("rms_norm", {"eps": 1e-2})]
)
def test_diff_names_the_first_wrong_op(driver: Driver, kind: str, change: dict[str, float]) -> None:
    right = record(driver.facts)["step"]
    numbers = [number for number, op in enumerate(right.ops) if op.name == kind]
    for number in (numbers[0], numbers[len(numbers) // 2]):
        found = both(driver, runner_of(driver, replaced(right, number, **change)), runner_of(driver, right))
        assert found is not None and found.number == number and found.op.name == kind and found.error > 0


def test_diff_sees_a_wrong_cache(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    right = runner_of(driver, record(driver.facts)["step"])

    def swapped(k, v, keys, values, slots):
        keys[slots], values[slots] = v.reshape(-1, *keys.shape[1:]), k.reshape(-1, *keys.shape[1:])

    original = numpy_runner.providers
    monkeypatch.setattr(numpy_runner, "providers", lambda team: {**original(team), "kv_write": swapped})
    wrong = runner_of(driver, right.oplist)
    found = both(driver, wrong, right)
    assert found is not None and found.op.name == "kv_write" and found.value == "keys.0" and str(found.op) == "kv_write → layer 0"


def test_diff_against_a_lowered_list(driver: Driver) -> None:
    """The names that both lists have are enough to find the op."""
    right = record(driver.facts)["step"]
    number = next(n for n, op in enumerate(right.ops) if op.name == "glu")
    wrong = replaced(right, next(n for n, op in enumerate(right.ops) if op.name == "rope"), rope=Rope(123.0, 16))
    found = both(driver, runner_of(driver, wrong), runner_of(driver, share_rotations(right, {})))
    assert found is not None and found.op.name == "rope" and found.number < number


def test_diff_has_a_tolerance(driver: Driver) -> None:
    right = record(driver.facts)["step"]
    norm = next(n for n, op in enumerate(right.ops) if op.name == "rms_norm")
    wrong = runner_of(driver, replaced(right, norm, eps=2e-6))
    assert both(driver, wrong, runner_of(driver, right)) is not None
    assert both(driver, wrong, runner_of(driver, right), tolerance=1e-2) is None


def test_running_to_an_op(driver: Driver) -> None:
    runner = runner_of(driver, record(driver.facts)["step"])
    driver.computed.clear()
    inputs = driver.inputs([(0, IDS)])
    whole = runner.values(inputs, driver.kv)
    for last in (0, 5, 30):
        part = runner.values(inputs, driver.kv, until=last)
        assert list(part) == list(whole)[: len(part)]
        assert set(runner.oplist.ops[last].outputs) <= set(part)
        assert all(np.array_equal(part[name], whole[name]) for name in part)
    assert list(runner.values(inputs, driver.kv, until=0)) == ["token_embd"]


def test_an_unknown_architecture_is_refused_by_name(driver: Driver) -> None:
    for name in ("qwen9", "registry", "../escape", "os.path"):
        with pytest.raises(ModelFormatError, match="no implementation"):
            record(dataclasses.replace(driver.facts, architecture=name))
