"""Experts of a runner that sorts: choices in the order of their experts, cut in tiles of one expert each, and products over such tiles.

Only lowering introduces these ops. What they give is in (token, choice) order again, as `ops/experts.py` says.
"""

from typing import Any

import numpy as np

from ridgeline.compute.ops.definition import SUMMED, Floats, Ints, Sample, floats, op
from ridgeline.compute.ops.elementwise import glu
from ridgeline.compute.ops.experts import by_expert, chosen_experts, rows_of
from ridgeline.compute.ops.linear import linear

FEW, MANY = 16, 64
"""Choices of a tile: where an expert has few on average, a step reads more than it computes."""


def tile_height(choices: int, experts: int) -> int:
    """Choices of a tile in a step of so many: a function of sizes alone, so that a captured graph holds for every routing."""
    return FEW if choices <= FEW * experts else MANY


def most_tiles(choices: int, experts: int) -> int:
    """Tiles that suffice for so many choices, however they are spread."""
    height = tile_height(choices, experts)
    return min(choices, (choices + experts * (height - 1)) // height)


def _sort_samples() -> list[Sample]:
    cases = {"ragged": (7, 2, 8), "one row": (1, 4, 60), "no row": (0, 2, 8), "high tiles": (90, 3, 4), "one of one": (40, 1, 1)}
    return [Sample(name, {"experts": chosen_experts(3, *sizes), "count": sizes[2]}) for name, sizes in cases.items()]


@op(samples=_sort_samples, per_token=False, semantic=False)
def sort_experts(experts: Ints, *, count: int) -> Any:
    """experts [T, k] of `count` → order int32 [T · k, 1]: choices t · k + j by expert, of one expert ascending; and tiles int32 [T · k, 3]:
    expert, first place in the order, number of choices. Tiles come by expert, behind the last -1, 0, 0."""
    choices = experts.size
    height, order, tiles = tile_height(choices, count), np.zeros((choices, 1), np.int32), np.zeros((choices, 3), np.int32)
    tiles[:, 0] = -1
    place = number = 0
    for expert, places in by_expert(experts):
        order[place : place + len(places), 0] = places
        for first in range(0, len(places), height):
            tiles[number] = expert, place + first, min(height, len(places) - first)
            number += 1
        place += len(places)
    return order, tiles


def _sorted_samples(names: tuple[str, ...], *, activation: str = "") -> list[Sample]:
    """Products of rows per token and per choice, with biases and without, of few choices for an expert and many."""

    def case(name: str, tokens: int, k: int, count: int, outputs: int, *, own: bool = False, bias: bool = False, kind: str = "") -> Sample:
        experts = chosen_experts(3, tokens, k, count)
        order, tiles = sort_experts(experts, count=count)  # type: ignore[misc]
        given: dict[str, Any] = {"x": floats(1, tokens * (k if own else 1), 64), "experts": experts, "order": order, "tiles": tiles}
        given |= {matrix: floats(2 + number, count, outputs, 64, size=0.3) for number, matrix in enumerate(names)}
        given |= {f"{matrix}_bias": floats(5 + number, count, outputs) if bias else None for number, matrix in enumerate(names)}
        return Sample(name, {**given, **({"activation": kind or activation} if activation else {})})

    return [
        case("ragged", 7, 2, 8, 33),
        case("one row", 1, 4, 60, 96),
        case("no row", 0, 2, 8, 16),
        case("a row per choice", 21, 3, 5, 40, own=True),
        case("all of them", 19, 4, 4, 48, bias=True, kind="clamped_swish" if activation else ""),
        case("many choices", 70, 1, 1, 16, own=True, bias=True),
    ]


@op(samples=lambda: _sorted_samples(("weight",)), weights=("weight", "weight_bias"), matrices=("weight",), per_token=False, semantic=False,
    tolerance=SUMMED)  # fmt: skip
def linear_experts_sorted(x: Floats, experts: Ints, order: Ints, tiles: Ints, weight: Floats, weight_bias: Floats | None = None) -> Any:
    """`linear_experts` tile by tile of what `sort_experts` makes of the same choices."""
    out = np.empty((experts.size, weight.shape[1]), np.float32)
    for expert, first, count in tiles:
        places = order[first : first + count, 0]
        out[places] = linear(x[rows_of(x, experts, places)], weight[expert])  # of no expert there are no places
        if weight_bias is not None:
            out[places] += weight_bias[expert]
    return out


@op(samples=lambda: _sorted_samples(("gate", "up"), activation="silu"), weights=("gate", "up", "gate_bias", "up_bias"),
    matrices=("gate", "up"), per_token=False, semantic=False, tolerance=SUMMED)  # fmt: skip
def linear_experts_glu(
    x: Floats, experts: Ints, order: Ints, tiles: Ints, gate: Floats, up: Floats, gate_bias: Floats | None = None,
    up_bias: Floats | None = None, *, activation: str,
) -> Any:  # fmt: skip
    """`glu` of two `linear_experts_sorted`, [T · k, F]."""
    both = (linear_experts_sorted.reference(x, experts, order, tiles, *each) for each in ((gate, gate_bias), (up, up_bias)))
    return glu(*both, activation=activation)
