"""Every op of the native plan that computes one token at a time, and products of floats, against their references at every ISA level."""

from typing import Any

import numpy as np
import pytest

from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.cache import allocate_native_kv
from ridgeline.compute.cpu.packing import PackedWeight, pack
from ridgeline.compute.cpu.plan import NativePlan
from ridgeline.compute.cpu.runner import arguments
from ridgeline.compute.graph import INPUTS, SELECTED, TOKENS, Axis, Handle, Op, OpList, Sizes, StepInputs, Weight
from ridgeline.compute.ops.definition import Definition, Sample
from ridgeline.compute.ops.table import OPS
from ridgeline.compute.runner import relative_error
from ridgeline.core.plan import KVGroup, KVShape
from ridgeline.facts.model import CachedHeads

pytestmark = pytest.mark.skipif(ext.lost() is not None, reason="the native extension is not built")

CODES = {"linear_codes", "linear_codes_add", "linear_experts_codes", "linear_heads_codes"}
ELSEWHERE = {"lora", "attention", "kv_write", "short_conv", "gated_delta", *CODES}
"""Ops with tests of their own: of the cache, of states, of packed formats."""

DTYPES = {"int8": "i8", "int32": "i32", "float32": "f32"}
SHAPE = KVShape((KVGroup("full", (0,), 0),), 4, 1, b"")


class Pool:
    """Packs on the calling thread."""

    def submit(self, work: Any, *arguments: Any) -> Any:
        work(*arguments)
        return self

    def result(self) -> None:
        pass


def cases() -> list[Any]:
    found = [(OPS[name], sample) for name in sorted(frozenset(ext.native().OPS) - ELSEWHERE) for sample in OPS[name].samples()]
    return [pytest.param(*case, id=f"{case[0].name}, {case[1].name}") for case in found]


def run(definition: Definition, sample: Sample, threads: int) -> tuple[np.ndarray, ...]:
    """The op's results by a native plan of that one op; outputs hold NaN before."""
    given, expected = sample.arguments, reference_of(definition, sample)
    inputs = definition.inputs
    tokens = given["positions"].shape[-1] if "positions" in given else min(len(given[name]) for name in inputs)
    tokens = given["ids"].size if "ids" in given else tokens // (given["factor"] if "select" in given else 1)
    selected = len(given["select"]) if "select" in given else 0
    rows = SELECTED if "select" in given else TOKENS
    values = {name: handle(name, TOKENS, given[name], tokens) for name in inputs if name not in INPUTS}
    outputs = tuple(f"out.{number}" for number in range(len(expected)))
    made = selected if "select" in given else tokens
    values |= {name: handle(name, rows, array, made) for name, array in zip(outputs, expected, strict=True)}
    weights, stored = weights_of(definition, given)
    own = tuple("positions" if definition.name == "embed" and given["ids"].ndim == 2 else name for name in inputs)
    op = Op(definition.name, own, outputs, {name: given[name] for name in definition.attributes}, weights)
    oplist = OpList("step", (op,), values, {name: name for name in outputs}, {})
    sizes = Sizes(T=max(tokens, 1), R=1, S=max(selected, 1))
    plan = NativePlan(oplist, stored, allocate_native_kv(SHAPE, CachedHeads(1, 16), "f32"), SHAPE, sizes, ext.native().Team(threads))
    now = Sizes(T=tokens, R=1, S=selected)
    for name in outputs:
        plan.value(name, sizes).view(np.uint8)[...] = 0xFF
    for name in inputs:
        if name not in INPUTS:
            plan.value(name, now)[...] = given[name]
    plan.native.run(*arguments(step(given, tokens)), 0, plan.native.phases, 0, 0)
    return tuple(plan.value(name, now).copy() for name in outputs)


def handle(name: str, axis: Axis, array: np.ndarray, count: int) -> Handle:
    """Of an array with so many tokens or selected positions."""
    return Handle(name, axis * max(1, len(array) // max(count, 1)), array.shape[-1], DTYPES[str(array.dtype)])


def reference_of(definition: Definition, sample: Sample) -> tuple[np.ndarray, ...]:
    given = sample.arguments
    with np.errstate(all="ignore"):
        made = definition(*(given[name] for name in definition.parameters), **{name: given[name] for name in definition.attributes})
    return made if isinstance(made, tuple) else (made,)  # type: ignore[return-value]


def weights_of(definition: Definition, given: Any) -> tuple[tuple[Weight, ...], dict[str, Any]]:
    weights = tuple(Weight(name, given[name].shape) for name in definition.weights if given[name] is not None)
    stored: dict[str, PackedWeight | np.ndarray] = {}
    for weight in weights:
        array = np.ascontiguousarray(given[weight.name])
        matrix = weight.name in definition.matrices
        rows = array.reshape(-1, array.shape[-1]).view(np.uint8)
        stored[weight.name] = pack("F32", rows, array.shape, Pool()) if matrix else array  # type: ignore[arg-type]
    return weights, stored


def step(given: Any, tokens: int) -> StepInputs:
    none = np.zeros(tokens, np.int32)
    ids = np.ascontiguousarray(given["ids"].reshape(-1), np.int32) if "ids" in given else none
    positions = given.get("positions", ids[None])
    table = (np.zeros((1, 1), np.int32),)
    slots = (np.zeros(tokens, np.int64),)
    cu_q, length = np.array([0, tokens], np.int32), np.array([tokens], np.int32)
    return StepInputs(ids, positions, none, cu_q, length, table, slots, given.get("select", np.zeros(0, np.int32)), given.get("adapter"))


@pytest.mark.parametrize("level", ext.isa_levels())
@pytest.mark.parametrize(("definition", "sample"), cases())
def test_equals_the_reference(definition: Definition, sample: Sample, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ext, "isa", lambda: level)
    expected = reference_of(definition, sample)
    found = run(definition, sample, 2)
    assert len(found) == len(expected) > 0
    for mine, reference in zip(found, expected, strict=True):
        assert mine.dtype == reference.dtype and mine.shape == reference.shape
        if mine.dtype == np.float32:
            assert relative_error(mine, reference) <= definition.tolerance.get("native", 0.0)
        else:
            assert np.array_equal(mine, reference)


@pytest.mark.parametrize(("definition", "sample"), cases())
def test_levels_and_threads_change_no_bit(definition: Definition, sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = []
    for level in ext.isa_levels():
        monkeypatch.setattr(ext, "isa", lambda level=level: level)
        kinds += [run(definition, sample, threads) for threads in (1, 3)]
    for other in kinds[1:]:
        for mine, theirs in zip(kinds[0], other, strict=True):
            assert mine.tobytes() == theirs.tobytes()


def test_what_is_not_finite_stays_so() -> None:
    """A value that is not finite reaches every output of its own token that depends on it, and no other token."""
    x = np.ones((3, 64), np.float32)
    x[1, 40] = np.inf
    x[2, 0] = np.nan
    for name, attributes in (("rms_norm", {"eps": 1e-6}), ("quantise", {"group": 32, "stepped": False})):
        given = {"x": x, **({"weight": np.ones(64, np.float32)} if name == "rms_norm" else {}), **attributes}
        out = run(OPS[name], Sample("bad", given), 2)[1 if name == "quantise" else 0]
        assert np.isfinite(out[0]).all()
        assert np.isnan(out[1]).any() and np.isnan(out[2]).any()
