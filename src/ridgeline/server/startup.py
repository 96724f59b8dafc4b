"""Progress of a start, as `/startupz` tells it: the stage, the fraction of it that is done, the seconds that the rest will take.

The time that is left is reckoned from what was measured: the pace of the stage since its first report. Later stages are not guessed at.
"""

import time
from collections.abc import Callable
from typing import Final

from ridgeline.facts.hardware.machine import process_age_seconds
from ridgeline.server import replies

READY: Final = "ready"


class Startup:
    """The start of one deployment. `now` is a clock in seconds that never goes back."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.stage = "starting"
        self.fraction = 0.0
        self._now = now
        self._began = now()
        self._ended: float | None = None
        self.phases: dict[str, float] = {"process": process_age_seconds()}
        """Seconds of each stage so far, and before the first one: interpreter, imports, settings."""
        self._since = self._began
        self._first = 0.0, self._began
        """Fraction and time of the stage's first report."""

    def note(self, stage: str, fraction: float) -> None:
        """Takes a report; after the end it counts for nothing: it is of a restart."""
        if self._ended is not None:
            return
        if stage != self.stage:
            self._first = fraction, self._now()
            self.phases[self.stage] = self.phases.get(self.stage, 0.0) + self._first[1] - self._since
            self._since = self._first[1]
        self.stage, self.fraction = stage, min(1.0, max(0.0, fraction))

    def end(self) -> None:
        """The first requests are taken."""
        self.note(READY, 1.0)
        self._ended = self._now()

    def snapshot(self) -> replies.Startup:
        """What `/startupz` says."""
        now = self._now() if self._ended is None else self._ended
        return replies.Startup(self.stage, round(self.fraction, 4), self._seconds_left(now), round(now - self._began, 3))

    def _seconds_left(self, now: float) -> float | None:
        """Seconds until the stage ends at its pace so far; None where nothing of it has been measured."""
        if self._ended is not None:
            return 0.0
        fraction, since = self._first
        done, seconds = self.fraction - fraction, now - since
        return round(seconds * (1.0 - self.fraction) / done, 1) if done > 0 and seconds > 0 else None
