"""The executor of the computing wing: takes plans, keeps rows and KV pages, runs a runner, samples.

Owns the order of steps and the device state of resident sequences; the runner owns arithmetic and layouts. One thread computes plans in
the order in which they were submitted, so that what a plan leaves to its rows (the last sampled id, where a row stands) is known at its
turn, and whoever schedules the next step does so meanwhile.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.decoding.history import History
from ridgeline.compute.decoding.logprobs import score
from ridgeline.compute.decoding.table import plain
from ridgeline.compute.graph import StepInputs
from ridgeline.compute.runtime.batch import step_inputs
from ridgeline.compute.runtime.rows import Rows
from ridgeline.compute.runtime.scores import Score, prompt_logprobs
from ridgeline.config.resolve import Decision
from ridgeline.core.params import RowParams
from ridgeline.core.plan import Plan, Result, Timings, TokenLogprobs
from ridgeline.engine.executor import ExecutorInfo, Ticket

Sampled = tuple[list[int], list[TokenLogprobs | None]]
Sample = Callable[[NDArray[np.float32], Sequence[RowParams], Sequence[int], Sequence[History | None]], Sampled]
"""(logits fp32 [S, V], parameters, index of each output in its sequence, what each looks back at) → ids and log-probabilities."""


class Runner(Protocol):
    """What computes a step."""

    def run(self, inputs: StepInputs, kv: Any, taps: Sequence[str] = (), *, best: bool = False) -> dict[str, NDArray[Any]]:
        """`logits` fp32 [S, V] of the selected positions, and the taps asked for; writes K and V into `kv`, the runner's cache.

        best: only the lowest id of each row's largest logit is needed; a runner may return these, `best` [S], in place of `logits`.
        """
        ...

    def logits(self, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        """Rows of the tap `hidden` [N, D] to their logits [N, V], bit for bit what `run` gives for them when they are selected."""
        ...

    def close(self) -> None: ...


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
        self._queue: deque[tuple[Ticket, Future[Result]]] = deque()
        self._thread = ThreadPoolExecutor(1, "ridgeline-step")

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
        self._queue.append((ticket, self._thread.submit(self._compute, plan, perf_counter())))
        return ticket

    def collect(self, ticket: Ticket) -> Result:
        """Waits until the oldest plan is computed; raises what computing it raised."""
        if not self._queue or self._queue[0][0] is not ticket:
            raise RuntimeError(f"step {ticket.plan.step} is not the oldest in flight")
        _, computed = self._queue.popleft()
        return computed.result()

    def close(self) -> None:
        """Drops steps in flight, weights and KV pages."""
        self._thread.shutdown(cancel_futures=True)
        self._queue.clear()
        if self._runner is not None:
            self._runner.close()
        self._runner = self._kv = None

    def _compute(self, plan: Plan, submitted: float) -> Result:
        assert self._runner is not None
        began = perf_counter()
        self._rows.apply(plan)
        params = [self._rows.params(row) for row in plan.row]
        inputs = step_inputs(plan, self._rows, self._info.kv.block_tokens)
        ready = perf_counter()
        greedy = all(plain(row, length - row.prompt_tokens) for row, length in zip(params, inputs.kv_len.tolist(), strict=True))
        values = self._runner.run(inputs, self._kv, taps=("hidden",), best=greedy)
        finite = _finite(values["hidden"], inputs.cu_q)
        sampled, logprobs = self._choose(plan, params, inputs, values)
        scores = prompt_logprobs(plan, inputs, self._rows, values["hidden"], self._runner.logits, self._info.vocab, self._score)
        timings = Timings(queue=began - submitted, copy=ready - began, run=perf_counter() - ready)
        return Result(plan.step, sampled, finite, logprobs, timings, scores)

    def _choose(
        self, plan: Plan, params: list[RowParams], inputs: StepInputs, values: Mapping[str, NDArray[Any]]
    ) -> tuple[tuple[tuple[int, ...], ...], tuple[TokenLogprobs | None, ...] | None]:
        """Samples for the rows that the plan names; `sampled` and `logprobs` are row for row as in the plan."""
        chosen = [index for index, samples in enumerate(plan.sample) if samples]
        if not chosen:
            return ((),) * len(plan.row), None
        rows = [plan.row[index] for index in chosen]
        ids, found = self._sampled(values, [params[index] for index in chosen], inputs.kv_len[chosen].tolist(), rows)
        self._rows.sampled(rows, ids)
        sampled: list[tuple[int, ...]] = [()] * len(plan.row)
        logprobs: list[TokenLogprobs | None] = [None] * len(plan.row)
        for index, token, logprob in zip(chosen, ids, found, strict=True):
            sampled[index], logprobs[index] = (token,), logprob
        return tuple(sampled), tuple(logprobs) if any(each is not None for each in found) else None

    def _sampled(self, values: Mapping[str, NDArray[Any]], asked: list[RowParams], positions: list[int], rows: list[int]) -> Sampled:
        if "best" in values:
            return values["best"].tolist(), [None] * len(rows)
        return self._sample(values["logits"][:, : self._info.vocab], asked, positions, [self._rows.histories[row] for row in rows])


def _finite(hidden: NDArray[np.float32], cu_q: NDArray[np.int32]) -> bytearray:
    """1 for each row all of whose tokens' final hidden states [T, D] are finite."""
    tokens = np.isfinite(hidden).all(axis=1)
    return bytearray(np.logical_and.reduceat(tokens, cu_q[:-1]).astype(np.uint8).tobytes())
