"""The executor of the computing wing: takes plans, keeps rows and KV pages, runs a runner, samples.

Owns the order of steps and the device state of resident sequences; the runner owns arithmetic and layouts. One thread computes plans in
the order in which they were submitted, and whoever schedules the next step does so meanwhile. All of a step's inputs but the ids that are
sampled before its turn are made when it is submitted, while the step before it computes: between two steps the device waits for little.
That is safe since a row is given away only when no step in flight has it.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.decoding.edits import History, needed
from ridgeline.compute.decoding.sampler import score
from ridgeline.compute.graph import StepInputs
from ridgeline.compute.runtime.batch import Batch, step_inputs
from ridgeline.compute.runtime.line import Line
from ridgeline.compute.runtime.rows import Rows
from ridgeline.compute.runtime.scores import Score, prompt_logprobs
from ridgeline.config.resolve import Decision
from ridgeline.core.params import RowParams
from ridgeline.core.plan import Plan, Result, Timings, TokenLogprobs
from ridgeline.engine.executor import ExecutorInfo, Ticket

Sampled = tuple[list[int], list[TokenLogprobs | None]]
Sample = Callable[[NDArray[np.float32], Sequence[RowParams], Sequence[int], Sequence[History | None], Any], Sampled]
"""(logits fp32 [S, V], parameters, index of each output in its sequence, what each looks back at, the runner's `maxima` or None) → ids and
log-probabilities."""


class Runner(Protocol):
    """What computes a step."""

    def run(
        self, inputs: StepInputs, kv: Any, taps: Sequence[str] = (), *, keep: NDArray[np.int32] | None = None
    ) -> dict[str, NDArray[Any]]:
        """`logits` fp32 [S, V] of the selected positions, and the taps asked for; writes K and V into `kv`, the runner's cache.

        `finite` bool [R] is `Result.finite`.
        keep: int32 [S], how many of the largest logits of each row are needed, with those that equal the last; 0, or None: all. With one of
        every row a runner may return their lowest ids, `best` [S], in place of `logits`. It may leave out what is not needed where it
        returns `maxima` beside, which say to its sampler where the others are.
        """
        ...

    def logits(self, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        """Rows of the tap `hidden` [N, D] to their logits [N, V], bit for bit what `run` gives for them when they are selected."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Work:
    """A plan on its way: its rows' parameters, how many of their logits those that sample need, when it was submitted and was ready."""

    plan: Plan
    batch: Batch
    params: list[RowParams]
    keep: NDArray[np.int32]
    submitted: float
    ready: float


class StepExecutor:
    """Implements `engine.executor.Executor` over a runner."""

    def __init__(
        self,
        info: ExecutorInfo,
        decisions: tuple[Decision, ...],
        runner: Runner,
        kv: Any,
        sample: Sample,
        score: Score = score,
    ) -> None:
        self.decisions = decisions
        self._info = info
        self._runner: Runner | None = runner
        self._kv: Any = kv
        self._sample, self._score = sample, score
        blocks = -(-info.max_model_len // info.kv.block_tokens)
        self._rows = Rows(info.rows, len(info.kv.groups), blocks)
        self._tickets: deque[Ticket] = deque()
        self._line: Line[_Work, Result] = Line("ridgeline-step", self._compute)

    @property
    def info(self) -> ExecutorInfo:
        return self._info

    def submit(self, plan: Plan) -> Ticket:
        """Takes the plan; it is computed as soon as those before it are."""
        if self._runner is None:
            raise RuntimeError("the executor is closed")
        if not plan.row:
            raise RuntimeError(f"step {plan.step} is empty")
        ticket = Ticket(plan)
        self._line.put(self._prepared(plan))
        self._tickets.append(ticket)
        return ticket

    def collect(self, ticket: Ticket) -> Result:
        """Waits until the oldest plan is computed; raises what computing it raised."""
        if not self._tickets or self._tickets[0] is not ticket:
            raise RuntimeError(f"step {ticket.plan.step} is not the oldest in flight")
        self._tickets.popleft()
        return self._line.take()

    def close(self) -> None:
        """Drops steps in flight, weights and KV pages."""
        self._line.close()
        self._tickets.clear()
        if self._runner is not None:
            self._runner.close()
        self._runner = self._kv = None

    def _prepared(self, plan: Plan) -> _Work:
        """Takes over what the plan changes, and makes all that steps before it do not decide."""
        submitted = perf_counter()
        self._rows.apply(plan)
        params = [self._rows.params(row) for row in plan.row]
        batch = step_inputs(plan, self._rows, self._info.kv.block_tokens)
        lengths = batch.inputs.kv_len.tolist()
        rows = zip(params, lengths, plan.sample, strict=True)
        keep = np.array([needed(row, length - row.prompt_tokens) for row, length, samples in rows if samples], np.int32)
        return _Work(plan, batch, params, keep, submitted, perf_counter())

    def _compute(self, work: _Work) -> Result:
        assert self._runner is not None
        began = perf_counter()
        plan, inputs = work.plan, work.batch.complete(self._rows.last)
        if plan.copies:
            self._kv.copy(plan.copies)
        scored = bool(plan.score)
        values = self._runner.run(inputs, self._kv, taps=("hidden",) if scored else (), keep=work.keep)
        sampled, logprobs = self._choose(plan, work.params, inputs, values)
        scores = self._scores(plan, inputs, values["hidden"]) if scored else None
        timings = Timings(queue=began - work.ready, copy=work.ready - work.submitted, run=perf_counter() - began)
        return Result(plan.step, sampled, bytearray(values["finite"]), logprobs, timings, scores)

    def _scores(self, plan: Plan, inputs: StepInputs, hidden: NDArray[np.float32]) -> tuple[tuple[TokenLogprobs, ...], ...] | None:
        assert self._runner is not None
        return prompt_logprobs(plan, inputs, self._rows, hidden, self._runner.logits, self._info.vocab, self._score)

    def _choose(
        self, plan: Plan, params: list[RowParams], inputs: StepInputs, values: Mapping[str, NDArray[Any]]
    ) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[TokenLogprobs, ...] | None, ...] | None]:
        """Samples for the rows that the plan names; `sampled` and `logprobs` are row for row as in the plan."""
        chosen = [index for index, samples in enumerate(plan.sample) if samples]
        if not chosen:
            return ((),) * len(plan.row), None
        rows = [plan.row[index] for index in chosen]
        ids, found = self._sampled(values, [params[index] for index in chosen], inputs.kv_len, chosen, rows)
        self._rows.sampled(rows, ids)
        sampled: list[tuple[int, ...]] = [()] * len(plan.row)
        logprobs: list[tuple[TokenLogprobs, ...] | None] = [None] * len(plan.row)
        for index, token, logprob in zip(chosen, ids, found, strict=True):
            sampled[index], logprobs[index] = (token,), None if logprob is None else (logprob,)
        return tuple(sampled), tuple(logprobs) if any(each is not None for each in found) else None

    def _sampled(
        self, values: Mapping[str, NDArray[Any]], asked: list[RowParams], kv_len: NDArray[np.int32], chosen: list[int], rows: list[int]
    ) -> Sampled:
        if "best" in values:
            return values["best"].tolist(), [None] * len(rows)
        histories = [self._rows.histories[row] for row in rows]
        logits = values["logits"][:, : self._info.vocab]
        return self._sample(logits, asked, kv_len[chosen].tolist(), histories, values.get("maxima"))
