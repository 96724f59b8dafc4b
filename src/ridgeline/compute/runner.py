"""Runners of op lists: their protocol, a test for finite values, and the first op at which two runners differ."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.graph import Op, OpList, StepInputs

KV_WRITES = frozenset({"kv_write", "rotate_write", "norm_rotate_write"})
"""Ops that write to the cache."""


class Places(NamedTuple):
    """Places of a step's rows in their grammars, which the step moves (csrc/runtime/follow.h).

    calls      int64: functions of the library that matches grammars, and sizes
    records    int64 [S, 7]: a row's matcher, 0: it follows no grammar; where its mask is written; the id that it has sampled since, -1:
               none; 1 where who chooses asks the grammar first. Its state, its nanoseconds of CPU time and the ids that its mask leaves
               are added
    addresses  int64 [S]: of masks, which are written where the runner needs them; 0: logits are of all ids. Where the runner returns
               `maxima`, other logits are -infinity
    """

    calls: NDArray[np.int64]
    records: NDArray[np.int64]
    addresses: NDArray[np.int64]


class Runner(Protocol):
    """Executes an op list. `kv` is the runner's own cache, in a layout of its own."""

    @property
    def oplist(self) -> OpList: ...

    def run(
        self,
        inputs: StepInputs,
        kv: Any,
        taps: Sequence[str] = (),
        *,
        keep: NDArray[np.int32] | None = None,
        masks: Callable[[], NDArray[np.int64]] | Places | None = None,
        given: Mapping[str, NDArray[np.float32]] | None = None,
    ) -> dict[str, NDArray[Any]]:
        """One step: `logits` fp32 [S, V] of the selected positions, and the taps asked for. Beside those of its list there is "selected",
        the selected rows of "hidden".

        `finite` bool [T]: True where a token's numbers are: those that keys and values are made from, and its final hidden state if
        selected.

        keep  int32 [S]: number of largest logits that each row needs, with those equal to the last; 0, or None: all. Where every row needs
              one a runner may return their lowest ids, `best` [S], in place of `logits`. It may leave out logits that are not needed where
              it also returns `maxima`, which tell its sampler where the others are.
        masks  waits for int64 [S]: of each row the address of a mask of ids (`decoding.edits.Context`) that `keep` is of, 0: of all ids.
               A runner that leaves nothing out does not call it; `best` is of these ids; logits are of all, beside `maxima` -infinity where
               forbidden.
               Runners that move rows along their grammars take these: they move them, and write the masks that are needed.
        given  values [T, width] that the list takes from whoever runs it, by name
        """
        ...

    def logits(self, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        """Rows of the tap `hidden` [N, D] → their logits [N, V], bit for bit as `run` gives them when they are selected."""
        ...

    def values(self, inputs: StepInputs, kv: Any, until: int | None = None) -> Mapping[str, NDArray[np.float32]]:
        """Runs ops 0 … `until` (all of them by default) and returns every named value that they made.

        An op that writes to the cache has no value of its own: K and V that it stored for this step's tokens come under `stored_names`.
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
    return tuple(f"{part}.{op.attributes['layer']}" for part in ("keys", "values")) if op.name in KV_WRITES else ()


def finite_tokens(values: NDArray[np.float32]) -> NDArray[np.bool_]:
    """bool [N]: True where all `values` [N, D] of a token are finite."""
    if values.size and not (isfinite(values.max()) and isfinite(values.min())):  # both are NaN where one number is
        found: NDArray[np.bool_] = np.isfinite(values).all(axis=1)
        return found
    return np.ones(len(values), np.bool_)


def diff(a: Runner, b: Runner, inputs: StepInputs, kv_a: Any, kv_b: Any, tolerance: float = 0.0) -> Difference | None:
    """The first op of `a` with a value that `b` also names and that differs; None when all agree.

    The error of a value is its greatest difference in units of its largest magnitude in `b`; NaN equals NaN.
    """
    values_a, values_b = a.values(inputs, kv_a), b.values(inputs, kv_b)
    for number, op in enumerate(a.oplist.ops):
        for name in (*op.outputs, *stored_names(op)):
            if name in values_b:
                error = relative_error(values_a[name], values_b[name])
                if error > tolerance:
                    return Difference(number, op, name, error)
    return None


def relative_error(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    """The greatest difference in units of `b`'s largest magnitude; infinite where shapes, NaN or infinities differ."""
    if a.shape != b.shape:
        return float("inf")
    if np.array_equal(a, b, equal_nan=True):
        return 0.0
    apart = np.abs(a.astype(np.float64) - b.astype(np.float64))
    if not np.isfinite(apart).all():
        return float("inf")
    return float(apart.max() / max(float(np.abs(b).max()), np.finfo(np.float64).tiny))
