"""Rotary position embedding."""

from functools import lru_cache

import numpy as np

from ridgeline.compute.graph import Handle
from ridgeline.compute.ops.definition import ROUNDED, Floats, Ints, Sample, fits, floats, on_cuda, op
from ridgeline.facts.model import Rope


def _samples() -> list[Sample]:
    def case(name: str, seed: int, positions: list[int], width: int, rope: Rope) -> Sample:
        at = np.array([positions], np.int32)
        return Sample(name, {"x": floats(seed, len(positions), width), "positions": at, "rope": rope, "head_dim": 16})

    return [
        case("ragged", 1, [0, 1, 2, 7, 8, 0, 1], 48, Rope(10_000.0, 16)),
        case("one row", 2, [511], 16, Rope(1_000_000.0, 16)),
        case("far", 3, [131_071, 5], 32, Rope(1_000_000.0, 16)),
        case("scaled, part of a head", 4, [0, 3, 40_000], 32, Rope(10_000.0, 8, (1.0, 1.5, 8.0, 8.0), 1.25)),
    ]


def _rule(x: Handle, positions: Handle, rope: Rope, head_dim: int) -> tuple[Handle, ...]:
    fits(x.axis == positions.axis and x.width % head_dim == 0, f"rope: {x} does not fit {positions.name} and heads of {head_dim}")
    return (Handle("", x.axis, x.width),)


@op(samples=_samples, rule=_rule, per_token=True)
def rope(x: Floats, positions: Ints, *, rope: Rope, head_dim: int) -> Floats:
    """x [T, H · head_dim], positions [1, T] → the same shape; of a head's first `rope.dim` dimensions i turns with i + dim / 2.

    Su et al. 2021, "RoFormer", equation 34, with halves as pairs. Angles are computed in double precision.
    """
    return _turned(x, *_rotation(positions.astype(np.int64).tobytes(), rope), head_dim)


def _turned(x: Floats, cosine: Floats, sine: Floats, head_dim: int) -> Floats:
    """x [T, H · head_dim] by cosine and sine [T, 1, half]."""
    half = cosine.shape[2]
    heads = x.reshape(len(x), -1, head_dim)
    first, second = heads[:, :, :half], heads[:, :, half : 2 * half]
    out = np.empty_like(heads)
    np.subtract(first * cosine, second * sine, out=out[:, :, :half])
    np.add(second * cosine, first * sine, out=out[:, :, half : 2 * half])
    out[:, :, 2 * half :] = heads[:, :, 2 * half :]
    return out.reshape(x.shape)


@lru_cache(maxsize=8)
def _rotation(positions: bytes, rope: Rope) -> tuple[Floats, Floats]:
    """cos and sin [T, 1, dim / 2] at int64 positions: every layer of a step asks for the same few."""
    half = rope.dim // 2
    at = np.frombuffer(positions, np.int64).astype(np.float64)
    angles = at[:, None, None] * (rope.base ** (-np.arange(half) / half) / np.array(rope.divisors or 1.0))
    return (np.cos(angles) * rope.scale).astype(np.float32), (np.sin(angles) * rope.scale).astype(np.float32)


def _rotation_samples() -> list[Sample]:
    def case(name: str, positions: list[int], rope: Rope) -> Sample:
        return Sample(name, {"positions": np.array([positions], np.int32), "rope": rope})

    return [
        case("ragged", [0, 1, 2, 7, 8, 0, 1], Rope(10_000.0, 16)),
        case("one row", [131_071], Rope(1_000_000.0, 256)),
        case("scaled", [0, 3, 40_000], Rope(10_000.0, 8, (1.0, 1.5, 8.0, 8.0), 1.25)),
    ]


@op(samples=_rotation_samples, per_token=True, semantic=False, tolerance={"native": 1e-7, **on_cuda(f32=5e-7, bf16=5e-7, fp16=5e-7)})
def rotation(positions: Ints, *, rope: Rope) -> Floats:
    """positions [1, T] → [T, `rope.dim`]: the cosines of a head's pairs, then their sines."""
    return np.concatenate(_rotation(positions.astype(np.int64).tobytes(), rope), axis=2)[:, 0]


def _rotate_samples() -> list[Sample]:
    return [
        Sample("ragged", {"x": floats(1, 7, 48), "turn": floats(2, 7, 16), "head_dim": 16}),
        Sample("one row", {"x": floats(3, 1, 64), "turn": floats(4, 1, 64), "head_dim": 64}),
        Sample("part of a head", {"x": floats(5, 3, 96), "turn": floats(6, 3, 8), "head_dim": 32}),
    ]


@op(samples=_rotate_samples, per_token=True, semantic=False, tolerance=ROUNDED)
def rotate(x: Floats, turn: Floats, *, head_dim: int) -> Floats:
    """x [T, H · head_dim], turn [T, D] of `rotation` → x's shape: what `rope` gives, bit for bit."""
    half = turn.shape[1] // 2
    return _turned(x, turn[:, None, :half], turn[:, None, half:], head_dim)
