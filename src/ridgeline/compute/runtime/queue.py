"""The backend of runners that compute on the calling thread: one worker thread takes step after step, and samples behind each.

The thread holds no reference to its owner: one that is dropped without being closed is freed, and its thread ends. An executor of
`concurrent.futures` does the same in several times as much Python, which here runs between two steps. The scheduler plans the next step,
and the executor makes its inputs, meanwhile. That is safe since a row is given away only when no step in flight has it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from operator import sub
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from time import perf_counter, process_time
from typing import Any, Final, Generic, Protocol, TypeVar, runtime_checkable
from weakref import WeakMethod, finalize

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.adapters.slots import AdapterSlots
from ridgeline.compute.adapters.store import AdapterStore
from ridgeline.compute.backend import Masks, RowState, Score, StepOutput, Work, finite_positions, finite_rows, sampled_rows
from ridgeline.compute.cpu.cache import DTYPES, converted, head_bytes
from ridgeline.compute.decoding.following import Following
from ridgeline.compute.decoding.grammar import GrammarCompiler
from ridgeline.compute.decoding.sampler import Sampled, accept
from ridgeline.compute.draft_model import DraftModel
from ridgeline.compute.dummy import dummy_step
from ridgeline.compute.runner import Runner
from ridgeline.compute.trace import STEP, StepTrace
from ridgeline.core.plan import ExpertReads, KVShape

In = TypeVar("In")
Out = TypeVar("Out")

Waiting = SimpleQueue[In | None]
Finished = SimpleQueue[tuple[Out | None, BaseException | None]]


class WorkerThread(Generic[In, Out]):
    """Calls the bound method `do` with each item that is put in; `take` returns the results in the same order."""

    def __init__(self, name: str, do: Callable[[In], Out]) -> None:
        self._waiting: Waiting[In] = SimpleQueue()
        self._finished: Finished[Out] = SimpleQueue()
        self._thread = Thread(target=_work_loop, args=(self._waiting, self._finished, WeakMethod(do)), name=name, daemon=True)
        self._thread.start()
        self._end = finalize(self, self._waiting.put, None)

    def put(self, work: In) -> None:
        """Adds an item; returns at once."""
        self._waiting.put(work)

    def take(self) -> Out:
        """Waits for the oldest result that has not been taken; raises what `do` raised."""
        done, error = self._finished.get()
        if error is not None:
            raise error
        return done  # type: ignore[return-value]

    def close(self) -> None:
        """Drops items that have not begun, and waits for the one that has. Safe to call twice."""
        try:
            while self._end.alive:
                self._waiting.get_nowait()
        except Empty:
            self._end()
        self._thread.join()


def _work_loop(waiting: Waiting[In], finished: Finished[Out], do: "WeakMethod[Callable[[In], Out]]") -> None:
    while (work := waiting.get()) is not None and (call := do()) is not None:
        try:
            finished.put((call(work), None))
        except BaseException as error:
            finished.put((None, error))
        del call, work


class BeatingRunner(Runner, Protocol):
    """A runner that says how far it is in a step.

    moves_grammars  its steps move the places of rows in their grammars
    adapters        its slots; None where rows have no adapters
    trace           takes what its steps do; None, as nearly always: nothing does
    """

    trace: StepTrace | None

    @property
    def moves_grammars(self) -> bool: ...

    @property
    def adapters(self) -> AdapterSlots | None: ...

    def beat(self) -> int:
        """A number that changes with every part of a step that is done; a part takes a thread some seconds at most. Any thread may ask."""


@runtime_checkable
class SharingRunner(Protocol):
    """A runner whose steps may have fewer threads than it has."""

    def share_threads(self, share: Callable[[int], int]) -> None: ...


@runtime_checkable
class ReadingRunner(Protocol):
    """A runner whose experts may lie in a file."""

    def expert_reads(self) -> ExpertReads | None:
        """Uses and reads since the start; None where all experts are in memory."""


SampleRows = Callable[..., Sampled]
"""The type of `decoding.sampler.sample_rows`; `maxima` are the runner's, and where that moves grammars behind `masks` come its `Places`."""

TIMED_ROWS: Final = 16
TIMED_TOKENS: Final = 64
TEXT_TOKENS: Final = 8
TEXT_SECONDS: Final = 0.5
"""Steps that are timed have the ids of a text of so many tokens, which the model begins itself, as long as that takes no longer. Random ids
cost more: a screen leaves nothing out of logits that hardly differ."""


class MemoryBlocks:
    """Implements `engine.executor.BlockContents` over a cache in this process's memory: no step in flight writes a published block."""

    def __init__(self, kv: Any) -> None:
        self.staged: dict[int, bytes] = {}
        self._kv = kv

    @property
    def runs(self) -> int:
        return int(self._kv.runs)

    @property
    def types(self) -> dict[str, int]:
        return {type: head_bytes(type, self._kv.head_dim) for type in sorted(DTYPES, key=self._kv.type.__ne__)}

    def converted(self, content: bytes, type: str) -> bytes:
        return converted(content, self._kv.head_dim, type, self._kv.type)

    def read(self, block_id: int) -> bytes:
        return bytes(self._kv.content(block_id))

    def touch(self, block_ids: Sequence[int]) -> None:
        self._kv.touch(block_ids)

    def close(self) -> None:
        """Lets the cache go."""
        self.staged.clear()
        self._kv = None


class QueueBackend:
    """Implements `compute.backend.Backend` over a runner and its cache.

    rows     permanent rows
    vocab    ids that may be sampled, the first ones of the logits
    threads  that a step is computed with
    shape    of the cache
    adapters in host memory, which slots are filled from
    drafts   the model that drafts in front of a step; None: there is none
    """

    timed_rows, timed_tokens = TIMED_ROWS, TIMED_TOKENS

    def __init__(
        self,
        runner: BeatingRunner,
        kv: Any,
        shape: KVShape,
        sample: SampleRows,
        score: Score,
        *,
        rows: int,
        vocab: int,
        threads: int = 1,
        adapters: AdapterStore | None = None,
        drafts: DraftModel | None = None,
    ) -> None:
        self.drafts = drafts
        self._runner: BeatingRunner | None = runner
        self._kv: Any = kv
        self._shape, self._vocab, self._threads = shape, vocab, threads
        self._sample, self._score = sample, score
        self._expert_reads = runner.expert_reads if isinstance(runner, ReadingRunner) else lambda: None
        self._read_before = self._expert_reads()
        self._adapters = adapters
        self.blocks = MemoryBlocks(kv)
        self._state = RowState(rows, vocab)
        self._thread: WorkerThread[Work, StepOutput] = WorkerThread("ridgeline-step", self._compute)
        self._masks: WorkerThread[Work, Masks] | None = None
        self._asked: StepTrace | None = None
        self._text, self._text_is_cached, self._text_seconds = [min(1, vocab - 1)], False, 0.0
        self._parts = 0
        """Parts of steps outside of the runner that are done, for `beat`."""

    def use_grammars(self, compiler: GrammarCompiler) -> None:
        """Masks get a thread of their own: they are made while the step computes."""
        self._state.compiler = compiler
        self._masks = WorkerThread("ridgeline-masks", self._state.masks)

    def share_threads(self, share: Callable[[int], int]) -> None:
        """See the native runner's; threads of others are not divided."""
        if isinstance(self._runner, SharingRunner):
            self._runner.share_threads(share)

    def enqueue(self, work: Work) -> None:
        """Takes a step, which is computed as soon as those before it are."""
        self._state.apply(work.plan)
        if work.plan.copies and (brought := [-source for source, _ in work.plan.copies if source < 0]):
            work = replace(work, contents=[self.blocks.staged.pop(number) for number in brought])
        if work.plan.fills:  # found now: once no open request names an adapter, it may be forgotten before the step runs
            assert self._adapters is not None, "a slot is filled where there is none"
            work = replace(work, adapters=[self._adapters.get(fill.digest) for fill in work.plan.fills])
        self._thread.put(work)

    reads_tables = True

    def must_read_first(self, ticket: None) -> bool:
        """Always False: the thread reads a step's results before it computes the next."""
        return False

    def read(self, ticket: None) -> StepOutput:
        """Waits for the oldest step."""
        return self._thread.take()

    def seconds(self, counts: Sequence[int], samples: Sequence[int]) -> float:
        """CPU time divided by threads: other processes that are busy during the start may be gone later.

        Rows go on with a text of the model's own and want the largest logit, as greedy rows do: a screened head costs what it costs them.
        """
        decodes = [count == 1 for count in counts]
        if any(decodes) and not self._text_is_cached:
            self._cache_text()
        starts = [len(self._text) - 1 - row % len(self._text) if alone else 0 for row, alone in enumerate(decodes)]
        began = process_time()
        self._run_text(counts, samples, starts)
        seconds = (process_time() - began) / self._threads
        self._text_is_cached = self._text_is_cached and all(decodes)
        return seconds

    def _cache_text(self) -> None:
        """Writes the keys and values of the timed text to block 0. The first time the model continues it, unless that takes long."""
        began = perf_counter()
        if len(self._text) > 1:
            self._run_text([len(self._text)], [1], [0])
        while len(self._text) == 1 or (self._text_seconds < TEXT_SECONDS and len(self._text) < TEXT_TOKENS):
            self._text.append(self._run_text([1], [1], [len(self._text) - 1]))
            self._text_seconds = perf_counter() - began
        self._text_is_cached = True

    def _run_text(self, counts: Sequence[int], samples: Sequence[int], starts: Sequence[int]) -> int:
        """A step on block 0 of rows of the timed text, over and over where they are longer. The first row's greedy id."""
        assert self._runner is not None
        groups, block_tokens = len(self._shape.groups), self._shape.block_tokens
        inputs = dummy_step(counts, groups=groups, block_tokens=block_tokens, starts=starts, samples=samples)
        inputs.ids[:] = np.array(self._text, np.int32)[inputs.positions[0] % len(self._text)]
        values = self._runner.run(inputs, self._kv, keep=np.ones(len(inputs.select), np.int32))
        best: NDArray[Any] = values["best"] if "best" in values else values["logits"][:1, : self._vocab].argmax(axis=1)
        return int(best[0])

    def beat(self) -> int:
        """A number that changes while a step is computed."""
        runner = self._runner
        return self._parts + (0 if runner is None else runner.beat())

    def trace(self, path: str, steps: int) -> None:
        """See `Executor.trace`. A trace from the start (`--trace`) rests meanwhile."""
        if self._asked is not None:
            self._asked.close()
        self._asked = StepTrace(Path(path), steps) if steps else None

    def close(self) -> None:
        """Drops steps in flight, weights and cache."""
        self._thread.close()
        if self._asked is not None:
            self._asked.close()
        if self._masks is not None:
            self._masks.close()
        if self._runner is not None:
            self._runner.close()
        if self.drafts is not None:
            self.drafts.close()
        self._runner = self._kv = self.drafts = None
        self.blocks.close()

    def _compute(self, work: Work) -> StepOutput:
        runner, asked = self._runner, self._asked
        assert runner is not None
        usual, trace = runner.trace, asked or runner.trace
        if trace is None:
            return self._step(work)
        runner.trace, began = trace, perf_counter()
        try:
            return self._step(work)
        finally:
            trace.span(STEP, began, perf_counter(), rows=len(work.plan.row), tokens=len(work.inputs.ids))
            trace.end_step()
            runner.trace = usual
            if asked is not None and asked.is_closed and self._asked is asked:
                self._asked = None

    def _step(self, work: Work) -> StepOutput:
        assert self._runner is not None
        began = perf_counter()
        plan, inputs = work.plan, work.inputs
        if len(work.unknown):
            inputs.ids[work.unknown] = self._state.last[work.unknown_rows]
        if work.contents:
            self._fill(plan.copies, work.contents)
        elif plan.copies:
            self._kv.copy(plan.copies)
        for fill, adapter in zip(plan.fills, work.adapters, strict=True):
            assert self._runner.adapters is not None, "a slot is filled where there is none"
            self._runner.adapters.fill(fill.slot, adapter)
        drafted = ()
        if plan.spans:
            assert self.drafts is not None, "a plan drafts without a draft model"
            drafted = self.drafts.draft(work, self._state)
        rows, masks_of = work.rows, None
        moves = rows.has_grammars and not rows.has_drafts and not rows.has_budgets and self._runner.moves_grammars
        following = self._state.follow(work) if moves else None
        if following is None and self._masks is not None and rows.has_grammars:
            self._masks.put(work)
            masks_of = cache(self._masks.take)
        elif rows.has_budgets and (forced := self._state.masks(work)).addresses.any():
            masks_of = cache(lambda: forced)
        self._parts += 1
        allowed = None if masks_of is None else lambda: masks_of().addresses
        taps = ("hidden",) if plan.score or rows.pooled else ()
        if self.drafts is not None:
            taps += tuple([name for name in self.drafts.taps(work) if name not in taps])
        values = self._runner.run(inputs, self._kv, taps, keep=work.keep, masks=following.places if following else allowed)
        finite: NDArray[np.bool_] = values["finite"]
        masks = None if masks_of is None else masks_of()
        if following is not None:
            masks = Masks(following.masks(are_applied="maxima" in values), following.places.addresses, {})
        whole = bool(finite.all())
        sampled = self._sampled(work, values, None if whole else finite_positions(inputs, finite), masks, following)
        if self.drafts is not None:
            self.drafts.keep(work, values, sampled.ids)
        if following is not None and masks is not None:
            masks.failures.update(self._state.followed(work, following))
        self._parts += 1
        flags = bytearray(b"\1") * len(plan.row) if whole else finite_rows(work, finite, sampled.ids)
        failures = () if masks is None else masks.apply(work.rows.sampling, sampled, flags)
        scores = None
        if plan.score:
            scores = self._state.prompt_scores(work, values["hidden"], self._runner.logits, self._vocab, self._score)
        vectors = self._state.pool(work, values["hidden"]) if rows.pooled else ()
        ids, logprobs = sampled_rows(work, *sampled)
        forced = self._state.forced(work) if rows.has_grammars else ()
        ended = perf_counter()
        output = StepOutput(ids, flags, logprobs, scores, ended - began, ended, failures, vectors, forced=forced, experts=self._experts())
        return output if self.drafts is None or not drafted else output._replace(drafted=drafted, draft_seconds=self.drafts.seconds)

    def _experts(self) -> ExpertReads | None:
        """Uses and reads of experts since the last call; None where all are in memory."""
        before, self._read_before = self._read_before, self._expert_reads()
        return before and ExpertReads(*map(sub, self._read_before or before, before))

    def _fill(self, copies: Sequence[tuple[int, int]], contents: Sequence[bytes]) -> None:
        """Carries out copies of which some are contents of tiers, one after the other."""
        left = iter(contents)
        for source, target in copies:
            if source < 0:
                self._kv.fill(target, next(left))
            else:
                self._kv.copy([(source, target)])

    def _sampled(
        self, work: Work, values: Mapping[str, NDArray[Any]], finite: NDArray[np.bool_] | None, masks: Masks | None,
        following: Following | None,
    ) -> Sampled:  # fmt: skip
        """Ids and log-probabilities of the rows that sample; stores them as the last ids of these rows."""
        rows, state = work.rows, self._state
        if not rows.sampling:
            return Sampled([], [])
        histories = [state.histories[row] for row in rows.sampling_ids.tolist()]
        if "best" in values:
            best = values["best"].tolist()
            plain = finite is None and not rows.has_drafts and not any(histories)
            ids: list[tuple[int, ...]] = [*zip(best)] if plain else accept(best, work.drafts, histories, finite)
            found = Sampled(ids, [None] * len(ids))
        else:
            first = work.inputs.kv_len[rows.sampling].tolist()
            if rows.has_drafts:
                first = [position - len(drafts) for position, drafts in zip(first, work.drafts, strict=True)]
            logits = values["logits"][:, : self._vocab]
            given = (values.get("maxima"), masks and masks.of_rows, *((following.places,) if following else ()))
            found = self._sample(logits, rows.sampling_params, work.drafts, first, histories, finite, *given)
        state.sampled(rows.sampling_ids, found.ids)
        return found
