"""Ops that do several things in one pass over memory. Only lowering introduces them; each is the semantic ops that it stands for.

Owns no arithmetic of its own: references call the references that they unite.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.ops.attention import kv_write
from ridgeline.compute.ops.definition import ROUNDED, SUMMED, Floats, Sample, floats, op
from ridgeline.compute.ops.elementwise import glu
from ridgeline.compute.ops.linear import linear
from ridgeline.compute.ops.norm import rms_norm
from ridgeline.compute.ops.rope import rotate


def _pair_samples() -> list[Sample]:
    def case(name: str, rows: int, columns: int, first: int, second: int) -> Sample:
        return Sample(name, {"x": floats(1, rows, columns), "first": floats(2, first, columns), "second": floats(3, second, columns)})

    return [case("ragged", 7, 48, 33, 40), case("one row", 1, 96, 64, 64), case("no row", 0, 32, 8, 8)]


@op(samples=_pair_samples, weights=("first", "second"), matrices=("first", "second"), per_token=True, semantic=False, tolerance=SUMMED)
def linear_pair(x: Floats, first: Floats, second: Floats) -> Any:
    """x [T, K], two matrices [N, K] of one format → their products [T, N], as `linear` has them."""
    return linear(x, first), linear(x, second)


def _triple_samples() -> list[Sample]:
    def case(name: str, rows: int, columns: int, *outputs: int) -> Sample:
        matrices = enumerate(zip(("first", "second", "third"), outputs, strict=True))
        weights = {place: floats(2 + number, count, columns) for number, (place, count) in matrices}
        return Sample(name, {"x": floats(1, rows, columns), **weights})

    return [case("ragged", 7, 48, 64, 32, 32), case("one row", 1, 96, 48, 16, 16), case("no row", 0, 32, 8, 8, 8)]


@op(
    samples=_triple_samples,
    weights=("first", "second", "third"),
    matrices=("first", "second", "third"),
    per_token=True,
    semantic=False,
    tolerance=SUMMED,
)
def linear_triple(x: Floats, first: Floats, second: Floats, third: Floats) -> Any:
    """x [T, K], three matrices [N, K] of one format → their products [T, N], as `linear` has them."""
    return linear(x, first), linear(x, second), linear(x, third)


def _glu_samples() -> list[Sample]:
    def case(name: str, rows: int, columns: int, outputs: int, activation: str) -> Sample:
        own = {"x": floats(1, rows, columns), "gate": floats(2, outputs, columns), "up": floats(3, outputs, columns)}
        return Sample(name, {**own, "activation": activation})

    return [
        case("ragged", 7, 48, 33, "silu"),
        case("one row", 1, 96, 64, "gelu_tanh"),
        case("no row", 0, 32, 8, "silu"),
        case("many rows", 70, 40, 36, "clamped_swish"),
    ]


@op(
    samples=_glu_samples,
    weights=("gate", "up"),
    matrices=("gate", "up"),
    per_token=True,
    semantic=False,
    tolerance=SUMMED,
)
def linear_glu(x: Floats, gate: Floats, up: Floats, *, activation: str) -> Floats:
    """x [T, K], two matrices [F, K] → `glu` of their products, [T, F]."""
    return glu(linear(x, gate), linear(x, up), activation=activation)


def _linear_add_samples() -> list[Sample]:
    def case(name: str, rows: int, columns: int, outputs: int, size: float = 1.0) -> Sample:
        residual = floats(3, rows, outputs, size=size)
        return Sample(name, {"x": floats(1, rows, columns), "residual": residual, "weight": floats(2, outputs, columns)})

    return [case("ragged", 7, 48, 33), case("one row", 1, 96, 600, 1e3), case("no row", 0, 32, 8), case("many rows", 67, 96, 515)]


@op(samples=_linear_add_samples, weights=("weight",), matrices=("weight",), per_token=True, semantic=False, tolerance={"native": 2e-6})
def linear_add(x: Floats, residual: Floats, weight: Floats) -> Floats:
    """residual [T, N] + `linear` of x [T, K]: the product is rounded to fp32, then the sum."""
    return residual + linear(x, weight)


def _add_norm_samples() -> list[Sample]:
    def case(name: str, seed: int, rows: int, width: int, size: float = 1.0) -> Sample:
        own = {"x": floats(seed, rows, width, size=size), "y": floats(seed + 1, rows, width, size=size), "weight": floats(seed + 2, width)}
        return Sample(name, {**own, "eps": 1e-6})

    return [
        case("ragged", 1, 7, 40),
        case("one row", 4, 1, 640),
        case("large", 7, 3, 256, size=1e4),
        case("tiny", 10, 3, 256, size=1e-6),
    ]


@op(samples=_add_norm_samples, weights=("weight",), per_token=True, semantic=False, tolerance=ROUNDED)
def add_rms_norm(x: Floats, y: Floats, weight: Floats, *, eps: float) -> Any:
    """x, y [T, D], weight [D] → x + y, and `rms_norm` of it."""
    total = x + y
    return total, rms_norm(total, weight, eps=eps)


def _write_sample(name: str, tokens: int, slots: list[int], **normed: Any) -> Sample:
    own = {"q": floats(1, tokens, 32), "k": floats(2, tokens, 16), "v": floats(3, tokens, 16), "turn": floats(4, tokens, 8)}
    cache = {"keys": floats(5, 24, 2, 8), "values": floats(6, 24, 2, 8), "slots": np.array(slots, np.int64)}
    return Sample(name, {**own, **cache, "head_dim": 8, **normed})


def _write_samples() -> list[Sample]:
    return [_write_sample("ragged", 5, [9, 4, 5, 23, 22]), _write_sample("one row", 1, [4])]


def _norm_write_samples() -> list[Sample]:
    normed = {"q_weight": floats(7, 8), "k_weight": floats(8, 8), "eps": 1e-6}
    return [_write_sample("ragged", 5, [9, 4, 5, 23, 22], **normed), _write_sample("one row", 1, [4], **normed)]


@op(
    samples=_write_samples,
    reads=("keys", "values", "slots"),
    writes=("keys", "values"),
    semantic=False,
    tolerance=ROUNDED,
)
def rotate_write(
    q: Floats, k: Floats, v: Floats, turn: Floats, keys: Floats, values: Floats, slots: NDArray[np.int64], *, head_dim: int
) -> Any:
    """q [T, H · D] rotated → [T, H · D]; k rotated and v, both [T, KV heads · D], into the slots [T] of a cache layer."""
    kv_write(rotate(k, turn, head_dim=head_dim), v, keys, values, slots)
    return rotate(q, turn, head_dim=head_dim)


@op(
    samples=_norm_write_samples,
    weights=("q_weight", "k_weight"),
    reads=("keys", "values", "slots"),
    writes=("keys", "values"),
    semantic=False,
    tolerance=ROUNDED,
)
def norm_rotate_write(
    q: Floats,
    k: Floats,
    v: Floats,
    turn: Floats,
    q_weight: Floats,
    k_weight: Floats,
    keys: Floats,
    values: Floats,
    slots: NDArray[np.int64],
    *,
    eps: float,
    head_dim: int,
) -> Any:
    """`rotate_write` of the heads of q and k normalised by themselves with weights [D]."""
    normed_q, normed_k = rms_norm(q, q_weight, eps=eps), rms_norm(k, k_weight, eps=eps)
    return rotate_write(normed_q, normed_k, v, turn, keys, values, slots, head_dim=head_dim)
