"""`ridgeline bench roofline`: the ceilings of this machine, on one thread and on all, which other figures are compared with.

Owns the rounds and their report. The loops are the extension's (csrc/runtime/roofline.cpp); what runs them is `facts/hardware/ceilings.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from ridgeline.compute.cpu import ext
from ridgeline.facts.hardware.ceilings import LOOPS, RooflineLoops
from ridgeline.facts.hardware.machine import machine_facts
from ridgeline.facts.hardware.noise import Noise, NoiseMonitor

NAMES = {
    "dram_bytes_per_second": "memory, read",
    "l3_bytes_per_second": "third-level cache, read",
    "l2_bytes_per_second": "second-level cache, read",
    "f32_flops_per_second": "fp32 multiply-adds",
    "bf16_flops_per_second": "bf16 dot products",
    "int4_ops_per_second": "int8 × codes of 4 bits",
    "int5_ops_per_second": "int8 × codes of 5 bits",
    "int6_ops_per_second": "int8 × codes of 6 bits",
    "int8_ops_per_second": "int8 × codes of 8 bits",
}


@dataclass(frozen=True, slots=True)
class Rate:
    """Rates per second on one thread and on all: the best round, and the median."""

    one: float
    all: float
    median_one: float
    median_all: float


@dataclass(frozen=True, slots=True)
class Roofline:
    """rates: by name as in NAMES, None for what the machine lacks; the seconds are those of the compute team (csrc/runtime/team.h)."""

    isa: str
    threads: int
    clock_hertz: float
    rates: dict[str, Rate | None]
    phase_seconds: float
    entry_seconds: float
    noise: Noise

    def best(self, key: str, threads: int) -> float:
        """The ceiling `key` on 1 or on all threads; 0 where the machine has none."""
        rate = self.rates[key]
        return 0.0 if rate is None else rate.one if threads == 1 else rate.all

    def as_dict(self) -> dict[str, object]:
        """Fields for JSON: bytes, operations and seconds."""
        found: dict[str, object] = {"isa": self.isa, "threads": self.threads, "clock_hertz": self.clock_hertz}
        for key, rate in self.rates.items():
            found[key] = None if rate is None else {"one": rate.one, "all": rate.all}
        medians = {key: rate and {"one": rate.median_one, "all": rate.median_all} for key, rate in self.rates.items()}
        seconds = {"phase_seconds": self.phase_seconds, "entry_seconds": self.entry_seconds}
        return {**found, **seconds, "medians": medians, "noise": self.noise.as_dict()}


def roofline(threads: int | None = None, rounds: int = 24, on_progress: Callable[[float], None] = lambda done: None) -> Roofline:
    """Measures every ceiling `rounds` times, in turn, so that a disturbance falls on all of them. Takes some four seconds.

    threads      of the measurements on all threads; None: every CPU core that this process may use
    on_progress  called with the fraction that is done
    Raises ConfigError where the extension is missing.
    """
    count = threads or machine_facts().cpu_cores
    watch = NoiseMonitor()
    loops = RooflineLoops(ext.native(), count, ext.level_number())
    measurements = [(key, used) for key in LOOPS for used in (1, count)]
    found: dict[tuple[str, int], list[float]] = {each: [] for each in measurements}
    phases, entries = [], []
    for turn in range(rounds):
        for at, (key, used) in enumerate(measurements):
            rate = loops.rate(key, used)
            found[key, used] += [] if rate is None else [rate]
            on_progress((turn + at / len(measurements)) / rounds)
        phases.append(loops.phase_seconds(count))
        entries.append(loops.entry_seconds(count))
    on_progress(1.0)
    rates = {key: _rate(found[key, 1], found[key, count]) for key in NAMES}
    return Roofline(loops.isa, count, max(found["clock_hertz", 1]), rates, min(phases), min(entries), watch.stop())


def _rate(one: list[float], every: list[float]) -> Rate | None:
    return Rate(max(one), max(every), median(one), median(every)) if one and every else None
