"""References of ops against their formulas in double precision, on every sample."""

from collections.abc import Callable
from math import erf, pi, sqrt

import numpy as np
import pytest

from ridgeline.compute.ops.table import OPS
from ridgeline.compute.runner import relative_error

Doubles = np.ndarray


def silu(x: Doubles) -> Doubles:
    # One side of the sigmoid for each sign: the other would overflow.
    small = np.exp(-np.abs(x))
    return x * np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def gelu_tanh(x: Doubles) -> Doubles:
    return x * (1 + np.tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2


def gelu(x: Doubles) -> Doubles:
    return x / 2 * (1 + np.vectorize(erf)(x / np.sqrt(2)))


def clamped(gate: Doubles, up: Doubles) -> Doubles:
    gate, up = gate.clip(max=7), up.clip(-7, 7)
    return gate / (1 + np.exp(-1.702 * gate)) * (up + 1)


def sigmoid(x: Doubles) -> Doubles:
    return np.exp(-np.logaddexp(0, -x))


ACTIVATIONS = {"silu": silu, "gelu_tanh": gelu_tanh, "gelu": gelu, "sigmoid": sigmoid}


def layer_norm(x: Doubles, weight: Doubles, bias: Doubles, *, eps: float) -> Doubles:
    return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + eps) * weight + bias


def rms_norm(x: Doubles, weight: Doubles, *, eps: float) -> Doubles:
    pieces = x.reshape(len(x), -1, len(weight))
    return (pieces / np.sqrt((pieces**2).mean(-1, keepdims=True) + eps) * weight).reshape(x.shape)


FORMULAS: dict[str, Callable[..., Doubles]] = {
    "activate": lambda x, *, activation: ACTIVATIONS[activation](x),
    "add_bias": lambda x, bias: x + bias,
    "glu": lambda gate, up, *, activation: clamped(gate, up) if activation == "clamped_swish" else ACTIVATIONS[activation](gate) * up,
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "softcap": lambda x, *, cap: cap * np.tanh(x / cap),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_reference_equals_formula(name: str) -> None:
    for sample in OPS[name].samples():
        own = dict(sample.arguments)
        wide = {key: value.astype(np.float64) if isinstance(value, np.ndarray) else value for key, value in own.items()}
        found = OPS[name](**own)
        assert relative_error(found, FORMULAS[name](**wide)) < 2e-6, sample.name


def test_a_cap_is_never_passed() -> None:
    large = np.array([[-np.inf, -1e30, 1e30, np.inf]], np.float32)
    assert np.array_equal(OPS["softcap"](large, cap=30.0), np.array([[-30, -30, 30, 30]], np.float32))


def test_silu_of_very_negative_numbers_is_zero() -> None:
    assert np.array_equal(OPS["activate"](np.array([[-1e4, 0.0]], np.float32), activation="silu"), np.zeros((1, 2), np.float32))
