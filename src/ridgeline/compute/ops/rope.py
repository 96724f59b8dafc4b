"""Rotary position embedding."""

from functools import lru_cache

import numpy as np

from ridgeline.compute.ops.definition import Floats, Ints, Sample, floats, op
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


@op(samples=_samples, per_token=True)
def rope(x: Floats, positions: Ints, *, rope: Rope, head_dim: int) -> Floats:
    """x [T, H · head_dim], positions [1, T] → the same shape; of a head's first `rope.dim` dimensions i turns with i + dim / 2.

    Su et al. 2021, "RoFormer", equation 34, with halves as pairs. Angles are computed in double precision.
    """
    half = rope.dim // 2
    cosine, sine = _rotation(positions.astype(np.int64).tobytes(), rope)
    heads = x.reshape(len(x), -1, head_dim)
    first, second = heads[:, :, :half], heads[:, :, half : rope.dim]
    out = np.empty_like(heads)
    np.subtract(first * cosine, second * sine, out=out[:, :, :half])
    np.add(second * cosine, first * sine, out=out[:, :, half : rope.dim])
    out[:, :, rope.dim :] = heads[:, :, rope.dim :]
    return out.reshape(x.shape)


@lru_cache(maxsize=8)
def _rotation(positions: bytes, rope: Rope) -> tuple[Floats, Floats]:
    """cos and sin [T, 1, dim / 2] at int64 positions: every layer of a step asks for the same few."""
    half = rope.dim // 2
    at = np.frombuffer(positions, np.int64).astype(np.float64)
    angles = at[:, None, None] * (rope.base ** (-np.arange(half) / half) / np.array(rope.divisors or 1.0))
    return (np.cos(angles) * rope.scale).astype(np.float32), (np.sin(angles) * rope.scale).astype(np.float32)
