"""A soak: mixed load for minutes, and whether memory grows meanwhile.

Owns the mixture, the samples of memory and the verdict. Requests have random lengths; some share a beginning, some sample, a few are
sampled on the host, a few are aborted; the cache is too small for all, so some are preempted; full and light load take turns.
"""

import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final

from ridgeline.bench.gpu_serving import drain, start
from ridgeline.bench.gpu_traffic import Traffic, Wish
from ridgeline.core.commands import Abort
from ridgeline.core.events import Preempted
from ridgeline.core.params import SamplingParams
from ridgeline.engine.engine import Engine
from ridgeline.facts.model import ModelFacts

Memory = dict[str, int]
"""Bytes by who counts them: `allocated` and `reserved` by torch, `used` by the driver."""

SPARE_BYTES: Final[Mapping[str, int]] = {"allocated": 4 << 20, "reserved": 64 << 20, "used": 64 << 20}
"""What each may differ by and count as the same: a kernel that is loaded late, a copy that lives for a moment."""
LIGHT_SHARE: Final = 8
"""Of the rows, one in so many is used while the load is light."""
ABORTED, HOST_SAMPLED, BEGINNING = 50, 64, 4
"""One request in so many: is aborted, is sampled on the host, shares its beginning."""


@dataclass(slots=True)
class Samples:
    """Memory over time, in seconds from the beginning."""

    times: list[float] = field(default_factory=list)
    values: list[dict[str, int]] = field(default_factory=list)

    def add(self, time: float, values: Memory) -> None:
        """One look."""
        self.times.append(time)
        self.values.append(dict(values))

    def growth(self) -> dict[str, int]:
        """Bytes by which the median of the last quarter of the time exceeds that of the second quarter; the first is for warming up."""
        end = self.times[-1]
        early = [value for time, value in zip(self.times, self.values, strict=True) if end / 4 <= time < end / 2] or self.values[:1]
        late = [value for time, value in zip(self.times, self.values, strict=True) if time >= 3 * end / 4]
        return {name: int(_middle(late, name) - _middle(early, name)) for name in self.values[0]}


def _middle(values: Sequence[Memory], name: str) -> float:
    return median(value[name] for value in values)


def soak(facts: ModelFacts, settings: Mapping[str, Any], memory: Callable[[], Memory]) -> Iterator[dict[str, Any]]:
    """Rows: how the engine started, memory from time to time, then what became of it, an error where it grew.

    settings  as of `gpu_serving.start`; rows; prompt_tokens, output_tokens: the most; seconds; every_seconds, of a sample; swing_seconds,
              of full and of light load
    """
    length = settings["prompt_tokens"] + settings["output_tokens"]
    engine, began = start(facts, settings, None, rows=settings["rows"], length=length, prefix_caching=True)
    try:
        yield began
        yield from run(engine, settings, memory)
    finally:
        engine.executor.close()


def run(engine: Engine, settings: Mapping[str, Any], memory: Callable[[], Memory]) -> Iterator[dict[str, Any]]:
    """The load on an engine that is there."""
    rows, longest = settings["rows"], settings["prompt_tokens"]
    traffic = Traffic(engine, rows + rows // LIGHT_SHARE, mixture(longest, settings["output_tokens"]), longest)
    samples, draws, began, tokens, preempted, aborted = Samples(), random.Random(1), perf_counter(), 0, 0, 0
    now = looked = 0.0
    while now < settings["seconds"]:
        light = int(now / settings["swing_seconds"]) % 2
        traffic.most = rows // LIGHT_SHARE if light else rows + rows // LIGHT_SHARE
        commands = traffic.commands()
        if traffic.open and draws.randrange(settings["output_tokens"] * ABORTED) < len(traffic.open):
            commands.append(Abort(draws.choice(sorted(traffic.open))))
            aborted += 1
        turn = engine.turn(commands)
        traffic.take(turn)
        tokens += sum(len(output.ids) for output in turn.outputs)
        preempted += sum(isinstance(event, Preempted) for event in turn.events)
        now = perf_counter() - began
        if now - looked >= settings["every_seconds"] or not samples.times:
            looked = now
            samples.add(now, memory() | {"host": host_bytes()})
            yield {"at_seconds": now, **samples.values[-1]}
    samples.add(now, memory() | {"host": host_bytes()})
    drain(engine, traffic)
    yield verdict(samples) | {
        "requests": traffic.closed, "aborted": aborted, "preempted": preempted, "output_tokens": tokens, "seconds": now,
    }  # fmt: skip


def verdict(samples: Samples) -> dict[str, Any]:
    """Growth of each count, `grown_bytes`: of the device's that grew most beyond what it may; an error where one did."""
    growth = samples.growth()
    beyond = {name: max(0, growth[name] - spare) for name, spare in SPARE_BYTES.items()}
    found: dict[str, Any] = {f"{name}_growth_bytes": value for name, value in growth.items()} | {"grown_bytes": max(beyond.values())}
    if found["grown_bytes"]:
        told = ", ".join(f"{name} by {growth[name]} (at most {SPARE_BYTES[name]})" for name, bytes_ in beyond.items() if bytes_)
        found["error"] = f"device memory grew: bytes {told}"
    return found


def mixture(prompt: int, output: int) -> Callable[[int], Wish]:
    """Requests of up to so many tokens, the same for the same number."""

    def wish(number: int) -> Wish:
        draws = random.Random(number)
        length = max(1, round(prompt ** draws.random()))
        asked: dict[str, Any] = {"temperature": 0.0} if draws.random() < 0.5 else {"temperature": 0.8, "top_p": 0.95, "top_k": 50}
        if not draws.randrange(HOST_SAMPLED):
            asked |= {"logprobs": 2, "repetition_penalty": 1.1}
        shared = length // 2 if not draws.randrange(BEGINNING) else 0
        return Wish(length, SamplingParams(**asked, max_tokens=draws.randint(1, output), ignore_eos=True), shared)

    return wish


def host_bytes() -> int:
    """Resident memory of this process; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
