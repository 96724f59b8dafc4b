"""Report on a load: metrics from outcomes, by the definitions of the simulator's report (docs/physics.md), and their table rows.

Owns rounding and units. Failures are counted by kind, and the client's own CPU use is reported.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any, Final

from ridgeline.bench.client import RequestOutcome
from ridgeline.bench.reconcile import compare
from ridgeline.bench.session import Measurement
from ridgeline.planning.objectives import FinishedRequest, Objective, request_goodput, token_goodput
from ridgeline.sim.fleet.measures import compute_curve

THROTTLED_CORES: Final = 0.9
"""CPU cores from which on the client, which has one thread, measures itself."""
MISSING: Final = "–"
PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """Percentiles by the nearest rank, the mean and the largest of `count` values; all 0 without values."""

    p50: float
    p90: float
    p95: float
    p99: float
    mean: float
    max: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "LatencySummary":
        """The summary of any number of values."""
        if not values:
            return cls(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0)
        ranked = sorted(values)
        p50, p90, p95, p99 = (ranked[ceil(share * len(ranked)) - 1] for share in PERCENTILES.values())
        return cls(p50, p90, p95, p99, sum(ranked) / len(ranked), ranked[-1], len(ranked))


@dataclass(frozen=True, slots=True)
class Failure:
    """Number of requests that failed in one way, and the first message."""

    count: int
    example: str


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Metrics of a load: seconds, tokens, requests; rates over the time from the first intended request to the last token.

    requests, failed   answered, and not                      failures  the latter by kind
    goodput_requests   requests per second that met the objective: its ITL is held against each request's TPOT
    goodput_tokens     output tokens per second of whole answers; with usage counted by the server
    met                share of all requests, failed ones included, that met the objective
    ttft, e2e          from when a request should have been sent          tpot  of answers of two tokens and more
    itl                between events with tokens                         tokens_per_event  tokens of such an event, mean
    decode_tokens_per_second   of one stream: the inverse of the median TPOT
    prefill_tokens_per_second  of one prompt: the median of its tokens over its TTFT
    at_once            requests in progress, mean over time               short  answers with fewer tokens than requested
    exact              share of prompts with as many tokens as requested, by the server's count
    counted            share of answers whose tokens the server counted; others by events
    disagreement       where the server's metrics say something else than this client
    lag                how late requests were sent                        client  CPU cores that this client kept busy
    server_ttft        mean TTFT by the server's metrics; 0 where it has none
    curves             seconds at each share of `sim.fleet.measures.CURVE_SHARES`
    """

    requests: int
    failed: int
    failures: Mapping[str, Failure]
    seconds: float
    prompt_tokens: int
    output_tokens: int
    output_tokens_per_second: float
    total_tokens_per_second: float
    requests_per_second: float
    goodput_requests: float
    goodput_tokens: float
    met: float
    ttft: LatencySummary
    itl: LatencySummary
    tpot: LatencySummary
    e2e: LatencySummary
    decode_tokens_per_second: float
    prefill_tokens_per_second: float
    tokens_per_event: float
    at_once: float
    cached_share: float
    short: int
    exact: float
    counted: float
    lag: LatencySummary
    client: float
    server_ttft: float
    disagreement: str
    curves: Mapping[str, Sequence[float]]


def make_report(measured: Measurement, objective: Objective) -> LoadReport:
    """The report on a load."""
    done = [outcome for outcome in measured.outcomes if outcome.error is None]
    ttft = [each.first - each.intended for each in done]
    tpot = [(each.ended - each.first) / (each.output - 1) if each.output > 1 else 0.0 for each in done]
    e2e = [each.ended - each.intended for each in done]
    gaps = [gap for each in done for gap in each.gaps]
    begun = min((each.intended for each in measured.outcomes), default=0.0)
    seconds = max(1e-9, max((each.ended for each in done), default=begun) - begun)
    output, prompt, count = sum(each.output for each in done), sum(each.prompt for each in done), max(1, len(done))
    served = [FinishedRequest(each.output, *times) for each, times in zip(done, zip(ttft, tpot, strict=True), strict=True)]
    between = LatencySummary.of([value for value, each in zip(tpot, done, strict=True) if each.output > 1])
    return LoadReport(
        requests=len(done),
        failed=len(measured.outcomes) - len(done),
        failures=_failures(measured.outcomes),
        seconds=seconds,
        prompt_tokens=prompt,
        output_tokens=output,
        output_tokens_per_second=output / seconds,
        total_tokens_per_second=(output + prompt) / seconds,
        requests_per_second=len(done) / seconds,
        goodput_requests=request_goodput(served, seconds, objective),
        goodput_tokens=token_goodput(served, seconds),
        met=sum(objective.is_met(each.ttft, each.tpot) for each in served) / max(1, len(measured.outcomes)),
        ttft=LatencySummary.of(ttft),
        itl=LatencySummary.of(gaps),
        tpot=between,
        e2e=LatencySummary.of(e2e),
        decode_tokens_per_second=1 / between.p50 if between.p50 else 0.0,
        prefill_tokens_per_second=LatencySummary.of([each.prompt / max(1e-9, wait) for each, wait in zip(done, ttft, strict=True)]).p50,
        tokens_per_event=output / max(1, sum(each.events for each in done)),
        at_once=sum(e2e) / seconds,
        cached_share=sum(each.cached for each in done) / max(1, prompt),
        short=sum(each.output < each.request.output for each in done),
        exact=sum(each.prompt == each.request.prompt for each in done) / count,
        counted=sum(each.counted for each in done) / count,
        lag=LatencySummary.of([each.sent - each.intended for each in measured.outcomes]),
        client=measured.client_seconds / max(1e-9, measured.seconds),
        server_ttft=0.0 if measured.server is None else measured.server.mean,
        disagreement="" if measured.server is None else compare(measured.server, measured.outcomes),
        curves={"ttft": compute_curve(ttft), "itl": compute_curve(gaps), "e2e": compute_curve(e2e)},
    )


def _failures(outcomes: Sequence[RequestOutcome]) -> dict[str, Failure]:
    found: dict[str, Failure] = {}
    for each in outcomes:
        if each.error is not None:
            before = found.get(each.error, Failure(0, each.message))
            found[each.error] = Failure(before.count + 1, before.example)
    return found


SECONDS, RATE, SHARE, COUNT = "s", "/s", "%", ""
METRIC_LABELS: Final[Mapping[str, tuple[str, str]]] = {
    "requests": ("requests answered", COUNT), "failed": ("requests failed", COUNT), "seconds": ("time", SECONDS),
    "at_once": ("in progress, mean", COUNT),
    "output_tokens_per_second": ("throughput, output tokens", RATE), "total_tokens_per_second": ("throughput, all tokens", RATE),
    "requests_per_second": ("throughput, requests", RATE), "decode_tokens_per_second": ("output tokens of one stream", RATE),
    "prefill_tokens_per_second": ("prompt tokens over TTFT", RATE),
    "goodput_tokens": ("goodput, useful tokens", RATE), "goodput_requests": ("goodput, requests within the objective", RATE),
    "met": ("requests within the objective", SHARE),
    **{
        f"{key}.{share}": (f"{key.upper()} {share}", SECONDS)
        for key in ("ttft", "itl", "tpot", "e2e") for share in (*PERCENTILES, "max", "mean")
    },
    "prompt_tokens": ("prompt tokens, in all", COUNT), "output_tokens": ("output tokens, in all", COUNT),
    "tokens_per_event": ("tokens per event", COUNT),
    "cached_share": ("prompt tokens from the prefix cache", SHARE), "exact": ("prompts of the requested length", SHARE),
    "server_ttft": ("TTFT mean, by the server's metrics", SECONDS),
    "lag.p99": ("sent late, p99", SECONDS), "client": ("CPU cores kept busy by this client", COUNT),
}  # fmt: skip
"""Metric → label and unit."""


def get_metric(found: LoadReport, key: str) -> float:
    """The metric of a dotted name (`ttft.p50`)."""
    value: Any = found
    for part in key.split("."):
        value = getattr(value, part)
    return float(value)


def table_rows(runs: Sequence[LoadReport], objective: bool) -> list[tuple[str, ...]]:
    """Table rows: a label and a text per run. Rows on the objective only where there is one, and percentiles that some run has."""
    keys = [key for key in METRIC_LABELS if objective or key not in ("goodput_requests", "met")]
    keys = [key for key in keys if any(has_percentile(each, key) for each in runs)]
    return [(METRIC_LABELS[key][0], *[_cell(each, key) for each in runs]) for key in keys]


def has_percentile(found: LoadReport, key: str) -> bool:
    """True unless `key` is a percentile that the slowest request alone decides: p99 of fewer than 100 values is their maximum."""
    name, _, share = key.partition(".")
    if share not in PERCENTILES:
        return True
    count: int = getattr(found, name).count
    return count == 0 or share == "p50" or count * (1 - PERCENTILES[share]) > 1 - 1e-9


def _cell(found: LoadReport, key: str) -> str:
    """Text of a metric; a dash for times without answered requests, and for percentiles of too few values."""
    unit = METRIC_LABELS[key][1]
    is_missing = (unit == SECONDS and not found.requests and key != "lag.p99") or not has_percentile(found, key)
    return MISSING if is_missing else format_value(get_metric(found, key), unit)


def report_notes(found: LoadReport) -> list[str]:
    """Notes on failures and on limits of the measurement."""
    notes = [f"{each.count} failed, {kind}: {each.example}" for kind, each in found.failures.items()]
    if found.requests and not has_percentile(found, "ttft.p99"):
        notes.append(f"{found.requests} requests: a percentile needs 10 (p90), 20 (p95) or 100 (p99) values, else it is their maximum")
    if found.short:
        notes.append(f"{found.short} answers have fewer tokens than requested; --ignore-eos asks the server to continue")
    if found.requests and found.counted < 1:
        notes.append(f"the server counts the tokens of only {found.counted:.0%} of the answers; those of others are counted by events")
    if found.requests and found.exact < 1:
        mean = found.prompt_tokens / found.requests
        notes.append(f"{found.exact:.0%} of the prompts have as many tokens as requested; the mean is {mean:.1f}")
    if found.disagreement:
        notes.append(found.disagreement)
    if found.client > THROTTLED_CORES:
        notes.append(
            f"this client is the bottleneck: its one thread was busy for {found.client:.0%} of the time, so that answers wait for it; "
            "send less, or from several processes"
        )
    elif found.client > 0.5:
        notes.append(f"this client kept {found.client:.2f} CPU cores busy; on a shared machine the server lacks them")
    return notes


def format_value(value: float, unit: str) -> str:
    """Three digits and a unit that suits the size."""
    if unit == SECONDS:
        return (
            "0" if not value else f"{value:.4g} s" if value >= 1 else f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} µs"
        )
    if unit == SHARE:
        return f"{value:.1%}"
    text = f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:.4g}"
    return f"{text}{unit}"


def as_dict(found: LoadReport) -> dict[str, Any]:
    """A dict for JSON: seconds, tokens, shares."""
    return asdict(found)
