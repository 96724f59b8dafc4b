"""Metrics of a simulation: one record per request, a histogram of gaps between tokens, and the report computed from them.

Owns the definitions of the metrics; see docs/physics.md for goodput, TPOT and ITL.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from math import ceil, exp, log
from typing import Final

from ridgeline.planning.objectives import FinishedRequest, Objective, request_goodput, token_goodput

BUCKETS_PER_E: Final = 100
"""Buckets per factor e: gaps are resolved to 1 %."""

CURVE_SHARES: Final = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999)
"""Shares at which distributions are given as curves."""

SLICES: Final = 24
"""Parts of a run with as many requests each, in order of arrival, by which it is told over time."""


class GapHistogram:
    """Seconds between tokens of one sequence, counted in logarithmic buckets; a percentile is right to 1 %."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._last: tuple[float, int] = (0.0, 0)

    def add(self, seconds: float, count: int = 1) -> None:
        """`count` gaps of equal length. A gap of 0 (two tokens of one step) counts as a nanosecond."""
        if seconds != self._last[0]:
            self._last = seconds, round(BUCKETS_PER_E * log(max(seconds, 1e-9)))
        bucket = self._last[1]
        self._counts[bucket] = self._counts.get(bucket, 0) + count

    def merge(self, other: "GapHistogram", sign: int = 1) -> None:
        """Adds the counts of `other`, or with sign −1 subtracts them."""
        for bucket, count in other._counts.items():
            self._counts[bucket] = self._counts.get(bucket, 0) + sign * count

    def percentile(self, share: float) -> float:
        """The gap that a `share` of all gaps does not exceed; 0 where there are none."""
        rank, seen = ceil(share * sum(self._counts.values())), 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= rank:
                return exp(bucket / BUCKETS_PER_E)
        return 0.0


@dataclass(slots=True)
class RequestColumns:
    """Columns with one entry per answered request; seconds since the start, and tokens.

    arrived, started (its first step began), first (its first token), ended; level is `Arrival.level`
    """

    arrived: "array[float]" = field(default_factory=lambda: array("d"))
    started: "array[float]" = field(default_factory=lambda: array("d"))
    first: "array[float]" = field(default_factory=lambda: array("d"))
    ended: "array[float]" = field(default_factory=lambda: array("d"))
    prompt: "array[int]" = field(default_factory=lambda: array("i"))
    output: "array[int]" = field(default_factory=lambda: array("i"))
    cached: "array[int]" = field(default_factory=lambda: array("i"))
    level: "array[int]" = field(default_factory=lambda: array("b"))

    def add(self, times: tuple[float, float, float, float], tokens: tuple[int, int, int, int]) -> None:
        """One request: (arrived, started, first, ended) and (prompt, output, cached, level)."""
        for column, value in zip((self.arrived, self.started, self.first, self.ended), times, strict=True):
            column.append(value)
        for count, tokens_of in zip((self.prompt, self.output, self.cached, self.level), tokens, strict=True):
            count.append(tokens_of)

    def extend(self, others: "RequestColumns", begin: float, end: float, later: float = 0.0) -> None:
        """Appends those of `others` that arrived within [begin, end), with times that are `later`."""
        times = zip(others.arrived, others.started, others.first, others.ended, strict=True)
        tokens = zip(others.prompt, others.output, others.cached, others.level, strict=True)
        for (arrived, *rest), counts in zip(times, tokens, strict=True):
            if begin <= arrived < end:
                started, first, ended = (each + later for each in rest)
                self.add((arrived + later, started, first, ended), counts)

    def with_level(self, level: int) -> "RequestColumns":
        """Requests of one level."""
        if not any(self.level) and level == 0:
            return self
        found = RequestColumns()
        kept = [each == level for each in self.level]
        for name in ("arrived", "started", "first", "ended", "prompt", "output", "cached", "level"):
            getattr(found, name).extend(compress(getattr(self, name), kept))
        return found

    def e2e(self) -> list[float]:
        """Seconds from arrival to end of each."""
        return [end - begin for end, begin in zip(self.ended, self.arrived, strict=True)]

    def __len__(self) -> int:
        return len(self.ended)

    def ttft(self) -> list[float]:
        """Seconds to the first token of each."""
        return [first - arrived for first, arrived in zip(self.first, self.arrived, strict=True)]

    def tpot(self) -> list[float]:
        """Mean seconds per token after the first of each; 0 for answers of one token."""
        return [(e - f) / (n - 1) if n > 1 else 0.0 for e, f, n in zip(self.ended, self.first, self.output, strict=True)]


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles of one quantity."""

    p50: float
    p90: float
    p99: float
    mean: float


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """Metrics of one simulation: seconds, tokens, requests; rates over the time from the first arrival to the last end.

    goodput_requests   requests per second that met the objective         goodput_tokens  output tokens per second of requests not aborted
    met                share of all requests, rejected ones included, that met the objective
    ttft … queue       of requests of level 0, to which the objective applies; `background` is the E2E of the others
    kv_use, running, waiting  means over time       utilisation  share of the time in which replicas computed
    lacks              of `waiting`, by what the first waiting request lacked
    cost               dollars per million output tokens, None without a price
    curves             seconds at each share of `CURVE_SHARES`, by metric: "ttft", "itl", "e2e"
    over_time          of answered requests of level 0, a value per slice (`SLICES`): "time", the mean of their arrivals; "met", their share
                       within the objective; "ttft", their p99; "cached", the share of their prompt tokens from the prefix cache
    """

    requests: int
    rejected: int
    aborted: int
    seconds: float
    output_tokens_per_second: float
    requests_per_second: float
    goodput_requests: float
    goodput_tokens: float
    met: float
    ttft: Percentiles
    tpot: Percentiles
    itl: Percentiles
    e2e: Percentiles
    queue: Percentiles
    background: Percentiles
    cached_share: float
    preemptions: int
    kv_use: float
    running: float
    waiting: float
    lacks: Mapping[str, float]
    utilisation: float
    replica_seconds: float
    cost: float | None
    curves: Mapping[str, tuple[float, ...]]
    over_time: Mapping[str, tuple[float, ...]]


def compute_percentiles(values: Sequence[float]) -> Percentiles:
    """Percentiles by the nearest rank; all 0 without values."""
    if not values:
        return Percentiles(0.0, 0.0, 0.0, 0.0)
    rank_levers = sorted(values)
    p50, p90, p99 = (rank_levers[ceil(share * len(rank_levers)) - 1] for share in (0.5, 0.9, 0.99))
    return Percentiles(p50, p90, p99, sum(rank_levers) / len(rank_levers))


def compute_curve(values: Sequence[float]) -> tuple[float, ...]:
    """Values by the nearest rank at the shares of `CURVE_SHARES`; empty without values."""
    rank_levers = sorted(values)
    return tuple(rank_levers[ceil(share * len(rank_levers)) - 1] for share in CURVE_SHARES) if rank_levers else ()


def compute_over_time(done: RequestColumns, objective: Objective) -> dict[str, tuple[float, ...]]:
    """Slices of requests in order of arrival; empty where there are fewer than slices."""
    rows = sorted(zip(done.arrived, done.ttft(), done.tpot(), done.cached, done.prompt, strict=True))
    found: dict[str, list[float]] = {"time": [], "met": [], "ttft": [], "cached": []}
    for part in range(SLICES if len(rows) >= SLICES else 0):
        arrived, ttft, tpot, cached, prompt = zip(*rows[part * len(rows) // SLICES : (part + 1) * len(rows) // SLICES], strict=True)
        found["time"].append(sum(arrived) / len(arrived))
        found["met"].append(sum(map(objective.is_met, ttft, tpot)) / len(ttft))
        found["ttft"].append(compute_percentiles(ttft).p99)
        found["cached"].append(sum(cached) / sum(prompt))
    return {name: tuple(values) for name, values in found.items()}


SUMMED_FIELDS: Final = (
    "gap_seconds", "gap_count", "rejected", "aborted", "preemptions",
    "kv_seconds", "row_seconds", "waiting_seconds", "busy_seconds", "replica_seconds",
)  # fmt: skip
"""Fields of a tally that are sums."""


@dataclass(slots=True)
class Tally:
    """Counters of a fleet. `lacks`: seconds of waiting requests by what the first of them lacked."""

    requests: RequestColumns = field(default_factory=RequestColumns)
    gaps: GapHistogram = field(default_factory=GapHistogram)
    lacks: dict[str, float] = field(default_factory=dict)
    gap_seconds: float = 0.0
    gap_count: int = 0
    rejected: int = 0
    aborted: int = 0
    preemptions: int = 0
    kv_seconds: float = 0.0
    row_seconds: float = 0.0
    waiting_seconds: float = 0.0
    busy_seconds: float = 0.0
    replica_seconds: float = 0.0

    def add_waiting(self, seconds: float, waiting: int, lack: str) -> None:
        """Adds a time in which so many waited; the first of them lacked `lack`."""
        self.waiting_seconds += seconds * waiting
        if waiting and lack:
            self.lacks[lack] = self.lacks.get(lack, 0.0) + seconds * waiting

    def add_gap(self, seconds: float, count: int) -> None:
        """Adds `count` tokens that came `seconds` after their predecessors."""
        self.gaps.add(seconds, count)
        self.gap_seconds += seconds * count
        self.gap_count += count

    def add(self, other: "Tally", sign: int = 1) -> None:
        """Adds sums and gaps of `other`, or with sign −1 subtracts them; requests are not changed."""
        self.gaps.merge(other.gaps, sign)
        for lack, seconds in other.lacks.items():
            self.lacks[lack] = self.lacks.get(lack, 0.0) + sign * seconds
        for name in SUMMED_FIELDS:
            setattr(self, name, getattr(self, name) + sign * getattr(other, name))

    def report(self, objective: Objective, dollars_per_hour: float | None = None, measured: float | None = None) -> SimulationReport:
        """The report. dollars_per_hour: of one replica; measured: seconds, where not the time from the first arrival to the last end."""
        done, front = self.requests, self.requests.with_level(0)
        ttft, tpot, e2e = front.ttft(), front.tpot(), front.e2e()
        seconds = measured or max(1e-9, max(done.ended, default=0.0) - min(done.arrived, default=0.0))
        output = sum(done.output)
        served = [FinishedRequest(tokens, *times) for tokens, times in zip(front.output, zip(ttft, tpot, strict=True), strict=True)]
        back = done.with_level(1)
        met = request_goodput(served, seconds, objective)
        spent = None if dollars_per_hour is None else dollars_per_hour * self.replica_seconds / 3600
        up = max(1e-9, self.replica_seconds)
        return SimulationReport(
            requests=len(done),
            rejected=self.rejected,
            aborted=self.aborted,
            seconds=seconds,
            output_tokens_per_second=output / seconds,
            requests_per_second=len(done) / seconds,
            goodput_requests=met,
            goodput_tokens=token_goodput(served, seconds) + sum(back.output) / seconds,
            met=met * seconds / max(1, len(front) + self.rejected + self.aborted),
            ttft=compute_percentiles(ttft),
            tpot=compute_percentiles(tpot),
            itl=Percentiles(
                self.gaps.percentile(0.5), self.gaps.percentile(0.9), self.gaps.percentile(0.99), self.gap_seconds / max(1, self.gap_count)
            ),
            e2e=compute_percentiles(e2e),
            queue=compute_percentiles([start - begin for start, begin in zip(front.started, front.arrived, strict=True)]),
            background=compute_percentiles(back.e2e()),
            cached_share=sum(done.cached) / max(1, sum(done.prompt)),
            preemptions=self.preemptions,
            kv_use=self.kv_seconds / up,
            running=self.row_seconds / up,
            waiting=self.waiting_seconds / up,
            lacks={lack: seconds / up for lack, seconds in self.lacks.items()},
            utilisation=self.busy_seconds / up,
            replica_seconds=self.replica_seconds,
            cost=None if spent is None or not output else spent / output * 1e6,
            curves={
                "ttft": compute_curve(ttft),
                "itl": tuple(map(self.gaps.percentile, CURVE_SHARES)) if self.gap_count else (),
                "e2e": compute_curve(e2e),
            },
            over_time=compute_over_time(front, objective),
        )
