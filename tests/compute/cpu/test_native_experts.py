"""Routed experts on the native runner: every op of the lowered list against its reference, and the bits of a sequence in any company."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import gguf
import numpy as np
import pytest
from routed import ARRAYS, FACTS, VOCAB, RoutedDriver

from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.cache import allocate_native_kv
from ridgeline.compute.cpu.packing import PackedWeight, pack
from ridgeline.compute.cpu.runner import NativeRunner
from ridgeline.compute.graph import Op, OpList, StepInputs
from ridgeline.compute.ops.definition import CACHE_READS
from ridgeline.compute.ops.table import OPS
from ridgeline.compute.quant.bits import Groups
from ridgeline.compute.quant.formats import dequantise
from ridgeline.compute.quant.groups import groups
from ridgeline.compute.quant.weight import CodedWeight, DenseWeight
from ridgeline.compute.runner import relative_error

pytestmark = pytest.mark.skipif(ext.lost() is not None, reason="the native extension is not built")

KINDS = ("F32", "BF16", "Q8_0", "Q4_0")
IDS = np.random.default_rng(5).integers(0, VOCAB, 80).tolist()


def is_matrix(name: str) -> bool:
    return ARRAYS[name].ndim > 1 and not name.endswith(".bias")


@cache
def codes_of(name: str, kind: str) -> np.ndarray:
    """The stored rows of a matrix, or of all experts' one behind the other."""
    rows = ARRAYS[name].reshape(-1, ARRAYS[name].shape[-1])
    return np.ascontiguousarray(gguf.quantize(rows, gguf.GGMLQuantizationType[kind])).view(np.uint8).reshape(len(rows), -1)


@cache
def stored(kind: str) -> dict[str, PackedWeight | np.ndarray]:
    with ThreadPoolExecutor(2) as pool:
        found = {name: pack(kind, codes_of(name, kind), ARRAYS[name].shape, pool) for name in ARRAYS if is_matrix(name)}
    return {**ARRAYS, **found}


@dataclass
class NativeRouted(RoutedDriver):
    """As `RoutedDriver`, over packed weights."""

    weights: Mapping = field(default_factory=lambda: stored("Q8_0"))

    def open(self) -> None:
        """Makes the runner and its cache; block 0 holds what no sequence may read."""
        sizes = {"tokens": 256, "selected": 256, "vocab": VOCAB}
        self.runner = NativeRunner(self.oplist, self.weights, self.shape, threads=self.threads, **sizes)
        self.kv = allocate_native_kv(self.shape, FACTS.cached, "f32")
        self.kv.pool.view("u1")[:, :, : self.block_tokens] = 0xFF


def reference(op: Op, oplist: OpList, kind: str, values: Mapping[str, np.ndarray], inputs: StepInputs) -> tuple[np.ndarray, ...]:
    """What the op's reference makes of the values that the native runner had."""
    definition = OPS[op.name]
    given: list[Any] = [values[name] if name in values else getattr(inputs, name) for name in op.inputs]
    coded = op.name.startswith(("linear_codes", "linear_experts_codes"))
    for name, weight in zip(definition.weights, op.weights, strict=False):
        given.append(weight_of(weight.name, kind, coded) if name in definition.matrices else ARRAYS[weight.name])
    given += [None] * (len(definition.weights) - len(op.weights)) + [getattr(inputs, name) for name in definition.reads]
    made: Any = definition(*given, **{name: op.attributes[name] for name in definition.attributes})
    return made if isinstance(made, tuple) else (made,)


def weight_of(name: str, kind: str, coded: bool) -> Any:
    shape, codes = ARRAYS[name].shape, codes_of(name, kind)
    if not coded:
        return dequantise(kind, codes).reshape(shape)
    apart: list[Groups] = [groups(kind, part) for part in np.split(codes, shape[0] if len(shape) > 2 else 1)]
    return apart if len(shape) > 2 else apart[0]


@pytest.mark.parametrize("level", ext.isa_levels())
@pytest.mark.parametrize("kind", KINDS)
def test_every_op_has_the_values_of_its_reference(kind: str, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One token, a few, and so many that an expert has more than a tile: integers and their products bit for bit."""
    monkeypatch.setattr(ext, "isa", lambda: level)
    driver = NativeRouted(weights=stored(kind), threads=2)
    for chunks in ([(0, IDS[:1])], [(1, IDS[:3]), (0, IDS[1:2])], [(2, IDS + IDS[::-1] + IDS), (0, IDS[2:5])]):
        inputs = driver.inputs(chunks)
        values = driver.runner.values(inputs, driver.kv)
        for op in driver.runner.oplist.ops:
            if CACHE_READS & set(OPS[op.name].reads):
                continue
            for name, expected in zip(op.outputs, reference(op, driver.runner.oplist, kind, values, inputs), strict=True):
                ours = values[name]
                assert (ours.dtype, ours.shape) == (expected.dtype, expected.shape), op
                tolerance = OPS[op.name].tolerance.get("native", 0.0)
                equal = np.array_equal(ours, expected) if ours.dtype != np.float32 else relative_error(ours, expected) <= tolerance
                assert equal, f"{op} with {len(inputs.ids)} tokens: {relative_error(ours, expected)}"


@pytest.mark.parametrize("kind", ["F32", "BF16"])
def test_logits_are_those_of_numpy(kind: str) -> None:
    """Codes of activations would lose half a percent, which sends some tokens to other experts."""
    dense = {name: DenseWeight(array) for name, array in ARRAYS.items() if not is_matrix(name)}
    weights = dense | {name: CodedWeight(kind, ARRAYS[name].shape, codes_of(name, kind)) for name in ARRAYS if is_matrix(name)}
    expected = RoutedDriver(weights=weights).step((0, IDS[:40]))
    found = NativeRouted(weights=stored(kind)).step((0, IDS[:40]))
    assert relative_error(found, expected) < 5e-5


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_no_company_changes_a_bit(kind: str) -> None:
    """Chunks of a sequence among others, with any number of threads, at every level, selected early or not."""
    alone = NativeRouted(weights=stored(kind)).step((0, IDS[:40])).copy()
    cuts: list[tuple[Sequence[int], int]] = [([1] * 40, 1), ([3, 17, 1, 16, 3], 3), ([40], 2), ([7] * 5 + [5], 2)]
    for chunks, threads in cuts:
        driver = NativeRouted(weights=stored(kind), threads=threads)
        found, start = [], 0
        for number, count in enumerate(chunks):
            before = IDS[number : number + 1 + number % 20]
            rows = [(1 + number % 3, before), (0, IDS[start : start + count]), (9, IDS[40 + number : 41 + number])]
            inputs = driver.inputs(rows, range(len(before), len(before) + count))
            taps = ("hidden",) if number % 3 == 2 else ()
            found.append(driver.runner.run(inputs, driver.kv, taps)["logits"].copy())
            start += count
        assert np.concatenate(found).tobytes() == alone.tobytes()
        driver.runner.close()


def test_levels_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for level in ext.isa_levels():
        monkeypatch.setattr(ext, "isa", lambda level=level: level)
        found.append(NativeRouted().step((0, IDS[:40])).tobytes())
    assert len(set(found)) == 1
