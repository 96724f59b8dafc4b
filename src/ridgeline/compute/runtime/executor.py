"""The executor of the computing wing: takes plans, keeps rows, makes inputs, and turns what a backend answers into results.

All of a step's inputs but the ids that are sampled before its turn are made when it is submitted, while the step before it computes:
between two steps the device waits for little. That is safe since a row is given away only when no step in flight has it.
"""

from collections import deque
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from ridgeline.compute.backend import Backend
from ridgeline.compute.runtime.inputs import Inputs, Rows
from ridgeline.config.resolve import Decision
from ridgeline.core.plan import Plan, Result, Timings
from ridgeline.engine.executor import ExecutorInfo, Ticket


@dataclass(slots=True)
class _Flight:
    """A step that the backend has: its ticket there, when it was submitted and when it was handed on, its result if it has been read."""

    ticket: Ticket
    work: Any
    submitted: float
    ready: float
    result: Result | None = None


class StepExecutor:
    """Implements `engine.executor.Executor` over a backend."""

    def __init__(self, info: ExecutorInfo, decisions: tuple[Decision, ...], backend: Backend) -> None:
        self.decisions = decisions
        self.backend = backend
        self._info = info
        self._rows = Rows(info.rows, len(info.kv.groups), -(-info.max_model_len // info.kv.block_tokens))
        self._inputs = Inputs(self._rows, info.kv.block_tokens)
        self._flights: deque[_Flight] = deque()
        self._closed = False
        self.waited = 0.0
        """Seconds that results have been waited for, altogether: the rest of the time is the host's."""

    @property
    def info(self) -> ExecutorInfo:
        return self._info

    def submit(self, plan: Plan) -> Ticket:
        """Takes the plan; it is computed as soon as those before it are. Waits for the step before only where the backend must."""
        if self._closed:
            raise RuntimeError("the executor is closed")
        if not plan.row:
            raise RuntimeError(f"step {plan.step} is empty")
        if self._flights and self._flights[-1].result is None and self.backend.serial(self._flights[-1].work):
            self._read(self._flights[-1])
        submitted = perf_counter()
        self._rows.apply(plan)
        work = self.backend.enqueue(self._inputs.work(plan))
        ticket = Ticket(plan)
        self._flights.append(_Flight(ticket, work, submitted, perf_counter()))
        return ticket

    def collect(self, ticket: Ticket) -> Result:
        """Waits until the oldest plan is computed; raises what computing it raised."""
        if not self._flights or self._flights[0].ticket is not ticket:
            raise RuntimeError(f"step {ticket.plan.step} is not the oldest in flight")
        flight = self._flights.popleft()
        return flight.result or self._read(flight)

    def close(self) -> None:
        """Drops steps in flight, weights and KV blocks."""
        self._closed = True
        self._flights.clear()
        self.backend.close()

    def _read(self, flight: _Flight) -> Result:
        began = perf_counter()
        sampled, finite, logprobs, scores, run, ended = self.backend.read(flight.work)
        self.waited += max(0.0, ended - began)
        timings = Timings(queue=max(0.0, ended - run - flight.ready), copy=flight.ready - flight.submitted, run=run)
        flight.result = Result(flight.ticket.plan.step, sampled, finite, logprobs, timings, scores)
        return flight.result
