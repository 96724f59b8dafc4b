"""Counts of how requests of the last minutes ended: within their objective or not, refused, failed; and of late steps.

Owns the readings of the metrics' totals that make a window of them: one in ten seconds, as far back as the flight recorder looks.
"""

from collections import Counter, deque
from typing import Final

from ridgeline.observe.metrics import Metrics

READ_SECONDS: Final = 10.0
READINGS: Final = 91
"""Fifteen minutes, and one before them."""


class Outcomes:
    """Readings of the totals: `look` now and then; `since` has what came behind a moment."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._readings: deque[tuple[float, Counter[str]]] = deque(maxlen=READINGS)

    def look(self, now: float) -> None:
        """Takes a reading, if the last one is long enough ago."""
        if not self._readings or now - self._readings[-1][0] >= READ_SECONDS:
            self._readings.append((now, totals(self._metrics)))

    def since(self, moment: float) -> dict[str, int]:
        """Counts by name since a moment of the monotonic clock, without zeros. They begin with a reading, so they may be of some more."""
        before = Counter[str]()
        for at, reading in self._readings:
            if at > moment:
                break
            before = reading
        return dict(totals(self._metrics) - before)


def totals(metrics: Metrics) -> Counter[str]:
    """Totals since the start: results of requests by their names, errors as `500 internal_error`, steps, late steps."""
    found = Counter({result.value: count for result, count in metrics.results.items()})
    found.update({f"{status} {error}": count for (status, error), count in metrics.answers.items() if error})
    found.update(steps=metrics.steps, late_steps=metrics.late_steps)
    return found
