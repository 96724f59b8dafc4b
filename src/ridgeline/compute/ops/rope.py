"""Rotary position embedding."""

from functools import lru_cache

import numpy as np

from ridgeline.compute.ops.definition import Floats, Ints, Sample, floats, op


def _samples() -> list[Sample]:
    def case(name: str, seed: int, positions: list[int], width: int, base: float) -> Sample:
        at = np.array([positions], np.int32)
        return Sample(name, {"x": floats(seed, len(positions), width), "positions": at, "base": base, "head_dim": 16})

    return [
        case("ragged", 1, [0, 1, 2, 7, 8, 0, 1], 48, 10_000.0),
        case("one row", 2, [511], 16, 1_000_000.0),
        case("far", 3, [131_071, 5], 32, 1_000_000.0),
    ]


@op(samples=_samples, per_token=True)
def rope(x: Floats, positions: Ints, *, base: float, head_dim: int) -> Floats:
    """x [T, H · head_dim], positions [1, T] → the same shape; dimension i of a head turns with i + head_dim / 2.

    Su et al. 2021, "RoFormer", equation 34, with the two halves of a head as pairs. Angles are computed in double precision.
    """
    half = head_dim // 2
    cosine, sine = _rotation(positions.astype(np.int64).tobytes(), base, half)
    heads = x.reshape(len(x), -1, 2, half)
    first, second = heads[:, :, 0], heads[:, :, 1]
    out = np.empty_like(heads)
    np.subtract(first * cosine, second * sine, out=out[:, :, 0])
    np.add(second * cosine, first * sine, out=out[:, :, 1])
    return out.reshape(x.shape)


@lru_cache(maxsize=8)
def _rotation(positions: bytes, base: float, half: int) -> tuple[Floats, Floats]:
    """cos and sin [T, 1, half] at int64 positions: every layer of a step asks for the same few."""
    at = np.frombuffer(positions, np.int64).astype(np.float64)
    angles = at[:, None, None] * base ** (-np.arange(half) / half)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
