"""Routed experts: which of E matrices a token is multiplied with, the products, and their weighted sum.

A token has k choices, ascending by expert. Values that exist per choice have the row axis tokens × k: row t · k + j is choice j of token t.
How a runner sorts tokens by expert is its own affair: results are in (token, choice) order.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.graph import Handle, Weight
from ridgeline.compute.ops.definition import ROUNDED, Floats, Ints, Sample, fits, floats, on_cuda, op
from ridgeline.compute.ops.linear import linear
from ridgeline.compute.ops.quantised import linear_codes, quantise
from ridgeline.compute.quant.bits import Groups

_LEAST = np.float32(1e-20)
"""Added to a sum of weights before they are divided by it: all may be zero."""

PLAIN = {"scores": "softmax", "normalise": False, "scale": 1.0, "groups": 1, "groups_kept": 1, "group_score": "max", "bias_selects": False}
"""Attributes of routing as they are by default, `k` apart."""


def _route_samples() -> list[Sample]:
    def case(name: str, tokens: int, experts: int, *, bias: bool = False, **said: Any) -> Sample:
        own = {"x": floats(1, tokens, 48), "weight": floats(2, experts, 48, size=0.3), "bias": floats(3, experts) if bias else None}
        return Sample(name, {**own, **PLAIN, **said})

    return [
        case("ragged", 7, 8, k=2, normalise=True),
        case("one row", 1, 60, k=4),
        case("no row", 0, 8, k=2),
        case("chosen, bias", 9, 32, k=4, scores="softmax_chosen", bias=True),
        case("sigmoid, groups", 9, 32, k=6, scores="sigmoid", groups=8, groups_kept=3, group_score="top2", bias=True, bias_selects=True,
             normalise=True, scale=2.5),
        case("groups", 9, 32, k=6, groups=8, groups_kept=3, scale=16.0),
        case("one of one", 3, 1, k=1, scores="sigmoid"),
    ]  # fmt: skip


def _route_rule(x: Handle, weight: Weight, k: int, bias: Weight | None = None, **said: Any) -> tuple[Handle, ...]:
    experts, inputs = weight.shape
    fits(x.width == inputs, f"route: {x.name} is {x.width} wide, {weight.name} takes {inputs}")
    return _routing(x, experts, k, bias, **said)


def _routing(x: Handle, experts: int, k: int, bias: Weight | None, **said: Any) -> tuple[Handle, ...]:
    fits(bias is None or bias.shape == (experts,), f"route: {bias} does not fit {experts} experts: differ")
    left = experts // said["groups"] * said["groups_kept"]
    fits(experts % said["groups"] == 0 and 1 <= said["groups_kept"] <= said["groups"], f"route: groups of {experts} experts differ: {said}")
    fits(said["scores"] != "softmax_chosen" or not said["bias_selects"], "route: a bias of scores, and scores of the chosen alone, differ")
    fits(1 <= k <= left, f"route: {k} of {left} experts differ")
    return Handle("ids", x.axis, k, "i32"), Handle("weights", x.axis, k)


@op(samples=_route_samples, weights=("weight", "bias"), matrices=("weight",), per_token=True, rule=_route_rule,
    tolerance={"numpy": 5e-6, "native": 5e-6, **on_cuda(f32=1e-5, bf16=1e-5, fp16=1e-5)})  # fmt: skip
def route(
    x: Floats,
    weight: Floats,
    bias: Floats | None = None,
    *,
    k: int,
    scores: str = "softmax",
    normalise: bool = False,
    scale: float = 1.0,
    groups: int = 1,
    groups_kept: int = 1,
    group_score: str = "max",
    bias_selects: bool = False,
) -> Any:
    """x [T, D], weight [E, D] → `route_logits` of x · weightᵀ [T, E]. Shazeer et al. 2017, "Outrageously Large Neural Networks"."""
    said = {"scores": scores, "normalise": normalise, "scale": scale, "groups": groups, "groups_kept": groups_kept}
    return route_logits(linear(x, weight), bias, k=k, group_score=group_score, bias_selects=bias_selects, **said)


def _logits_samples() -> list[Sample]:
    found = []
    for sample in _route_samples():
        x, weight = sample.arguments["x"], sample.arguments["weight"]
        rest = {name: value for name, value in sample.arguments.items() if name not in ("x", "weight")}
        found.append(Sample(sample.name, {"logits": linear(x, weight), **rest}))
    strange = np.zeros((4, 8), np.float32)
    strange[1, 3], strange[2, :], strange[3, 2:4] = np.nan, np.nan, np.inf
    ties = np.tile(floats(4, 6, 4), 2)
    return [
        *found,
        Sample("not finite", {"logits": strange, "bias": None, **PLAIN, "k": 3}),
        Sample("ties", {"logits": ties, "bias": None, **PLAIN, "k": 3}),
    ]


@op(samples=_logits_samples, weights=("bias",), per_token=True, semantic=False, tolerance={"native": 1e-6})
def route_logits(
    logits: Floats,
    bias: Floats | None = None,
    *,
    k: int,
    scores: str,
    normalise: bool,
    scale: float,
    groups: int,
    groups_kept: int,
    group_score: str,
    bias_selects: bool,
) -> Any:
    """logits [T, E] → ids int32 [T, k] of the chosen experts, ascending, and their weights fp32 [T, k].

    scores        softmax: exp(l - max) / Σ over all experts; softmax_chosen: the same over the chosen ones; sigmoid: 1 / (1 + exp(-l))
    bias          [E], added to logits; with `bias_selects` it is added to scores, only for the choice, and weights are without it
    groups        of neighbouring experts; only the `groups_kept` best may be chosen from. `group_score`: max, or top2, the sum of two
    normalise     weights are divided by their sum + 1e-20; then `scale` multiplies them

    The k largest are chosen, of equals that with the lower id; NaN is below all. Those of logits, not of scores, unless `bias_selects`: an
    exponential does not make equal what differs. Fedus et al. 2021; DeepSeek-AI 2024, "DeepSeek-V3", section 2.1.2 (sigmoid, groups, bias).
    """
    tokens, experts = logits.shape
    if bias is not None and not bias_selects:
        logits = logits + bias
    with np.errstate(all="ignore"):
        whole = None if scores == "softmax_chosen" else _softmax(logits) if scores == "softmax" else _sigmoid(logits)
        values = logits if bias is None or not bias_selects or whole is None else whole + bias
        if groups > 1:
            parts = values.reshape(tokens, groups, -1)
            ranked = -np.sort(-np.where(np.isnan(parts), -np.inf, parts), axis=2)
            best = ranked[:, :, 0] if group_score == "max" else np.add.reduce(ranked[:, :, :2], axis=2)
            kept = np.zeros((tokens, groups), np.bool_)
            np.put_along_axis(kept, _largest(best, groups_kept), values=True, axis=1)
            allowed = kept.repeat(experts // groups, axis=1)
        else:
            allowed = np.ones((tokens, experts), np.bool_)
        ids = np.sort(_largest(values, k, allowed), axis=1)
        chosen = np.take_along_axis(logits if whole is None else whole, ids, axis=1)
        weights = _softmax(chosen) if whole is None else chosen
        if normalise:
            weights = weights / (np.add.reduce(weights, axis=1, keepdims=True) + _LEAST)
        return ids.astype(np.int32), weights * np.float32(scale)


def _largest(values: Floats, count: int, allowed: NDArray[np.bool_] | None = None) -> NDArray[np.intp]:
    """Columns of the `count` largest values of each row, of equals the lower ones; NaN is below all, what is not allowed below NaN."""
    rank = np.isnan(values).astype(np.int8)
    if allowed is not None:
        rank[~allowed] = 2
    order: NDArray[np.intp] = np.lexsort((-np.where(np.isnan(values), np.float32(0), values), rank), axis=1)
    return order[:, :count]


def _softmax(logits: Floats) -> Floats:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-np.inf))
    made: Floats = powers / np.add.reduce(powers, axis=1, keepdims=True)
    return made


def _sigmoid(logits: Floats) -> Floats:
    made: Floats = np.float32(1) / (np.float32(1) + np.exp(-logits))
    return made


def chosen_experts(seed: int, tokens: int, k: int, experts: int) -> Ints:
    """k different experts per token, ascending."""
    random = np.random.default_rng(seed)
    rows = [np.sort(random.permutation(experts)[:k]) for _ in range(tokens)]
    return np.array(rows, np.int32).reshape(tokens, k)


def _linear_samples() -> list[Sample]:
    def case(name: str, tokens: int, k: int, count: int, *, outputs: int, own: bool = False, bias: bool = False) -> Sample:
        given = {"x": floats(1, tokens * (k if own else 1), 64), "experts": chosen_experts(3, tokens, k, count)}
        weights = {"weight": floats(2, count, outputs, 64), "bias": floats(4, count, outputs) if bias else None}
        return Sample(name, {**given, **weights})

    return [
        case("ragged", 7, 2, 8, outputs=33),
        case("one row", 1, 4, 60, outputs=96),
        case("no row", 0, 2, 8, outputs=16),
        case("a row per choice", 21, 3, 5, outputs=40, own=True),
        case("all of them", 19, 4, 4, outputs=48, bias=True),
        case("one of one", 40, 1, 1, outputs=16, own=True, bias=True),
    ]


def _linear_rule(x: Handle, experts: Handle, weight: Weight, bias: Weight | None = None) -> tuple[Handle, ...]:
    count, outputs, inputs = weight.shape
    fits(x.width == inputs, f"linear_experts: {x.name} is {x.width} wide, {weight.name} takes {inputs}")
    fits(bias is None or bias.shape == (count, outputs), f"linear_experts: {bias} and {weight} differ")
    fits(x.axis in (experts.axis, experts.axis * experts.width), f"linear_experts: {x} and {experts} differ")
    return (Handle("", experts.axis * experts.width, outputs),)


@op(samples=_linear_samples, weights=("weight", "bias"), matrices=("weight",), per_token=True, rule=_linear_rule,
    tolerance={"numpy": 2e-6, "native": 2e-6})  # fmt: skip
def linear_experts(x: Floats, experts: Ints, weight: Floats, bias: Floats | None = None) -> Floats:
    """x [T, K], the same for all choices of a token, or [T · k, K]; experts [T, k], weight [E, N, K][, bias [E, N]] → [T · k, N].

    Row t · k + j is the product with the matrix experts[t, j], rounded to fp32; then the bias of the same expert is added.
    """
    out = np.empty((experts.size, weight.shape[1]), np.float32)
    for expert, places in by_expert(experts):
        out[places] = linear(x[rows_of(x, experts, places)], weight[expert])
    return out if bias is None else out + bias[experts.reshape(-1)]


def by_expert(experts: Ints) -> list[tuple[int, NDArray[np.intp]]]:
    """(expert, the rows of [T · k] that chose it, ascending) for each of experts [T, k], ascending."""
    flat = experts.reshape(-1)
    return [(int(expert), np.flatnonzero(flat == expert)) for expert in np.unique(flat)]


def rows_of(x: NDArray[Any], experts: Ints, places: NDArray[np.intp]) -> NDArray[np.intp]:
    """Rows of x, which has one per token or one per choice, that rows of [T · k] read."""
    return places if len(x) == experts.size else places // experts.shape[1]


def _codes_samples() -> list[Sample]:
    def case(name: str, tokens: int, k: int, count: int, columns: int, span: int, size: int, *, own: bool = False) -> Sample:
        random, outputs = np.random.default_rng(5), 20
        codes, scales, sums = quantise(floats(1, tokens * (k if own else 1), columns), group=span)
        weight = tuple(
            Groups(
                random.integers(1, 32, (outputs, columns)).astype(np.uint8), floats(6 + expert, outputs, columns // span), 16,
                random.integers(2, 64, (outputs, columns // size)).astype(np.uint8),
            )
            for expert in range(count)
        )  # fmt: skip
        given = {
            "codes": codes,
            "scales": scales,
            "sums": sums,
            "experts": chosen_experts(3, tokens, k, count),
            "weight": weight,
            "bias": None,
        }
        return Sample(name, given)

    return [
        case("ragged", 7, 2, 4, 96, 32, 32),
        case("one row", 1, 3, 8, 512, 256, 16),
        case("no row", 0, 2, 2, 32, 32, 32),
        case("a row per choice", 9, 2, 3, 256, 128, 32, own=True),
    ]


@op(samples=_codes_samples, weights=("weight", "bias"), matrices=("weight",), per_token=True, semantic=False)
def linear_experts_codes(
    codes: NDArray[np.int8], scales: Floats, sums: Ints, experts: Ints, weight: Sequence[Groups], bias: Floats | None = None
) -> Floats:
    """`linear_experts` over codes: x as `quantise` makes it, once per token for all its experts, and row for row what `linear_codes` gives
    with the chosen expert's matrix; then the bias."""
    out = np.empty((experts.size, weight[0].codes.shape[0]), np.float32)
    for expert, places in by_expert(experts):
        rows = rows_of(codes, experts, places)
        out[places] = linear_codes(codes[rows], scales[rows], sums[rows], weight[expert])
    return out if bias is None else out + bias[experts.reshape(-1)]


def _combine_samples() -> list[Sample]:
    def case(name: str, tokens: int, k: int, width: int) -> Sample:
        return Sample(name, {"y": floats(1, tokens * k, width), "weights": np.abs(floats(2, tokens, k))})

    return [case("ragged", 7, 2, 33), case("one row", 1, 8, 64), case("no row", 0, 2, 16), case("one choice", 5, 1, 40)]


def _combine_rule(y: Handle, weights: Handle) -> tuple[Handle, ...]:
    fits(y.axis == weights.axis * weights.width, f"combine: {y} and {weights} differ")
    return (Handle("", weights.axis, y.width),)


@op(samples=_combine_samples, per_token=True, rule=_combine_rule, tolerance=ROUNDED)
def combine(y: Floats, weights: Floats) -> Floats:
    """y [T · k, N], weights [T, k] → Σ_j weights[t, j] · y[t · k + j] [T, N].

    Choices ascending; each product and each sum is rounded to fp32.
    """
    tokens, k = weights.shape
    choices = y.reshape(tokens, k, y.shape[1])
    total = weights[:, 0, None] * choices[:, 0]
    for choice in range(1, k):
        total += weights[:, choice, None] * choices[:, choice]
    return total
