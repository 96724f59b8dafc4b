"""The knee of a server's steps as they take place: the load at which what a step reads, whatever its load, and what it computes for each
row take equally long.

Owns the one definition that the verdict's bottleneck, its knee and the gains of its levers share. A step of load m takes a + b · m; the
knee is a / b, where throughput over latency is greatest too (Kleinrock's power, 1979). Bandwidth binds before it, computing beyond. The
line is fitted to the steps that were seen, by their decoding rows; the start's stands for numbers of rows that were not, at the machine's
speed of now. A kernel's tiles make steps jagged around the line, so that no single number of rows says where the knee is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import fsum
from statistics import median
from typing import Final

from ridgeline.core.step_time import StepSeconds
from ridgeline.observe.live import Second

PRIOR_ROWS: Final = (1, 2, 4, 8, 16, 32)
"""Numbers of rows at which the start's line counts, unless one within `NEAR` of it was seen."""
NEAR: Final = 1.5


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps as they take place: the line of their computing, seconds of the host beside it in each, and those that were `seen`, which only
    decoded: rows → seconds."""

    line: StepSeconds
    host: float
    seen: Mapping[int, float]

    def growth(self, before: int, after: int, prompt: float) -> float:
        """Seconds of a step of `after` decoding rows over those of one of `before`, each row with so many prompt tokens. Decoding is
        what was seen where both were, else by the line for both: its distance from steps of one number of rows is not gained at another."""
        decode = self.seen if {before, after} <= self.seen.keys() else {rows: self.line.of(rows, 0) for rows in (before, after)}
        return (self.host + decode[after] + self.line.token * prompt * after) / (
            self.host + decode[before] + self.line.token * prompt * before
        )

    def knee(self, prompt: float, most: float) -> float:
        """Decoding rows at the knee, at most so many."""
        return min(most, (self.line.fixed + self.host) / max(self.line.row + self.line.token * prompt, 1e-12))


def steps_of(start: StepSeconds, seen: Mapping[int, float], prompt_token: float, window: Second) -> Steps:
    """Steps by those that were `seen`, with the host of a window's. A prompt's token takes `prompt_token` seconds, and what it did at the
    start at least, which timed the quickest. `start`: the line as that measured it."""
    pace = median([seconds / start.of(rows, 0) for rows, seconds in seen.items()]) if seen else 1.0
    points = dict(seen)
    for rows in PRIOR_ROWS:
        if not any(rows / NEAR < each < rows * NEAR for each in seen):
            points[rows] = pace * start.of(rows, 0)
    fixed, row = fit_line(points)
    host = max(0.0, window.busy - window.run) / window.steps
    return Steps(StepSeconds(fixed, row, max(pace * start.token, prompt_token)), host, seen)


def fit_line(points: Mapping[int, float]) -> tuple[float, float]:
    """(a, b), both ≥ 0, of a + b · x closest to the values in proportion to them; a doubling of x weighs as much wherever it is."""
    weights = {x: 1 / (x * y * y) for x, y in points.items()}
    total = fsum(weights.values())
    mean_x, mean_y = (fsum(weights[x] * point[axis] for x, point in ((x, (x, y)) for x, y in points.items())) / total for axis in (0, 1))
    spread = fsum(weights[x] * (x - mean_x) ** 2 for x in points)
    slope = max(0.0, fsum(weights[x] * (x - mean_x) * (y - mean_y) for x, y in points.items()) / spread) if spread else 0.0
    if mean_y - slope * mean_x < 0:
        return 0.0, mean_y / mean_x
    return mean_y - slope * mean_x, slope
