"""Recurrent layers: parts of heads, a short causal convolution, and the gated delta rule.

What a layer keeps of a row lies in two arrays (`compute/states.py`): `tail` fp32 [rows, K - 1 + P, C] has the convolution's input at
position p at p % (K - 1 + P), `state` fp32 [rows, P, Hv, dk, dv] the state after position p at p % P. A step of a row with tokens at
positions start … end - 1 begins with what lies there of positions before `start`, with zeros where that is 0, and writes what it has of
its last ones. Who begins at an earlier position, at most P - 1 before the last one, has undone what came behind it.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.graph import Handle, Weight
from ridgeline.compute.ops.definition import Floats, Ints, Sample, fits, floats, op
from ridgeline.compute.ops.elementwise import silu

NORM_EPS: Final = 1e-6
"""Added to the sum of squares whose root keys and queries are divided by."""

Rows = tuple[tuple[int, int], ...]
"""Tokens before each row of a step, and its own."""


def _take_samples() -> list[Sample]:
    def case(name: str, tokens: int, heads: int, held: int, first: int, width: int) -> Sample:
        return Sample(name, {"x": floats(1, tokens, heads * held), "heads": heads, "first": first, "width": width})

    return [
        case("ragged", 7, 3, 9, 4, 5),
        case("one row", 1, 16, 256, 128, 128),
        case("no row", 0, 2, 8, 0, 2),
        case("one head", 3, 1, 20, 1, 17),
    ]


def _take_rule(x: Handle, heads: int, first: int, width: int) -> tuple[Handle, ...]:
    held, rest = divmod(x.width, heads)
    fits(rest == 0, f"take_heads: {x.name} is {x.width} wide, which {heads} heads do not share")
    fits(0 <= first < first + width <= held, f"take_heads: heads of {x.name} have {held} numbers, none from {first} to {first + width}")
    return (Handle("", x.axis, heads * width),)


@op(samples=_take_samples, rule=_take_rule, per_token=True)
def take_heads(x: Floats, *, heads: int, first: int, width: int) -> Floats:
    """x [T, heads · w] → [T, heads · width]: of every head `width` numbers from `first` on."""
    every = x.reshape(len(x), heads, x.shape[1] // heads)
    return every[:, :, first : first + width].reshape(len(x), heads * width)


def _step(rows: Rows) -> dict[str, Any]:
    """The part of a step that says of its rows; their states lie in any order among those of two rows more."""
    cu_q = np.cumsum([0, *(count for _, count in rows)]).astype(np.int32)
    kv_len = np.array([before + count for before, count in rows], np.int32)
    return {"cu_q": cu_q, "kv_len": kv_len, "state_rows": np.random.default_rng(5).permutation(len(rows) + 2)[: len(rows)].astype(np.int32)}


def _remembered(kept: Floats, step: dict[str, Any], rows: Rows, back: int) -> Floats:
    """`kept` [rows, places, …] with NaN wherever a step may not look: all but the `back` positions before each row's first."""
    found = np.full_like(kept, np.nan)
    for place, (before, _) in zip(step["state_rows"], rows, strict=True):
        seen = np.arange(max(before - back, 0), before) % kept.shape[1]
        found[place, seen] = kept[place, seen]
    return found


def _conv_samples() -> list[Sample]:
    def case(name: str, rows: Rows, channels: int, *, taps: int = 4, positions: int = 1) -> Sample:
        step = _step(rows)
        tail = _remembered(floats(3, len(rows) + 2, taps - 1 + positions, channels), step, rows, taps - 1)
        own = {"x": floats(1, int(step["cu_q"][-1]), channels), "weight": floats(2, channels, taps, size=0.5), "tail": tail}
        return Sample(name, own | step)

    return [
        case("ragged", ((0, 9), (17, 1), (3, 5), (0, 1), (2, 2), (1, 1)), 33, positions=3),
        case("one row", ((30, 1),), 1040),
        case("one position", ((0, 5), (4, 3), (7, 1), (0, 2)), 24),
        case("two taps", ((1, 1), (0, 30), (9, 4)), 16, taps=2, positions=3),
        case("one tap", ((5, 2),), 16, taps=1),
        case("no row", (), 16),
    ]


def _conv_rule(x: Handle, weight: Weight) -> tuple[Handle, ...]:
    fits(len(weight.shape) == 2 and weight.shape[0] == x.width, f"short_conv: {x.name} is {x.width} wide, {weight.name} has {weight.shape}")
    return (Handle("", x.axis, x.width),)


@op(
    samples=_conv_samples, rule=_conv_rule, weights=("weight",), reads=("tail", "cu_q", "kv_len", "state_rows"), writes=("tail",),
    tolerance={"native": 5e-7},
)  # fmt: skip
def short_conv(x: Floats, weight: Floats, tail: Floats, cu_q: Ints, kv_len: Ints, state_rows: Ints) -> Floats:
    """x [T, C], weight [C, K] → [T, C]: silu(Σ weight[c, j] · x[t - K + 1 + j, c]) over a row's tokens, zeros before its first.

    Taps ascending, in double precision.
    """
    out, taps, ring = np.empty_like(x), weight.shape[1], tail.shape[1]
    for row, length in enumerate(kv_len):
        own, kept = x[cu_q[row] : cu_q[row + 1]], tail[state_rows[row]]
        start = length - len(own)
        before = np.arange(start - taps + 1, start)
        inputs = np.concatenate([np.where(before[:, None] < 0, np.float32(0), kept[before % ring]), own])
        sums = np.zeros(own.shape)
        for tap in range(taps):
            sums += weight[:, tap].astype(np.float64) * inputs[tap : tap + len(own)]
        out[cu_q[row] : cu_q[row + 1]] = silu(sums.astype(np.float32))
        last = np.arange(max(start, length - ring), length)
        kept[last % ring] = own[last - start]
    return out


def _delta_samples() -> list[Sample]:
    def case(name: str, rows: Rows, keys: int, values: int, dk: int, dv: int, *, positions: int = 1, gates: float = 1.0) -> Sample:
        step = _step(rows)
        tokens = int(step["cu_q"][-1])
        state = _remembered(floats(6, len(rows) + 2, positions, values, dk, dv), step, rows, 1)
        own = {
            "x": floats(1, tokens, 2 * keys * dk + values * dv),
            "beta": floats(2, tokens, values, size=gates),
            "alpha": floats(3, tokens, values, size=gates),
            "dt": floats(4, values),
            "a": -np.exp(floats(5, values)),
            "state": state,
        }
        return Sample(name, own | step | {"key_heads": keys, "key_dim": dk})

    return [
        case("ragged", ((0, 9), (17, 1), (3, 5), (0, 1), (2, 2), (1, 1)), 2, 4, 5, 21, positions=3),
        case("one row", ((30, 1),), 2, 4, 128, 128),
        case("one position", ((0, 5), (4, 3), (7, 1), (0, 2)), 1, 3, 16, 16),
        case("long", ((0, 50), (7, 1), (20, 33)), 1, 1, 32, 80, positions=2),
        case("extreme gates", ((0, 6), (3, 4)), 1, 2, 8, 16, positions=8, gates=60.0),
        case("no row", (), 1, 2, 8, 8),
    ]


def _delta_rule(x: Handle, beta: Handle, alpha: Handle, dt: Weight, a: Weight, key_heads: int, key_dim: int) -> tuple[Handle, ...]:
    values, rest = beta.width, x.width - 2 * key_heads * key_dim
    fits((beta.axis, values) == (alpha.axis, alpha.width) and beta.axis == x.axis, f"gated_delta: {x}, {beta} and {alpha} do not fit")
    fits(dt.shape == a.shape == (values,), f"gated_delta: {values} heads have {dt.name} of {dt.shape} and {a.name} of {a.shape}")
    fits(values % key_heads == 0, f"gated_delta: {values} value heads cannot share {key_heads} key heads")
    fits(rest > 0 and rest % values == 0, f"gated_delta: of {x.width} numbers {key_heads} keys of {key_dim} leave {rest} for {values}")
    return (Handle("", x.axis, rest),)


@op(
    samples=_delta_samples, rule=_delta_rule, weights=("dt", "a"), reads=("state", "cu_q", "kv_len", "state_rows"), writes=("state",),
    tolerance={"native": 1e-6},
)  # fmt: skip
def gated_delta(
    x: Floats, beta: Floats, alpha: Floats, dt: Floats, a: Floats, state: Floats, cu_q: Ints, kv_len: Ints, state_rows: Ints, *,
    key_heads: int, key_dim: int,
) -> Floats:  # fmt: skip
    """x [T, 2 · Hk · dk + Hv · dv] is q | k | v; beta, alpha [T, Hv]; dt, a [Hv], a negative → [T, Hv · dv]. Of each token of a row in turn

        S ← decay · S;  S ← S + k ⊗ (sigmoid(beta) · (v - kᵀ S));  out = qᵀ S,  decay = exp(a · softplus(alpha + dt))

    with q and k over the root of their sum of squares, and q · dk^-0.5. Value heads share key heads in consecutive groups. A token in
    double precision, its state rounded to fp32. Yang, Kautz, Hatamizadeh 2024, "Gated Delta Networks", arXiv 2412.06464.
    """
    values, positions, wide = len(a), state.shape[1], x.astype(np.float64)
    q, k, v = np.split(wide, [key_heads * key_dim, 2 * key_heads * key_dim], axis=1)
    q, k = (_units(each.reshape(len(x), key_heads, key_dim)).repeat(values // key_heads, axis=1) for each in (q, k))
    q, v = q * key_dim**-0.5, v.reshape(len(x), values, v.shape[1] // values)
    shares = 1 / (1 + np.exp(-beta.astype(np.float64)))
    decays = np.exp(a * np.logaddexp(0, alpha + dt.astype(np.float64)))
    out = np.empty(v.shape, np.float32)
    for row, length in enumerate(kv_len):
        kept, start = state[state_rows[row]], length - (cu_q[row + 1] - cu_q[row])
        now = kept[(start - 1) % positions] if start else np.zeros(kept.shape[1:], np.float32)
        for token, position in zip(range(cu_q[row], cu_q[row + 1]), range(start, length), strict=True):
            decayed = decays[token][:, None, None] * now
            change = shares[token][:, None] * (v[token] - np.einsum("hk,hkv->hv", k[token], decayed))
            now = (decayed + k[token][:, :, None] * change[:, None, :]).astype(np.float32)
            out[token] = np.einsum("hk,hkv->hv", q[token], now)
            if position >= length - positions:
                kept[position % positions] = now
    return out.reshape(len(x), x.shape[1] - 2 * key_heads * key_dim)


def _units(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """x [T, H, dk] over the root of each head's sum of squares."""
    return x / np.sqrt((x * x).sum(axis=2, keepdims=True) + NORM_EPS)
