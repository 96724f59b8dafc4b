"""Adapters beside products: low-rank changes of matrices, one per token or none. Hu et al. 2021, "LoRA"; Chen et al. 2023, "Punica".

Which adapter a token has is a value of the step. Matrices lie in slots that change from step to step; a list is recorded once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.graph import Handle
from ridgeline.compute.ops.definition import SUMMED, Floats, Ints, Sample, fits, floats, op
from ridgeline.compute.ops.lora_codes import coded_change


@dataclass(frozen=True, slots=True)
class Pair:
    """The change scale · (b · a) of a matrix [N, K]: `a` [rank, K] and `b` [rank, N], of one type.

    kind   F32: float32; F16: float16; BF16: uint16, the upper half of an fp32
    coded  whether it is multiplied in codes of 8 bits
    """

    kind: str
    a: NDArray[Any]
    b: NDArray[Any]
    scale: float
    coded: bool = False


def widened(kind: str, stored: NDArray[Any]) -> Floats:
    """Numbers of a `Pair` as fp32, exactly."""
    if kind == "BF16":
        return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return stored.astype(np.float32)


def _adapters_samples() -> list[Sample]:
    return [Sample(name, {"adapter": np.array(rows, np.int32)}) for name, rows in (("ragged", [0, -1, 2, 2, 1]), ("one row", [3]))]


def _adapters_rule(adapter: Handle) -> tuple[Handle, ...]:
    return (Handle("", adapter.axis, 1, "i32"),)


@op(samples=_adapters_samples, semantic=False, rule=_adapters_rule)
def adapters(adapter: Ints) -> Any:
    """adapter [T], a step input → slots int32 [T, 1], which a selection takes rows of."""
    return adapter.reshape(-1, 1)


def _lora_samples() -> list[Sample]:
    def pair(seed: int, rank: int, outputs: int, inputs: int, kind: str = "F32") -> Pair:
        a, b = floats(seed, rank, inputs, size=0.3), floats(seed + 1, rank, outputs, size=0.3)
        if kind == "BF16":
            return Pair(kind, (a.view(np.uint32) >> 16).astype(np.uint16), (b.view(np.uint32) >> 16).astype(np.uint16), 2.0)
        return Pair(kind, a.astype(np.float16), b.astype(np.float16), 0.5) if kind == "F16" else Pair(kind, a, b, 0.25)

    def case(name: str, rows: list[int], outputs: int, inputs: int, *pairs: Pair | None) -> Sample:
        own = {"x": floats(1, len(rows), inputs), "y": floats(2, len(rows), outputs)}
        return Sample(name, {**own, "slots": np.array(rows, np.int32).reshape(-1, 1), "pairs": pairs})

    return [
        case("ragged", [0, -1, 2, 2, 1, 3, -1], 33, 50, pair(3, 4, 33, 50), None, pair(5, 7, 33, 50, "BF16"), pair(7, 1, 33, 50, "F16")),
        case("one row", [0], 640, 1024, pair(9, 16, 640, 1024)),
        case("no row", [], 16, 32, pair(11, 8, 16, 32)),
        case("largest rank", [0, 0, 0], 48, 96, pair(13, 256, 48, 96, "BF16")),
        case(
            "ranks in panels",
            [0, 1, 2, 3],
            48,
            37,
            *(pair(15 + rank, rank, 48, 37, kind) for rank, kind in ((8, "F16"), (24, "BF16"), (48, "F32"), (69, "BF16"))),
        ),
    ]


def _lora_rule(x: Handle, y: Handle, slots: Handle) -> tuple[Handle, ...]:
    fits(x.axis == y.axis == slots.axis, f"lora: rows of {x}, {y} and {slots} differ")
    return (Handle("", y.axis, y.width),)


@op(samples=_lora_samples, weights=("pairs",), matrices=("pairs",), per_token=True, semantic=False, rule=_lora_rule,
    tolerance={"native": 2e-6, **SUMMED})  # fmt: skip
def lora(x: Floats, y: Floats, slots: Ints, pairs: Sequence[Pair | None]) -> Floats:
    """x [T, K], y [T, N], slots [T, 1] or [T] → y + scale · b · (a · x) with the pair of the token's slot; y where that is −1 or empty.

    A token by itself, in double precision, of coded pairs as `coded_change` has it: its bits do not depend on its neighbours.
    """
    out = y.copy()
    of_row = slots.reshape(-1)
    for row in np.flatnonzero(of_row >= 0):
        pair = pairs[of_row[row]]
        if pair is not None:
            a, b = widened(pair.kind, pair.a), widened(pair.kind, pair.b)
            if pair.coded:
                out[row] += coded_change(x[[row]], a, b, pair.scale)[0]
            else:
                change = ((a.astype(np.float64) @ x[row]).astype(np.float32).astype(np.float64) @ b) * pair.scale
                out[row] += change.astype(np.float32)
    return out


def _several_samples(*outputs: int) -> list[Sample]:
    """Slots of whole adapters, of none, and of ones that change some of the matrices."""

    def pair(seed: int, rank: int, width: int, inputs: int) -> Pair:
        return Pair("F32", floats(seed, rank, inputs, size=0.3), floats(seed + 1, rank, width, size=0.3), 0.5 + rank)

    def case(name: str, rows: list[int], inputs: int, ranks: list[tuple[int, ...]]) -> Sample:
        names = ("first", "second", "third")[: len(outputs)]
        own: dict[str, Any] = {"x": floats(1, len(rows), inputs), "slots": np.array(rows, np.int32)}
        own |= {f"y{number}": floats(2 + number, len(rows), width) for number, width in enumerate(outputs)}
        for number, (place, width) in enumerate(zip(names, outputs, strict=True)):
            seeds = (10 * slot + 100 * number for slot in range(len(ranks)))
            own[place] = [pair(seed, of[number], width, inputs) if of[number] else None for seed, of in zip(seeds, ranks, strict=True)]
        return Sample(name, own)

    return [
        case("ragged", [1, -1, 0, 2, 1, 1], 50, [(4, 0, 9)[: len(outputs)], (17, 3, 1)[: len(outputs)], (0, 0, 0)[: len(outputs)]]),
        case("one row", [0], 64, [(16, 16, 16)[: len(outputs)]]),
        case("no row", [], 32, [(8, 8, 8)[: len(outputs)]]),
    ]


@op(samples=lambda: _several_samples(33, 40), weights=("first", "second"), matrices=("first", "second"), per_token=True, semantic=False,
    tolerance=SUMMED)  # fmt: skip
def lora_pair(x: Floats, y0: Floats, y1: Floats, slots: Ints, first: Sequence[Pair | None], second: Sequence[Pair | None]) -> Any:
    """`lora` of two products of one value."""
    return lora(x, y0, slots, first), lora(x, y1, slots, second)


@op(samples=lambda: _several_samples(64, 16, 20), weights=("first", "second", "third"), matrices=("first", "second", "third"),
    per_token=True, semantic=False, tolerance=SUMMED)  # fmt: skip
def lora_triple(
    x: Floats, y0: Floats, y1: Floats, y2: Floats, slots: Ints, first: Sequence[Pair | None], second: Sequence[Pair | None],
    third: Sequence[Pair | None],
) -> Any:  # fmt: skip
    """`lora` of three products of one value."""
    return lora(x, y0, slots, first), lora(x, y1, slots, second), lora(x, y2, slots, third)
