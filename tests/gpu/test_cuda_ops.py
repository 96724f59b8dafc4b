"""Norms, elements, gathers and rotations against the references of their ops: all samples, all types, strided rows, poisoned outputs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tensors import error, numbers, on_device, poisoned, within

from ridgeline.compute.cuda.triton import elements, norm, rope
from ridgeline.compute.ops.definition import Sample
from ridgeline.compute.ops.table import OPS

Launcher = Callable[[dict[str, Any], torch.Tensor], None]
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}
"""Half a unit in the last place of bf16 is 2^-9 of a number; sums and weights of inputs that are rounded themselves add to it."""

LAUNCHERS: dict[str, Launcher] = {
    "rms_norm": lambda a, out: norm.rms_norm(a["x"], a["weight"], a["eps"], out),
    "layer_norm": lambda a, out: norm.layer_norm(a["x"], a["weight"], a["bias"], a["eps"], out),
    "add": lambda a, out: elements.add(a["x"], a["y"], out),
    "add_bias": lambda a, out: elements.add_bias(a["x"], a["bias"], out),
    "scale": lambda a, out: elements.scale(a["x"], a["factor"], out),
    "softcap": lambda a, out: elements.softcap(a["x"], a["cap"], out),
    "activate": lambda a, out: elements.activate(a["x"], a["activation"], out),
    "glu": lambda a, out: elements.glu(a["gate"], a["up"], a["activation"], out),
    "embed": lambda a, out: elements.embed(a["ids"], a["table"], out),
    "select": lambda a, out: elements.select(a["x"], a["select"], out),
    "rotate": lambda a, out: rope.rotate(a["x"], a["turn"], a["head_dim"], out),
}
IN_ACTIVATIONS = {"x", "y", "gate", "up", "table"}
"""Arguments of the activations' type; others are fp32 or integers."""

CASES = [pytest.param(name, sample, id=f"{name} {sample.name}") for name in LAUNCHERS for sample in OPS[name].samples()]


def rounded(sample: Sample, dtype: torch.dtype) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments for a launcher, activations rounded to `dtype`, in strided rows; and the same numbers for the reference."""
    ours: dict[str, Any] = {}
    theirs: dict[str, Any] = {}
    for name, value in sample.arguments.items():
        ours[name] = theirs[name] = value
        if isinstance(value, np.ndarray):
            ours[name] = on_device(value, dtype if name in IN_ACTIVATIONS else None)
            theirs[name] = numbers(ours[name])
            if name in IN_ACTIVATIONS:
                ours[name] = within(ours[name])
    return ours, theirs


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("name", "sample"), CASES)
def test_equals_the_reference(name: str, sample: Sample, dtype: torch.dtype) -> None:
    ours, theirs = rounded(sample, dtype)
    if dtype == torch.float16 and any(np.abs(value).max(initial=0) > 60000 for value in theirs.values() if isinstance(value, np.ndarray)):
        return  # fp16 holds no such number
    expected = OPS[name].reference(**theirs)
    assert isinstance(expected, np.ndarray)
    out = within(poisoned(*expected.shape, dtype=dtype))
    LAUNCHERS[name](ours, out)
    if dtype == torch.float16:
        assert np.abs(expected).max(initial=0) < 60000
    small = np.abs(expected).max(initial=0) < (1e-3 if dtype == torch.float16 else 1e-30)
    assert error(out, expected) <= TOLERANCE[dtype] or (small and np.abs(numbers(out) - expected).max(initial=0) < 1e-7)
