"""Ops that work on each number by itself: scale, add, gated activations."""

import numpy as np

from ridgeline.compute.ops.definition import Floats, Sample, floats, op

_GELU_FACTOR = np.float32(np.sqrt(2.0 / np.pi))
_GELU_CUBIC = np.float32(0.044715)
_HALF, _ONE = np.float32(0.5), np.float32(1.0)


def _scale_samples() -> list[Sample]:
    return [
        Sample("ragged", {"x": floats(1, 7, 33), "factor": 640**0.5}),
        Sample("one row", {"x": floats(2, 1, 64), "factor": 0.125}),
        Sample("tiny", {"x": floats(3, 5, 16, size=1e-30), "factor": 3.0}),
    ]


@op(samples=_scale_samples, per_token=True)
def scale(x: Floats, *, factor: float) -> Floats:
    """x · factor, the factor rounded to fp32 first."""
    return x * np.float32(factor)


def _add_samples() -> list[Sample]:
    return [
        Sample("ragged", {"x": floats(1, 7, 33), "y": floats(2, 7, 33)}),
        Sample("one row", {"x": floats(3, 1, 64), "y": floats(4, 1, 64, size=1e4)}),
    ]


@op(samples=_add_samples, per_token=True)
def add(x: Floats, y: Floats) -> Floats:
    """x + y."""
    return x + y


def _glu_samples() -> list[Sample]:
    return [
        Sample("ragged", {"gate": floats(1, 7, 33, size=3.0), "up": floats(2, 7, 33), "activation": "gelu_tanh"}),
        Sample("one row", {"gate": floats(3, 1, 64), "up": floats(4, 1, 64), "activation": "gelu_tanh"}),
        Sample("large", {"gate": floats(5, 3, 32, size=1e3), "up": floats(6, 3, 32), "activation": "gelu_tanh"}),
        Sample("tiny", {"gate": floats(7, 3, 32, size=1e-20), "up": floats(8, 3, 32), "activation": "gelu_tanh"}),
    ]


@op(samples=_glu_samples, per_token=True)
def glu(gate: Floats, up: Floats, *, activation: str) -> Floats:
    """activation(gate) · up. Shazeer 2020, "GLU Variants Improve Transformer"."""
    return _ACTIVATIONS[activation](gate) * up


def gelu_tanh(x: Floats) -> Floats:
    """x / 2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))). Hendrycks and Gimpel 2016, section 2."""
    inner = x * x
    inner *= _GELU_CUBIC
    inner += _ONE
    inner *= x
    inner *= _GELU_FACTOR
    np.tanh(inner, out=inner)
    inner += _ONE
    inner *= x
    inner *= _HALF
    return inner


_ACTIVATIONS = {"gelu_tanh": gelu_tanh}
