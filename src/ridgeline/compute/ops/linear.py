"""Products with weight matrices."""

import numpy as np

from ridgeline.compute.graph import Handle, Weight
from ridgeline.compute.ops.definition import SUMMED, Floats, Sample, fits, floats, op


def _samples() -> list[Sample]:
    return [
        Sample("ragged", {"x": floats(1, 7, 48), "weight": floats(2, 33, 48)}),
        Sample("one row", {"x": floats(3, 1, 640), "weight": floats(4, 1100, 640)}),
        Sample("no row", {"x": floats(5, 0, 32), "weight": floats(6, 8, 32)}),
        Sample("many rows", {"x": floats(7, 67, 96), "weight": floats(8, 515, 96)}),
        Sample("large", {"x": floats(9, 5, 64, size=1e6), "weight": floats(10, 16, 64, size=1e6)}),
        Sample("tiny", {"x": floats(11, 5, 64, size=1e-12), "weight": floats(12, 16, 64, size=1e-12)}),
    ]


def _rule(x: Handle, weight: Weight) -> tuple[Handle, ...]:
    outputs, inputs = weight.shape
    fits(x.width == inputs, f"linear: {x.name} is {x.width} wide, {weight.name} takes {inputs}")
    return (Handle("", x.axis, outputs),)


@op(
    samples=_samples,
    weights=("weight",),
    matrices=("weight",),
    per_token=True,
    rule=_rule,
    tolerance={"numpy": 2e-6, "native": 2e-6, **SUMMED},
)
def linear(x: Floats, weight: Floats) -> Floats:
    """x [T, K], weight [N, K] → x · weightᵀ [T, N], summed in double precision."""
    return (x.astype(np.float64) @ weight.T.astype(np.float64)).astype(np.float32)
