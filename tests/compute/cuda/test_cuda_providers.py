"""Every op on a GPU: its provider, as a runner binds it, gives the reference's values on every sample in every type, within the tolerance
of its definition, whatever its outputs held before."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from bound import run

from ridgeline.compute.cuda.providers import PROVIDERS
from ridgeline.compute.ops.definition import Definition, Sample, on_cuda
from ridgeline.compute.ops.table import OPS
from ridgeline.compute.runner import relative_error

KINDS = ("f32", "bf16", "fp16")

ELSEWHERE = {
    "rope": "lowering for a GPU makes rotations of it that layers share",
    "quantise": "integer products of the native runner",
    "linear_codes": "integer products of the native runner",
    "linear_codes_add": "integer products of the native runner",
    "linear_add": "the native runner's products; on a GPU the norm behind takes the sum",
    "linear_heads_codes": "integer products of the native runner",
    "linear_experts": "lowering for a GPU makes products over sorted choices of it",
    **dict.fromkeys(("route_logits", "linear_experts_codes"), "experts of the native runner"),
    "adapters": "on a GPU the host puts a step's tokens in the order of their adapters",
    **dict.fromkeys(("take_heads", "short_conv", "gated_delta"), "a GPU's runner refuses models with recurrent layers"),
    "reorder": "the native runner's columns in another order; on a GPU the product gathers them",
}
"""Ops that no list for a GPU has."""


def fits(sample: Sample, kind: str) -> bool:
    """Has fp16 such numbers? Models whose tokens see both ways are refused on a GPU."""
    if not sample.arguments.get("causal", True):
        return False
    floats = (value for value in sample.arguments.values() if isinstance(value, np.ndarray) and value.dtype == np.float32)
    sizes = [np.nan_to_num(np.abs(value)).max(initial=0) for value in floats]
    return kind != "fp16" or all(not size or 1e-3 < size < 6e4 for size in sizes)


def every_case() -> Iterator[Any]:
    for name in sorted(PROVIDERS):
        for sample in OPS[name].samples():
            for kind in KINDS:
                if fits(sample, kind):
                    yield pytest.param(OPS[name], sample, kind, id=f"{name}, {sample.name}, {kind}")


CASES = list(every_case())


@pytest.mark.parametrize(("definition", "sample", "kind"), CASES)
def test_provider_equals_reference(definition: Definition, sample: Sample, kind: str) -> None:
    found = run(definition, sample, kind)
    assert len(found.ours) == len(found.theirs) > 0
    for ours, theirs in zip(found.ours, found.theirs, strict=True):
        assert ours.shape == theirs.shape
        assert np.array_equal(np.isfinite(ours), np.isfinite(theirs))
        assert relative_error(np.nan_to_num(ours), np.nan_to_num(theirs)) <= definition.tolerance.get(f"cuda {kind}", 0.0)


def test_no_op_is_left_out() -> None:
    assert {*PROVIDERS, *ELSEWHERE} == {*OPS} and not {*PROVIDERS} & {*ELSEWHERE}
    tested = {(case.values[0].name, case.values[2]) for case in CASES}
    assert tested == {(name, kind) for name in PROVIDERS for kind in KINDS}
    for name in PROVIDERS:
        declared = {key for key in OPS[name].tolerance if key.startswith("cuda")}
        assert declared in (set(), {*on_cuda(f32=0, bf16=0, fp16=0)}), name
