"""Runners of op lists: their protocol, a test for finite values, and the first op in which two of them differ.

Owns no runner: anything that can run its list to op n can be compared with anything else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.graph import Op, OpList, StepInputs

WRITES = frozenset({"kv_write", "rotate_write", "norm_rotate_write"})
"""Ops that write to the cache."""


class Runner(Protocol):
    """Executes an op list. `kv` is the runner's own cache: its layout is nobody else's business."""

    @property
    def oplist(self) -> OpList: ...

    def run(
        self, inputs: StepInputs, kv: Any, taps: Sequence[str] = (), *, keep: NDArray[np.int32] | None = None
    ) -> dict[str, NDArray[Any]]:
        """One step: `logits` fp32 [S, V] of the selected positions, and the taps asked for.

        `finite` bool [T]: whether a token's numbers are: those that keys and values are made from, and its final hidden state if selected.
        keep: int32 [S], how many of the largest logits of each row are needed, with those that equal the last; 0, or None: all. With one of
        every row a runner may return their lowest ids, `best` [S], in place of `logits`. It may leave out what is not needed where it
        returns `maxima` beside, which say to its sampler where the others are.
        """
        ...

    def logits(self, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        """Rows of the tap `hidden` [N, D] to their logits [N, V], bit for bit what `run` gives for them when they are selected."""
        ...

    def values(self, inputs: StepInputs, kv: Any, until: int | None = None) -> Mapping[str, NDArray[np.float32]]:
        """Runs ops 0 … `until` (all of them by default) and returns every named value that they made.

        An op that writes to the cache has no value of its own: what it stored for this step's tokens comes as the values
        that `stored_names` names.
        """
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Difference:
    """The first op at which two runners differ: its number and itself in the first runner's list, the value, the greatest error."""

    number: int
    op: Op
    value: str
    error: float


def stored_names(op: Op) -> tuple[str, ...]:
    """Names under which a cache write shows what it stored, K then V; none for other ops."""
    return tuple(f"{part}.{op.attributes['layer']}" for part in ("keys", "values")) if op.name in WRITES else ()


def finite_tokens(values: NDArray[np.float32]) -> NDArray[np.bool_]:
    """[N]: whether all `values` [N, D] of a token are finite."""
    if values.size and not (isfinite(values.max()) and isfinite(values.min())):  # both are NaN where one number is; mostly all is well
        found: NDArray[np.bool_] = np.isfinite(values).all(axis=1)
        return found
    return np.ones(len(values), np.bool_)


def diff(a: Runner, b: Runner, inputs: StepInputs, kv_a: Any, kv_b: Any, tolerance: float = 0.0) -> Difference | None:
    """The first op of `a` with a value that `b` also names and that differs; None when all agree.

    The error of a value is its greatest difference in units of its largest magnitude in `b`; NaN equals NaN.
    """
    ours, theirs = a.values(inputs, kv_a), b.values(inputs, kv_b)
    for number, op in enumerate(a.oplist.ops):
        for name in (*op.outputs, *stored_names(op)):
            if name in theirs:
                error = relative_error(ours[name], theirs[name])
                if error > tolerance:
                    return Difference(number, op, name, error)
    return None


def relative_error(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> float:
    """The greatest difference in units of `theirs`' largest magnitude; infinite where shapes, NaN or infinities differ."""
    if ours.shape != theirs.shape:
        return float("inf")
    if np.array_equal(ours, theirs, equal_nan=True):
        return 0.0
    apart = np.abs(ours.astype(np.float64) - theirs.astype(np.float64))
    if not np.isfinite(apart).all():
        return float("inf")
    return float(apart.max() / max(float(np.abs(theirs).max()), np.finfo(np.float64).tiny))
