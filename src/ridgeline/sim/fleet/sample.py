"""A thin day: of each part of a diurnal cycle a window, simulated at the rates of its hour, in place of all of it.

Owns the parts and what is thrown away around each window. Windows are the same share of every part: each request stands for equally many.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

from ridgeline.sim.fleet.measures import Tally
from ridgeline.sim.fleet.service import Progress, Service
from ridgeline.sim.fleet.traffic import DAY, Traffic

PARTS: Final = 12
SETTLE: Final = 30.0
"""Seconds of traffic before a window, in which a fleet fills, and after it, in which what came within it is answered."""


@dataclass(frozen=True, slots=True)
class Sample:
    """So large a share of a cycle of `period` seconds, in a window of each of `parts` equal parts, at a random place within it."""

    share: float
    period: float = DAY
    parts: int = PARTS
    settle: float = SETTLE

    @property
    def seconds(self) -> float:
        """What is measured of the cycle."""
        return self.share * self.period


def sample_cycle(serve: Callable[[], Service], traffic: Traffic, sample: Sample, seed: int, progress: Progress) -> Tally:
    """Counts the windows of one cycle, each on a service of its own: a stratified estimate with proportional allocation (Cochran 1977).

    Its error shows between seeds, which draw other places and other requests.
    """
    total, before, length = Tally(), 0, sample.period / sample.parts
    for part in range(sample.parts):
        rng = Random(f"{seed}:{part}")
        begins = (part + rng.random() * (1.0 - sample.share)) * length - sample.settle
        service, width = serve(), length * sample.share
        opens, closes = service.mark(sample.settle), service.mark(sample.settle + width)
        tally = service.run(traffic.within(rng.getrandbits(64), begins, width + 2 * sample.settle), partial(_further, progress, before))
        before += service.ended
        closes.add(opens, sign=-1)
        total.add(closes)
        total.requests.extend(tally.requests, sample.settle, sample.settle + width)
    return total


def _further(progress: Progress, before: int, count: int) -> None:
    progress(before + count)
