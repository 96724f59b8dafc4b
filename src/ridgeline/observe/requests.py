"""Requests of an engine: when each of their choices moved on, how they ended, and whose they are.

Owns the definitions of goodput: useful tokens are those of answers that came to their end, and a request is good if all its choices did so
within the objective. What is kept per tenant has a bound, as the number of tenants has none that a collector of metrics would bear.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from ridgeline.core.events import Admitted, Closed, Finish
from ridgeline.errors import ConfigError
from ridgeline.observe.histogram import FEW_SECONDS, Histogram
from ridgeline.planning.objectives import Objective

MAX_TENANTS: Final = 64
"""Tenants with metrics of their own; those that come later share one."""
OTHER_TENANTS: Final = "(other)"
"""No tenant can be named so (`server.keys.NAME`)."""
GOODPUT: Final = "--goodput"
TARGET: Final = re.compile(r"([a-z]{1,8})([=:])([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s)?")
NAMES: Final = {"ttft": "ttft", "itl": "itl", "tpot": "itl"}
MAX_OBJECTIVE_SECONDS: Final = 86_400


class Result(StrEnum):
    """The end of a request, the better first: within its objective; with a late first token, or slow ones, of one choice; its client left;
    the engine failed. The worst of a request's choices counts."""

    GOOD = "good"
    SLOW_TOKENS = "slow_tokens"
    LATE_FIRST_TOKEN = "late_first_token"
    ABORTED = "aborted"
    FAILED = "failed"


ORDER: Final = tuple(Result)
COMPLETE: Final = frozenset({Result.GOOD, Result.SLOW_TOKENS, Result.LATE_FIRST_TOKEN})
"""Results of answers that came to their end."""


class Tenant:
    """Totals of one tenant's requests."""

    def __init__(self) -> None:
        self.open_choices = 0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        """Output tokens of requests that have ended."""
        self.rejected = 0
        self.results = dict.fromkeys(Result, 0)
        self.time_to_first_token = Histogram(FEW_SECONDS)


class Tenants:
    """Tenants by their label, at most `MAX_TENANTS` and one for the others."""

    def __init__(self) -> None:
        self.by_label: dict[str, Tenant] = {}

    def label(self, name: str) -> str:
        """The label of a tenant."""
        return name if name in self.by_label or len(self.by_label) < MAX_TENANTS else OTHER_TENANTS

    def find(self, name: str) -> Tenant:
        """The tenant of that name, or the one that stands for others."""
        label = self.label(name)
        return self.by_label.get(label) or self.by_label.setdefault(label, Tenant())


@dataclass(slots=True)
class Choice:
    """A choice that has had a row, and its times on the engine's clock. `sequence` changes when it gets another row."""

    request: "OpenRequest"
    sequence: int
    started: float
    first_token_at: float | None = None
    last_token_at: float | None = None
    tokens: int = 0
    preemptions: int = 0

    def end(self, event: Closed) -> "ChoiceTimes":
        """The times of the choice at its end. The last token, and the first where there is one alone, may have come with the step whose
        event follows that of the end."""
        first, last = self.first_token_at, self.last_token_at
        if event.usage.completion_tokens > self.tokens:
            first, last = event.time if first is None else first, event.time
        return ChoiceTimes(self.request.arrived, self.started, first, last, event.time)


@dataclass(frozen=True, slots=True)
class ChoiceTimes:
    """Seconds on the engine's clock, which is the machine's monotonic one. None: the choice did not come that far."""

    arrived: float
    started: float | None
    first_token_at: float | None
    last_token_at: float | None
    ended: float

    def tpot(self, tokens: int) -> float | None:
        """Seconds per output token behind the first of so many; None where there are fewer than two."""
        if tokens < 2 or self.first_token_at is None or self.last_token_at is None:
            return None
        return (self.last_token_at - self.first_token_at) / (tokens - 1)


OnChoice = Callable[[Closed, ChoiceTimes], None]


@dataclass(slots=True)
class OpenRequest:
    """A request that the engine has not ended. `objective`: its own targets where it names some, else the server's."""

    arrived: float
    prompt_tokens: int
    open_choices: int
    tenant: Tenant
    objective: Objective
    choices: dict[int, Choice] = field(default_factory=dict)
    result: Result = Result.GOOD
    tokens: int = 0

    def close(self, event: Closed, times: ChoiceTimes) -> None:
        """Counts the end of a choice."""
        self.open_choices -= 1
        self.tokens += event.usage.completion_tokens
        self.tenant.open_choices -= 1
        self.result = max(self.result, _result(event, times, self.objective), key=ORDER.index)


def objective_of(event: Admitted, default: Objective) -> Objective:
    """The objective that a request has to keep."""
    if not event.ttft_ms and not event.itl_ms:
        return default
    return Objective(event.ttft_ms / 1e3 if event.ttft_ms else default.ttft, event.itl_ms / 1e3 if event.itl_ms else default.itl)


def parse_goodput(text: str) -> Objective:
    """The objective of `--goodput`: `ttft=1s,itl=50ms`, or as vLLM writes it `ttft:1000 tpot:50`, in ms. A request's ITL is its TPOT.
    Raises ConfigError."""
    found: dict[str, float] = {}
    for part in text.replace(",", " ").split():
        match = TARGET.fullmatch(part)
        name = "" if match is None else NAMES.get(match[1], "")
        if match is None or name in found or name == "" or (match[2] == "=" and not match[4]):
            message = f"{GOODPUT} has {part!r:.40}; write ttft=300ms,itl=50ms, or ttft:300 tpot:50 in milliseconds, each once"
            raise ConfigError(message, fix={GOODPUT: "ttft=1s,itl=50ms"})
        found[name] = float(match[3]) * (1.0 if match[4] == "s" else 1e-3)
        if not 0 < found[name] <= MAX_OBJECTIVE_SECONDS:
            message = f"{GOODPUT} has {part!r:.40}; a time is above 0 and at most {MAX_OBJECTIVE_SECONDS:,} s"
            raise ConfigError(message, fix={GOODPUT: "ttft=1s,itl=50ms"})
    return Objective(found.get("ttft"), found.get("itl"))


def _result(event: Closed, times: ChoiceTimes, objective: Objective) -> Result:
    if event.reason is Finish.ERROR:
        return Result.FAILED
    if event.reason is Finish.ABORT:
        return Result.ABORTED
    first = times.first_token_at
    if first is not None and not objective.is_met(first - times.arrived, 0.0):
        return Result.LATE_FIRST_TOKEN
    tpot = times.tpot(event.usage.completion_tokens)
    return Result.GOOD if tpot is None or objective.is_met(0.0, tpot) else Result.SLOW_TOKENS
