"""Figures of a load, from outcomes, by the definitions of the simulator's report (docs/physics.md), and their rows for people.

Owns rounding and units. Nothing is left out: what failed is counted by kind, and what the client itself cost stands beside the rest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any, Final

from ridgeline.bench.client import Outcome
from ridgeline.bench.session import Measured
from ridgeline.planning.objectives import FinishedRequest, Objective, request_goodput, token_goodput
from ridgeline.sim.fleet.measures import compute_curve

SHARES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles by the nearest rank, and the mean; all 0 for nothing."""

    p50: float
    p90: float
    p95: float
    p99: float
    mean: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The spread of any number of values."""
        if not values:
            return cls(0.0, 0.0, 0.0, 0.0, 0.0)
        ranked = sorted(values)
        p50, p90, p95, p99 = (ranked[ceil(share * len(ranked)) - 1] for share in SHARES.values())
        return cls(p50, p90, p95, p99, sum(ranked) / len(ranked))


@dataclass(frozen=True, slots=True)
class Failure:
    """Requests that failed in one way, and what the first of them said."""

    count: int
    example: str


@dataclass(frozen=True, slots=True)
class Figures:
    """Seconds, tokens, requests; per second of the time from when the first request should have been sent to the last token.

    requests, failed   answered, and not                      failures  the latter by kind
    goodput_requests   requests per second that met the objective: its ITL is held against each request's TPOT
    goodput_tokens     output tokens per second of whole answers; with usage counted by the server
    met                share of all requests, failed ones included, that met the objective
    ttft, e2e          from when a request should have been sent          tpot  of answers of two tokens and more
    itl                between events that brought tokens                 tokens_per_event  how many such an event had
    decode_tokens_per_second   of one stream: the inverse of the median TPOT
    prefill_tokens_per_second  of one prompt: the median of its tokens over its TTFT
    at_once            requests in progress, mean over time               short  answers with fewer tokens than asked for
    exact              share of prompts with as many tokens as asked for, by the server's count
    counted            share of answers whose tokens the server counted; others by events
    lag                how late requests were sent                        client  CPU cores that this client kept busy
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
    ttft: Spread
    itl: Spread
    tpot: Spread
    e2e: Spread
    decode_tokens_per_second: float
    prefill_tokens_per_second: float
    tokens_per_event: float
    at_once: float
    cached_share: float
    short: int
    exact: float
    counted: float
    lag: Spread
    client: float
    curves: Mapping[str, Sequence[float]]


def figures(measured: Measured, objective: Objective) -> Figures:
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
    between = Spread.of([value for value, each in zip(tpot, done, strict=True) if each.output > 1])
    return Figures(
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
        ttft=Spread.of(ttft),
        itl=Spread.of(gaps),
        tpot=between,
        e2e=Spread.of(e2e),
        decode_tokens_per_second=1 / between.p50 if between.p50 else 0.0,
        prefill_tokens_per_second=Spread.of([each.prompt / max(1e-9, wait) for each, wait in zip(done, ttft, strict=True)]).p50,
        tokens_per_event=output / max(1, sum(each.events for each in done)),
        at_once=sum(e2e) / seconds,
        cached_share=sum(each.cached for each in done) / max(1, prompt),
        short=sum(each.output < each.asked.output for each in done),
        exact=sum(each.prompt == each.asked.prompt for each in done) / count,
        counted=sum(each.counted for each in done) / count,
        lag=Spread.of([each.sent - each.intended for each in measured.outcomes]),
        client=measured.client_seconds / max(1e-9, measured.seconds),
        curves={"ttft": compute_curve(ttft), "itl": compute_curve(gaps), "e2e": compute_curve(e2e)},
    )


def _failures(outcomes: Sequence[Outcome]) -> dict[str, Failure]:
    found: dict[str, Failure] = {}
    for each in outcomes:
        if each.error is not None:
            before = found.get(each.error, Failure(0, each.message))
            found[each.error] = Failure(before.count + 1, before.example)
    return found


SECONDS, RATE, SHARE, PLAIN = "s", "/s", "%", ""
ROWS: Final[Mapping[str, tuple[str, str]]] = {
    "requests": ("requests answered", PLAIN), "failed": ("requests failed", PLAIN), "seconds": ("time", SECONDS),
    "at_once": ("in progress, mean", PLAIN),
    "output_tokens_per_second": ("output tokens", RATE), "total_tokens_per_second": ("prompt and output tokens", RATE),
    "requests_per_second": ("requests", RATE), "decode_tokens_per_second": ("output tokens of one stream", RATE),
    "prefill_tokens_per_second": ("prompt tokens over TTFT", RATE),
    "goodput_tokens": ("goodput, useful tokens", RATE), "goodput_requests": ("goodput, requests within the objective", RATE),
    "met": ("requests within the objective", SHARE),
    **{f"{key}.{share}": (f"{key.upper()} {share}", SECONDS) for key in ("ttft", "itl", "tpot", "e2e") for share in (*SHARES, "mean")},
    "prompt_tokens": ("prompt tokens", PLAIN), "output_tokens": ("output tokens", PLAIN), "tokens_per_event": ("tokens an event", PLAIN),
    "cached_share": ("prompt tokens from the prefix cache", SHARE), "exact": ("prompts as long as asked for", SHARE),
    "lag.p99": ("sent late, p99", SECONDS), "client": ("CPU cores kept busy by this client", PLAIN),
}  # fmt: skip
"""Figure → what it is called, and its unit."""


def value_of(found: Figures, key: str) -> float:
    """The figure that a dotted name means."""
    value: Any = found
    for part in key.split("."):
        value = getattr(value, part)
    return float(value)


def rows(runs: Sequence[Figures], objective: bool) -> list[tuple[str, ...]]:
    """The report's lines: a label and a text for each run. Those on the objective only where there is one."""
    keys = [key for key in ROWS if objective or key not in ("goodput_requests", "met")]
    return [(ROWS[key][0], *[_cell(each, key) for each in runs]) for key in keys]


def _cell(found: Figures, key: str) -> str:
    """A time where nothing was answered is none."""
    return "–" if ROWS[key][1] == SECONDS and not found.requests and key != "lag.p99" else shown(value_of(found, key), ROWS[key][1])


def notes(found: Figures) -> list[str]:
    """Notes that a reader must know of a run before its figures are believed."""
    said = [f"{each.count} failed, {kind}: {each.example}" for kind, each in found.failures.items()]
    if found.short:
        said.append(f"{found.short} answers ended before as many tokens as asked for; --ignore-eos asks the server to go on")
    if found.requests and found.counted < 1:
        said.append(f"the server counts the tokens of only {found.counted:.0%} of the answers; those of others are counted by events")
    if found.requests and found.exact < 1:
        mean = found.prompt_tokens / found.requests
        said.append(f"{found.exact:.0%} of the prompts have as many tokens as asked for; the mean is {mean:.1f}")
    if found.client > 0.5:
        said.append(f"this client kept {found.client:.2f} CPU cores busy: what it shares with the server is missing there")
    return said


def shown(value: float, unit: str) -> str:
    """Three digits and a unit that suits the size."""
    if unit == SECONDS:
        return (
            "0" if not value else f"{value:.4g} s" if value >= 1 else f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} µs"
        )
    if unit == SHARE:
        return f"{value:.1%}"
    text = f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:.4g}"
    return f"{text}{unit}"


def as_dict(found: Figures) -> dict[str, Any]:
    """A dict for JSON: seconds, tokens, shares."""
    return asdict(found)
