"""Speeds that steps reach on this machine, as measured at earlier starts: corrections of the planner's estimates, kept in the cache
directory.

An entry belongs to a machine, a runner and a weight format, and serves every model of that format. Rates are absolute, so that an estimate
does not change where ceilings are measured anew.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any, Final

from ridgeline.facts.files.kept import read_kept, write_kept
from ridgeline.facts.hardware.devices import Device
from ridgeline.facts.hardware.machine import extension_missing
from ridgeline.planning.deployment import Deployment

FILE: Final = "corrections.json"
VERSION: Final = 5
MAX_ENTRIES: Final = 64
"""The oldest make room for new ones."""
MAX_BYTES: Final = 1 << 50
MAX_SECONDS: Final = 1.0
MAX_FACTORS: Final = 64
LEAST_FACTOR, MOST_FACTOR = 0.05, 50.0  # of `Correction.spread`
START_STEPS: Final = 3
"""Steps that a start times, each the quickest of some in a row, in processor time. In a server they are longer:"""
START_HOST_SECONDS: Final = 1e-3
"""beside their computing, on a CPU, and"""
START_SPREAD: Final = (1.02, 1.10, 1.16, 1.21, 1.26, 1.30, 1.36, 1.44, 1.55, 1.75, 2.20)
"""prompts by these factors, as `Device.spread` has them: in the median 1.1 and 1.3 to 1.5 on two machines. One that comes behind a pause of
0.25 s takes a quarter to a third more than its processor time says, as its threads sleep on cores that do; the rest is a hot loop's."""


@dataclass(frozen=True, slots=True)
class Correction:
    """Speeds that steps reach: operations of layers' products, bytes, operations of attention and of the head per second; the share of
    computing and reading that overlaps; bytes of a server's engine beside weights, KV cache and activations; the number of steps that told
    the speeds.

    front_end_seconds  of a request between its client and its steps, 0 where no server was asked
    start_ratio        what the start of the engine that was timed had measured, the quickest of some, over what these speeds say of it
    host_seconds       of a server's step beside its computing, 0 where no server was asked
    spread             how much a prompt's time varies around its estimate, see `Device.spread`: those that were asked last, and fewer of
                       those before
    own_bytes          as `overhead_bytes`, of the process of `plan --verify`, which holds an engine and no server; 0: not measured
    """

    flops_per_second: float
    bytes_per_second: float
    attention_flops_per_second: float
    head_flops_per_second: float
    overlap: float
    overhead_bytes: int
    steps: int
    front_end_seconds: float = 0.0
    start_ratio: float = 1.0
    host_seconds: float = 0.0
    spread: tuple[float, ...] = ()
    own_bytes: int = 0

    @property
    def is_sane(self) -> bool:
        """False for what no measurement yields: a damaged file."""
        rates = (self.flops_per_second, self.bytes_per_second, self.attention_flops_per_second, self.head_flops_per_second)
        plain = all(type(rate) is float and isfinite(rate) and 1e6 < rate < 1e18 for rate in rates)
        plain = plain and type(self.overlap) is float and 0.0 <= self.overlap <= 1.0
        asked = (self.front_end_seconds, self.host_seconds)
        plain = plain and all(type(seconds) is float and 0.0 <= seconds < MAX_SECONDS for seconds in asked)
        plain = plain and len(self.spread) <= MAX_FACTORS
        plain = plain and all(type(factor) is float and LEAST_FACTOR <= factor <= MOST_FACTOR for factor in self.spread)
        plain = plain and type(self.start_ratio) is float and 0.1 < self.start_ratio < 10.0
        plain = plain and type(self.steps) is int and self.steps > 0
        return plain and all(type(size) is int and 0 <= size < MAX_BYTES for size in (self.overhead_bytes, self.own_bytes))


def default_runner(device: Device) -> str:
    """The runner that a server takes on this machine where no flag names one."""
    return "cuda" if device.is_gpu else "native" if extension_missing() is None else "numpy"


def _key(deployment: Deployment, runner: str) -> str:
    return " | ".join((deployment.device.name, runner, deployment.dtype or deployment.model.format_name))


def read_correction(cache: Path, deployment: Deployment, runner: str) -> Correction | None:
    """The kept correction; None where nothing was measured."""
    found = read_kept(cache / FILE)
    entries = found.get("entries") if found.get("version") == VERSION else None
    entry = entries.get(_key(deployment, runner)) if isinstance(entries, dict) else None
    try:
        reached = entry["reached"] if isinstance(entry, dict) else None
        correction = None if reached is None else Correction(**{**reached, "spread": tuple(reached["spread"])})
    except (KeyError, TypeError):
        return None
    return correction if correction is not None and correction.is_sane else None


def keep_correction(cache: Path, deployment: Deployment, runner: str, correction: Correction) -> None:
    """Keeps a correction in place of the one before."""
    found = read_kept(cache / FILE)
    old = found.get("entries") if found.get("version") == VERSION else None
    entries: dict[str, Any] = {name: each for name, each in old.items() if _is_dated(each)} if isinstance(old, dict) else {}
    entries[_key(deployment, runner)] = {"measured": time.time(), "reached": asdict(correction)}
    newest = sorted(entries, key=lambda name: float(entries[name]["measured"]))[-MAX_ENTRIES:]
    write_kept(cache / FILE, {"version": VERSION, "entries": {name: entries[name] for name in newest}})


def keep_front_end(cache: Path, deployment: Deployment, runner: str, request: float, step: float, spread: Sequence[float]) -> None:
    """Adds what a server takes beside its steps, seconds of a request and of each step, and how much a prompt's varies to the kept
    correction, of which there must be one. Few prompts tell little of the slowest: those of earlier times count with them."""
    known = read_correction(cache, deployment, runner)
    if known is not None:
        request, step = (min(max(0.0, seconds), MAX_SECONDS / 2) for seconds in (request, step))
        factors = _thinned([*known.spread, *(min(max(LEAST_FACTOR, factor), MOST_FACTOR) for factor in spread)])
        asked = replace(known, front_end_seconds=request, host_seconds=step, spread=factors)
        keep_correction(cache, deployment, runner, asked)


def keep_served(cache: Path, deployment: Deployment, runner: str, step: float, factors: Sequence[float]) -> bool:
    """Sets what a server's own requests have told in place of what those of another one did: seconds of each step beside its computing,
    and prompts' over their estimates. False where nothing is kept, since `plan --verify` has told more, or no start anything."""
    known = read_correction(cache, deployment, runner)
    if known is None or known.front_end_seconds:
        return False
    found = _thinned([min(max(LEAST_FACTOR, factor), MOST_FACTOR) for factor in factors])
    step = min(max(0.0, step), MAX_SECONDS / 2)
    # With so many steps, the next start's few do not move the estimates that the factors are relative to.
    keep_correction(cache, deployment, runner, replace(known, host_seconds=step, spread=found, steps=max(known.steps, len(factors))))
    return True


def _thinned(factors: list[float]) -> tuple[float, ...]:
    """At most `MAX_FACTORS` of them, evenly chosen, in ascending order."""
    factors.sort()
    count = min(len(factors), MAX_FACTORS)
    return tuple([factors[(2 * number + 1) * len(factors) // (2 * count)] for number in range(count)])


def _is_dated(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("measured"), (int, float))


def corrected(deployment: Deployment, correction: Correction) -> Deployment:
    """The deployment on its device as measured. Where a start alone has told, steps get what they usually have beside in a server."""
    device = deployment.device
    is_of_start = correction.steps <= START_STEPS and not device.is_gpu
    usual_host, usual_spread = (START_HOST_SECONDS, START_SPREAD) if is_of_start else (device.host_seconds, ())
    return replace(deployment, device=replace(
        device,
        compute_share=correction.flops_per_second / device.flops(deployment.compute_dtype),
        bandwidth_share=correction.bytes_per_second / device.bytes_per_second,
        attention_share=correction.attention_flops_per_second / device.flops(deployment.attention_dtype),
        head_share=correction.head_flops_per_second / device.flops(deployment.compute_dtype),
        overlap=correction.overlap,
        overhead_bytes=correction.overhead_bytes,
        front_end_seconds=correction.front_end_seconds or device.front_end_seconds,
        host_seconds=correction.host_seconds or usual_host,
        spread=correction.spread or usual_spread,
    ))  # fmt: skip
