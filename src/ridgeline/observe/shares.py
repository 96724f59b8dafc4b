"""Common traits of many requests: percentiles of their times, and the causes in the slowest beside those in the middle."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from ridgeline.observe.charges import Charges, charge, slowest_choice, wall
from ridgeline.observe.ledger import Ledger, RequestRecord

MAX_CHARGED: Final = 200
"""Requests of each group whose causes are computed, evenly chosen."""
MAX_SECONDS: Final = 1.0
"""Time for them; what is computed by then counts."""
Item = TypeVar("Item")
SLOW, MIDDLE = (0.95, 1.0), (0.4, 0.6)
"""Shares of all requests, by their time, that make the two groups."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Seconds. `causes`: cause → its mean in the middle and in the slowest requests, the greatest difference first."""

    requests: int
    p50: float
    p95: float
    causes: dict[str, tuple[float, float]]


def slowest(records: Sequence[RequestRecord], count: int) -> list[RequestRecord]:
    """Those that took longest, longest first."""
    return sorted(records, key=lambda record: -wall(record, slowest_choice(record))[0])[:count]


def distribution(ledger: Ledger, records: Sequence[RequestRecord], *, to_first: bool = False) -> Distribution | None:
    """The distribution of whole times, or `to_first` of those to the first token; None without a request that has one."""
    timed = [(seconds, record) for record in records if (seconds := wall(record, slowest_choice(record))[to_first]) is not None]
    if not timed:
        return None
    timed.sort(key=lambda each: each[0])
    until = time.monotonic() + MAX_SECONDS
    middle, slow = (_mean(ledger, [each for _, each in _between(timed, *shares)], to_first, until) for shares in (MIDDLE, SLOW))
    causes = {cause: (middle.get(cause, 0.0), slow.get(cause, 0.0)) for cause in {**middle, **slow}}
    order = sorted(causes, key=lambda cause: causes[cause][0] - causes[cause][1])
    p50, p95 = (_between(timed, share, share)[0][0] for share in (0.5, SLOW[0]))
    return Distribution(len(timed), p50, p95, {cause: causes[cause] for cause in order})


def _between(items: Sequence[Item], low: float, high: float) -> Sequence[Item]:
    """Those between two shares of the sequence, at least one."""
    begin = min(len(items) - 1, int(low * len(items)))
    return items[begin : max(begin + 1, int(high * len(items)))]


def _mean(ledger: Ledger, records: Sequence[RequestRecord], to_first: bool, until: float) -> dict[str, float]:
    """Mean seconds of each cause."""
    step = -(-len(records) // MAX_CHARGED)
    found: list[Charges] = []
    for record in records[::step]:
        if found and time.monotonic() > until:
            break
        found.append(charge(ledger, record, slowest_choice(record), to_first=to_first, named=False))
    causes = {cause for charges in found for cause in charges.seconds}
    return {cause: sum(charges.seconds.get(cause, 0.0) for charges in found) / len(found) for cause in causes}
