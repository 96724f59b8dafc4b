"""What several runs say together: intervals over seeds, the knee of load, the least replicas for an objective."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from math import sqrt
from statistics import mean, stdev
from typing import Final

from ridgeline.sim.fleet.measures import Figures, Spread
from ridgeline.sim.fleet.scenario import Scenario

STUDENT_95: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Two-sided 95 % quantiles of Student's t for 1 … 9 degrees of freedom."""

MOST_REPLICAS: Final = 1_024
WIDENED: Final = 6
"""Times that a search for the knee goes on beyond the range that it began with."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over seeds and half the width of its 95 % confidence interval, None from one seed."""

    mean: float
    half: float | None


def intervals(figures: Sequence[Figures]) -> dict[str, Interval]:
    """Every number of the reports by its name (`ttft.p99`), over the seeds."""
    rows = [flat(each) for each in figures]
    return {name: interval([row[name] for row in rows]) for name in rows[0]}


def mean_curves(figures: Sequence[Figures]) -> dict[str, list[float]]:
    """The curves of the reports, each point the mean over the seeds that measured it."""
    found = {}
    for name in figures[0].curves:
        measured = [each.curves[name] for each in figures if each.curves[name]]
        found[name] = [mean(values) for values in zip(*measured, strict=True)]
    return found


def interval(values: Sequence[float]) -> Interval:
    """Mean and confidence interval of independent values."""
    if len(values) < 2:
        return Interval(values[0], None)
    factor = STUDENT_95[min(len(values) - 1, len(STUDENT_95)) - 1]
    return Interval(mean(values), factor * stdev(values) / sqrt(len(values)))


def flat(figures: Figures) -> dict[str, float]:
    """The report as numbers; spreads become `name.p50` …; curves and what is unknown are left out."""
    found: dict[str, float] = {}
    for field in fields(figures):
        value = getattr(figures, field.name)
        if isinstance(value, Spread):
            found |= {f"{field.name}.{part.name}": getattr(value, part.name) for part in fields(value)}
        elif isinstance(value, int | float):
            found[field.name] = float(value)
    return found


def least_replicas(scenario: Scenario, seeds: Sequence[int], share: float = 0.99) -> int | None:
    """The fewest replicas with which at least `share` of all requests meet the objective, over all seeds; None beyond 1,024.

    Doubles until it is enough, then halves the gap: more replicas never hurt.
    """

    def enough(replicas: int) -> bool:
        tried = replace(scenario, replicas=replicas, scaling=None)
        return all(tried.run(seed).met >= share for seed in seeds)

    high = 1
    while not enough(high):
        high *= 2
        if high > MOST_REPLICAS:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


@dataclass(frozen=True, slots=True)
class Knee:
    """The rate at which throughput / mean latency is greatest (Kleinrock's power, 1979), and the curve by ascending rate.

    inside  lower and higher rates were tried and are worse; otherwise `rate` is only the end of what was tried
    """

    rate: float
    curve: list[tuple[float, Figures]]
    inside: bool


def knee_of(at: Callable[[float], Scenario], capacity: float, seed: int) -> Knee:
    """Tries every eighth of `capacity`, requests a second; goes on beyond an end as long as that is the best, `WIDENED` times at most."""
    curve = {capacity * part / 8: at(capacity * part / 8).run(seed) for part in range(1, 9)}

    def power(rate: float) -> float:
        return curve[rate].output_tokens_per_second / max(1e-9, curve[rate].e2e.mean)

    for _ in range(WIDENED):
        best, low, high = max(curve, key=power), min(curve), max(curve)
        if low < best < high:
            break
        further = best / 2 if best == low else best * 1.5
        curve[further] = at(further).run(seed)
    best = max(curve, key=power)
    return Knee(best, sorted(curve.items()), min(curve) < best < max(curve))
