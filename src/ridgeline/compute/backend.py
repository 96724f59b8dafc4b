"""The contract between the executor, which keeps rows and makes inputs, and what computes: work goes in, answers come out, in one order.

A backend owns the KV cache, the id that each row sampled last, what samplers look back at, and the order of steps. There are two: a queue
with a thread, for numpy and the native runner (`runtime/queue.py`), and the stream of a GPU (`cuda/backend.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.decoding.edits import History, history_of
from ridgeline.compute.graph import StepInputs
from ridgeline.core.params import RowParams
from ridgeline.core.plan import IntColumn, Plan, TokenLogprobs

Floats = NDArray[np.float32]
Score = Callable[[Floats, Sequence[int], Sequence[int]], list[TokenLogprobs]]
"""(logits fp32 [N, V], a token for each row, how many best ids) → log-probabilities, to the bit those that sampling reports."""

SLICE: Final = 16
"""Prompt positions whose logits exist at once: as many rows as an exact product has in a tile."""


class StepRows(NamedTuple):
    """What steps have in common while their rows, and how many positions each samples, are the same: made once for all of them.

    row, sample   the plan's columns
    place         int32 [R]: `row`
    params        of each row
    chosen        indices of the rows that sample
    asked         parameters of those                taking   int32: permanent rows of those
    drafted       a row samples more than one position
    """

    row: IntColumn
    sample: bytearray
    place: NDArray[np.int32]
    params: list[RowParams]
    chosen: list[int]
    asked: list[RowParams]
    taking: NDArray[np.int32]
    drafted: bool

    def serve(self, plan: Plan) -> bool:
        """Whether the plan's are the same. Plans of the same rows share their column."""
        return plan.row is self.row and plan.sample == self.sample and not plan.new_rows


@dataclass(frozen=True, slots=True)
class Work:
    """A step on its way to a backend.

    plan    rows that come and go, blocks to copy, spans of prompts to score
    inputs  complete but for ids that steps before this one are yet to sample
    open    int64 [O]   tokens whose id is not known            source  int32 [O]  the permanent row of each, which sampled it last
    keep    int32 [S]   how many of the largest logits of each sampled position are needed, with those that equal the last; 0: all
    drafts  of each row that samples the ids of its last tokens, which its samples are held against
    """

    plan: Plan
    rows: StepRows
    inputs: StepInputs
    open: NDArray[np.int64]
    source: NDArray[np.int32]
    keep: NDArray[np.int32]
    drafts: Sequence[Sequence[int]]


class Answer(NamedTuple):
    """What became of a step: fields of `core.plan.Result`, the seconds that it took, and when that was over (`perf_counter`)."""

    sampled: tuple[tuple[int, ...], ...]
    finite: bytearray
    logprobs: tuple[tuple[TokenLogprobs, ...] | None, ...] | None
    scores: tuple[tuple[TokenLogprobs, ...], ...] | None
    seconds: float
    ended: float


class Backend(Protocol):
    """What computes steps in the order in which they are enqueued.

    timed_rows, timed_tokens  rows and tokens of the steps that are timed at the start; 0: time here means nothing
    """

    timed_rows: int
    timed_tokens: int

    def enqueue(self, work: Work) -> Any:
        """Takes the step and returns its ticket at once; never waits for a device."""
        ...

    def serial(self, ticket: Any) -> bool:
        """Whether the step must be read before the next one is enqueued: it leaves something to the host that the next one overwrites."""
        ...

    def read(self, ticket: Any) -> Answer:
        """Waits for a step; raises what computing it raised."""
        ...

    def seconds(self, counts: Sequence[int], samples: Sequence[int]) -> float:
        """What a step takes of rows with so many tokens and sampled positions, on block 0. Only before work is enqueued."""
        ...

    def close(self) -> None:
        """Drops steps in flight, weights and KV cache. Safe to call twice."""
        ...


class RowState:
    """What a backend knows of permanent rows.

    last       int32 [rows]: the id that each sampled last, to the end of the steps that have been computed
    histories  None for rows that do not look back
    """

    def __init__(self, rows: int) -> None:
        self.last = np.zeros(rows, np.int32)
        self.histories: list[History | None] = [None] * rows

    def apply(self, plan: Plan) -> None:
        """Takes over rows that come and go."""
        for row in plan.freed_rows:
            self.histories[row] = None
        for new in plan.new_rows:
            self.histories[new.row] = history_of(new.params, new.ids)

    def sampled(self, rows: NDArray[np.int32], ids: Sequence[tuple[int, ...]]) -> None:
        """Remembers the last ids of rows that have sampled; histories have been pushed as the sampler went."""
        if all(ids):
            self.last[rows] = [each[-1] for each in ids]
        else:
            for row, each in zip(rows.tolist(), ids, strict=True):
                if each:
                    self.last[row] = each[-1]

    def prompt_token(self, row: int, position: int) -> int:
        """An id of the prompt of a row whose prompt is scored."""
        history = self.histories[row]
        if history is None:
            raise RuntimeError(f"row {row} is scored at position {position} and did not ask for it")
        return history.ids[position]

    def prompt_scores(
        self, work: Work, hidden: Floats, logits_of: Callable[[Floats], Floats], vocab: int, score: Score
    ) -> tuple[tuple[TokenLogprobs, ...], ...]:
        """For each entry of `Plan.score` log-probabilities of the tokens behind its positions, a few at a time: logits are never [T, V].

        hidden [T, D]: the step's tap. logits_of: hidden [N, D] → logits [N, ≥ vocab], bit for bit those that the step would have given.
        """
        plan, inputs = work.plan, work.inputs
        tokens = np.concatenate([np.arange(count, dtype=np.int32) + inputs.cu_q[index] + first for index, first, count in plan.score])
        found: list[TokenLogprobs] = []
        for start in range(0, len(tokens), SLICE):
            part = tokens[start : start + SLICE]
            indices = inputs.row_of_token[part].tolist()
            at = inputs.positions[0, part].tolist()
            following = [self.prompt_token(plan.row[index], position + 1) for index, position in zip(indices, at, strict=True)]
            counts = [work.rows.params[index].prompt_logprobs or 0 for index in indices]
            found += score(logits_of(hidden[part])[:, :vocab], following, counts)
        ends = accumulate(count for _, _, count in plan.score)
        return tuple([tuple(found[end - count : end]) for end, (_, _, count) in zip(ends, plan.score, strict=True)])


def sampled_rows(
    work: Work, ids: Sequence[tuple[int, ...]], logprobs: Sequence[tuple[TokenLogprobs, ...] | None] | None
) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[TokenLogprobs, ...] | None, ...] | None]:
    """Ids and log-probabilities of the rows that sample, row for row as in the plan."""
    rows = work.rows
    if logprobs is not None and not any(logprobs):
        logprobs = None
    if len(rows.chosen) == len(rows.row):
        return tuple(ids), None if logprobs is None else tuple(logprobs)
    sampled: list[tuple[int, ...]] = [()] * len(rows.row)
    found: list[tuple[TokenLogprobs, ...] | None] = [None] * len(rows.row)
    for number, index in enumerate(rows.chosen):
        sampled[index] = ids[number]
        found[index] = None if logprobs is None else logprobs[number]
    return tuple(sampled), None if logprobs is None else tuple(found)


def finite_positions(inputs: StepInputs, finite: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """[S]: whether the tokens of a row are `finite` [T] up to a selected one."""
    row = inputs.row_of_token
    first = np.full(len(inputs.kv_len), len(row))
    (bad,) = (~finite).nonzero()
    np.minimum.at(first, row[bad], bad)
    found: NDArray[np.bool_] = inputs.select < first[row[inputs.select]]
    return found


def finite_rows(work: Work, finite: NDArray[np.bool_], ids: Sequence[tuple[int, ...]]) -> bytearray:
    """`Result.finite`, of tokens that are `finite` [T] or not and the ids that the rows which sample have got."""
    flags = bytearray(np.logical_and.reduceat(finite, work.inputs.cu_q[:-1]))
    for index, got, drafted in zip(work.rows.chosen, ids, work.drafts, strict=True):
        ended = len(got) > len(drafted) or (len(got) > 0 and got[-1] != drafted[len(got) - 1])
        flags[index] = ended  # else the walk met a position that is not finite; behind its end nothing counts
    return flags
