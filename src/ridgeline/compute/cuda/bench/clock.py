"""Seconds of launches on a device. Owns how they are repeated; knows nothing of what is launched."""

from collections.abc import Callable, Sequence
from math import ceil
from statistics import median
from time import perf_counter
from typing import Final, NamedTuple

import torch

from ridgeline.compute.cuda.device import Device, Graph

TIMINGS: Final = 9
TIMING_SECONDS: Final = 0.004
"""What one timing should take at least: long beside the events around it."""
MOST_REPEATS: Final = 64


class Seconds(NamedTuple):
    """Of one run: the best of all timings, and the median."""

    best: float
    middle: float


def seconds_of(device: Device, runs: Sequence[Callable[[], None]], timings: int = TIMINGS) -> Seconds:
    """Seconds that one of `runs` takes, which do the same over memory of their own: together more than the caches hold.

    On a GPU they are captured as one graph: the host's way to a launch is longer than many a kernel. How often they are repeated in it is
    seen from a graph that has them once.
    """
    for run in runs:
        run()
    device.settle()
    if not device.real:
        return _seconds([_waited(runs) / len(runs) for _ in range(timings)])
    graph, repeats = _captured(device, runs), 1
    once = _between(graph.replay)
    if once < TIMING_SECONDS:
        repeats = min(MOST_REPEATS, ceil(TIMING_SECONDS / max(once, 1e-6)))
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
