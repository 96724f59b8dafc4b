"""Heads that draft on a GPU from hidden states of the target, which never leave it: they stand where a draft model stands.

A pass reads the hidden state in front of each of its ids and leaves one behind its last: that of the draft to come. Heads without such a
tap hand on what they have read. Their own positions count from where their context begins, and lie behind the target's by a number that
the host knows, so that noise and hidden states are those of the target's positions.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from ridgeline.compute.backend import RowState, Work
from ridgeline.compute.cuda.cache import allocate_device_kv
from ridgeline.compute.cuda.device import Device
from ridgeline.compute.cuda.drafts import DeviceDraftModel, DeviceDrafts, Passes, Span
from ridgeline.compute.cuda.load import load_heads
from ridgeline.compute.cuda.runner import CudaRunner
from ridgeline.compute.cuda.states import FEATURES, HiddenStates, StepStates
from ridgeline.compute.cuda.weights import DeviceWeights
from ridgeline.compute.graph import OpList
from ridgeline.compute.load.heads import NEXT, record_heads, tap_name, target_ids
from ridgeline.compute.opening import ModelSource, Progress
from ridgeline.config.resolve import Decision
from ridgeline.core.plan import DraftSpan, KVShape
from ridgeline.facts.headers.heads import DraftHeads
from ridgeline.facts.headers.rope import select_rope
from ridgeline.planning.memory import block_bytes


class DeviceHeads(DeviceDraftModel):
    """Drafts as `DeviceDraftModel` does, by heads. attends: they have keys and values."""

    def __init__(self, lists: Sequence[CudaRunner], shape: KVShape, *, rows: int, blocks: int, vocab: int, attends: bool) -> None:
        super().__init__(lists, shape, rows=rows, blocks=blocks, vocab=vocab)
        self._behind, self._attends = np.zeros(rows, np.int32), attends

    def launch(self, work: Work) -> Passes | None:
        """See `DeviceDraftModel.launch`."""
        self._find(work)
        return super().launch(work)

    def draft(self, work: Work, state: RowState) -> tuple[tuple[int, ...], ...]:
        """See `DraftModel.draft`."""
        self._find(work)
        return super().draft(work, state)

    def _open_span(self, span: DraftSpan, most: int) -> Span:
        """All ids that steps in flight may have accepted, and the last. Behind what stands these are ones that have been computed before;
        the device knows which they are."""
        back = most if self._attends else 0
        return span.row, span.start - back, (0,) * back + span.ids

    def _find(self, work: Work) -> None:
        """Notes how far the rows of a step's spans lie behind the target's: both end in front of the first draft."""
        ends = dict(zip(work.rows.row_ids.tolist(), work.inputs.kv_len.tolist(), strict=True))
        for span in work.plan.spans:
            self._behind[span.row] = ends[span.row] - span.drafts - (span.start + len(span.ids))


def kept_states(source: ModelSource, heads: DraftHeads, device: Device, dtype: torch.dtype) -> StepStates:
    """Hidden states that the target's steps keep for its heads: as many positions as these read, and those of drafts behind them."""
    config, taps = source.config, tuple(tap_name(layer) for layer in heads.tapped) or ("hidden",)
    window = max(source.heads_window(heads), config.num_speculative_tokens + 1) + config.num_speculative_tokens + 1
    return StepStates(HiddenStates(device, config.rows, window, source.facts.hidden * len(taps), dtype), taps)


def open_device_heads(
    source: ModelSource, states: HiddenStates, device: Device, dtype: torch.dtype, positions: int, target: CudaRunner, progress: Progress
) -> DeviceDrafts:
    """The heads of a source, as `open_device_drafts` has a draft model. states: hidden states that the target's steps keep."""
    heads, config = source.heads, source.config
    assert heads is not None
    facts, _ = select_rope(heads.facts, positions)
    recorded = [_with_next(each) for each in record_heads(heads, source.facts)]
    placed = load_heads(facts, recorded, target.plan.weights, device, dtype, fp8=config.dtype == "fp8", progress=progress)
    shape = source.heads_shape(heads, facts, positions, device.memory_bytes)
    own, cache = target_ids(heads, source.facts.tokens), allocate_device_kv(shape, facts.cached, config.kv_dtype, device.torch)
    runners: list[CudaRunner] = []
    for number, (oplist, weights) in enumerate(placed):
        reads = heads.attends and not number
        runner = CudaRunner(
            oplist, weights, shape, device, dtype,
            tokens=config.rows + reads * config.tokens, rows=config.rows, positions=positions, vocab=source.facts.tokens,
            cached=facts.cached, depth=config.num_speculative_tokens * config.depth, invariant=config.batch_invariant,
            backlog=config.num_speculative_tokens * reads, kept=target.ids.kept, states=StepStates(states, (NEXT,), of_heads=True),
            tables=runners[0].tables if runners else None, logit_ids=None if own is None else _ids_of_logits(own, device),
        )  # fmt: skip
        runner.attach(cache)
        runner.profile_run()
        runner.compile_kernels(progress)
        runner.warm_up(progress)
        runners.append(runner)
    blocks = -(-positions // config.block_size)
    model = DeviceHeads(runners, shape, rows=config.rows, blocks=blocks, vocab=source.facts.tokens, attends=heads.attends)
    passes = model.pass_seconds(config.rows)
    found = source.heads_cache(heads, shape, positions, passes, ahead=target.buckets.most_verified)
    stored = shape.blocks * block_bytes(facts, shape.groups[0], shape.block_tokens, config.kv_dtype) if heads.attends else 0
    step_bytes = sum(runner.nbytes for runner in runners)
    price = f"{passes[0][1] * 1e3:.2f} ms for an id, " if passes else ""
    reason = f"{heads.kind} heads, in front of steps that verify: {price}{stored >> 20} MiB of KV, "
    reason += f"{states.nbytes >> 20} MiB of hidden states, {step_bytes >> 20} MiB for their largest step"
    name = config.draft_model or config.model
    decision = Decision("draft_model", name, "flag" if config.draft_model else "model", reason)
    return DeviceDrafts(model, found, _own_bytes([weights for _, weights in placed], target.plan.weights), decision)


def _with_next(oplist: OpList) -> OpList:
    return oplist if NEXT in oplist.taps else replace(oplist, taps={**oplist.taps, NEXT: FEATURES})


def _ids_of_logits(own: NDArray[np.int32], device: Device) -> torch.Tensor:
    """int64 [heads' ids]: the target's id of each, of its inverse with -1 where there is none."""
    ids = np.flatnonzero(own >= 0)
    return torch.from_numpy(ids[np.argsort(own[ids])]).to(device.torch)


def _own_bytes(lists: Sequence[DeviceWeights], target: DeviceWeights) -> int:
    """Bytes of weights, each once, that are not the target's."""
    found, shared = (
        {id(weight): weight.nbytes for each in of for part in (each.matrices, each.experts, each.vectors) for weight in part.values()}
        for of in (lists, [target])
    )
    return sum(nbytes for key, nbytes in found.items() if key not in shared)
