"""Costs of requests: each step's seconds divided among its rows; money and joules by these seconds; what is left is idle.

A step's rows mostly cost the same, so one sum serves all of them: what a row has cost is the sum now less the sum when it began, and what
it differs by. So nothing is counted per token. Allocated and idle seconds are the seconds since the start, whatever happens.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ridgeline.core.events import Admitted, Closed, Event, Preempted, Started
from ridgeline.core.plan import IntColumn
from ridgeline.core.step_time import StepSeconds
from ridgeline.facts.hardware.energy import EnergyMeter
from ridgeline.observe.requests import Tenants

KEPT_REQUESTS: Final = 1_000
"""Requests of which each one's cost is told."""
PER_TOKEN: Final = StepSeconds(0.0, 1.0, 1.0)
"""Costs where nothing is known of steps: all tokens cost the same."""


@dataclass(slots=True)
class Spent:
    """Seconds of the engine, token-seconds in the KV cache, requests that ended."""

    seconds: float = 0.0
    kv_token_seconds: float = 0.0
    requests: int = 0


@dataclass(slots=True)
class RequestCost:
    """A request that is open, or one that has ended. `joules` at its end, None where no meter is readable."""

    request_id: str
    tenant: str
    open_choices: int
    prompt_tokens: int
    completion_tokens: int = 0
    seconds: float = 0.0
    kv_token_seconds: float = 0.0
    joules: float | None = None


@dataclass(slots=True)
class _Row:
    """A sequence with a row: whose it is, the even sum when it began, what it differs by."""

    owner: RequestCost
    began: float
    even: float
    extra: float = 0.0


class Spending:
    """`apply` each event of the engine that answers; `step` each committed step before the events of the next.

    tenants  whose labels are used       price  dollars per hour for this machine; None: unknown       now  seconds on the engine's clock
    """

    def __init__(self, tenants: Tenants, price: float | None, now: float, meter: EnergyMeter | None = None) -> None:
        self.price = price
        self.recent: deque[RequestCost] = deque(maxlen=KEPT_REQUESTS)
        self.by_tenant: dict[str, Spent] = {}
        self.allocated = 0.0
        """Seconds in which steps were in flight."""
        self.joules: dict[str, float] | None = None
        """allocated and idle; None where no meter is readable."""
        self._tenants = tenants
        self.began = self._sampled_at = now
        self._meter = meter if meter is not None and meter.is_available else None
        if self._meter is not None:
            self.joules = {"allocated": 0.0, "idle": 0.0}
        self._metered = self._sampled = 0.0
        self._even = 0.0
        self._requests: dict[str, RequestCost] = {}
        self._rows: dict[int, _Row] = {}
        self._sequences: dict[tuple[str, int], int] = {}
        self._ended: list[int] = []
        """Rows that ended since the last step: the step's own time comes after their end."""

    def apply(self, event: Event) -> None:
        """Begins and ends requests and rows."""
        match event:
            case Admitted() if event.request_id not in self._requests:
                label = self._tenants.label(event.tenant)
                self._requests[event.request_id] = RequestCost(event.request_id, label, event.choices, event.prompt_tokens)
            case Started() if (owner := self._requests.get(event.request_id)) is not None:
                self._sequences[event.request_id, event.choice] = event.sequence
                self._rows[event.sequence] = _Row(owner, event.time, self._even)
            case Preempted():
                self._end_row(event.request_id, event.choice)
            case Closed():
                self._closed(event)
            case _:
                pass

    def step(self, sequences: Sequence[int], counts: IntColumn, busy: float, cost: StepSeconds | None) -> None:
        """Divides a committed step's `busy` seconds among its rows. `counts`: tokens of each, 1 of those that verify drafts."""
        cost, rows, decode = cost or PER_TOKEN, len(sequences), counts.count(1)
        tokens = sum(counts) - decode
        total = cost.of(decode, tokens)
        self.allocated += busy
        if not rows or total <= 0:
            return
        unit = busy / total
        fixed = cost.fixed / rows
        even = unit * (fixed + cost.row)
        self._even += even
        if tokens:
            for sequence, count in zip(sequences, counts, strict=True):
                if count != 1 and (row := self._rows.get(sequence)) is not None:
                    row.extra += unit * (fixed + cost.token * count) - even
        if rows < len(self._rows):
            for sequence in self._rows.keys() - set(sequences):
                self._rows[sequence].extra -= even
        for sequence in self._ended:
            self._settle(sequence)
        self._ended.clear()

    def _closed(self, event: Closed) -> None:
        request = self._requests.get(event.request_id)
        if request is None:
            return
        request.completion_tokens += event.usage.completion_tokens
        row = self._rows.get(self._sequences.get((event.request_id, event.choice), -1))
        if row is not None:
            held = event.usage.prompt_tokens + event.usage.completion_tokens / 2
            request.kv_token_seconds += held * max(0.0, event.time - row.began)
        self._end_row(event.request_id, event.choice)
        request.open_choices -= 1
        if request.open_choices <= 0:
            self._finish(request)

    def _end_row(self, request_id: str, choice: int) -> None:
        sequence = self._sequences.pop((request_id, choice), None)
        if sequence is not None:
            self._ended.append(sequence)

    def _settle(self, sequence: int) -> None:
        """Gives a row's seconds to its request, and to the tenant where that has ended."""
        row = self._rows.pop(sequence, None)
        if row is None:
            return
        seconds = max(0.0, self._even - row.even + row.extra)
        row.owner.seconds += seconds
        self.spent(row.owner.tenant).seconds += seconds
        if row.owner.joules is not None:
            row.owner.joules += seconds * self._joules_per_second()

    def _finish(self, request: RequestCost) -> None:
        """Finishes a choice. Its last step may still be to come: its row is settled then."""
        self._requests.pop(request.request_id, None)
        spent = self.spent(request.tenant)
        spent.requests += 1
        spent.kv_token_seconds += request.kv_token_seconds
        if self.joules is not None:
            request.joules = request.seconds * self._joules_per_second()
        self.recent.append(request)

    def spent(self, label: str) -> Spent:
        """Costs of a tenant."""
        return self.by_tenant.get(label) or self.by_tenant.setdefault(label, Spent())

    def engine_lost(self) -> None:
        """Settles all rows: the engine has ended, or another model's takes its place."""
        for sequence in list(self._rows):
            self._settle(sequence)
        self._sequences.clear()
        self._ended.clear()

    def _joules_per_second(self) -> float:
        return 0.0 if self.joules is None or not self.allocated else self.joules["allocated"] / self.allocated

    def sample(self, now: float) -> None:
        """Reads the meter. Joules since the last time are allocated as the seconds since then are."""
        wall = now - self._sampled_at
        if self._meter is None or self.joules is None or wall <= 0:
            return
        joules = self._meter.joules()
        used, share = joules - self._metered, min(1.0, (self.allocated - self._sampled) / wall)
        self.joules["allocated"] += used * share
        self.joules["idle"] += used * (1 - share)
        self._metered, self._sampled, self._sampled_at = joules, self.allocated, now

    def idle(self, now: float) -> float:
        """Seconds since the start in which no step was in flight."""
        return max(0.0, now - self.began - self.allocated)

    def dollars(self, seconds: float) -> float | None:
        """The price of so many seconds of this machine; None without one."""
        return None if self.price is None else self.price * seconds / 3600.0

    def tenant_joules(self, label: str) -> float | None:
        """A tenant's part of the joules that are allocated, by seconds."""
        return None if self.joules is None else self.spent(label).seconds * self._joules_per_second()
