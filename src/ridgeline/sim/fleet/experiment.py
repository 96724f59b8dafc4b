"""Experiments of several runs: intervals over seeds, the knee of load, the fewest replicas for an objective, levers, and a page.

Owns the list of levers: settings worth trying when a server is slow. Each is simulated on the same requests. The page's style and plots are
those of the planner's page.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib.resources import files
from math import sqrt
from statistics import mean, stdev
from typing import Any, Final

from ridgeline.planning.formats import class_bytes
from ridgeline.planning.page import FOLDER, document
from ridgeline.sim.fleet.measures import Percentiles, SimulationReport
from ridgeline.sim.fleet.scenario import Scenario

STUDENT_95: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Two-sided 95 % quantiles of Student's t for 1 … 9 degrees of freedom."""

MOST_REPLICAS: Final = 1_024
MAX_WIDENINGS: Final = 6
"""Most rates that the search for a knee tries beyond its initial range."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over seeds and half the width of its 95 % confidence interval; None for a single seed."""

    mean: float
    half: float | None


def compute_intervals(reports: Sequence[SimulationReport]) -> dict[str, Interval]:
    """Interval of every metric by its name (`ttft.p99`), over the reports of several seeds."""
    rows = [flatten_report(each) for each in reports]
    return {name: compute_interval([row[name] for row in rows]) for name in rows[0]}


def mean_curves(curves: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, list[float]]:
    """The curves of several seeds as one, each point the mean over the seeds that measured it."""
    found = {}
    for name in curves[0]:
        measured = [each[name] for each in curves if each[name]]
        found[name] = [mean(values) for values in zip(*measured, strict=True)]
    return found


def compute_interval(values: Sequence[float]) -> Interval:
    """Mean and confidence interval of independent values."""
    if len(values) < 2:
        return Interval(values[0], None)
    factor = STUDENT_95[min(len(values) - 1, len(STUDENT_95)) - 1]
    return Interval(mean(values), factor * stdev(values) / sqrt(len(values)))


def flatten_report(reports: SimulationReport) -> dict[str, float]:
    """The report as numbers; percentiles become `name.p50` …; curves and unknown values are left out."""
    found: dict[str, float] = {}
    for field in fields(reports):
        value = getattr(reports, field.name)
        if isinstance(value, Percentiles):
            found |= {f"{field.name}.{part.name}": getattr(value, part.name) for part in fields(value)}
        elif isinstance(value, int | float):
            found[field.name] = float(value)
    return found


def find_min_replicas(scenario: Scenario, seeds: Sequence[int], share: float = 0.99) -> int | None:
    """The fewest replicas with which at least `share` of all requests meet the objective, over all seeds; None beyond 1,024.

    Doubling, then binary search: more replicas never hurt.
    """

    def enough(replicas: int) -> bool:
        tried = replace(scenario, replicas=replicas, scaling=None)
        return all(tried.run(seed).met >= share for seed in seeds)

    high = 1
    while not enough(high):
        high *= 2
        if high > MOST_REPLICAS:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


@dataclass(frozen=True, slots=True)
class Knee:
    """The rate at which throughput / mean latency is greatest (Kleinrock's power, 1979), and the curve by ascending rate.

    is_inside  lower and higher rates were tried and are worse; otherwise `rate` is an end of the range that was tried
    """

    rate: float
    curve: list[tuple[float, SimulationReport]]
    is_inside: bool


def search_knee(scenario_at: Callable[[float], Scenario], capacity: float, seed: int) -> Knee:
    """Tries every eighth of `capacity` (requests per second), then rates beyond an end while it is the best, at most `MAX_WIDENINGS`."""
    curve = {capacity * part / 8: scenario_at(capacity * part / 8).run(seed) for part in range(1, 9)}

    def power(rate: float) -> float:
        return curve[rate].output_tokens_per_second / max(1e-9, curve[rate].e2e.mean)

    for _ in range(MAX_WIDENINGS):
        best, low, high = max(curve, key=power), min(curve), max(curve)
        if low < best < high:
            break
        next_rate = best / 2 if best == low else best * 1.5
        curve[next_rate] = scenario_at(next_rate).run(seed)
    best = max(curve, key=power)
    return Knee(best, sorted(curve.items()), min(curve) < best < max(curve))


SATURATED_SHARE: Final = 0.97
"""Share of time computing from which the device counts as the bottleneck."""
LEAST_WAITING: Final = 0.05
"""Requests that wait on average from which what they lack counts."""


@dataclass(frozen=True, slots=True)
class LeverResult:
    """A lever, its simulated report, and its number of devices as a multiple of today's."""

    name: str
    report: SimulationReport
    devices: float


def candidate_levers(now: Scenario) -> dict[str, dict[str, str]]:
    """Lever → settings that differ from today's. Levers that are already applied, or that cannot apply, are left out."""
    deployment, knobs = now.deployment, now.knobs
    found: dict[str, dict[str, str]] = {}
    if not knobs.enable_prefix_caching:
        found["prefix caching"] = {"enable_prefix_caching": "true"}
    elif now.replicas > 1 and now.routing != "cache-aware":
        found["cache-aware routing"] = {"routing": "cache-aware"}
    found["twice the sequences at once"] = {"max_num_seqs": str(min(4096, 2 * knobs.max_num_seqs))}
    found["twice the tokens per step"] = {"max_num_batched_tokens": str(2 * knobs.max_num_batched_tokens)}
    found["half the tokens per step"] = {"max_num_batched_tokens": str(max(1, knobs.max_num_batched_tokens // 2))}
    if deployment.kv_bits > 8:
        doubled = {"kv_dtype": "int8"} if knobs.kv_blocks is None else {"kv_dtype": "int8", "kv_blocks": str(2 * knobs.kv_blocks)}
        found["KV cache in 8 bits"] = doubled
    if now.durations is None:  # constant and fitted durations do not depend on weight formats or devices
        stored = sum(class_bytes(deployment.model, deployment.dtype).values())
        for name, dtype in (("weights in fp8", "fp8"), ("weights in 4 bits", "awq")):
            known = dtype != "fp8" or "fp8" in deployment.device.flops_per_second
            if known and sum(class_bytes(deployment.model, dtype).values()) < stored:
                found[name] = {"dtype": dtype}
        width = 2 * deployment.layout.tensor
        if deployment.model.heads % width == 0:
            found[f"tensor parallel over {width}"] = {"tensor_parallel_size": str(width)}
    found["twice the replicas"] = {"replicas": str(2 * now.replicas)}
    return found


def find_bottleneck(report: SimulationReport) -> str:
    """The bottleneck of today's settings in words, from what waiting requests lacked; simulated levers confirm it."""
    lack, waiting = max(report.lacks.items(), key=lambda each: each[1], default=("", 0.0))
    if report.preemptions or (lack == "blocks" and waiting >= LEAST_WAITING):
        return "KV cache"
    if lack == "rows" and waiting >= LEAST_WAITING:
        return "sequences at once: requests wait although the KV cache has room"
    if report.utilisation >= SATURATED_SHARE:
        return "the device's time"
    return "none: the servers idle part of the time"


def lever_gain(today: SimulationReport, lever: LeverResult, has_objective: bool) -> float:
    """Today's mean E2E latency over the lever's, per device; with an objective times the requests within it over today's."""
    faster = today.e2e.mean / max(1e-9, lever.report.e2e.mean)
    met = (lever.report.met + 1e-3) / (today.met + 1e-3) if has_objective else 1.0
    return met * faster / lever.devices


def rank_levers(today: SimulationReport, tried: list[LeverResult], has_objective: bool) -> list[LeverResult]:
    """The levers by gain per device, best first."""
    return sorted(tried, key=lambda lever: lever_gain(today, lever, has_objective), reverse=True)


PAGE_FOLDER: Final = files("ridgeline.sim.fleet") / "page"


def runs_page(found: Mapping[str, Any], table: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
    """One HTML document of the runs (`SimulationRuns.as_dict`), the table as text, and the notes."""
    return document(PAGE_FOLDER / "runs.html", [FOLDER / "plot.js", PAGE_FOLDER / "runs.js"], {**found, "table": table, "notes": notes})
