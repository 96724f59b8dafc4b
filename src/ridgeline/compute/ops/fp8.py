"""Activations as e4m3 codes with one scale per token, and products of them. Only lowering introduces these ops.

Owns the rounding to e4m3 in numpy (Micikevicius et al. 2022, "FP8 formats for deep learning"): 448 is the largest number, there is no
infinity, 0x7f and 0xff are NaN.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.ops.definition import Floats, Sample, floats, on_cuda, op
from ridgeline.compute.ops.elementwise import glu
from ridgeline.compute.ops.fused import add_rms_norm
from ridgeline.compute.ops.linear import linear
from ridgeline.compute.ops.norm import rms_norm

Codes = NDArray[np.uint8]

LARGEST: Final = np.float32(448)
_NUMBERS: Final = np.arange(127)
POSITIVE: Final = np.where(_NUMBERS < 8, _NUMBERS * 2.0**-9, (8 + _NUMBERS % 8) * 2.0 ** (_NUMBERS // 8 - 10.0)).astype(np.float32)
"""The numbers that codes 0 … 0x7e stand for, ascending."""

_TOLERANCE: Final = on_cuda(f32=32 / 448, bf16=32 / 448, fp16=32 / 448)
"""A step of e4m3 at its largest numbers: a rounding that falls on the other side of a tie."""

_SUMS: Final = on_cuda(f32=1e-3, bf16=1e-2, fp16=2e-3)
"""Tensor cores of Ada and Hopper keep some 14 bits inside a sum of fp8 products (DeepSeek-AI 2024, section 3.3.2)."""


def to_e4m3(x: Floats) -> Codes:
    """fp32 to the nearest code, ties to even, saturating; NaN to NaN."""
    size = np.minimum(np.abs(x), LARGEST)
    _, exponent = np.frexp(np.where(np.isnan(size), np.float32(0), size))
    step = np.ldexp(np.float32(1), np.maximum(exponent - 1, -6) - 3)
    codes = np.searchsorted(POSITIVE, np.rint(size / step) * step).astype(np.uint8)
    return np.where(np.isnan(x), np.uint8(0x7F), codes) | np.where(np.signbit(x), np.uint8(0x80), np.uint8(0))


def from_e4m3(codes: Codes) -> Floats:
    """Codes to fp32."""
    size = np.append(POSITIVE, np.float32(np.nan))[codes & 0x7F]
    return np.where(codes & 0x80, -size, size)


def _quantise_samples() -> list[Sample]:
    return [
        Sample("ragged", {"x": floats(1, 7, 48)}),
        Sample("one row", {"x": floats(2, 1, 640, size=1e4)}),
        Sample("no row", {"x": np.zeros((0, 32), np.float32)}),
        Sample("zeros", {"x": np.zeros((2, 32), np.float32)}),
    ]


@op(samples=_quantise_samples, per_token=True, semantic=False, tolerance=_TOLERANCE)
def quantise_fp8(x: Floats) -> Any:
    """x [T, K] → codes e4m3 [T, K], scales fp32 [T, 1] = amax / 448 of the token; a token of zeros has the scale 0."""
    amax = np.abs(x).max(axis=1, keepdims=True, initial=0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        codes = to_e4m3(x * np.where(amax == 0, np.float32(0), LARGEST / amax))
    return codes, amax / LARGEST


def _norm_samples() -> list[Sample]:
    return [
        Sample("ragged", {"x": floats(1, 7, 48), "weight": floats(2, 48), "eps": 1e-6}),
        Sample("one row", {"x": floats(3, 1, 640), "weight": floats(4, 640), "eps": 1e-6}),
    ]


@op(samples=_norm_samples, weights=("weight",), per_token=True, semantic=False, tolerance=_TOLERANCE)
def rms_norm_fp8(x: Floats, weight: Floats, *, eps: float) -> Any:
    """`quantise_fp8` of `rms_norm`."""
    return quantise_fp8(rms_norm(x, weight, eps=eps))


def _add_norm_samples() -> list[Sample]:
    return [Sample(sample.name, {**sample.arguments, "y": floats(5, *sample.arguments["x"].shape)}) for sample in _norm_samples()]


@op(samples=_add_norm_samples, weights=("weight",), per_token=True, semantic=False, tolerance=_TOLERANCE)
def add_rms_norm_fp8(x: Floats, y: Floats, weight: Floats, *, eps: float) -> Any:
    """x + y, and `quantise_fp8` of its `rms_norm`."""
    total, normed = add_rms_norm(x, y, weight, eps=eps)
    return (total, *quantise_fp8(normed))


def _linear_sample(name: str, rows: int, columns: int, **outputs: int) -> Sample:
    codes, scales = quantise_fp8(floats(1, rows, columns))
    weights = {weight: floats(2 + number, count, columns) for number, (weight, count) in enumerate(outputs.items())}
    return Sample(name, {"codes": codes, "scales": scales, **weights})


def _linear_samples() -> list[Sample]:
    return [_linear_sample("ragged", 7, 48, weight=32), _linear_sample("one row", 1, 96, weight=64)]


@op(samples=_linear_samples, weights=("weight",), matrices=("weight",), per_token=True, semantic=False, tolerance=_SUMS)
def linear_fp8(codes: Codes, scales: Floats, weight: Floats) -> Floats:
    """codes e4m3 [T, K], scales fp32 [T, 1], weight [N, K] → fp32 [T, N]: `linear` of what the codes stand for."""
    made: Any = linear(from_e4m3(codes) * scales, weight)
    return made


def _floats_samples() -> list[Sample]:
    def case(name: str, rows: int, columns: int, outputs: int, size: float = 1.0) -> Sample:
        return Sample(name, {"x": floats(1, rows, columns, size=size), "weight": floats(2, outputs, columns)})

    return [case("ragged", 7, 48, 32), case("one row", 1, 160, 64, 1e3)]


@op(samples=_floats_samples, weights=("weight",), matrices=("weight",), per_token=True, semantic=False, tolerance=_TOLERANCE)
def linear_quantise_fp8(x: Floats, weight: Floats) -> Any:
    """`linear_fp8` of x [T, K], whose codes nothing else reads. A kernel may give neighbours of a token a scale of their own."""
    return linear_fp8(*quantise_fp8(x), weight)


def _pair_samples() -> list[Sample]:
    return [_linear_sample("ragged", 7, 48, first=32, second=16), _linear_sample("one row", 1, 96, first=64, second=64)]


@op(samples=_pair_samples, weights=("first", "second"), matrices=("first", "second"), per_token=True, semantic=False, tolerance=_SUMS)
def linear_fp8_pair(codes: Codes, scales: Floats, first: Floats, second: Floats) -> Any:
    """`linear_fp8` with two matrices of one format."""
    return linear_fp8(codes, scales, first), linear_fp8(codes, scales, second)


def _glu_samples() -> list[Sample]:
    found = [_linear_sample("ragged", 7, 48, gate=33, up=33), _linear_sample("one row", 1, 96, gate=64, up=64)]
    return [Sample(each.name, {**each.arguments, "activation": kind}) for each, kind in zip(found, ("silu", "gelu_tanh"), strict=True)]


@op(samples=_glu_samples, weights=("gate", "up"), matrices=("gate", "up"), per_token=True, semantic=False, tolerance=_SUMS)
def linear_fp8_glu(codes: Codes, scales: Floats, gate: Floats, up: Floats, *, activation: str) -> Floats:
    """`glu` of `linear_fp8_pair`."""
    made: Any = glu(*linear_fp8_pair(codes, scales, gate, up), activation=activation)
    return made


def _triple_samples() -> list[Sample]:
    return [
        _linear_sample("ragged", 7, 48, first=32, second=16, third=16),
        _linear_sample("one row", 1, 96, first=64, second=32, third=32),
    ]


@op(
    samples=_triple_samples,
    weights=("first", "second", "third"),
    matrices=("first", "second", "third"),
    per_token=True,
    semantic=False,
    tolerance=_SUMS,
)
def linear_fp8_triple(codes: Codes, scales: Floats, first: Floats, second: Floats, third: Floats) -> Any:
    """`linear_fp8` with three matrices of one format."""
    return linear_fp8(codes, scales, first), linear_fp8(codes, scales, second), linear_fp8(codes, scales, third)
