"""The executor over a GPU: a step is launched when it is submitted, behind those before it, and read when it is collected.

Owns the order of steps and the host's view of resident rows. What a row sampled last stays on the device, where the row's next step finds
it: nothing is waited for between two steps. Rows whose sampling the device does not serve (penalties, log-probabilities …) are sampled
here, from logits that are copied: a step that has such rows, or that scores a prompt, is read before the next one is launched.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.cuda import sampler
from ridgeline.compute.cuda.cache import DeviceKVCache
from ridgeline.compute.cuda.runner import CudaRunner, Launched
from ridgeline.compute.cuda.step import Sampled
from ridgeline.compute.cuda.tier import HostTier
from ridgeline.compute.decoding.sampler import sample, score
from ridgeline.compute.graph import StepInputs
from ridgeline.compute.runtime.batch import step_inputs
from ridgeline.compute.runtime.rows import Rows
from ridgeline.compute.runtime.scores import prompt_logprobs
from ridgeline.config.resolve import Decision
from ridgeline.core.params import RowParams
from ridgeline.core.plan import LAST, IntColumn, Plan, Result, Timings, TokenLogprobs
from ridgeline.engine.executor import ExecutorInfo, Ticket


@dataclass(slots=True)
class _Flight:
    """A step that is launched. `inputs` select the positions where rows sample."""

    ticket: Ticket
    launched: Launched
    inputs: StepInputs
    chosen: "_Chosen"
    submitted: float
    ready: float
    result: Result | None = None

    @property
    def waited_for(self) -> bool:
        """Whether the next step needs what this one leaves to the host."""
        return bool(self.chosen.host) or bool(self.ticket.plan.score)


class _Chosen(NamedTuple):
    """What does not change from step to step while rows, and which of them sample, are the same: it is made once for all of those steps.

    row, sample  of the plan, whose columns it is about     params  a row each
    taken        int32: permanent rows whose id the device samples
    host         indices of rows that are sampled here
    everybody    every row samples
    """

    row: IntColumn
    sample: bytearray
    params: list[RowParams]
    sampled: Sampled
    taken: NDArray[np.int32]
    host: list[int]
    everybody: bool

    def serves(self, plan: Plan) -> bool:
        """Whether the plan's are the same. Plans of the same rows share their column."""
        return plan.row is self.row and plan.sample == self.sample and not plan.new_rows


class DeviceExecutor:
    """Implements `engine.executor.Executor` over a runner of a GPU, which has its cache and is warm."""

    def __init__(
        self,
        info: ExecutorInfo,
        decisions: tuple[Decision, ...],
        runner: CudaRunner,
        cache: DeviceKVCache,
        tier: HostTier | None = None,
    ) -> None:
        self.decisions = decisions
        self._info = info
        self._runner: CudaRunner | None = runner
        self._cache: DeviceKVCache | None = cache
        self._tier = tier
        blocks = -(-info.max_model_len // info.kv.block_tokens)
        self._rows = Rows(info.rows, len(info.kv.groups), blocks)
        self._columns = SamplingColumns(info.rows)
        self._flights: deque[_Flight] = deque()
        self._chosen: _Chosen | None = None
        self.waited = 0.0
        """Seconds that results have been waited for, altogether: the rest of the time is the host's."""

    @property
    def info(self) -> ExecutorInfo:
        return self._info

    def submit(self, plan: Plan) -> Ticket:
        """Takes the plan and starts it. Waits for the step before only where that one leaves something to the host."""
        if self._runner is None:
            raise RuntimeError("the executor is closed")
        if not plan.row:
            raise RuntimeError(f"step {plan.step} is empty")
        if self._flights and self._flights[-1].waited_for:
            self._finish(self._flights[-1])
        submitted = perf_counter()
        self._rows.apply(plan)
        self._columns.apply(plan)
        if self._chosen is None or not self._chosen.serves(plan):
            self._chosen = self._choose(plan)
        chosen = self._chosen
        batch = step_inputs(plan, self._rows, self._info.kv.block_tokens)
        inputs = batch.complete(self._rows.last)  # LAST again where the device has it
        if plan.copies:
            assert self._tier is not None, "a plan copies pages where the executor has the host's"
            self._tier.copy(plan.copies)
        launched = self._runner.launch(replace(inputs, select=inputs.cu_q[1:] - 1), chosen.sampled)
        self._rows.last[chosen.taken] = LAST
        ticket = Ticket(plan)
        self._flights.append(_Flight(ticket, launched, inputs, chosen, submitted, perf_counter()))
        return ticket

    def _choose(self, plan: Plan) -> _Chosen:
        """Who samples which rows of a plan."""
        place, samples = np.array(plan.row, np.int32), np.frombuffer(plan.sample, np.bool_)
        device = samples & self._columns.served[place]
        host = (samples & ~device).nonzero()[0].tolist()
        params = [self._rows.params(row) for row in plan.row]
        sampled = Sampled(place, device, self._columns.of(place))
        return _Chosen(plan.row, plan.sample, params, sampled, place[device], host, bool(samples.all()))

    def collect(self, ticket: Ticket) -> Result:
        """Waits until the oldest plan is computed."""
        if not self._flights or self._flights[0].ticket is not ticket:
            raise RuntimeError(f"step {ticket.plan.step} is not the oldest in flight")
        flight = self._flights[0]
        result = self._finish(flight)
        self._flights.popleft()
        return result

    def close(self) -> None:
        """Drops steps in flight, weights and KV pages."""
        self._flights.clear()
        if self._runner is not None:
            self._runner.close()
        if self._tier is not None:
            self._tier.close()
        self._runner = self._cache = self._tier = None

    def _finish(self, flight: _Flight) -> Result:
        """Reads a step, and does what the device left to the host."""
        if flight.result is not None:
            return flight.result
        assert self._runner is not None
        plan, chosen, began = flight.ticket.plan, flight.chosen, perf_counter()
        ids, finite = self._runner.read(flight.launched)
        ended = perf_counter()
        self.waited += ended - began
        sampled: list[tuple[int, ...]] = [*zip(ids)]
        if not chosen.everybody:
            sampled = [token if samples else () for token, samples in zip(sampled, plan.sample, strict=True)]
        logprobs: list[tuple[TokenLogprobs, ...] | None] | None = None
        if chosen.host:
            logprobs = [None] * len(plan.row)
            for index, token, logprob in self._on_host(flight):
                sampled[index], logprobs[index] = (token,), None if logprob is None else (logprob,)
            if not any(logprobs):
                logprobs = None
        scores = self._scores(flight) if plan.score else None
        run = self._runner.seconds(flight.launched)
        timings = Timings(queue=max(0.0, ended - flight.ready - run), copy=flight.ready - flight.submitted, run=run)
        flight.result = Result(plan.step, tuple(sampled), bytearray(finite), tuple(logprobs) if logprobs else None, timings, scores)
        return flight.result

    def _on_host(self, flight: _Flight) -> list[tuple[int, int, TokenLogprobs | None]]:
        """Samples the rows that the device does not serve, from its logits: index, id and log-probabilities of each."""
        assert self._runner is not None
        host = flight.chosen.host
        rows = [flight.ticket.plan.row[index] for index in host]
        params = [flight.chosen.params[index] for index in host]
        positions = flight.inputs.kv_len[host].tolist()
        logits = self._runner.logits_of(host)[:, : self._info.vocab]
        ids, found = sample(logits, params, positions, [self._rows.histories[row] for row in rows])
        self._rows.sampled(rows, ids)
        return list(zip(host, ids, found, strict=True))

    def _scores(self, flight: _Flight) -> Any:
        assert self._runner is not None
        hidden = self._runner.hidden(flight.inputs.sizes.T)
        return prompt_logprobs(flight.ticket.plan, flight.inputs, self._rows, hidden, self._runner.logits, self._info.vocab, score)


class SamplingColumns:
    """Sampling parameters of permanent rows as columns, written when a row becomes resident.

    served  bool [rows]  the device samples for the row
    """

    def __init__(self, rows: int) -> None:
        self.served = np.zeros(rows, np.bool_)
        self._columns: dict[str, NDArray[Any]] = {name: np.zeros(rows, DTYPES[kind]) for name, kind in sampler.COLUMNS.items()}

    def apply(self, plan: Plan) -> None:
        """Takes over the parameters of new rows."""
        for new in plan.new_rows:
            self.served[new.row] = sampler.serves(new.params)
            for name, number in zip(sampler.COLUMNS, sampler.columns_of(new.params), strict=True):
                self._columns[name][new.row] = number

    def of(self, rows: NDArray[np.int32] | Sequence[int]) -> dict[str, NDArray[Any]]:
        """The columns of some rows."""
        return {name: column[rows] for name, column in self._columns.items()}


DTYPES = {"f64": np.float64, "i32": np.int32, "i64": np.int64}
