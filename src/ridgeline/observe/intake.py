"""Events of an engine on their way to ledger, metrics and live figures, a few frames at a time.

Owns how long they may wait. A step of the weights drives this code out of the processor's caches, and to fetch it again takes longer than
to run it: so what tells of steps alone waits for the next ones. Whatever tells of a request is applied at once, and everything before it.
"""

from collections.abc import Sequence
from typing import Final

from ridgeline.core.events import Computed, Event, Published, Scheduled, StepTimed
from ridgeline.observe.ledger import Ledger
from ridgeline.observe.live import Live
from ridgeline.observe.metrics import Metrics

OF_STEPS: Final = frozenset({Scheduled, Computed, StepTimed, Published})
MAX_FRAMES: Final = 16
MAX_SECONDS: Final = 0.25
"""Seconds for which a frame waits at most, where steps follow each other as quickly."""


class Intake:
    """`add` the events of each frame once, in order."""

    def __init__(self, ledger: Ledger, metrics: Metrics, live: Live) -> None:
        self._ledger, self._metrics, self._live = ledger, metrics, live
        self._frames: list[tuple[float, Sequence[Event]]] = []
        self._first = self._last = 0.0

    def add(self, seen: float, events: Sequence[Event]) -> bool:
        """Events that came at `seen` seconds. True if they have been applied; False: they are of steps alone, and wait."""
        if not self._frames:
            self._first = seen
        self._frames.append((seen, events))
        gap, self._last = seen - self._last, seen
        is_quick = len(self._frames) < MAX_FRAMES and gap < MAX_SECONDS and seen - self._first < MAX_SECONDS
        if is_quick and OF_STEPS.issuperset(map(type, events)):
            return False
        self.catch_up()
        return True

    def catch_up(self) -> None:
        """Applies all that waits."""
        frames, self._frames = self._frames, []
        for seen, events in frames:
            self._ledger.apply(events, seen)
            for event in events:
                self._metrics.apply(event)
                self._live.apply(event)
