"""Durations of steps: from constants, from the roofline, or fitted to a log of steps. Pure functions of a plan, never of a clock.

The duration of a decode step depends on its positions alone, so that skipped steps have the same durations as executed ones.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, isfinite
from typing import Final, Protocol

from ridgeline.core.plan import Plan
from ridgeline.core.step_time import StepSeconds
from ridgeline.errors import ConfigError
from ridgeline.planning.deployment import Deployment
from ridgeline.planning.step import RowGroup, link_seconds, overlapped, part_seconds, pass_seconds, reached, step_work

PRICED_TOKENS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 32)
"""Numbers of tokens of a row at which verification is measured."""


class Durations(Protocol):
    """Seconds of a step."""

    def seconds(self, plan: Plan) -> float:
        """Seconds of the step of `plan`."""
        ...

    def decode(self, positions: Sequence[int], ahead: int) -> float:
        """Seconds of a step in which each row computes one token, at its position + `ahead`, and samples. Equals `seconds` of its plan."""
        ...


@dataclass(frozen=True, slots=True)
class ConstantDurations:
    """`step` seconds, plus `token` per computed token, plus `cached` per position that attention reads, plus `row` per row."""

    step: float
    token: float = 0.0
    cached: float = 0.0
    row: float = 0.0

    def seconds(self, plan: Plan) -> float:
        tokens, rows = len(plan.tokens), len(plan.row)
        return self.step + self.token * tokens + self.cached * (sum(plan.start) + tokens) + self.row * rows

    def decode(self, positions: Sequence[int], ahead: int) -> float:
        rows = len(positions)
        return self.step + self.token * rows + self.cached * (sum(positions) + ahead * rows + rows) + self.row * rows


@dataclass(frozen=True, slots=True)
class DurationsWithCopies:
    """`compute`, plus `copy_seconds` per block that the plan copies between device and host, not overlapped."""

    compute: Durations
    copy_seconds: float

    def seconds(self, plan: Plan) -> float:
        return self.compute.seconds(plan) + self.copy_seconds * len(plan.copies)

    def decode(self, positions: Sequence[int], ahead: int) -> float:
        return self.compute.decode(positions, ahead)


@dataclass(frozen=True, slots=True)
class DurationsWithSpread:
    """`compute`, times a factor in steps with prompts: the same step takes longer one time than another. The factor is one of `factors`,
    in ascending order, or between two of them; it is drawn from seed, step and tokens, so that the same plan takes the same time. Decode
    steps have none: many in a row make an answer, and the mean of their times is what counts."""

    compute: Durations
    factors: tuple[float, ...]
    seed: int = 0

    def seconds(self, plan: Plan) -> float:
        seconds = self.compute.seconds(plan)
        if len(plan.tokens) <= sum(plan.sample):
            return seconds
        mixed = plan.step * 2_654_435_769 + self.seed * 2_246_822_519 + sum(plan.start) * 40_503 + len(plan.tokens) * 69_069
        last = len(self.factors) - 1  # Fibonacci hashing: drawn values are even over [0, 1), for steps and for seeds
        place = min(last, max(0.0, mixed % (1 << 32) / (1 << 32) * (last + 1) - 0.5))
        low = min(int(place), max(0, last - 1))
        below, above = self.factors[low], self.factors[min(last, low + 1)]
        return seconds * (below + (above - below) * (place - low))

    def decode(self, positions: Sequence[int], ahead: int) -> float:
        return self.compute.decode(positions, ahead)


FAR_POSITION: Final = 1 << 20
"""A position far enough from 0 for a precise slope."""


@dataclass(frozen=True, slots=True)
class DecodeTimeModel:
    """Seconds of decode steps of a fixed number of rows, by the sum of positions that attention reads:
    fixed, and what `overlapped` makes of compute + compute_slope · positions and memory + memory_slope · positions. Work in layers with
    full attention is linear in the position."""

    fixed: float
    compute: float
    compute_slope: float
    memory: float
    memory_slope: float
    overlap: float

    @classmethod
    def of(cls, deployment: Deployment, rows: int) -> "DecodeTimeModel":
        """The planner's estimate for `rows` decode rows."""
        near, far = (step_work(deployment, [RowGroup(start, 1, rows)]) for start in (0, FAR_POSITION))
        products, (compute, memory) = part_seconds(deployment, near, reached(deployment))
        _, (far_compute, far_memory) = part_seconds(deployment, far, reached(deployment))
        compute_slope, memory_slope = (far_compute - compute) / (FAR_POSITION * rows), (far_memory - memory) / (FAR_POSITION * rows)
        overlap = deployment.device.overlap
        fixed = overlapped(*products, overlap) + link_seconds(deployment, near.tokens)
        return cls(fixed, compute - compute_slope * rows, compute_slope, memory - memory_slope * rows, memory_slope, overlap)

    def seconds(self, positions: float) -> float:
        """Seconds for a sum of positions."""
        compute, memory = self.compute + self.compute_slope * positions, self.memory + self.memory_slope * positions
        return self.fixed + overlapped(compute, memory, self.overlap)


class RooflineDurations:
    """The planner's estimate for a deployment (`planning.step`): operations and bytes of the plan's rows, over the device's peaks.

    host  seconds added to every step: scheduling, launches, sampling
    """

    def __init__(self, deployment: Deployment, host: float = 0.0) -> None:
        self._deployment = deployment
        self._host = host
        self._windows = "window" in deployment.model.layer_kinds
        self._lines: dict[int, DecodeTimeModel] = {}

    def seconds(self, plan: Plan) -> float:
        if len(plan.tokens) == len(plan.row) == plan.sample.count(1):
            return self.decode(plan.start, 0)
        columns = zip(plan.start, plan.count, plan.sample, strict=True)
        rows = [RowGroup(start, count, 1.0, samples) for start, count, samples in columns if self._windows or count > 1 or not samples]
        if len(rows) < len(plan.row):  # the sum of positions determines the others: two kinds of rows represent them
            others = len(plan.row) - len(rows)
            near, farther = divmod(sum(plan.start) - sum([row.start for row in rows]), others)
            rows += [RowGroup(near, 1, others - farther), RowGroup(near + 1, 1, farther)]
        return self._host + pass_seconds(self._deployment, step_work(self._deployment, rows))

    def decode(self, positions: Sequence[int], ahead: int) -> float:
        """Seconds of a step of decoding rows. With sliding windows each row counts; without them the sum of positions determines the
        duration."""
        if self._windows:
            each = [RowGroup(position + ahead, 1) for position in positions]
            return self._host + pass_seconds(self._deployment, step_work(self._deployment, each))
        rows = len(positions)
        if rows not in self._lines:
            self._lines[rows] = DecodeTimeModel.of(self._deployment, rows)
        return self._host + self._lines[rows].seconds(sum(positions) + (ahead + 1) * rows)


@dataclass(frozen=True, slots=True)
class ObservedStep:
    """One step of a log: tokens computed, positions that attention reads, seconds, rows (0: unknown)."""

    tokens: int
    cached: int
    seconds: float
    rows: int = 0


MIN_STEPS: Final = 8
PRIOR_STEPS: Final = ((1, 1), (16, 16), (1, 64))
"""Steps (rows, tokens) at which what the start measured counts as …"""
PRIOR_WEIGHT: Final = 8
"""… so many steps of the log, scaled by how fast the machine was in it. A log may hold one size of steps alone, which says nothing of
others."""


def fit_constant(steps: Sequence[ObservedStep], start: StepSeconds | None = None) -> ConstantDurations:
    """Least squares of seconds on (1, tokens, cached, rows) with coefficients ≥ 0. Raises ConfigError where the log has too few steps.

    start  seconds of steps as the server measured them at its start

    The active-set method of Lawson and Hanson 1974 on four unknowns: solve, drop what is negative, solve again.
    """
    usable = [step for step in steps if isfinite(step.seconds) and step.seconds > 0]
    if len(usable) < MIN_STEPS:
        raise ConfigError(f"the step log has {len(usable)} usable steps; {MIN_STEPS} or more are needed to fit a step's time")
    if start is not None:
        usable += _start_steps(usable, start)
    sizes = zip(*((step.tokens, step.cached, step.rows) for step in usable), strict=True)
    columns = [[1.0] * len(usable), *([float(value) for value in column] for column in sizes)]
    kept = [0, *(index for index in (1, 2, 3) if len(set(columns[index])) > 1)]
    while True:
        found = _solve([columns[index] for index in kept], [step.seconds for step in usable])
        negative = [index for index, value in zip(kept, found, strict=True) if value < 0]
        if not negative:
            by_index = dict(zip(kept, found, strict=True))
            return ConstantDurations(*(by_index.get(index, 0.0) for index in range(4)))
        kept.remove(min(negative, key=lambda index: found[kept.index(index)]))
        if not kept:
            raise ConfigError("the step log fits no positive time per step; record it anew on an idle machine")


MAX_FACTORS: Final = 64


def prompt_factors(steps: Sequence[ObservedStep], durations: ConstantDurations) -> tuple[float, ...]:
    """Seconds of steps with prompts over `durations`, in ascending order, at most `MAX_FACTORS` evenly chosen of them; empty where there
    are too few to tell."""
    found = []
    for step in steps:
        if 0 < step.rows < step.tokens and isfinite(step.seconds) and step.seconds > 0:
            usual = durations.step + durations.token * step.tokens + durations.cached * step.cached + durations.row * step.rows
            found.append(step.seconds / usual)
    found.sort()
    count = min(len(found), MAX_FACTORS)
    return tuple([found[(2 * number + 1) * len(found) // (2 * count)] for number in range(count)]) if count >= MIN_STEPS else ()


def _start_steps(steps: Sequence[ObservedStep], start: StepSeconds) -> list[ObservedStep]:
    """Steps as the start measured them, at the speed that the machine had in `steps`."""

    def expected(rows: int, tokens: int) -> float:
        return start.fixed + max(0.0, start.row - start.token) * rows + start.token * tokens

    speed = fsum(step.seconds for step in steps) / max(1e-9, fsum(expected(step.rows, step.tokens) for step in steps))
    return [ObservedStep(tokens, 0, speed * expected(rows, tokens), rows) for rows, tokens in PRIOR_STEPS for _ in range(PRIOR_WEIGHT)]


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


def verification_prices(durations: Durations) -> tuple[tuple[int, int, float], ...]:
    """(tokens, samples, seconds) of steps in which one row verifies drafts, as an engine measures them at its start."""
    found = []
    for tokens in PRICED_TOKENS:
        nothing, token_counts = array("i", [0]), array("i", [tokens])
        plan = Plan(0, nothing, nothing, token_counts, array("i", [0]) * tokens, bytearray([tokens]))
        found.append((tokens, tokens, durations.seconds(plan)))
    return tuple(found)
