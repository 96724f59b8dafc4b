"""Heads by themselves: parts of every head, and one matrix per head. Latent attention is made of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.graph import Handle, Weight
from ridgeline.compute.ops.definition import SUMMED, Floats, Ints, Sample, fits, floats, op
from ridgeline.compute.ops.linear import linear
from ridgeline.compute.ops.quantised import linear_codes, quantise
from ridgeline.compute.quant.bits import Groups


def _split_samples() -> list[Sample]:
    def case(name: str, tokens: int, heads: int, plain: int, rotary: int) -> Sample:
        return Sample(name, {"x": floats(1, tokens, heads * (plain + rotary)), "plain": plain, "rotary": rotary})

    return [case("ragged", 7, 3, 5, 4), case("one row", 1, 16, 128, 64), case("no row", 0, 2, 8, 2), case("one head", 3, 1, 512, 64)]


def _split_rule(x: Handle, plain: int, rotary: int) -> tuple[Handle, ...]:
    heads, rest = divmod(x.width, plain + rotary)
    fits(rest == 0 and rotary % 2 == 0, f"split_heads: {x.name} is {x.width} wide, heads are {plain} + {rotary}")
    return Handle("plain", x.axis, heads * plain), Handle("rotary", x.axis, heads * rotary)


@op(samples=_split_samples, per_token=True, rule=_split_rule)
def split_heads(x: Floats, *, plain: int, rotary: int) -> Any:
    """x [T, H · (plain + rotary)] → the first numbers of all heads [T, H · plain], and the last [T, H · rotary] in the order of `rope`.

    Stored are the last ones pair behind pair (0, r/2, 1, r/2 + 1 …), as DeepSeek's checkpoints and GGUF files have them.
    """
    count = x.shape[1] // (plain + rotary)
    heads = x.reshape(len(x), count, plain + rotary)
    pairs = heads[:, :, plain:].reshape(len(x), count, rotary // 2, 2)
    return heads[:, :, :plain].reshape(len(x), count * plain), pairs.swapaxes(2, 3).reshape(len(x), count * rotary)


def _join_samples() -> list[Sample]:
    def case(name: str, tokens: int, heads: int, width: int, rotary: int) -> Sample:
        return Sample(name, {"x": floats(1, tokens, heads * width), "y": floats(2, tokens, heads * rotary), "heads": heads})

    return [case("ragged", 7, 3, 5, 4), case("one row", 1, 16, 512, 64), case("no row", 0, 2, 8, 2), case("one head", 3, 1, 512, 64)]


def _join_rule(x: Handle, y: Handle, heads: int) -> tuple[Handle, ...]:
    fits(x.axis == y.axis and x.width % heads == y.width % heads == 0, f"join_heads: {x} and {y} do not have {heads} heads")
    return (Handle("", x.axis, x.width + y.width),)


@op(samples=_join_samples, per_token=True, rule=_join_rule)
def join_heads(x: Floats, y: Floats, *, heads: int) -> Floats:
    """x [T, H · A], y [T, H · B] → [T, H · (A + B)]: of every head x's numbers, then y's."""
    parts = [each.reshape(len(each), heads, each.shape[1] // heads) for each in (x, y)]
    return np.concatenate(parts, axis=2).reshape(len(x), x.shape[1] + y.shape[1])


def _linear_samples() -> list[Sample]:
    def case(name: str, tokens: int, heads: int, outputs: int, inputs: int) -> Sample:
        return Sample(name, {"x": floats(1, tokens, heads * inputs), "weight": floats(2, heads, outputs, inputs)})

    return [
        case("ragged", 7, 3, 33, 48),
        case("one row", 1, 16, 96, 64),
        case("no row", 0, 2, 8, 32),
        case("many rows", 70, 2, 40, 32),
        case("one head", 5, 1, 16, 64),
    ]


def _linear_rule(x: Handle, weight: Weight) -> tuple[Handle, ...]:
    heads, outputs, inputs = weight.shape
    fits(x.width == heads * inputs, f"linear_heads: {x.name} is {x.width} wide, {weight.name} takes {heads} times {inputs}")
    return (Handle("", x.axis, heads * outputs),)


@op(samples=_linear_samples, weights=("weight",), matrices=("weight",), per_token=True, rule=_linear_rule,
    tolerance={"numpy": 2e-6, "native": 2e-6, **SUMMED})  # fmt: skip
def linear_heads(x: Floats, weight: Floats) -> Floats:
    """x [T, H · K], weight [H, N, K] → [T, H · N]: every head's numbers times its own matrix."""
    heads, outputs, inputs = weight.shape
    out = np.empty((len(x), heads, outputs), np.float32)
    for head in range(heads):
        out[:, head] = linear(x[:, head * inputs : (head + 1) * inputs], weight[head])
    return out.reshape(len(x), heads * outputs)


def _codes_samples() -> list[Sample]:
    def case(name: str, tokens: int, heads: int, columns: int, span: int, size: int) -> Sample:
        random, outputs = np.random.default_rng(5), 20
        codes, scales, sums = quantise(floats(1, tokens, heads * columns), group=span)
        weight = tuple(
            Groups(
                random.integers(1, 32, (outputs, columns)).astype(np.uint8), floats(6 + head, outputs, columns // span), 16,
                random.integers(2, 64, (outputs, columns // size)).astype(np.uint8),
            )
            for head in range(heads)
        )  # fmt: skip
        return Sample(name, {"codes": codes, "scales": scales, "sums": sums, "weight": weight})

    return [case("ragged", 7, 3, 96, 32, 32), case("one row", 1, 8, 512, 256, 16), case("no row", 0, 2, 32, 32, 32)]


@op(samples=_codes_samples, weights=("weight",), matrices=("weight",), per_token=True, semantic=False)
def linear_heads_codes(codes: NDArray[np.int8], scales: Floats, sums: Ints, weight: Sequence[Groups]) -> Floats:
    """`linear_heads` over codes: x [T, H · K] as `quantise` makes it, and per head what `linear_codes` gives with its matrix."""
    heads = len(weight)
    parts = [np.split(each, heads, axis=1) for each in (codes, scales, sums)]
    return np.concatenate([linear_codes(*each, matrix) for *each, matrix in zip(*parts, weight, strict=True)], axis=1)
