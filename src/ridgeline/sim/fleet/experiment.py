"""Several runs together: intervals over seeds, the knee of load, the least replicas for an objective, levers, and one page of it all.

Owns the list of levers: settings worth trying when a server is slow. Whether one helps is never guessed: each is simulated on the same
requests. Of the page it owns what is embedded; style and plots are those of the planner's page.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib.resources import files
from math import sqrt
from statistics import mean, stdev
from typing import Any, Final

from ridgeline.planning.formats import class_bytes
from ridgeline.planning.page import FOLDER, document
from ridgeline.sim.fleet.measures import Figures, Spread
from ridgeline.sim.fleet.scenario import Scenario

STUDENT_95: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Two-sided 95 % quantiles of Student's t for 1 … 9 degrees of freedom."""

MOST_REPLICAS: Final = 1_024
WIDENED: Final = 6
"""Times that a search for the knee goes on beyond the range that it began with."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over seeds and half the width of its 95 % confidence interval, None from one seed."""

    mean: float
    half: float | None


def intervals(figures: Sequence[Figures]) -> dict[str, Interval]:
    """Every number of the reports by its name (`ttft.p99`), over the seeds."""
    rows = [flat(each) for each in figures]
    return {name: interval([row[name] for row in rows]) for name in rows[0]}


def mean_curves(figures: Sequence[Figures]) -> dict[str, list[float]]:
    """The curves of the reports, each point the mean over the seeds that measured it."""
    found = {}
    for name in figures[0].curves:
        measured = [each.curves[name] for each in figures if each.curves[name]]
        found[name] = [mean(values) for values in zip(*measured, strict=True)]
    return found


def interval(values: Sequence[float]) -> Interval:
    """Mean and confidence interval of independent values."""
    if len(values) < 2:
        return Interval(values[0], None)
    factor = STUDENT_95[min(len(values) - 1, len(STUDENT_95)) - 1]
    return Interval(mean(values), factor * stdev(values) / sqrt(len(values)))


def flat(figures: Figures) -> dict[str, float]:
    """The report as numbers; spreads become `name.p50` …; curves and what is unknown are left out."""
    found: dict[str, float] = {}
    for field in fields(figures):
        value = getattr(figures, field.name)
        if isinstance(value, Spread):
            found |= {f"{field.name}.{part.name}": getattr(value, part.name) for part in fields(value)}
        elif isinstance(value, int | float):
            found[field.name] = float(value)
    return found


def least_replicas(scenario: Scenario, seeds: Sequence[int], share: float = 0.99) -> int | None:
    """The fewest replicas with which at least `share` of all requests meet the objective, over all seeds; None beyond 1,024.

    Doubles until it is enough, then halves the gap: more replicas never hurt.
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

    inside  lower and higher rates were tried and are worse; otherwise `rate` is only the end of what was tried
    """

    rate: float
    curve: list[tuple[float, Figures]]
    inside: bool


def knee_of(at: Callable[[float], Scenario], capacity: float, seed: int) -> Knee:
    """Tries every eighth of `capacity`, requests per second; goes on beyond an end as long as that is the best, `WIDENED` times at most."""
    curve = {capacity * part / 8: at(capacity * part / 8).run(seed) for part in range(1, 9)}

    def power(rate: float) -> float:
        return curve[rate].output_tokens_per_second / max(1e-9, curve[rate].e2e.mean)

    for _ in range(WIDENED):
        best, low, high = max(curve, key=power), min(curve), max(curve)
        if low < best < high:
            break
        further = best / 2 if best == low else best * 1.5
        curve[further] = at(further).run(seed)
    best = max(curve, key=power)
    return Knee(best, sorted(curve.items()), min(curve) < best < max(curve))


SATURATED, FULL = 0.97, 0.9
"""Shares of time computing, and of KV pages held, from which a resource counts as the one that binds."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A lever, what it came to, and the devices it takes as a multiple of today's."""

    name: str
    figures: Figures
    devices: float


def candidates(now: Scenario) -> dict[str, dict[str, str]]:
    """Lever → settings that differ from today's. Levers that today's settings have pulled already, or that cannot apply, are left out."""
    deployment, knobs = now.deployment, now.knobs
    found: dict[str, dict[str, str]] = {}
    if not knobs.enable_prefix_caching:
        found["prefix caching"] = {"enable_prefix_caching": "true"}
    elif now.replicas > 1 and now.routing != "prefix":
        found["routing by prefix"] = {"routing": "prefix"}
    found["twice the sequences at once"] = {"max_num_seqs": str(min(4096, 2 * knobs.max_num_seqs))}
    found["twice the tokens per step"] = {"max_num_batched_tokens": str(2 * knobs.max_num_batched_tokens)}
    found["half the tokens per step"] = {"max_num_batched_tokens": str(max(1, knobs.max_num_batched_tokens // 2))}
    if deployment.kv_bits > 8:
        doubled = {"kv_dtype": "int8"} if knobs.kv_pages is None else {"kv_dtype": "int8", "kv_pages": str(2 * knobs.kv_pages)}
        found["KV cache in 8 bits"] = doubled
    if now.durations is None:  # constants and fits know nothing of weight formats or devices
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


def binding(scenario: Scenario, figures: Figures) -> str:
    """The bottleneck of today's settings, in words, from what was measured; the simulated levers say whether it is so."""
    one_more = figures.kv_use * (1 + 1 / max(1.0, figures.running))
    if figures.preemptions or (figures.waiting > 0 and one_more >= FULL):
        return "KV cache"
    if figures.running >= FULL * scenario.knobs.max_num_seqs and figures.waiting > 0:
        return "sequences at once: requests wait although the KV cache has room"
    if figures.utilisation >= SATURATED:
        return "the device's time"
    return "nothing: the servers idle part of the time"


def ranked(today: Figures, tried: list[Tried], has_objective: bool) -> list[Tried]:
    """The levers, the one first that helps most for each device: by requests that meet the objective, else by mean latency."""

    def gain(lever: Tried) -> float:
        faster = today.e2e.mean / max(1e-9, lever.figures.e2e.mean)
        met = (lever.figures.met + 1e-3) / (today.met + 1e-3) if has_objective else 1.0
        return met * faster / lever.devices

    return sorted(tried, key=gain, reverse=True)


SOURCES: Final = files("ridgeline.sim.fleet") / "page"


def runs_page(found: Mapping[str, Any], table: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
    """One HTML document of what was found (`Runs.as_dict`), its rows as text, and what is to be said about them."""
    return document(SOURCES / "runs.html", [FOLDER / "plot.js", SOURCES / "runs.js"], {**found, "table": table, "notes": notes})
