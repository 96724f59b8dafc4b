"""The draft model on a GPU: passes of a runner of its own, on the stream of the target's steps, in front of the step that verifies.

Rows that the device samples draft there, with the target's noise: a pass embeds the ids that the one before has drawn, all passes are
launched at once, and the host waits for the last. Where a drafting row needs the host (penalties, grammars, a map of tokens …) every pass
is read before the next.
"""

from collections.abc import Sequence
from time import perf_counter
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ridgeline.compute.backend import RowState, Work
from ridgeline.compute.cuda.cache import allocate_device_kv
from ridgeline.compute.cuda.device import Device
from ridgeline.compute.cuda.load import load_weights
from ridgeline.compute.cuda.runner import CudaRunner, LaunchedStep
from ridgeline.compute.cuda.sampler import columns_of, is_sampled_on_device
from ridgeline.compute.cuda.step import COLUMN_DTYPES, NO_SAMPLING, SAMPLING_COLUMNS, DeviceSampling
from ridgeline.compute.decoding.sampler import sample_rows
from ridgeline.compute.draft_model import ROUNDS, TIMED_ROWS, Drafting, DraftModel
from ridgeline.compute.dummy import dummy_step
from ridgeline.compute.load.record import record
from ridgeline.compute.opening import ModelSource, Progress
from ridgeline.config.resolve import Decision
from ridgeline.core.drafts.model import DraftCache
from ridgeline.core.params import RowParams
from ridgeline.core.plan import LAST, KVShape
from ridgeline.facts.headers.rope import select_rope
from ridgeline.facts.model import ModelFacts
from ridgeline.planning.memory import block_bytes

BACKLOG: Final = 1
"""Ids beside the newest that a row which drafts computes first: a last draft that came true. Such passes are graphs."""

Span = tuple[int, int, Sequence[int]]
"""Permanent row, first position, ids."""


class DeviceDraftModel(DraftModel):
    """Drafts as `DraftModel` does, by a `runner` that is warm and has its cache."""

    def __init__(self, runner: CudaRunner, shape: KVShape, *, rows: int, blocks: int, vocab: int) -> None:
        super().__init__(runner, None, shape, sample_rows, rows=rows, blocks=blocks, vocab=vocab, threads=1)
        self._device = runner

    def draft(self, work: Work, state: RowState) -> tuple[tuple[int, ...], ...]:
        """See `DraftModel.draft`; the device is told of new blocks first."""
        for span in work.plan.spans:
            for group, first, blocks in span.blocks:
                self._device.tables.change(group, span.row, first, blocks)
        return super().draft(work, state)

    def pass_seconds(self, rows: int) -> tuple[tuple[int, float], ...]:
        """(rows, seconds) of passes, launches included; none where kernels are interpreted, whose times mean nothing."""
        found = []
        for count in sorted({min(rows, each) for each in TIMED_ROWS}) if self._device.device.real else ():
            inputs = dummy_step([1] * count, groups=len(self._shape.groups), block_tokens=self._shape.block_tokens)
            best = float("inf")
            for _ in range(ROUNDS):
                began = perf_counter()
                self._device.read(self._device.launch(inputs, NO_SAMPLING))
                best = min(best, perf_counter() - began)
            found.append((count, best))
        return tuple(found)

    def _fill(self, work: Work, state: RowState, drafting: Sequence[Drafting]) -> None:
        params = {each.row: work.rows.sampling_params[each.number] for each in drafting}
        if self._map is not None or not all(is_sampled_on_device(each) for each in params.values()):
            super()._fill(work, state, drafting)
            return
        passes = [(drafting, self._launch([(span.row, span.start, span.ids) for span in work.plan.spans], params))]
        for depth in range(1, max((each.count for each in drafting), default=0)):
            deeper = [each for each in drafting if each.count > depth]
            passes.append((deeper, self._launch([(each.row, each.place + depth - 1, (LAST,)) for each in deeper], params)))
        first = [index for index, span in enumerate(work.plan.spans) if span.drafts]  # those that catch up have no draft
        for number, (rows, launched) in enumerate(passes if drafting else ()):
            ids, _ = self._device.read(launched)
            self._note(work, rows, [(ids[index],) for index in (range(len(rows)) if number else first)])

    def _launch(self, rows: Sequence[Span], params: dict[int, RowParams]) -> LaunchedStep:
        """Starts a pass, of which the device samples the rows of `params`."""
        inputs, row_ids = self._inputs(rows, [1] * len(rows)), np.array([row for row, *_ in rows], np.int32)
        return self._device.launch(inputs, _sampling(row_ids, params))

    def _run(
        self, runner: Any, rows: Sequence[Span], samples: Sequence[int], drafting: Sequence[Drafting], **others: Any
    ) -> dict[str, NDArray[Any]]:
        launched = self._launch(rows, {})
        if not drafting:
            return {}
        self._device.read(launched)
        return {"logits": self._device.logits_of([index for index, count in enumerate(samples) if count])}


def _sampling(rows: NDArray[np.int32], params: dict[int, RowParams]) -> DeviceSampling:
    """Sampling of a pass over these permanent rows."""
    found = [columns_of(params[row]) if row in params else (0,) * len(SAMPLING_COLUMNS) for row in rows.tolist()]
    kinds = zip(SAMPLING_COLUMNS.items(), zip(*found, strict=True), strict=True)
    columns = {name: np.array(numbers, COLUMN_DTYPES[kind][0]) for (name, kind), numbers in kinds}
    return DeviceSampling(rows, np.array([row in params for row in rows.tolist()], np.bool_), columns)


class DeviceDrafts(NamedTuple):
    """A draft model on the device, warm and timed. `nbytes`: of its weights."""

    model: DeviceDraftModel
    cache: DraftCache
    nbytes: int
    decision: Decision


def open_device_drafts(source: ModelSource, device: Device, dtype: torch.dtype, positions: int, progress: Progress) -> DeviceDrafts | None:
    """The draft model of a source, for sequences of so many positions, with all that it will ever take of the device; None where there is
    none. Raises ConfigError where its cache holds no sequence."""
    if source.drafts is None:
        return None
    assert isinstance(source.drafts, ModelFacts), "heads do not draft on a GPU"
    config, positions = source.config, min(positions, source.drafts.context)
    facts, _ = select_rope(source.drafts, positions)
    oplist, weights = load_weights(facts, record(facts)["step"], device, dtype, fp8=config.dtype == "fp8", progress=progress)
    shape = source.draft_shape(facts, positions, device.memory_bytes)
    runner = CudaRunner(
        oplist, weights, shape, device, dtype,
        tokens=config.tokens + config.rows, rows=config.rows, positions=positions, vocab=source.facts.tokens, cached=facts.cached,
        depth=config.num_speculative_tokens, invariant=config.batch_invariant, backlog=BACKLOG,
    )  # fmt: skip
    runner.attach(allocate_device_kv(shape, facts.cached, config.kv_dtype, device.torch))
    runner.profile_run()
    runner.compile_kernels(progress)
    runner.warm_up(progress)
    blocks = -(-positions // config.block_size)
    model = DeviceDraftModel(runner, shape, rows=config.rows, blocks=blocks, vocab=source.facts.tokens)
    passes = model.pass_seconds(config.rows)
    cache = DraftCache(len(shape.groups), config.block_size, shape.blocks, positions, passes, facts.tokens)
    stored = shape.blocks * block_bytes(facts, shape.groups[0], shape.block_tokens, config.kv_dtype) >> 20
    price = f"{passes[0][1] * 1e3:.2f} ms for an id, " if passes else ""
    reason = f"--draft-model, in front of steps that verify: {price}{stored} MiB of KV, {runner.nbytes >> 20} MiB for its largest step"
    return DeviceDrafts(model, cache, weights.nbytes, Decision("draft_model", config.draft_model or "", "flag", reason))
