"""Ops that work on each number by itself: scale, add, bias, softcap, activations, gated and not."""

from math import erf

import numpy as np

from ridgeline.compute.graph import Handle, Weight
from ridgeline.compute.ops.definition import ROUNDED, Floats, Sample, fits, floats, op

_GELU_FACTOR = np.float32(np.sqrt(2.0 / np.pi))
_GELU_CUBIC = np.float32(0.044715)
_SWISH_FACTOR, _LIMIT = np.float32(1.702), np.float32(7.0)
_HALF, _ONE = np.float32(0.5), np.float32(1.0)


def _scale_samples() -> list[Sample]:
    return [
        Sample("ragged", {"x": floats(1, 7, 33), "factor": 640**0.5}),
        Sample("one row", {"x": floats(2, 1, 64), "factor": 0.125}),
        Sample("tiny", {"x": floats(3, 5, 16, size=1e-30), "factor": 3.0}),
    ]


@op(samples=_scale_samples, per_token=True, tolerance=ROUNDED)
def scale(x: Floats, *, factor: float) -> Floats:
    """x · factor, the factor rounded to fp32 first."""
    return x * np.float32(factor)


def _add_samples() -> list[Sample]:
    return [
        Sample("ragged", {"x": floats(1, 7, 33), "y": floats(2, 7, 33)}),
        Sample("one row", {"x": floats(3, 1, 64), "y": floats(4, 1, 64, size=1e4)}),
    ]


def _add_rule(x: Handle, y: Handle) -> tuple[Handle, ...]:
    fits((x.axis, x.width) == (y.axis, y.width), f"add: {x} and {y} differ")
    return (Handle("", x.axis, x.width),)


@op(samples=_add_samples, rule=_add_rule, per_token=True, tolerance=ROUNDED)
def add(x: Floats, y: Floats) -> Floats:
    """x + y."""
    return x + y


def _bias_samples() -> list[Sample]:
    return [
        Sample("ragged", {"x": floats(1, 7, 33), "bias": floats(2, 33)}),
        Sample("one row", {"x": floats(3, 1, 64), "bias": floats(4, 64, size=1e4)}),
    ]


def _bias_rule(x: Handle, bias: Weight) -> tuple[Handle, ...]:
    fits(bias.shape == (x.width,), f"add_bias: {x.name} is {x.width} wide, {bias.name} has {bias.shape}")
    return (Handle("", x.axis, x.width),)


@op(samples=_bias_samples, rule=_bias_rule, weights=("bias",), per_token=True, tolerance=ROUNDED)
def add_bias(x: Floats, bias: Floats) -> Floats:
    """x [T, D] + bias [D]."""
    return x + bias


def _softcap_samples() -> list[Sample]:
    return [
        Sample("ragged", {"x": floats(1, 7, 33, size=40.0), "cap": 30.0}),
        Sample("one row", {"x": floats(2, 1, 64), "cap": 0.5}),
        Sample("large", {"x": floats(3, 3, 32, size=1e6), "cap": 30.0}),
        Sample("tiny", {"x": floats(4, 3, 32, size=1e-20), "cap": 30.0}),
    ]


@op(samples=_softcap_samples, per_token=True, tolerance={"native": 1e-6, **ROUNDED})
def softcap(x: Floats, *, cap: float) -> Floats:
    """cap · tanh(x / cap). Gemma Team 2024, "Gemma 2", section 2."""
    return softcap_in_place(x / np.float32(cap), cap)


def softcap_in_place(ratio: Floats, cap: float) -> Floats:
    """cap · tanh(ratio), in `ratio`."""
    np.tanh(ratio, out=ratio)
    ratio *= np.float32(cap)
    return ratio


def _glu_samples() -> list[Sample]:
    return [
        Sample("ragged", {"gate": floats(1, 7, 33, size=3.0), "up": floats(2, 7, 33), "activation": "gelu_tanh"}),
        Sample("one row", {"gate": floats(3, 1, 64), "up": floats(4, 1, 64), "activation": "gelu_tanh"}),
        Sample("large", {"gate": floats(5, 3, 32, size=1e3), "up": floats(6, 3, 32), "activation": "gelu_tanh"}),
        Sample("tiny", {"gate": floats(7, 3, 32, size=1e-20), "up": floats(8, 3, 32), "activation": "gelu_tanh"}),
        Sample("silu", {"gate": floats(9, 7, 33, size=3.0), "up": floats(10, 7, 33), "activation": "silu"}),
        Sample("clamped", {"gate": floats(11, 7, 33, size=9.0), "up": floats(12, 7, 33, size=9.0), "activation": "clamped_swish"}),
        Sample("sigmoid", {"gate": floats(13, 7, 33, size=9.0), "up": floats(14, 7, 33), "activation": "sigmoid"}),
    ]


def _glu_rule(gate: Handle, up: Handle, activation: str) -> tuple[Handle, ...]:
    fits((gate.axis, gate.width) == (up.axis, up.width), f"glu: {gate} and {up} differ")
    return (Handle("", gate.axis, gate.width),)


@op(samples=_glu_samples, rule=_glu_rule, per_token=True, tolerance={"native": 1e-6, **ROUNDED})
def glu(gate: Floats, up: Floats, *, activation: str) -> Floats:
    """activation(gate) · up. Shazeer 2020, "GLU Variants Improve Transformer"; with sigmoid Dauphin et al. 2017, of which it is the gate.

    clamped_swish is that of gpt-oss (OpenAI 2025): gate at most 7, up within ± 7, gate / (1 + exp(-1.702 · gate)) · (up + 1).
    """
    if activation == "clamped_swish":
        limited = np.minimum(gate, _LIMIT)
        return limited / (_ONE + np.exp(limited * -_SWISH_FACTOR)) * (np.clip(up, -_LIMIT, _LIMIT) + _ONE)
    return _ACTIVATIONS[activation](gate) * up


def _activate_samples() -> list[Sample]:
    return [
        Sample("ragged", {"x": floats(1, 7, 33, size=3.0), "activation": "gelu_tanh"}),
        Sample("one row", {"x": floats(2, 1, 64), "activation": "silu"}),
        Sample("large", {"x": floats(3, 3, 32, size=1e3), "activation": "silu"}),
        Sample("tiny", {"x": floats(4, 3, 32, size=1e-20), "activation": "silu"}),
        Sample("gelu", {"x": floats(5, 9, 33, size=3.0), "activation": "gelu"}),
        Sample("large gelu", {"x": floats(6, 3, 32, size=1e3), "activation": "gelu"}),
        Sample("large sigmoid", {"x": floats(7, 3, 32, size=1e3), "activation": "sigmoid"}),
    ]


@op(samples=_activate_samples, per_token=True, tolerance={"native": 1e-6, **ROUNDED})
def activate(x: Floats, *, activation: str) -> Floats:
    """activation(x)."""
    return _ACTIVATIONS[activation](x)


@np.errstate(over="ignore")
def silu(x: Floats) -> Floats:
    """x / (1 + exp(-x)), which is -0 where exp(-x) is infinite. Hendrycks and Gimpel 2016, section 2."""
    divisor = np.negative(x)
    np.exp(divisor, out=divisor)
    divisor += _ONE
    return np.divide(x, divisor, out=divisor)


@np.errstate(over="ignore")
def sigmoid(x: Floats) -> Floats:
    """1 / (1 + exp(-x)), 0 where exp(-x) is infinite."""
    divisor = np.negative(x)
    np.exp(divisor, out=divisor)
    divisor += _ONE
    return np.reciprocal(divisor, out=divisor)


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


def gelu(x: Floats) -> Floats:
    """x / 2 · (1 + erf(x / √2)). Hendrycks and Gimpel 2016, section 2. The error function is of double precision, number by number."""
    halves: Floats = (x.astype(np.float64) * _ROOT_HALF).astype(object)
    return (0.5 * x * (1.0 + _ERF(halves).astype(np.float64))).astype(np.float32)


_ERF = np.frompyfunc(erf, 1, 1)
_ROOT_HALF = 0.5**0.5
_ACTIVATIONS = {"gelu_tanh": gelu_tanh, "silu": silu, "gelu": gelu, "sigmoid": sigmoid}
