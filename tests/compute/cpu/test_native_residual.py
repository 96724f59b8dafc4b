"""Products that add a residual where they are written: bit for bit the product, then the sum, at every level and size."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.cache import NativeKVCache, allocate_native_kv
from ridgeline.compute.cpu.packing import PackedWeight, pack
from ridgeline.compute.cpu.plan import NativePlan
from ridgeline.compute.cpu.runner import arguments
from ridgeline.compute.graph import TOKENS, Handle, Op, OpList, Sizes, StepInputs, Weight
from ridgeline.compute.ops.definition import floats
from ridgeline.compute.ops.quantised import linear_codes_add, quantise
from ridgeline.compute.quant.groups import groups
from ridgeline.core.plan import KVGroup, KVShape
from ridgeline.facts.files.formats import FORMATS

pytestmark = pytest.mark.skipif(ext.lost() is not None, reason="the native extension is not built")

SHAPE = KVShape((KVGroup("full", (0,), 0),), 4, 1, b"")
HALVES = {"Q8_0": (0,), "Q4_K": (0, 2), "Q6_K": (208,)}
"""Byte offsets of the fp16 fields."""

OUTPUTS, COLUMNS = 72, 512
"""Whole blocks of 16 outputs and a half; two spans of the widest."""

TOKENS_OF_STEPS = (1, 3, 9, 40, 140)
"""The last is cut by tokens where weights are floats."""


def stored(kind: str) -> np.ndarray:
    """Made-up rows of a matrix as a file has them."""
    random = np.random.default_rng(7)
    if kind == "F32":
        return floats(7, OUTPUTS, COLUMNS).view(np.uint8)
    form = FORMATS[kind]
    blocks = random.integers(0, 256, (OUTPUTS, COLUMNS // form.block_elements, form.block_bytes), np.uint8)
    for start in HALVES[kind]:
        blocks[..., start : start + 2] = (random.random(blocks.shape[:2]) / 64).astype(np.float16)[..., None].view(np.uint8)
    return blocks.reshape(OUTPUTS, -1)


def packed(kind: str) -> PackedWeight:
    with ThreadPoolExecutor(1) as pool:
        return pack(kind, stored(kind), (OUTPUTS, COLUMNS), pool)


def cache() -> NativeKVCache:
    return allocate_native_kv(SHAPE, 1, 16, "f32")


def results(names: tuple[str, ...], given: dict[str, np.ndarray], weight: PackedWeight, threads: int) -> np.ndarray:
    """What a list of a product, and perhaps an addition, makes of given values. An op stands behind: a last product has larger chunks."""
    kinds = {"int8": "i8", "int32": "i32", "float32": "f32"}
    values = {name: Handle(name, TOKENS, array.shape[1], kinds[str(array.dtype)]) for name, array in given.items()}
    values |= {name: Handle(name, TOKENS, OUTPUTS) for name in ("product", "sum", "after")}
    own, matrix = tuple(name for name in given if name != "residual"), (Weight("w", (OUTPUTS, COLUMNS)),)
    fused = len(names) == 1
    first = Op(names[0], (*own, "residual") if fused else own, ("sum" if fused else "product",), {}, matrix)
    ops = (first,) if fused else (first, Op("add", ("residual", "product"), ("sum",)))
    ops = (*ops, Op("scale", ("sum",), ("after",), {"factor": 0.5}))
    tokens = len(given["residual"])
    sizes = Sizes(T=tokens, R=1, S=0)
    oplist = OpList("step", ops, values, {"sum": "sum"}, {})
    plan = NativePlan(oplist, {"w": weight}, cache(), SHAPE, sizes, ext.native().Team(threads), reuse=False)
    plan.value("sum", sizes).view(np.uint8)[...] = 0xFF
    for name, array in given.items():
        plan.value(name, sizes)[...] = array
    plan.native.run(*arguments(whole(tokens)), 0, plan.native.phases, 0, 0)
    found = plan.value("sum", sizes).copy()
    assert np.array_equal(plan.value("residual", sizes).view(np.uint32), given["residual"].view(np.uint32))
    return found


def whole(tokens: int) -> StepInputs:
    none = np.zeros(tokens, np.int32)
    cu_q, length = np.array([0, tokens], np.int32), np.array([tokens], np.int32)
    return StepInputs(none, none[None], none, cu_q, length, (none[:1, None],), (none.astype(np.int64),), none[:0])


def inputs_of(kind: str, tokens: int) -> dict[str, np.ndarray]:
    x, residual = floats(1, tokens, COLUMNS), floats(2, tokens, OUTPUTS, size=5.0)
    residual[0, :3], x[-1, 40] = (np.inf, np.nan, -0.0), 100.0
    made: Any = {"x": x} if kind == "F32" else dict(zip(("codes", "scales", "sums"), quantise(x, group=256), strict=True))
    return {**made, "residual": residual}


@pytest.mark.parametrize("level", ext.isa_levels())
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K", "Q6_K"])
def test_integers_equal_the_reference(kind: str, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ext, "isa", lambda: level)
    weight, integers = packed(kind), groups(kind, stored(kind))
    for tokens in TOKENS_OF_STEPS:
        given = inputs_of(kind, tokens)
        expected: Any = linear_codes_add(*given.values(), integers)
        for threads in (1, 3):
            found = results(("linear_codes_add",), given, weight, threads)
            assert np.array_equal(found, expected, equal_nan=True)


@pytest.mark.parametrize("level", ext.isa_levels())
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K", "F32"])
def test_one_op_has_the_bits_of_two(kind: str, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ext, "isa", lambda: level)
    weight, name = packed(kind), "linear" if kind == "F32" else "linear_codes"
    for tokens in TOKENS_OF_STEPS:
        given = inputs_of(kind, tokens)
        apart = results((name, "add"), given, weight, 2)
        for threads in (1, 2, 3):
            assert results((f"{name}_add",), given, weight, threads).tobytes() == apart.tobytes()
