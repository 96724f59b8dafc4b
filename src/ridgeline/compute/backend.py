"""The contract between the executor, which keeps rows and makes inputs, and the backends that compute: work in, outputs out, in order.

A backend owns the KV cache, the last sampled id of each row, the samplers' histories, and the order of steps. There are two: a queue with a
thread, for the numpy and native runners (`runtime/queue.py`), and the stream of a GPU (`cuda/backend.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.adapters.slots import LoadedAdapter
from ridgeline.compute.decoding.edits import History, Mask, history_of
from ridgeline.compute.decoding.following import Following
from ridgeline.compute.decoding.grammar import GrammarCompiler, GrammarError, RowGrammar, mask_words
from ridgeline.compute.decoding.pooling import RowPool
from ridgeline.compute.decoding.sampler import Sampled
from ridgeline.compute.graph import StepInputs
from ridgeline.core.params import RowParams
from ridgeline.core.plan import ExpertReads, IntColumn, Plan, TokenLogprobs
from ridgeline.core.thinking import ThinkingState
from ridgeline.engine.executor import BlockContents

Floats = NDArray[np.float32]
Score = Callable[[Floats, Sequence[int], Sequence[int]], list[TokenLogprobs]]
"""(logits fp32 [N, V], a token per row, number of best ids per row) → log-probabilities, bit for bit as sampling reports them."""

ANY: Final = 0xFFFFFFFF
"""A word of a mask that takes every id."""
SCORED_POSITIONS: Final = 16
"""Prompt positions that are scored at a time: as many rows as an exact product has in a tile."""


class StepRows(NamedTuple):
    """Rows of a step and how many positions each samples: made once for several steps in which both are the same.

    row, sample      the plan's columns
    row_ids          int32 [R]: `row`
    params           sampling parameters of each row
    sampling         indices of the rows that sample
    sampling_params  parameters of those
    sampling_ids     int32: permanent rows of those
    has_drafts       True where a row samples more than one position
    has_grammars     True where a row that samples follows a grammar
    has_budgets      True where the reasoning of a row that samples has a budget
    slots            int32 [R]: slot of each row's adapter, -1 for none; None where no row has one
    pooled           indices of the rows whose result is a vector
    """

    row: IntColumn
    sample: bytearray
    row_ids: NDArray[np.int32]
    params: list[RowParams]
    sampling: list[int]
    sampling_params: list[RowParams]
    sampling_ids: NDArray[np.int32]
    has_drafts: bool
    has_grammars: bool
    has_budgets: bool
    pooled: list[int]
    slots: NDArray[np.int32] | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """A step on its way to a backend.

    plan          rows that come and go, blocks to copy, spans of prompts to score
    inputs        complete but for ids that earlier steps are yet to sample
    unknown       int64 [U]  tokens whose id is not known yet
    unknown_rows  int32 [U]  permanent row of each, which samples it
    keep          int32 [S]  number of largest logits that each sampled position needs, with those equal to the last; 0: all
    drafts        of each row that samples the ids of its last tokens, which its samples are compared with
    adapters      those that the plan's fills name, held here until the step has run
    contents      of tiers, which the plan's copies name, in their order
    """

    plan: Plan
    rows: StepRows
    inputs: StepInputs
    unknown: NDArray[np.int64]
    unknown_rows: NDArray[np.int32]
    keep: NDArray[np.int32]
    drafts: Sequence[Sequence[int]]
    adapters: Sequence[LoadedAdapter] = ()
    contents: Sequence[bytes] = ()


class StepOutput(NamedTuple):
    """Results of a step: fields of `core.plan.Result`, the seconds that it took, in all and in the draft model, and when it ended
    (`perf_counter`)."""

    sampled: tuple[tuple[int, ...], ...]
    finite: bytearray
    logprobs: tuple[tuple[TokenLogprobs, ...] | None, ...] | None
    scores: tuple[tuple[TokenLogprobs, ...], ...] | None
    seconds: float
    ended: float
    failures: tuple[tuple[int, str], ...] = ()
    vectors: tuple[bytes, ...] = ()
    drafted: tuple[tuple[int, ...], ...] = ()
    draft_seconds: float = 0.0
    forced: tuple[tuple[int, tuple[int, ...]], ...] = ()
    experts: ExpertReads | None = None


class Backend(Protocol):
    """Computes steps in the order in which they are enqueued.

    timed_rows, timed_tokens  rows and tokens of the steps that are timed at the start; 0: time on this backend means nothing
    reads_tables              False where block tables are kept by the backend, from plans: `Work.inputs` then has none
    """

    timed_rows: int
    timed_tokens: int

    @property
    def reads_tables(self) -> bool:
        """See above."""
        ...

    def use_grammars(self, compiler: GrammarCompiler) -> None:
        """Rows may follow grammars that the compiler has compiled. Only before work is enqueued."""
        ...

    def enqueue(self, work: Work) -> Any:
        """Takes the step and returns its ticket at once; never waits for a device."""
        ...

    @property
    def blocks(self) -> BlockContents | None:
        """See `Executor.blocks`."""
        ...

    def must_read_first(self, ticket: Any) -> bool:
        """True where the step must be read before the next one is enqueued, as the next one overwrites what the host has yet to read."""
        ...

    def read(self, ticket: Any) -> StepOutput:
        """Waits for a step; raises what computing it raised."""
        ...

    def seconds(self, counts: Sequence[int], samples: Sequence[int]) -> float:
        """Runs a step on block 0 whose rows have so many tokens and sampled positions, and returns its seconds. Only before work is
        enqueued."""
        ...

    def beat(self) -> int:
        """See `Executor.beat`."""
        ...

    def trace(self, path: str, steps: int) -> None:
        """See `Executor.trace`."""
        ...

    def close(self) -> None:
        """Drops steps in flight, weights and KV cache. Safe to call twice."""
        ...


class Masks(NamedTuple):
    """Masks of a step. The next one overwrites them.

    of_rows    of the rows that sample (`decoding.sampler.sample_rows`)
    addresses  int64 [S]: of the mask of each sampled position; 0 where any id may come in its row
    failures   why rows cannot go on, by their number among those that sample
    """

    of_rows: list[Mask | None]
    addresses: NDArray[np.int64]
    failures: dict[int, str]

    def apply(self, sampling: Sequence[int], sampled: Sampled, flags: bytearray) -> tuple[tuple[int, str], ...]:
        """Takes back what rows have sampled that cannot go on. Returns `Result.failures`.

        sampling  indices of the rows that sample
        """
        for number in self.failures:
            sampled.ids[number], flags[sampling[number]] = (), 0
            if sampled.logprobs[number] is not None:
                sampled.logprobs[number] = ()
        return tuple([(sampling[number], reason) for number, reason in self.failures.items()])


class RowState:
    """State of permanent rows.

    last       int32 [rows]: last sampled id, to the end of the steps that have been computed
    histories  ids for penalties and bans; None for rows that need none
    grammars   places in the grammars of rows that follow one
    thoughts   places in the reasoning of rows where that has a budget
    pools      of rows whose result is a vector
    compiler   makes grammars; None where no row follows one
    """

    def __init__(self, rows: int, vocab: int) -> None:
        self.last = np.zeros(rows, np.int32)
        self.histories: list[History | None] = [None] * rows
        self.grammars: list[RowGrammar | None] = [None] * rows
        self.thoughts: list[ThinkingState | None] = [None] * rows
        self.pools: dict[int, RowPool] = {}
        self.compiler: GrammarCompiler | None = None
        self._bits = np.zeros((0, mask_words(vocab)), np.uint32)

    def apply(self, plan: Plan) -> None:
        """Updates rows that come and go."""
        for row in plan.freed_rows:
            self.histories[row] = self.grammars[row] = self.thoughts[row] = None
            self.pools.pop(row, None)
        for new in plan.new_rows:
            asked, outputs = new.params.sampling, new.ids[new.params.prompt_tokens :]
            if new.params.pooling is not None:
                self.pools[new.row] = RowPool(new.params.pooling)
            self.histories[new.row] = history_of(new.params, new.ids)
            if asked.thinking is not None:
                self.thoughts[new.row] = ThinkingState(asked.thinking, outputs)
            if asked.grammar is not None:
                assert self.compiler is not None, "a row follows a grammar where none is compiled"
                self.grammars[new.row] = self.compiler.start(asked.grammar, outputs)

    def sampled(self, rows: NDArray[np.int32], ids: Sequence[tuple[int, ...]]) -> None:
        """Stores the last ids of rows that have sampled, and advances their grammars and thoughts; the sampler has pushed their
        histories."""
        for row, each in zip(rows.tolist(), ids, strict=True):
            if (grammar := self.grammars[row]) is not None:
                grammar.advance(each)
            if (thought := self.thoughts[row]) is not None:
                for token in each:
                    thought.push(token)
        if all(ids):
            self.last[rows] = [each[-1] for each in ids]
        else:
            for row, each in zip(rows.tolist(), ids, strict=True):
                if each:
                    self.last[row] = each[-1]

    def forced(self, work: Work) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """`Result.forced`, behind what the step has sampled."""
        if self.compiler is None or not self.compiler.tells_forced:
            return ()
        found = []
        for index, row in zip(work.rows.sampling, work.rows.sampling_ids.tolist(), strict=True):
            if (grammar := self.grammars[row]) is not None and (ids := grammar.forced()):
                found.append((index, ids))
        return tuple(found)

    def masks(self, work: Work) -> Masks:
        """Masks of the rows that sample. They are functions of ids that are known before the step computes."""
        rows, samples = work.rows.sampling_ids.tolist(), len(work.inputs.select)
        if len(self._bits) < samples:
            self._bits = np.zeros((samples, self._bits.shape[1]), np.uint32)
        bits, end = self._bits, 0
        found = Masks([None for _ in rows], np.zeros(samples, np.int64), {})
        for number, (row, drafts) in enumerate(zip(rows, work.drafts, strict=True)):
            first, end, grammar, thought = end, end + 1 + len(drafts), self.grammars[row], self.thoughts[row]
            forced = [] if thought is None else thought.walk(drafts)
            if grammar is None and not any(token is not None for token in forced):
                continue
            found.of_rows[number] = mask = bits[first:end]
            mask[:] = 0  # the library writes no further than its vocabulary
            found.addresses[first:end] = bits.ctypes.data + bits.strides[0] * np.arange(first, end)
            try:
                if grammar is None:
                    mask[:] = ANY
                else:
                    grammar.masks(drafts, mask)
            except GrammarError as error:
                self._lose(row, number, error, found.failures)
                mask[:] = 0 if number in found.failures else ANY
            for place, token in enumerate(forced):
                if token is not None:
                    mask[place] = 0
                    mask[place, token // 32] = 1 << token % 32
        return found

    def follow(self, work: Work) -> Following | None:
        """The state that a runner needs to move rows along their grammars in a step without drafts and budgets of reasoning.

        None where a row has to move by several ids first, as behind a preemption.
        """
        rows = work.rows.sampling_ids.tolist()
        grammars = [self.grammars[row] for row in rows]
        if self.compiler is None or any(each is not None and each.waiting > 1 for each in grammars):
            return None
        if len(self._bits) < len(rows):
            self._bits = np.zeros((len(rows), self._bits.shape[1]), np.uint32)
        return Following(self.compiler.calls, grammars, work.rows.sampling_params, self._bits, work.keep)

    def followed(self, work: Work, following: Following) -> dict[int, str]:
        """The rows that cannot go on behind a step that has been sampled, as `Masks.failures`."""
        failures: dict[int, str] = {}
        for number, error in following.moved():
            self._lose(int(work.rows.sampling_ids[number]), number, error, failures)
        return failures

    def _lose(self, row: int, number: int, error: GrammarError, failures: dict[int, str]) -> None:
        """A row's grammar cannot go on: an optional one leaves it free."""
        grammar = self.grammars[row]
        if grammar is not None and grammar.is_optional:
            self.grammars[row] = None
        else:
            failures[number] = f"the output cannot follow its grammar any further: {error}"

    def pool(self, work: Work, hidden: Floats) -> tuple[bytes, ...]:
        """Adds a step's final hidden states [T, D] to its rows that are pooled. Returns `Result.vectors`."""
        plan, ends = work.plan, work.inputs.cu_q.tolist()
        for index in work.rows.pooled:
            self.pools[plan.row[index]].add(hidden[ends[index] : ends[index + 1]], plan.start[index])
        return tuple([self.pools[plan.row[index]].vector() for index in plan.pool])

    def prompt_token(self, row: int, position: int) -> int:
        """The id at a position of the prompt of a row whose prompt is scored. RuntimeError where the row did not ask for scores."""
        history = self.histories[row]
        if history is None:
            raise RuntimeError(f"row {row} is scored at position {position} and did not ask for it")
        return history.ids[position]

    def prompt_scores(
        self, work: Work, hidden: Floats, logits_of: Callable[[Floats], Floats], vocab: int, score: Score
    ) -> tuple[tuple[TokenLogprobs, ...], ...]:
        """Log-probabilities of the tokens behind the positions of each entry of `Plan.score`, a few at a time: logits are never [T, V].

        hidden     [T, D]: the step's tap
        logits_of  hidden [N, D] → logits [N, ≥ vocab], bit for bit those of the step
        """
        plan, inputs = work.plan, work.inputs
        tokens = np.concatenate([np.arange(count, dtype=np.int32) + inputs.cu_q[index] + first for index, first, count in plan.score])
        found: list[TokenLogprobs] = []
        for start in range(0, len(tokens), SCORED_POSITIONS):
            part = tokens[start : start + SCORED_POSITIONS]
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
    """Ids and log-probabilities of the rows that sample → those of all rows of the plan."""
    rows = work.rows
    if logprobs is not None and not any(logprobs):
        logprobs = None
    if len(rows.sampling) == len(rows.row):
        return tuple(ids), None if logprobs is None else tuple(logprobs)
    sampled: list[tuple[int, ...]] = [()] * len(rows.row)
    found: list[tuple[TokenLogprobs, ...] | None] = [None] * len(rows.row)
    for number, index in enumerate(rows.sampling):
        sampled[index] = ids[number]
        found[index] = None if logprobs is None else logprobs[number]
    return tuple(sampled), None if logprobs is None else tuple(found)


def finite_positions(inputs: StepInputs, finite: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """bool [S]: True where the tokens of a row are `finite` [T] up to a selected one."""
    row = inputs.row_of_token
    first = np.full(len(inputs.kv_len), len(row))
    (bad,) = (~finite).nonzero()
    np.minimum.at(first, row[bad], bad)
    found: NDArray[np.bool_] = inputs.select < first[row[inputs.select]]
    return found


def finite_rows(work: Work, finite: NDArray[np.bool_], ids: Sequence[tuple[int, ...]]) -> bytearray:
    """`Result.finite` from `finite` [T] of the tokens and the ids of the rows that sample."""
    flags = bytearray(np.logical_and.reduceat(finite, work.inputs.cu_q[:-1]))
    for index, sampled, drafts in zip(work.rows.sampling, ids, work.drafts, strict=True):
        ended = len(sampled) > len(drafts) or (len(sampled) > 0 and sampled[-1] != drafts[len(sampled) - 1])
        flags[index] = ended  # else the walk met a position that is not finite; behind its end nothing counts
    return flags
