"""Time on the device: seconds of launches, of whole steps, and idle seconds between two steps.

Owns how launches are repeated, and marks around the kernels of each step, in the order of what the device does. The copy of a step's inputs
lies before its first mark, and that of its results behind its last: both count as idle time.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import ceil
from statistics import median
from time import perf_counter
from typing import Any, Final, NamedTuple

import torch

from ridgeline.compute.cuda.buckets import Bucket
from ridgeline.compute.cuda.device import Device, Graph
from ridgeline.compute.cuda.graphs import Graphs, Launch

TIMINGS: Final = 9
TIMING_SECONDS: Final = 0.004
"""Least seconds of one timing: long compared with the events around it."""
MAX_REPEATS: Final = 64


class Seconds(NamedTuple):
    """Seconds of one run: the best of all timings, and the median."""

    best: float
    median: float


def seconds_of(device: Device, runs: Sequence[Callable[[], None]], timings: int = TIMINGS) -> Seconds:
    """Seconds of one of `runs`, which do the same over memory of their own: together more than the caches hold.

    On a GPU they are captured as one graph, as a launch takes the host longer than many a kernel runs. A graph that has them once shows how
    often to repeat them.
    """
    for run in runs:
        run()
    device.settle()
    if not device.real:
        return _seconds([_waited(runs) / len(runs) for _ in range(timings)])
    graph, repeats = _captured(device, runs), 1
    once = _between(graph.replay)
    if once < TIMING_SECONDS:
        repeats = min(MAX_REPEATS, ceil(TIMING_SECONDS / max(once, 1e-6)))
        graph = _captured(device, [*runs] * repeats)
    return _seconds([_between(graph.replay) / (repeats * len(runs)) for _ in range(timings)])


def replayed(device: Device, run: Callable[[], None], count: int) -> float:
    """Seconds of one `run` when `count` of them stand behind each other: what the device needs when the host is never late."""
    run()
    device.settle()
    if not device.real:
        return _waited([run] * count) / count
    return _between(lambda: _all([run] * count)) / count


def _captured(device: Device, runs: Sequence[Callable[[], None]]) -> Graph:
    """A graph of all of them, which has run once."""
    graph = device.capture(lambda: _all(runs), None)
    graph.replay()
    device.settle()
    return graph


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that `share` of all do not exceed."""
    return sorted(values)[ceil(share * len(values)) - 1]


def _all(runs: Sequence[Callable[[], None]]) -> None:
    for run in runs:
        run()


def _waited(runs: Sequence[Callable[[], None]]) -> float:
    began = perf_counter()
    _all(runs)
    return perf_counter() - began


def _between(run: Callable[[], None]) -> float:
    """Seconds of the device between two events around what `run` launches."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    run()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / 1e3


def _seconds(found: list[float]) -> Seconds:
    return Seconds(min(found), median(found))


class TimedGraphs(Graphs):
    """Graphs of a runner that mark the start and end of each step between `begin` and `end`."""

    def __init__(self, device: Device) -> None:
        super().__init__(device.capture if device.real else None, device.graph_pool)
        self._device = device
        self._marks: list[tuple[Any, Any]] | None = None

    def run(self, bucket: Bucket, body: Sequence[Launch], tail: Sequence[Launch]) -> None:
        """Starts a step, between two marks while steps are timed."""
        if self._marks is None:
            return super().run(bucket, body, tail)
        first = self._mark()
        super().run(bucket, body, tail)
        self._marks.append((first, self._mark()))
        return None

    def begin(self) -> None:
        """Starts timing."""
        self._marks = []

    def end(self) -> tuple[list[float], list[float]]:
        """Waits for the device, and stops timing. Returns seconds of each step, and idle seconds before each but the first."""
        self._device.settle()
        marks, self._marks = self._marks or [], None
        return [self._between(*each) for each in marks], [self._between(before[1], after[0]) for before, after in pairwise(marks)]

    def _mark(self) -> Any:
        if not self._device.real:
            return perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, first: Any, last: Any) -> float:
        return float(first.elapsed_time(last)) / 1e3 if self._device.real else last - first
