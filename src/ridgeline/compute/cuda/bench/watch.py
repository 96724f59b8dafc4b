"""When the device computes steps, and when it has nothing to do between two of them.

Owns marks around the kernels of each step, in the order of what the device does. The copy of a step's inputs lies before its first mark,
and that of its results behind its last: both count as time in which nothing is computed.
"""

from collections.abc import Sequence
from itertools import pairwise
from time import perf_counter
from typing import Any

import torch

from ridgeline.compute.cuda.buckets import Bucket
from ridgeline.compute.cuda.device import Device
from ridgeline.compute.cuda.graphs import Graphs
from ridgeline.compute.cuda.plan import Call


class Watched(Graphs):
    """The graphs of a runner whose steps are looked at between `begin` and `end`."""

    def __init__(self, device: Device) -> None:
        super().__init__(device.capture if device.real else None, device.graph_pool())
        self._device = device
        self._marks: list[tuple[Any, Any]] | None = None

    def run(self, bucket: Bucket, body: Sequence[Call], tail: Sequence[Call]) -> None:
        """Starts a step, between two marks where somebody looks."""
        if self._marks is None:
            return super().run(bucket, body, tail)
        first = self._mark()
        super().run(bucket, body, tail)
        self._marks.append((first, self._mark()))
        return None

    def begin(self) -> None:
        """Steps count from now on."""
        self._marks = []

    def end(self) -> tuple[list[float], list[float]]:
        """Waits for the device. Seconds of each step, and seconds between each and the one before it."""
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
