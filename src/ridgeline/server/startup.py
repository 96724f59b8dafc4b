"""Progress of a start, as `/startupz` tells it: the stage, the fraction of it that is done, the seconds that the rest will take.

The time that is left is reckoned from what was measured: the pace of the stage since its first report, and for the stages behind it what
they took when the same model was started here last. Where it was not, they are not guessed at.
"""

import time
from collections.abc import Callable, Mapping
from typing import Final

from ridgeline.facts.hardware.machine import process_age_seconds
from ridgeline.observe.starts import PROCESS
from ridgeline.server import replies

READY: Final = "ready"


class Startup:
    """The start of one deployment. `now` is a clock in seconds that never goes back.

    before   seconds of each stage when it was started last
    seconds  of each stage so far, in order
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.before: Mapping[str, float] = {}
        self.seconds: dict[str, float] = {}
        self.stage = "starting"
        self.fraction = 0.0
        self._now = now
        self._began = now()
        self._ended: float | None = None
        self._process_seconds = process_age_seconds()
        self._first = 0.0, self._began
        """Fraction and time of the stage's first report."""

    @property
    def phases(self) -> dict[str, float]:
        """Seconds of each stage so far, and before the first one: interpreter, imports, settings."""
        return {PROCESS: self._process_seconds, **self.seconds}

    @property
    def summary(self) -> str:
        """The stage and how far it is: `loading weights 40%`."""
        return f"{self.stage} {self.fraction:.0%}"

    def note(self, stage: str, fraction: float) -> None:
        """Takes a report; after the end it counts for nothing: it is of a restart."""
        if self._ended is not None:
            return
        if stage != self.stage:
            now = self._now()
            self.seconds[self.stage] = self.seconds.get(self.stage, 0.0) + now - self._first[1]
            self._first = fraction, now
        self.stage, self.fraction = stage, min(1.0, max(0.0, fraction))

    def end(self) -> None:
        """The first requests are taken."""
        self.note(READY, 1.0)
        self._ended = self._now()

    def snapshot(self) -> replies.Startup:
        """The answer of `/startupz`."""
        now = self._now() if self._ended is None else self._ended
        return replies.Startup(self.stage, round(self.fraction, 4), self._seconds_left(now), round(now - self._began, 3))

    def _seconds_left(self, now: float) -> float | None:
        """Seconds until the stage ends, at its pace so far or as it took last, and those behind it do; None where nothing is known."""
        if self._ended is not None:
            return 0.0
        fraction, since = self._first
        done, seconds = self.fraction - fraction, now - since
        if done > 0 and seconds > 0:
            left = seconds * (1.0 - self.fraction) / done
        elif self.stage in self.before:
            left = max(0.0, self.before[self.stage] - seconds)
        else:
            return None
        later = [took for stage, took in self.before.items() if stage != self.stage and stage not in self.seconds]
        return round(left + sum(later), 1)
