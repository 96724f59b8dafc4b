"""The draft model on a GPU: passes of a runner of its own, on the stream of the target's steps, in front of the step that verifies.

Rows that the device samples draft there, with the target's noise: a pass embeds the ids that the one before has drawn, and the step that
verifies takes up all of them, so passes and step are launched at once and the host reads the drafts with the step's results. Where a
drafting row needs the host (penalties, grammars, a map of tokens …) every pass is read before the next.
"""

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ridgeline.compute.backend import Work
from ridgeline.compute.cuda.cache import allocate_device_kv
from ridgeline.compute.cuda.device import Device
from ridgeline.compute.cuda.load import load_weights
from ridgeline.compute.cuda.runner import CudaRunner, LaunchedStep
from ridgeline.compute.cuda.sampler import columns_of, drafted_id, is_sampled_on_device
from ridgeline.compute.cuda.step import COLUMN_DTYPES, NO_SAMPLING, SAMPLING_COLUMNS, DeviceSampling, OpenRows
from ridgeline.compute.decoding.sampler import sample_rows
from ridgeline.compute.draft_model import ROUNDS, TIMED_ROWS, Drafting, DraftModel
from ridgeline.compute.dummy import dummy_step
from ridgeline.compute.load.record import record
from ridgeline.compute.opening import ModelSource, Progress
from ridgeline.config.resolve import Decision
from ridgeline.core.drafts.model import DraftCache
from ridgeline.core.params import RowParams
from ridgeline.core.plan import LAST, DraftSpan, KVShape
from ridgeline.facts.headers.rope import select_rope
from ridgeline.facts.model import ModelFacts
from ridgeline.planning.memory import block_bytes

BACKLOG: Final = 1
"""Ids beside the newest that a row which drafts computes first: a last draft that came true. Such passes are graphs."""

NONE_OPEN: Final[Mapping[int, tuple[int, int]]] = {}
Span = tuple[int, int, Sequence[int]]
"""Permanent row, first position, ids."""


class Passes(NamedTuple):
    """Passes that have been launched: the first and the last of a step."""

    first: LaunchedStep
    last: LaunchedStep


class DeviceDraftModel(DraftModel):
    """Drafts as `DraftModel` does, by runners that are warm and have their cache. lists: that of the first draft, and those of the further
    ones; the last stands for all behind it."""

    def __init__(self, lists: Sequence[CudaRunner], shape: KVShape, *, rows: int, blocks: int, vocab: int) -> None:
        super().__init__(lists[0], None, shape, sample_rows, rows=rows, blocks=blocks, vocab=vocab, threads=1)
        self._lists, self._device = lists, lists[0]
        self._behind: NDArray[np.int32] | None = None
        """int32 [permanent rows]: how many positions each lies behind the target's; None: none does."""

    def launch(self, work: Work) -> Passes | None:
        """Starts all passes over the spans of a step's plan, whose drafts the step finds on the device. None, and nothing is done, where a
        row that drafts needs the host: `draft` is for that."""
        params = dict(zip(work.rows.sampling_ids.tolist(), work.rows.sampling_params, strict=True))
        spans, drafting = work.plan.spans, [span for span in work.plan.spans if span.drafts]
        own = {span.row: params[span.row] for span in drafting}
        if self._map is not None or not all(is_sampled_on_device(each) for each in own.values()):
            return None
        self._take_blocks(spans)
        most = dict(zip(work.plan.row, work.plan.open, strict=False))
        starts = dict(zip(work.plan.row, work.plan.start, strict=True))
        open_rows = {span.row: (starts[span.row], most[span.row]) for span in drafting if most.get(span.row)}
        found = [self._open_span(span, most[span.row]) if span.row in open_rows else (span.row, span.start, span.ids) for span in spans]
        first = last = self._launch(found, own, 0, open_rows)
        for depth in range(1, max((span.drafts for span in drafting), default=0)):
            newest = (drafted_id(depth - 1),)
            deeper = [(span.row, span.start + len(span.ids) + depth - 1, newest) for span in drafting if span.drafts > depth]
            last = self._launch(deeper, own, depth, open_rows)
        return Passes(first, last)

    def _open_span(self, span: DraftSpan, most: int) -> Span:
        """The span of a row that may stand `most` positions farther than the plan says: the id before the last too."""
        return span.row, span.start - 1, (self._device.ids.kept.before_last, LAST)

    def _take_blocks(self, spans: Sequence[DraftSpan]) -> None:
        super()._take_blocks(spans)
        for span in spans:
            for group, first, blocks in span.blocks:
                self._device.tables.change(group, span.row, first, blocks)

    def seconds_of(self, passes: Passes) -> float:
        """Seconds on the device of passes that have been computed."""
        return self._device.device.seconds(passes.first.start, passes.last.end)

    def pass_seconds(self, rows: int) -> tuple[tuple[int, float], ...]:
        """(rows, seconds) of passes, launches included; none where kernels are interpreted, whose times mean nothing."""
        found = []
        for count in sorted({min(rows, each) for each in TIMED_ROWS}) if self._device.device.real else ():
            inputs = dummy_step([1] * count, groups=len(self._shape.groups), block_tokens=self._shape.block_tokens)
            best = float("inf")
            for _ in range(ROUNDS):
                began = perf_counter()
                self._lists[-1].read(self._lists[-1].launch(inputs, NO_SAMPLING))
                best = min(best, perf_counter() - began)
            found.append((count, best))
        return tuple(found)

    def _launch(
        self, rows: Sequence[Span], params: dict[int, RowParams], number: int = 0, open_rows: Mapping[int, tuple[int, int]] = NONE_OPEN
    ) -> LaunchedStep:
        """Starts a pass, of which the device samples the rows of `params`: draft `number` of each.

        open_rows  of rows that may stand farther than is said: the least position of the id sampled last, and how much farther it may stand
        """
        inputs, row_ids = self._inputs(rows, [1] * len(rows)), np.array([row for row, *_ in rows], np.int32)
        newest, most = np.array([open_rows.get(row, (-1, 0)) for row, *_ in rows], np.int32).T
        sampling = _sampling(row_ids, params, 1 + number, None if self._behind is None else self._behind[row_ids])
        return self._of(number).launch(inputs, sampling, open=OpenRows(newest, most) if open_rows else None)

    def _of(self, number: int) -> CudaRunner:
        """The runner of draft `number`."""
        return self._lists[min(number, len(self._lists) - 1)]

    def _run(
        self, runner: Any, rows: Sequence[Span], samples: Sequence[int], drafting: Sequence[Drafting], **others: Any
    ) -> dict[str, NDArray[Any]]:
        number = len(drafting[0].ids) if drafting else 0
        launched = self._launch(rows, {}, number)
        if not drafting:
            return {}
        self._of(number).read(launched)
        return {"logits": self._of(number).logits_of([index for index, count in enumerate(samples) if count])}

    def close(self) -> None:
        """Drops weights and caches."""
        for runner in self._lists:
            runner.close()


def mark_drafts(work: Work) -> None:
    """Puts what stands for drafts on the device among the step's ids."""
    ends = dict(zip(work.rows.row_ids.tolist(), work.inputs.cu_q[1:].tolist(), strict=True))
    for span in work.plan.spans:
        work.inputs.ids[ends[span.row] - span.drafts : ends[span.row]] = [drafted_id(number) for number in range(span.drafts)]


def read_drafts(work: Work, ids: NDArray[np.int32]) -> tuple[tuple[int, ...], ...]:
    """Writes drafts to the work of a step that has been computed, whose tokens have these ids [T]. Returns those of each span."""
    ends = dict(zip(work.rows.row_ids.tolist(), work.inputs.cu_q[1:].tolist(), strict=True))
    found = {span.row: tuple(ids[ends[span.row] - span.drafts : ends[span.row]].tolist()) for span in work.plan.spans}
    for row, drafts in zip(work.rows.sampling_ids.tolist(), work.drafts, strict=True):
        if found.get(row):
            drafts[:] = found[row]  # type: ignore[index]
    return tuple(found.values())


def _sampling(rows: NDArray[np.int32], params: dict[int, RowParams], entry: int, shifts: NDArray[np.int32] | None = None) -> DeviceSampling:
    """Sampling of a pass over these permanent rows."""
    found = [columns_of(params[row]) if row in params else (0,) * len(SAMPLING_COLUMNS) for row in rows.tolist()]
    kinds = zip(SAMPLING_COLUMNS.items(), zip(*found, strict=True), strict=True)
    columns = {name: np.array(numbers, COLUMN_DTYPES[kind][0]) for (name, kind), numbers in kinds}
    return DeviceSampling(rows, np.array([row in params for row in rows.tolist()], np.bool_), columns, entry=entry, shifts=shifts)


class DeviceDrafts(NamedTuple):
    """A draft model on the device, warm and timed. `nbytes`: of its weights."""

    model: DeviceDraftModel
    cache: DraftCache
    nbytes: int
    decision: Decision


def open_device_drafts(
    source: ModelSource, device: Device, dtype: torch.dtype, positions: int, target: CudaRunner, progress: Progress
) -> DeviceDrafts | None:
    """The draft model of a source, for sequences of so many positions, with all that it will ever take of the device; None where there is
    none. Raises ConfigError where its cache holds no sequence.

    target  the runner of the steps that verify
    """
    if source.drafts is None:
        return None
    assert isinstance(source.drafts, ModelFacts)
    config, positions = source.config, min(positions, source.drafts.context)
    facts, _ = select_rope(source.drafts, positions)
    oplist, weights = load_weights(facts, record(facts)["step"], device, dtype, fp8=config.dtype == "fp8", progress=progress)
    shape = source.draft_shape(facts, positions, device.memory_bytes)
    runner = CudaRunner(
        oplist, weights, shape, device, dtype,
        tokens=config.tokens + config.rows, rows=config.rows, positions=positions, vocab=source.facts.tokens, cached=facts.cached,
        depth=config.num_speculative_tokens * config.depth, invariant=config.batch_invariant, backlog=BACKLOG, kept=target.ids.kept,
    )  # fmt: skip
    runner.attach(allocate_device_kv(shape, facts.cached, config.kv_dtype, device.torch))
    runner.profile_run()
    runner.compile_kernels(progress)
    runner.warm_up(progress)
    blocks = -(-positions // config.block_size)
    model = DeviceDraftModel([runner], shape, rows=config.rows, blocks=blocks, vocab=source.facts.tokens)
    passes = model.pass_seconds(config.rows)
    ahead = target.buckets.most_verified
    cache = DraftCache(len(shape.groups), config.block_size, shape.blocks, positions, passes, facts.tokens, ahead=ahead)
    stored = shape.blocks * block_bytes(facts, shape.groups[0], shape.block_tokens, config.kv_dtype) >> 20
    price = f"{passes[0][1] * 1e3:.2f} ms for an id, " if passes else ""
    reason = f"--draft-model, in front of steps that verify: {price}{stored} MiB of KV, {runner.nbytes >> 20} MiB for its largest step"
    return DeviceDrafts(model, cache, weights.nbytes, Decision("draft_model", config.draft_model or "", "flag", reason))
