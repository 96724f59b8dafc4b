"""Executor over a backend: takes plans, keeps rows, makes inputs, and turns a backend's outputs into results.

A step's inputs are made when it is submitted, while the step before it computes; only ids that earlier steps sample are filled in later. So
the device waits for little between two steps. It is safe since a row is given away only when no step in flight has it.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np

from ridgeline.compute.adapters.store import AdapterStore
from ridgeline.compute.backend import Backend
from ridgeline.compute.decoding.grammar import GrammarCompiler, Vocabulary
from ridgeline.compute.draft_model import TokenMap
from ridgeline.compute.runtime.inputs import Inputs, ResidentRows
from ridgeline.compute.runtime.queue import QueueBackend
from ridgeline.config.resolve import Decision
from ridgeline.core.plan import Plan, Result, Timings
from ridgeline.engine.executor import BlockContents, ExecutorInfo, Ticket


@dataclass(slots=True)
class _InFlight:
    """A step that the backend has: its tickets, when it was submitted and enqueued, its result if it has been read."""

    ticket: Ticket
    work: Any
    submitted_at: float
    enqueued_at: float
    result: Result | None = None


class StepExecutor:
    """Implements `engine.executor.Executor` over a backend."""

    def __init__(self, info: ExecutorInfo, decisions: tuple[Decision, ...], backend: Backend, adapters: AdapterStore | None = None) -> None:
        self.decisions = decisions
        self.adapters = adapters
        self.backend = backend
        self._info = info
        self._rows = ResidentRows(info.rows, len(info.kv.groups), -(-info.max_model_len // info.kv.block_tokens))
        self._inputs = Inputs(self._rows, info.kv.block_tokens, tables=backend.reads_tables, recurrent=info.kv.recurrent)
        self._in_flight: deque[_InFlight] = deque()
        self._closed = False
        self.grammars: GrammarCompiler | None = None
        self.wait_seconds = 0.0
        """Seconds spent waiting for results since the start; the rest of the time is the host's."""

    @property
    def info(self) -> ExecutorInfo:
        """Limits, KV shape and measured times of the executor."""
        return self._info

    def share_threads(self, share: Callable[[int], int]) -> None:
        """Gives each further step of its threads as many as `share` says of their number, where they are threads of this machine's
        cores."""
        if isinstance(self.backend, QueueBackend):
            self.backend.share_threads(share)

    def use_grammars(self, load: Callable[[], Vocabulary], *, tells_forced: bool = False) -> None:
        """Rows may follow grammars in the vocabulary that `load` reads, and results tell what these force if asked to. Only before the
        first plan."""
        self.grammars = GrammarCompiler(load, self._info.vocab, tells_forced=tells_forced)
        self.backend.use_grammars(self.grammars)

    @property
    def blocks(self) -> BlockContents | None:
        """Contents of blocks; None where the backend's memory is out of reach."""
        return self.backend.blocks

    def use_token_map(self, inputs: Sequence[int], logits: Sequence[int]) -> None:
        """Ids of the draft model differ from the target's (`compute.draft_model.TokenMap`), and pass through the host. Only before the
        first plan."""
        assert self._info.drafts is not None
        self._info = replace(self._info, drafts=self._info.drafts._replace(ahead=0))
        self.backend.drafts.use_map(TokenMap(np.array(inputs, np.int32), np.array(logits, np.int32)))  # type: ignore[attr-defined]

    def submit(self, plan: Plan) -> Ticket:
        """Takes the plan, which is computed as soon as those before it are. Waits for the step before only where that is serial.

        RuntimeError where the executor is closed, or the plan is empty.
        """
        if self._closed:
            raise RuntimeError("the executor is closed")
        if not plan.row:
            raise RuntimeError(f"step {plan.step} is empty")
        if self._in_flight and self._in_flight[-1].result is None and self.backend.must_read_first(self._in_flight[-1].work):
            self._read(self._in_flight[-1])
        submitted_at = perf_counter()
        self._rows.apply(plan)
        work = self.backend.enqueue(self._inputs.make_work(plan))
        ticket = Ticket(plan)
        self._in_flight.append(_InFlight(ticket, work, submitted_at, perf_counter()))
        return ticket

    def collect(self, ticket: Ticket) -> Result:
        """Waits until the oldest plan is computed; raises what computing it raised. RuntimeError where `ticket` is not the oldest."""
        if not self._in_flight or self._in_flight[0].ticket is not ticket:
            raise RuntimeError(f"step {ticket.plan.step} is not the oldest in flight")
        flight = self._in_flight.popleft()
        return flight.result or self._read(flight)

    def beat(self) -> int:
        """A number that changes while a step is computed."""
        return self.backend.beat()

    def trace(self, path: str, steps: int) -> None:
        """See `Executor.trace`."""
        self.backend.trace(path, steps)

    def close(self) -> None:
        """Drops steps in flight, weights and KV blocks."""
        self._closed = True
        self._in_flight.clear()
        self.backend.close()
        if self.adapters is not None:
            self.adapters.close()
        if self.grammars is not None:
            self.grammars.close()

    def _read(self, flight: _InFlight) -> Result:
        began = perf_counter()
        output = self.backend.read(flight.work)
        run, ended = output.seconds, output.ended
        self.wait_seconds += max(0.0, ended - began)
        queue, prepare = max(0.0, ended - run - flight.enqueued_at), flight.enqueued_at - flight.submitted_at
        timings = Timings(queue, prepare, run, output.draft_seconds, output.experts)
        flight.result = Result(
            flight.ticket.plan.step, output.sampled, output.finite, output.logprobs, timings,
            output.scores, output.failures, output.vectors, output.drafted, output.forced,
        )  # fmt: skip
        return flight.result
