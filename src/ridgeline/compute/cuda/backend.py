"""A GPU as a backend: a step is launched when it is enqueued, behind those before it, and read when its result is needed.

The id that a row sampled last stays on the device, where the row's next step finds it: the host waits for nothing between two steps.
Drafts are verified there too, in steps without prompts. Rows that the device does not sample (penalties, log-probabilities …) are sampled
here from logits that are copied: a step that has such rows, or that scores a prompt, is read before the next one is launched.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.adapters.store import AdapterStore
from ridgeline.compute.backend import Floats, Masks, RowState, StepOutput, StepRows, Work, finite_positions, finite_rows, sampled_rows
from ridgeline.compute.cuda.adapters import DeviceAdapterSlots, slot_bytes
from ridgeline.compute.cuda.cache import DeviceKVCache, HostTier, allocate_device_kv
from ridgeline.compute.cuda.device import DTYPES, Device, open_device
from ridgeline.compute.cuda.draft_heads import kept_states, open_device_heads
from ridgeline.compute.cuda.drafts import DeviceDraftModel, Passes, mark_drafts, open_device_drafts, read_drafts
from ridgeline.compute.cuda.graphs import Graphs
from ridgeline.compute.cuda.load import load_weights
from ridgeline.compute.cuda.memory import cache_bytes, weights_bytes
from ridgeline.compute.cuda.runner import CudaRunner, LaunchedStep
from ridgeline.compute.cuda.sampler import SamplingColumns
from ridgeline.compute.cuda.step import NO_SAMPLING, DeviceSampling, OpenRows
from ridgeline.compute.cuda.trace import DeviceTrace
from ridgeline.compute.cuda.weights import DeviceWeights
from ridgeline.compute.decoding.grammar import GrammarCompiler
from ridgeline.compute.decoding.sampler import Sampled, sample_rows, score
from ridgeline.compute.dummy import dummy_step
from ridgeline.compute.graph import OpList
from ridgeline.compute.load.heads import target_list
from ridgeline.compute.load.record import record
from ridgeline.compute.lowering.adapters import add_adapters, changed_matrices
from ridgeline.compute.opening import ModelSource, OpenedModel, Progress
from ridgeline.compute.runner import finite_tokens
from ridgeline.config.resolve import Decision
from ridgeline.core.plan import LAST, KVShape, Plan, TokenLogprobs
from ridgeline.errors import ConfigError
from ridgeline.planning.memory import kv_groups

TIMED_ROWS: Final = 64
TIMED_TOKENS: Final = 2048

Load = Callable[..., tuple[OpList, DeviceWeights]]
"""The type of `load_weights`."""


class _SamplingSplit(NamedTuple):
    """Rows sampled by the device and by the host: made once for all steps in which `rows` are the same.

    device_ids   int32: permanent rows that the device samples
    host         positions, among the rows that sample, of those sampled by the host
    all_sample   True where every row samples one position
    verifies     the device compares samples with drafts
    """

    rows: StepRows
    sampling: DeviceSampling
    device_ids: NDArray[np.int32]
    host: list[int]
    all_sample: bool
    verifies: bool


@dataclass(slots=True)
class _InFlight:
    """A step that is launched, with the drafts of its spans and the seconds that they took; or with the passes that make them."""

    work: Work
    launched: LaunchedStep
    split: _SamplingSplit
    passes: Passes | None = None
    drafted: tuple[tuple[int, ...], ...] = ()
    draft_seconds: float = 0.0


class CudaBackend:
    """Implements `compute.backend.Backend` over the runner of a GPU, which has its cache and is warm. drafts: the model that drafts in
    front of a step; None: there is none."""

    def __init__(
        self,
        runner: CudaRunner,
        cache: DeviceKVCache,
        *,
        rows: int,
        tier: HostTier | None = None,
        adapters: AdapterStore | None = None,
        drafts: DeviceDraftModel | None = None,
    ) -> None:
        self._adapters = adapters
        self.drafts = drafts
        self.runner: CudaRunner | None = runner
        self._cache: DeviceKVCache | None = cache
        self._tier = tier
        self._state = RowState(rows, runner.vocab)
        self._columns = SamplingColumns(rows)
        self._split: _SamplingSplit | None = None
        self._moves = 0
        """Steps that have been launched, and those that the device has computed."""
        self.timed_rows, self.timed_tokens = (TIMED_ROWS, TIMED_TOKENS) if runner.device.real else (0, 0)

    def use_grammars(self, compiler: GrammarCompiler) -> None:
        """Rows that follow a grammar are sampled on the host."""
        self._state.compiler = compiler

    def enqueue(self, work: Work) -> _InFlight:
        """Launches the step; waits for its drafts where the host has a part in them."""
        assert self.runner is not None
        plan, inputs = work.plan, work.inputs
        if plan.new_rows or plan.freed_rows:
            self._state.apply(plan)
            self._columns.apply(plan)
        self.runner.tables.apply(plan)
        verifies = work.rows.has_drafts and self.runner.buckets.of_step(inputs).verifies
        if self._split is None or self._split.rows is not work.rows or self._split.verifies != verifies:
            self._split = self._split_sampling(work.rows, verifies)
        split = self._split
        inputs.ids[work.unknown] = self._state.last[work.unknown_rows]  # LAST again where the device has it
        if plan.copies:
            assert self._tier is not None, "a plan copies blocks only where there is a host tier"
            self._tier.copy(plan.copies)
        if plan.fills:
            self._fill_slots(plan)
        passes, drafted, draft_seconds = None, (), 0.0
        if plan.spans:
            assert self.drafts is not None, "a plan drafts without a draft model"
            passes = self.drafts.launch(work)
            if passes is None:
                drafted, draft_seconds = self.drafts.draft(work, self._state), self.drafts.seconds
            else:
                mark_drafts(work)
        if not split.all_sample:
            inputs = replace(inputs, select=inputs.cu_q[1:] - 1)
        open_rows = _open_rows(work) if plan.open else None
        launched = self.runner.launch(inputs, split.sampling, tells_ids=passes is not None, open=open_rows)
        self._state.last[split.device_ids] = LAST
        if self.runner.trace is not None and self.runner.trace.is_whole:
            self._end_trace()
        self._moves += 1
        return _InFlight(work, launched, split, passes, drafted, draft_seconds)

    def _fill_slots(self, plan: Plan) -> None:
        """Starts the copies of adapters from host memory, behind the steps that may read what lies in their slots."""
        assert self.runner is not None and self.runner.adapters is not None and self._adapters is not None, "there are no slots"
        for fill in plan.fills:
            self.runner.adapters.fill(fill.slot, self._adapters.get(fill.digest))

    def _split_sampling(self, rows: StepRows, verifies: bool) -> _SamplingSplit:
        """Splits the rows of a step into those that the device samples and those that the host samples."""
        samples = np.frombuffer(rows.sample, np.uint8)
        on_device = (samples > 0 if verifies else samples == 1) & self._columns.on_device[rows.row_ids]
        host = [number for number, index in enumerate(rows.sampling) if not on_device[index]]
        sampling = DeviceSampling(rows.row_ids, on_device, self._columns.of(rows.row_ids), samples)
        return _SamplingSplit(rows, sampling, rows.row_ids[on_device], host, bool((samples == 1).all()), verifies)

    blocks = None
    reads_tables = False

    def must_read_first(self, ticket: _InFlight) -> bool:
        """True where the host samples or scores: the next step overwrites the logits and hidden states that it reads."""
        return bool(ticket.split.host) or bool(ticket.work.plan.score) or bool(ticket.work.rows.pooled)

    def read(self, ticket: _InFlight) -> StepOutput:
        """Waits for a step, and samples and scores on the host where the device does not."""
        assert self.runner is not None
        work, split = ticket.work, ticket.split
        tokens, flags = self.runner.read(ticket.launched)
        ended, seconds = perf_counter(), self.runner.seconds(ticket.launched)
        self._moves += 1
        if ticket.passes is not None:
            assert self.drafts is not None
            ticket.drafted = read_drafts(work, ticket.launched.token_ids)
            ticket.draft_seconds = self.drafts.seconds_of(ticket.passes)
        finite, logprobs, scores, failures = bytearray(flags), None, None, ()
        if ticket.launched.verifies:
            standing = ticket.launched.standing(work.plan.sample)
            ids = [standing[index] for index in work.rows.sampling]
        else:
            ids = [*zip(tokens)] if split.all_sample else [(tokens[index],) for index in work.rows.sampling]
            if 0 in finite:
                ids = [each if finite[index] else () for index, each in zip(work.rows.sampling, ids, strict=True)]
        drafts_on_host = work.rows.has_drafts and len(split.host) > 0
        hidden = self.runner.hidden(work.inputs.sizes.T) if drafts_on_host or work.plan.score or work.rows.pooled else None
        if split.host:
            masks = self._state.masks(work) if work.rows.has_grammars or work.rows.has_budgets else None
            logprobs, finite = self._on_host(work, split.host, hidden if drafts_on_host else None, ids, finite, masks)
            failures = () if masks is None else masks.apply(work.rows.sampling, Sampled(ids, logprobs), finite)
        if work.plan.score:
            assert hidden is not None
            scores = self._state.prompt_scores(work, hidden, self.runner.logits, self.runner.vocab, score)
        vectors: tuple[bytes, ...] = () if hidden is None else self._state.pool(work, hidden)
        sampled, found = sampled_rows(work, ids, logprobs)
        forced = self._state.forced(work) if work.rows.has_grammars else ()
        output = StepOutput(sampled, finite, found, scores, seconds, ended, failures, vectors, forced=forced)
        if not ticket.drafted:
            return output
        return output._replace(seconds=seconds + ticket.draft_seconds, drafted=ticket.drafted, draft_seconds=ticket.draft_seconds)

    def _on_host(
        self, work: Work, host: list[int], hidden: Floats | None, ids: list[tuple[int, ...]], finite: bytearray, masks: Masks | None
    ) -> tuple[list[tuple[TokenLogprobs, ...] | None], bytearray]:
        """Samples the rows `host` from the device's logits, and changes their `ids`. Returns log-probabilities and `Result.finite`.

        hidden  final hidden states [T, D] where rows have drafts, whose logits are then made here; else None
        """
        assert self.runner is not None
        rows, inputs = work.rows, work.inputs
        indices = [rows.sampling[number] for number in host]
        drafts = [work.drafts[number] for number in host]
        all_finite: NDArray[np.bool_] | None = None
        if hidden is None:
            logits = self.runner.logits_of(indices)
            if 0 in finite:
                all_finite = np.array([finite[index] for index in indices], np.bool_)
        else:
            is_host = np.isin(inputs.row_of_token[inputs.select], indices)
            logits = self.runner.logits(hidden[inputs.select[is_host]])
            finite_token = finite_tokens(hidden)
            all_finite = finite_positions(inputs, finite_token)[is_host]
        first = [int(inputs.kv_len[index]) - len(draft) for index, draft in zip(indices, drafts, strict=True)]
        params, row_ids = [rows.sampling_params[number] for number in host], rows.sampling_ids[host]
        histories = [self._state.histories[row] for row in row_ids.tolist()]
        given = masks and [masks.of_rows[number] for number in host]
        found = sample_rows(logits[:, : self.runner.vocab], params, drafts, first, histories, all_finite, None, given)
        self._state.sampled(row_ids, found.ids)
        logprobs: list[tuple[TokenLogprobs, ...] | None] = [None] * len(ids)
        for number, each, logprob in zip(host, *found, strict=True):
            ids[number], logprobs[number] = each, logprob
        return logprobs, finite if hidden is None else finite_rows(work, finite_token, ids)

    def seconds(self, counts: Sequence[int], samples: Sequence[int]) -> float:
        """Seconds on the device; on the host where that verifies drafts, and makes logits itself."""
        assert self.runner is not None
        shape, began = self.runner.shape, perf_counter()
        inputs = dummy_step(counts, samples=samples, groups=len(shape.groups), block_tokens=shape.block_tokens)
        launched = self.runner.launch(replace(inputs, select=inputs.cu_q[1:] - 1), NO_SAMPLING)
        self.runner.read(launched)
        if max(samples) == 1 or launched.verifies:
            return self.runner.seconds(launched)
        self.runner.logits(self.runner.hidden(len(inputs.ids))[inputs.select])
        return perf_counter() - began

    def beat(self) -> int:
        """A number that changes while a step is computed."""
        return self._moves + (0 if self.runner is None else self.runner.marks.count())

    def trace(self, path: str, steps: int) -> None:
        """See `Executor.trace`. The device is waited for where a trace begins or ends."""
        assert self.runner is not None
        self._end_trace()
        if steps:
            self.runner.trace = DeviceTrace(self.runner.device, Path(path), steps)

    def _end_trace(self) -> None:
        assert self.runner is not None
        trace, self.runner.trace = self.runner.trace, None
        if trace is not None:
            with suppress(OSError, RuntimeError):  # torch raises this where it cannot write
                trace.close()

    def close(self) -> None:
        """Drops steps in flight, weights and cache."""
        if self.runner is not None:
            self.runner.close()
        if self._tier is not None:
            self._tier.close()
        if self.drafts is not None:
            self.drafts.close()
        self.runner = self._cache = self._tier = self.drafts = None


def _open_rows(work: Work) -> OpenRows:
    """Rows of a step that may stand farther than its inputs say. The first token of each is its newest id."""
    most, starts = np.frombuffer(work.plan.open, np.uint8), np.array(work.plan.start, np.int32)
    return OpenRows(np.where(most > 0, starts, -1), most.astype(np.int32))


def open_cuda(source: ModelSource, progress: Progress, *, load: Load = load_weights, graphs: Graphs | None = None) -> OpenedModel:
    """Opens a model on a GPU. The context is planned from headers, so that every buffer is sized before anything runs; the number of blocks
    is measured behind the largest step, so that memory does not run out later.

    load    source of weights: the model's files, or random numbers (`compute.cuda.load.random_weights`), for benchmarks
    graphs  starts the runner's steps; None: its own
    """
    if source.facts.bidirectional:
        raise ConfigError("models whose tokens see both ways run on a CPU alone; use --runner native", fix={"--runner": "native"})
    config, device = source.config, open_device()
    fp8, dtype = config.dtype == "fp8", "bf16" if config.dtype == "fp8" else config.dtype
    kept = weights_bytes(source.facts, DTYPES[dtype], fp8=fp8) + _adapters_bytes(source, dtype)
    if source.drafts is not None:
        kept += weights_bytes(source.drafts if source.heads is None else source.heads.facts, DTYPES[dtype], fp8=fp8)
    states = None if source.heads is None else kept_states(source, source.heads, device, DTYPES[dtype])
    kept += 0 if states is None else states.states.nbytes
    positions = planned_positions(source, device, kept)
    source = source.with_rope(positions)
    facts = source.facts
    loading = {"fp8": fp8, "adapters": config.adapter_slots > 0, "progress": progress}
    oplist, weights = load(facts, target_list(facts, source.heads), device, DTYPES[dtype], **loading)
    slots, rank = config.adapter_slots, config.max_lora_rank
    adapters = DeviceAdapterSlots(oplist, slots, rank, DTYPES[dtype], device) if slots else None
    shape = KVShape(kv_groups(facts), config.block_size, 1, b"")
    runner = CudaRunner(
        oplist, weights, shape, device, DTYPES[dtype],
        tokens=config.tokens, rows=config.rows, positions=positions, vocab=facts.tokens, cached=facts.cached, depth=config.depth,
        invariant=config.batch_invariant, graphs=graphs, adapters=adapters, states=states,
        drafts=0 if config.speculative == "off" else config.num_speculative_tokens,
    )  # fmt: skip
    runner.attach(allocate_device_kv(shape, facts.cached, config.kv_dtype, device.torch))
    if states is None:
        drafts = open_device_drafts(source, device, DTYPES[dtype], positions, runner, progress)
    else:
        drafts = open_device_heads(source, states.states, device, DTYPES[dtype], positions, runner, progress)
    source = source.with_memory(positions, _free_for_cache(runner, device, progress), share=1.0, host_bytes=source.memory_bytes)
    shape = source.shape(f"{device.name} {config.dtype} {config.batch_invariant}")
    cache = allocate_device_kv(shape, facts.cached, config.kv_dtype, device.torch)
    runner.attach(cache)
    decisions = _capture(runner, device, progress)
    tier = HostTier(cache, shape.host_blocks, device, config.depth) if shape.host_blocks else None
    if tier is not None:
        tier.compile_kernels()
    store = source.adapter_store(adapters)
    backend = CudaBackend(runner, cache, rows=config.rows, tier=tier, adapters=store, drafts=drafts and drafts.model)
    stored = weights.nbytes
    if drafts is not None:
        stored, decisions = stored + drafts.nbytes, (*decisions, drafts.decision)
    return OpenedModel(backend, source, shape, f"cuda, {device.name}", stored, decisions, store, drafts and drafts.cache)


def _adapters_bytes(source: ModelSource, dtype: str) -> int:
    """Bytes of all slots for adapters on the device."""
    config = source.config
    if not config.adapter_slots:
        return 0
    matrices = changed_matrices(add_adapters(record(source.facts)["step"]))
    return config.adapter_slots * slot_bytes(matrices, config.max_lora_rank, DTYPES[dtype])


def _free_for_cache(runner: CudaRunner, device: Device, progress: Progress) -> int:
    """Bytes that the KV cache may take: those that the largest step leaves, once every kernel is on the device."""
    progress("warming up", 0.0)
    runner.profile_run()
    runner.compile_kernels(progress)
    progress("warming up", 1.0)
    return cache_bytes(device, device.free_bytes(), runner.planned_graphs)


def _capture(runner: CudaRunner, device: Device, progress: Progress) -> tuple[Decision, ...]:
    """Captures all graphs; returns the decisions shown to users."""
    before = device.memory()["used"]
    runner.warm_up(progress)
    taken = (device.memory()["used"] - before) >> 20
    sizes: tuple[Decision, ...] = (
        Decision("step_bytes", runner.nbytes, "machine", "memory of the largest step on the device, without weights and KV cache"),
    )
    if runner.adapters is not None:
        slots = runner.adapters
        reason = f"--max-loras {slots.count} slots on the device, each for an adapter of rank --max-lora-rank {slots.slots.most_rank}"
        sizes += (Decision("adapter_bytes", slots.nbytes, "flag", reason),)
    if not runner.graphs:
        return sizes
    progress(f"captured {runner.graphs} graphs, {taken} MiB", 1.0)
    reason = f"CUDA graphs of steps, or of parts of them; they took {taken} MiB of the device"
    return *sizes, Decision("graphs", runner.graphs, "machine", reason)


def planned_positions(source: ModelSource, device: Device, weights: int) -> int:
    """Most positions of a sequence: --max-model-len, else as many as fit in the memory that weights leave, by their headers."""
    config, costs, context = source.config, source.costs, source.facts.context
    if config.max_model_len is not None:
        return min(config.max_model_len, context)
    room = config.kv_cache_memory_bytes or cache_bytes(device, device.memory_bytes - weights, 0)
    return max(1, costs.longest_sequence(room // costs.block_bytes, context))
