"""Durations of steps: from constants, from the roofline, or fitted to a log of steps. Pure functions of a plan, never of a clock.

A step in which every row computes one token is asked for by its positions alone, so that a jump over such steps meets the same durations.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, isfinite
from typing import Final, Protocol

from ridgeline.core.plan import Plan
from ridgeline.errors import ConfigError
from ridgeline.planning.deployment import Deployment
from ridgeline.planning.step import TYPICAL, RowGroup, link_seconds, part_seconds, pass_seconds, step_work


class Durations(Protocol):
    """Seconds of a step."""

    def seconds(self, plan: Plan) -> float:
        """Seconds of any step."""
        ...

    def decode(self, positions: Sequence[int], ahead: int) -> float:
        """Seconds of a step in which each row computes one token, at its position + `ahead`, and samples. Equals `seconds` of its plan."""
        ...


@dataclass(frozen=True, slots=True)
class Constant:
    """`step` seconds, `token` for every token computed, `cached` for every position that rows look back at."""

    step: float
    token: float = 0.0
    cached: float = 0.0

    def seconds(self, plan: Plan) -> float:
        return self.step + self.token * len(plan.tokens) + self.cached * (sum(plan.start) + len(plan.tokens))

    def decode(self, positions: Sequence[int], ahead: int) -> float:
        rows = len(positions)
        return self.step + self.token * rows + self.cached * (sum(positions) + ahead * rows + rows)


@dataclass(frozen=True, slots=True)
class WithCopies:
    """`compute`, behind the copies of the step's plan between device and host: `page` seconds each, which nothing hides."""

    compute: Durations
    page: float

    def seconds(self, plan: Plan) -> float:
        return self.compute.seconds(plan) + self.page * len(plan.copies)

    def decode(self, positions: Sequence[int], ahead: int) -> float:
        return self.compute.decode(positions, ahead)


FAR: Final = 1 << 20
"""A position at which a line through position 0 is told precisely."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Seconds of steps in which some rows compute one token each, by the positions that they look back at together:
    fixed + max(compute · positions, memory + more · positions). Work in full layers is linear in the position."""

    fixed: float
    compute: float
    memory: float
    more: float

    @classmethod
    def of(cls, deployment: Deployment, rows: int) -> "Lines":
        """Those of the planner's estimate for so many rows."""
        near, far = (step_work(deployment, [RowGroup(start, 1, rows)]) for start in (0, FAR))
        products, (compute, memory) = part_seconds(deployment, near, TYPICAL)
        _, (far_compute, far_memory) = part_seconds(deployment, far, TYPICAL)
        slope, more = (far_compute - compute) / (FAR * rows), (far_memory - memory) / (FAR * rows)
        state = compute - slope * rows  # what a recurrence computes whatever the position
        return cls(max(products) + link_seconds(deployment, near.tokens) + state, slope, memory - more * rows - state, more)

    def seconds(self, positions: float) -> float:
        """Seconds at so many positions together."""
        return self.fixed + max(self.compute * positions, self.memory + self.more * positions)


class Roofline:
    """The planner's estimate for a deployment (`planning.step`): operations and bytes of the very rows, over the device's peaks.

    host  seconds that every step takes besides: scheduling, launches, sampling
    """

    def __init__(self, deployment: Deployment, host: float = 0.0) -> None:
        self._deployment = deployment
        self._host = host
        self._windows = "window" in deployment.model.layer_kinds
        self._lines: dict[int, Lines] = {}

    def seconds(self, plan: Plan) -> float:
        if len(plan.tokens) == len(plan.row) == plan.sample.count(1):
            return self.decode(plan.start, 0)
        columns = zip(plan.start, plan.count, plan.sample, strict=True)
        rows = [RowGroup(start, count, 1.0, samples) for start, count, samples in columns if self._windows or count > 1 or not samples]
        if len(rows) < len(plan.row):  # of the others the positions' sum says all, so that two kinds of rows stand for them
            others = len(plan.row) - len(rows)
            near, farther = divmod(sum(plan.start) - sum([row.start for row in rows]), others)
            rows += [RowGroup(near, 1, others - farther), RowGroup(near + 1, 1, farther)]
        return self._host + pass_seconds(self._deployment, step_work(self._deployment, rows))

    def decode(self, positions: Sequence[int], ahead: int) -> float:
        """Windows need each row; without them the positions' sum says all."""
        if self._windows:
            each = [RowGroup(position + ahead, 1) for position in positions]
            return self._host + pass_seconds(self._deployment, step_work(self._deployment, each))
        rows = len(positions)
        if rows not in self._lines:
            self._lines[rows] = Lines.of(self._deployment, rows)
        return self._host + self._lines[rows].seconds(sum(positions) + (ahead + 1) * rows)


@dataclass(frozen=True, slots=True)
class Observed:
    """One step of a log: tokens computed, positions looked back at, seconds."""

    tokens: int
    cached: int
    seconds: float


LEAST_STEPS: Final = 8


def fitted(steps: Sequence[Observed]) -> Constant:
    """Least squares of seconds on (1, tokens, cached) with coefficients ≥ 0. Raises ConfigError where the log says too little.

    The active-set method of Lawson and Hanson 1974 on three unknowns: solve, drop what is negative, solve again.
    """
    usable = [step for step in steps if isfinite(step.seconds) and step.seconds > 0]
    if len(usable) < LEAST_STEPS:
        raise ConfigError(f"the step log has {len(usable)} usable steps; {LEAST_STEPS} or more are needed to fit a step's time")
    columns = [[1.0] * len(usable), [float(step.tokens) for step in usable], [float(step.cached) for step in usable]]
    kept = [0, *(index for index in (1, 2) if len(set(columns[index])) > 1)]
    while True:
        found = _solve([columns[index] for index in kept], [step.seconds for step in usable])
        negative = [index for index, value in zip(kept, found, strict=True) if value < 0]
        if not negative:
            by_index = dict(zip(kept, found, strict=True))
            return Constant(*(by_index.get(index, 0.0) for index in range(3)))
        kept.remove(min(negative, key=lambda index: found[kept.index(index)]))
        if not kept:
            raise ConfigError("the step log fits no positive time per step; record it anew on an idle machine")


def _solve(columns: list[list[float]], values: list[float]) -> list[float]:
    """Normal equations by Gaussian elimination with pivots; columns are scaled to length 1 first."""
    scales = [fsum(x * x for x in column) ** 0.5 for column in columns]
    size = len(columns)
    rows = [[fsum(a * b for a, b in zip(left, right, strict=True)) / s / t for right, t in zip(columns, scales, strict=True)]
            + [fsum(a * b for a, b in zip(left, values, strict=True)) / s] for left, s in zip(columns, scales, strict=True)]  # fmt: skip
    for i in range(size):
        pivot = max(range(i, size), key=lambda r: abs(rows[r][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        if abs(rows[i][i]) < 1e-12:
            rows[i] = [0.0] * i + [1.0] + [0.0] * (size - i)
        for r in range(i + 1, size):
            factor = rows[r][i] / rows[i][i]
            rows[r] = [a - factor * b for a, b in zip(rows[r], rows[i], strict=True)]
    found = [0.0] * size
    for i in reversed(range(size)):
        found[i] = (rows[i][size] - fsum(rows[i][j] * found[j] for j in range(i + 1, size))) / rows[i][i]
    return [value / scale for value, scale in zip(found, scales, strict=True)]
