"""Normalisation of rows: by root mean square, and by mean and standard deviation."""

import numpy as np

from ridgeline.compute.graph import Handle, Weight
from ridgeline.compute.ops.definition import ROUNDED, Floats, Sample, fits, floats, op


def _rms_samples() -> list[Sample]:
    return [
        Sample("ragged", {"x": floats(1, 7, 40), "weight": floats(2, 40), "eps": 1e-6}),
        Sample("one row", {"x": floats(3, 1, 640), "weight": floats(4, 640), "eps": 1e-6}),
        Sample("per head", {"x": floats(5, 9, 64), "weight": floats(6, 16), "eps": 1e-6}),
        Sample("large", {"x": floats(7, 3, 256, size=1e4), "weight": floats(8, 256), "eps": 1e-6}),
        Sample("tiny", {"x": floats(9, 3, 256, size=1e-6), "weight": floats(10, 256), "eps": 1e-6}),
    ]


def _rms_rule(x: Handle, weight: Weight, eps: float) -> tuple[Handle, ...]:
    fits(x.width % weight.shape[0] == 0, f"rms_norm: {x.name} is {x.width} wide, {weight.name} has {weight.shape[0]}")
    return (Handle("", x.axis, x.width),)


@op(samples=_rms_samples, weights=("weight",), per_token=True, rule=_rms_rule, tolerance={"native": 1e-6, **ROUNDED})
def rms_norm(x: Floats, weight: Floats, *, eps: float) -> Floats:
    """x [T, D], weight [D] → [T, D]; a weight narrower than x normalises each piece of its width (each head) by itself.

    Zhang and Sennrich 2019, "Root Mean Square Layer Normalization", equation 4.
    """
    pieces = np.ascontiguousarray(x).reshape(-1, len(weight))
    # The sum runs over the contiguous last axis: its order is a function of the width alone.
    mean: Floats = np.add.reduce(pieces * pieces, axis=1, keepdims=True)
    mean /= np.float32(len(weight))
    mean += np.float32(eps)
    np.sqrt(mean, out=mean)
    normed = pieces / mean
    normed *= weight
    return normed.reshape(x.shape)


def _layer_samples() -> list[Sample]:
    def case(name: str, seed: int, rows: int, width: int, size: float = 1.0) -> Sample:
        own = {"x": floats(seed, rows, width, size=size), "weight": floats(seed + 1, width), "bias": floats(seed + 2, width)}
        return Sample(name, {**own, "eps": 1e-5})

    return [
        case("ragged", 1, 7, 40),
        case("one row", 4, 1, 768),
        case("large", 7, 3, 256, size=1e4),
        case("tiny", 10, 3, 256, size=1e-6),
    ]


def _layer_rule(x: Handle, weight: Weight, bias: Weight, eps: float) -> tuple[Handle, ...]:
    alike = weight.shape == bias.shape == (x.width,)
    fits(alike, f"layer_norm: {x.name} is {x.width} wide, {weight.name} has {weight.shape}, {bias.name} {bias.shape}")
    return (Handle("", x.axis, x.width),)


@op(samples=_layer_samples, weights=("weight", "bias"), per_token=True, rule=_layer_rule, tolerance={"native": 1e-6, **ROUNDED})
def layer_norm(x: Floats, weight: Floats, bias: Floats, *, eps: float) -> Floats:
    """x [T, D], weight [D], bias [D] → (x - mean) / √(variance + eps) · weight + bias [T, D].

    Ba, Kiros and Hinton 2016, "Layer Normalization", equation 4.
    """
    rows, width = np.ascontiguousarray(x), np.float32(len(weight))
    # As in rms_norm, both sums run over the contiguous last axis.
    centred = rows - np.add.reduce(rows, axis=1, keepdims=True) / width
    deviation: Floats = np.add.reduce(centred * centred, axis=1, keepdims=True)
    deviation /= width
    deviation += np.float32(eps)
    np.sqrt(deviation, out=deviation)
    centred /= deviation
    centred *= weight
    centred += bias
    return centred
