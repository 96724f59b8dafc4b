"""The present of a server: the steps of the last minutes by second, and percentiles of the last minute.

Arithmetic on one record per step (three events of the core), never on a token. Owns the bounds: ten minutes of seconds, two minutes of
snapshots of histograms. Reads no clock: events carry the engine's time, which is the machine's monotonic one.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Final

from ridgeline.core.events import Computed, Event, Scheduled, StepTimed
from ridgeline.core.step_time import StepSeconds
from ridgeline.observe.cost import Spending
from ridgeline.observe.histogram import Histogram
from ridgeline.observe.metrics import Metrics
from ridgeline.observe.steps import undrafted

KEPT_SECONDS: Final = 600
SNAPSHOT_SECONDS: Final = 5
SNAPSHOTS: Final = 13
"""A minute and one: the oldest is what the others are compared with."""
MAX_IN_FLIGHT: Final = 16
"""Steps that have been planned and not committed; more are of an engine that has ended."""


@dataclass(slots=True)
class Second:
    """Sums over the steps that ended in one second.

    run      seconds in the executor            busy     seconds in which a step was in flight
    rows     rows of all steps                  decode   of them, those with one token, or that verify drafts
    tokens   computed, but for drafts           sampled  ids
    waiting  choices that waited, per step      unheld   blocks that nobody held, per step
    lack_rows, lack_blocks  of `waiting`, behind one that lacked a row, or KV blocks
    """

    at: int = 0
    steps: int = 0
    run: float = 0.0
    busy: float = 0.0
    rows: int = 0
    decode: int = 0
    tokens: int = 0
    sampled: int = 0
    waiting: int = 0
    unheld: int = 0
    lack_rows: int = 0
    lack_blocks: int = 0

    def add(self, other: "Second") -> None:
        """Adds all sums of another."""
        for each in fields(Second)[1:]:
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


class Live:
    """`apply` each event of the engine that answers, once, in order. `metrics` have had it."""

    def __init__(self, metrics: Metrics, spending: Spending) -> None:
        self.run_seconds = 0.0
        """Seconds of steps in the executor, since the start."""
        self.step_cost: StepSeconds | None = None
        """Cost of steps as measured at the engine's start; None: unknown."""
        self.spending = spending
        self._metrics = metrics
        self._seconds: deque[Second] = deque(maxlen=KEPT_SECONDS)
        self._snapshots: deque[tuple[int, list[int], list[int]]] = deque(maxlen=SNAPSHOTS)
        self._planned: dict[int, Scheduled] = {}
        self._ended_at = 0.0

    def apply(self, event: Event) -> None:
        """Counts a step's planning, its end, its time."""
        kind = type(event)
        if kind is Scheduled:
            assert isinstance(event, Scheduled)
            if len(self._planned) > MAX_IN_FLIGHT:
                self._planned.clear()
            self._planned[event.step] = event
        elif kind is Computed:
            assert isinstance(event, Computed)
            self._computed(event)
        elif kind is StepTimed:
            assert isinstance(event, StepTimed)
            self._second(self._seconds[-1].at if self._seconds else 0).run += event.timings.run
            self.run_seconds += event.timings.run
        else:
            self.spending.apply(event)

    def engine_lost(self) -> None:
        """Forgets steps that will never end: the engine has ended, or another model's takes its place."""
        self._planned.clear()
        self.spending.engine_lost()

    def _computed(self, event: Computed) -> None:
        planned = self._planned.pop(event.step, None)
        if planned is None:
            return
        second = self._second(int(event.time))
        busy = max(0.0, event.time - max(self._ended_at, planned.time))
        self._ended_at = event.time
        second.busy += busy
        second.steps += 1
        second.rows += len(planned.sequences)
        counts = undrafted(planned.count, event) if event.drafted else planned.count
        second.decode += counts.count(1)
        second.tokens += sum(counts)
        second.sampled += sum(event.sampled)
        second.waiting += planned.waiting
        second.lack_rows += planned.waiting if planned.lack == "rows" else 0
        second.lack_blocks += planned.waiting if planned.lack == "blocks" else 0
        second.unheld += planned.free_blocks + planned.cached_blocks
        self.spending.step(planned.sequences, counts, busy, self.step_cost)

    def _second(self, at: int) -> Second:
        if not self._seconds or self._seconds[-1].at != at:
            self._seconds.append(Second(at))
            if not self._snapshots or at - self._snapshots[-1][0] >= SNAPSHOT_SECONDS:
                m = self._metrics
                self._snapshots.append((at, m.time_to_first_token.counts.copy(), m.inter_token.counts.copy()))
        return self._seconds[-1]

    def window(self, now: float, seconds: int) -> Second:
        """The sums of the last whole `seconds` seconds; `at` is their number, less where the server is younger."""
        end, total = int(now), Second()
        for each in reversed(self._seconds):
            if each.at < end - seconds:
                break
            if each.at < end:
                total.add(each)
        first = self._seconds[0].at if self._seconds else end
        total.at = max(1, min(seconds, end - first))
        return total

    def history(self, now: float, seconds: int) -> list[Second]:
        """The last whole `seconds` seconds, the oldest first, empty ones too. Bounded by `KEPT_SECONDS`."""
        end = int(now)
        known = {each.at: each for each in self._seconds}
        return [known.get(at) or Second(at) for at in range(end - min(seconds, KEPT_SECONDS), end)]

    def latencies(self) -> dict[str, Sequence[float] | None]:
        """(p50, p90, p99) in seconds of TTFT and ITL over the last minute; None where there was none."""
        m, before = self._metrics, self._snapshots[0] if self._snapshots else None
        found: dict[str, Sequence[float] | None] = {}
        for number, (name, histogram) in enumerate((("ttft", m.time_to_first_token), ("itl", m.inter_token)), start=1):
            old = before[number] if before is not None else [0] * len(histogram.counts)
            assert isinstance(old, list)
            counts = [new - then for new, then in zip(histogram.counts, old, strict=True)]
            found[name] = [quantile(histogram, counts, share) for share in (0.5, 0.9, 0.99)] if sum(counts) else None
        return found


def quantile(histogram: Histogram, counts: Sequence[int], share: float) -> float:
    """The value that a `share` of the observations does not exceed, evenly spread within a bucket. Of the last bucket its begin."""
    rank, seen = share * sum(counts), 0
    bounds = (0.0, *histogram.bounds, histogram.bounds[-1])
    for count, (low, high) in zip(counts, pairwise(bounds), strict=True):
        if count and seen + count >= rank:
            return low + (high - low) * max(0.0, rank - seen) / count
        seen += count
    return bounds[-1]
