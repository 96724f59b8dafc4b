"""A GPU as a backend: a step is launched when it is enqueued, behind those before it, and read when its result is wanted.

What a row sampled last stays on the device, where the row's next step finds it: nothing is waited for between two steps. Rows that the
device does not sample (penalties, log-probabilities, drafts …) are sampled here, from logits that are copied: a step that has such rows,
or that scores a prompt, is read before the next one is launched.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.backend import Answer, Floats, RowState, StepRows, Work, finite_positions, finite_rows, sampled_rows
from ridgeline.compute.cuda import sampler
from ridgeline.compute.cuda.attention import Case
from ridgeline.compute.cuda.attention_backends import open_attention
from ridgeline.compute.cuda.cache import DeviceKVCache, allocate_device_kv
from ridgeline.compute.cuda.device import DTYPES, Device, open_device
from ridgeline.compute.cuda.graphs import Graphs
from ridgeline.compute.cuda.load import load_weights
from ridgeline.compute.cuda.memory import cache_bytes, weights_bytes
from ridgeline.compute.cuda.plan import Weights
from ridgeline.compute.cuda.runner import CudaRunner, Launched
from ridgeline.compute.cuda.step import KINDS, NO_SAMPLING, Sampled
from ridgeline.compute.cuda.tier import HostTier
from ridgeline.compute.decoding.sampler import sample_rows, score
from ridgeline.compute.dummy import dummy_step
from ridgeline.compute.graph import OpList
from ridgeline.compute.load.record import record
from ridgeline.compute.opening import Opened, Progress, Source
from ridgeline.compute.runner import finite_tokens
from ridgeline.config.resolve import Decision
from ridgeline.core.plan import LAST, KVShape, Plan, TokenLogprobs
from ridgeline.planning.memory import kv_groups

TIMED_ROWS: Final = 64
TIMED_TOKENS: Final = 2048

Load = Callable[..., tuple[OpList, Weights]]
"""As `load_weights`."""


class _Chosen(NamedTuple):
    """Where rows are sampled: made once for all steps in which `rows` are the same.

    taken      int32: permanent rows whose id the device samples
    host       numbers, among the rows that sample, of those that are sampled here
    everybody  every row samples one position
    """

    rows: StepRows
    sampled: Sampled
    taken: NDArray[np.int32]
    host: list[int]
    everybody: bool


@dataclass(slots=True)
class _Flight:
    """A step that is launched."""

    work: Work
    launched: Launched
    chosen: _Chosen


class CudaBackend:
    """Implements `compute.backend.Backend` over a runner of a GPU, which has its cache and is warm."""

    def __init__(self, runner: CudaRunner, cache: DeviceKVCache, *, rows: int, tier: HostTier | None = None) -> None:
        self.runner: CudaRunner | None = runner
        self._cache: DeviceKVCache | None = cache
        self._tier = tier
        self._state = RowState(rows)
        self._columns = SamplingColumns(rows)
        self._chosen: _Chosen | None = None
        self.timed_rows, self.timed_tokens = (TIMED_ROWS, TIMED_TOKENS) if runner.device.real else (0, 0)

    def enqueue(self, work: Work) -> _Flight:
        """Launches the step."""
        assert self.runner is not None
        plan, inputs = work.plan, work.inputs
        if plan.new_rows or plan.freed_rows:
            self._state.apply(plan)
            self._columns.apply(plan)
        if self._chosen is None or self._chosen.rows is not work.rows:
            self._chosen = self._choose(work.rows)
        chosen = self._chosen
        inputs.ids[work.open] = self._state.last[work.source]  # LAST again where the device has it
        if plan.copies:
            assert self._tier is not None, "a plan copies blocks where the backend has the host's"
            self._tier.copy(plan.copies)
        if not chosen.everybody:
            inputs = replace(inputs, select=inputs.cu_q[1:] - 1)
        launched = self.runner.launch(inputs, chosen.sampled)
        self._state.last[chosen.taken] = LAST
        return _Flight(work, launched, chosen)

    def _choose(self, rows: StepRows) -> _Chosen:
        """Tells rows that the device samples from those that are sampled here."""
        samples = np.frombuffer(rows.sample, np.uint8)
        device = (samples == 1) & self._columns.served[rows.place]
        host = [number for number, index in enumerate(rows.chosen) if not device[index]]
        sampled = Sampled(rows.place, device, self._columns.of(rows.place))
        return _Chosen(rows, sampled, rows.place[device], host, bool((samples == 1).all()))

    def serial(self, ticket: _Flight) -> bool:
        """Where the host samples or scores: the next step overwrites what it does so from."""
        return bool(ticket.chosen.host) or bool(ticket.work.plan.score)

    def read(self, ticket: _Flight) -> Answer:
        """Waits for a step, and does what the device left to the host."""
        assert self.runner is not None
        work, chosen = ticket.work, ticket.chosen
        tokens, flags = self.runner.read(ticket.launched)
        ended, seconds = perf_counter(), self.runner.seconds(ticket.launched)
        ids: list[tuple[int, ...]] = [*zip(tokens)] if chosen.everybody else [(tokens[index],) for index in work.rows.chosen]
        finite, logprobs, scores = bytearray(flags), None, None
        if 0 in finite:
            ids = [each if finite[index] else () for index, each in zip(work.rows.chosen, ids, strict=True)]
        hidden = self.runner.hidden(work.inputs.sizes.T) if work.rows.drafted or work.plan.score else None
        if chosen.host:
            logprobs, finite = self._on_host(work, chosen.host, hidden if work.rows.drafted else None, ids, finite)
        if work.plan.score:
            assert hidden is not None
            scores = self._state.prompt_scores(work, hidden, self.runner.logits, self.runner.vocab, score)
        sampled, found = sampled_rows(work, ids, logprobs)
        return Answer(sampled, finite, found, scores, seconds, ended)

    def _on_host(
        self, work: Work, host: list[int], hidden: Floats | None, ids: list[tuple[int, ...]], finite: bytearray
    ) -> tuple[list[tuple[TokenLogprobs, ...] | None], bytearray]:
        """Samples the rows that the device does not serve, from its logits: changes their `ids`; log-probabilities, and `Result.finite`.

        hidden: final hidden states of all tokens, where rows have drafts: their positions then have logits made here.
        """
        assert self.runner is not None
        rows, inputs = work.rows, work.inputs
        indices = [rows.chosen[number] for number in host]
        drafts = [work.drafts[number] for number in host]
        good: NDArray[np.bool_] | None = None
        if hidden is None:
            logits = self.runner.logits_of(indices)
            if 0 in finite:
                good = np.array([finite[index] for index in indices], np.bool_)
        else:
            at = np.isin(inputs.row_of_token[inputs.select], indices)
            logits = self.runner.logits(hidden[inputs.select[at]])
            whole = finite_tokens(hidden)
            good = finite_positions(inputs, whole)[at]
        first = [int(inputs.kv_len[index]) - len(drafted) for index, drafted in zip(indices, drafts, strict=True)]
        asked, places = [rows.asked[number] for number in host], rows.taking[host]
        histories = [self._state.histories[row] for row in places.tolist()]
        found = sample_rows(logits[:, : self.runner.vocab], asked, drafts, first, histories, good)
        self._state.sampled(places, found.ids)
        logprobs: list[tuple[TokenLogprobs, ...] | None] = [None] * len(ids)
        for number, each, logprob in zip(host, *found, strict=True):
            ids[number], logprobs[number] = each, logprob
        return logprobs, finite if hidden is None else finite_rows(work, whole, ids)

    def seconds(self, counts: Sequence[int], samples: Sequence[int]) -> float:
        """The device's seconds; with drafts the host's, which then makes logits of its own."""
        assert self.runner is not None
        shape, began = self.runner.shape, perf_counter()
        inputs = dummy_step(counts, samples=samples, groups=len(shape.groups), block_tokens=shape.block_tokens)
        launched = self.runner.launch(replace(inputs, select=inputs.cu_q[1:] - 1), NO_SAMPLING)
        self.runner.read(launched)
        if max(samples) == 1:
            return self.runner.seconds(launched)
        self.runner.logits(self.runner.hidden(len(inputs.ids))[inputs.select])
        return perf_counter() - began

    def close(self) -> None:
        """Drops steps in flight, weights and cache."""
        if self.runner is not None:
            self.runner.close()
        if self._tier is not None:
            self._tier.close()
        self.runner = self._cache = self._tier = None


class SamplingColumns:
    """Sampling parameters of permanent rows as columns, written when a row becomes resident.

    served  bool [rows]  the device samples for the row
    """

    def __init__(self, rows: int) -> None:
        self.served = np.zeros(rows, np.bool_)
        self._columns: dict[str, NDArray[Any]] = {name: np.zeros(rows, KINDS[kind][0]) for name, kind in sampler.COLUMNS.items()}

    def apply(self, plan: Plan) -> None:
        """Takes over the parameters of new rows."""
        for new in plan.new_rows:
            self.served[new.row] = sampler.serves(new.params)
            for name, number in zip(sampler.COLUMNS, sampler.columns_of(new.params), strict=True):
                self._columns[name][new.row] = number

    def of(self, rows: NDArray[np.int32]) -> dict[str, NDArray[Any]]:
        """The columns of some rows."""
        return {name: column[rows] for name, column in self._columns.items()}


def open_cuda(source: Source, progress: Progress, *, load: Load = load_weights, graphs: Graphs | None = None) -> Opened:
    """A model on a GPU. The context is planned from headers, so that every buffer can be sized before anything runs; how many blocks there
    are is measured behind the largest step there can be, so that nothing runs out of memory later.

    load    where weights come from: the model's files, or chance (`compute.cuda.load.random_weights`), for benchmarks
    graphs  what starts the runner's steps; None: its own
    """
    config, device = source.config, open_device()
    fp8, dtype = config.dtype == "fp8", "bf16" if config.dtype == "fp8" else config.dtype
    attention = open_attention(config.attention_backend, _case(source, dtype, device))
    length = planned_length(source, device, weights_bytes(source.facts, DTYPES[dtype], fp8=fp8))
    source = source.rotated(length)
    facts = source.facts
    oplist, weights = load(facts, record(facts)["step"], device, DTYPES[dtype], fp8=fp8, progress=progress)
    shape = KVShape(kv_groups(facts), config.block_size, 1, b"")
    runner = CudaRunner(
        oplist, weights, shape, device, DTYPES[dtype],
        tokens=config.tokens, rows=config.rows, positions=length, vocab=facts.tokens, kv_heads=facts.kv_heads, depth=config.depth,
        invariant=config.batch_invariant, attention=attention, graphs=graphs,
    )  # fmt: skip
    runner.attach(allocate_device_kv(shape, facts.kv_heads, facts.head_dim, config.kv_dtype, device.torch))
    source = source.sized(length, _room(runner, device, progress), share=1.0, host_bytes=source.memory_bytes)
    shape = source.shape(f"{device.name} {config.dtype} {config.batch_invariant} {config.attention_backend}")
    cache = allocate_device_kv(shape, facts.kv_heads, facts.head_dim, config.kv_dtype, device.torch)
    runner.attach(cache)
    decisions = _captured(runner, device, progress)
    tier = HostTier(cache, shape.host_blocks, device, config.depth) if shape.host_blocks else None
    backend = CudaBackend(runner, cache, rows=config.rows, tier=tier)
    return Opened(backend, source, shape, f"cuda, {device.name}", weights.nbytes, decisions)


def _room(runner: CudaRunner, device: Device, progress: Progress) -> int:
    """Bytes that the KV cache may take: what the largest step leaves, once every kernel is on the device."""
    progress("warming up", 0.0)
    runner.profile_run()
    runner.compile_kernels(progress)
    progress("warming up", 1.0)
    return cache_bytes(device, device.free_bytes(), runner.graphs_wanted)


def _captured(runner: CudaRunner, device: Device, progress: Progress) -> tuple[Decision, ...]:
    """Captures all graphs; what users should know of how the device was set up."""
    before = device.memory()["used"]
    runner.warm_up(progress)
    taken = (device.memory()["used"] - before) >> 20
    step = Decision("step_bytes", runner.nbytes, "machine", "what the largest step takes of the device beside weights and KV cache")
    if not runner.graphs:
        return (step,)
    progress(f"captured {runner.graphs} graphs, {taken} MiB", 1.0)
    reason = f"steps, or parts of them, that are replayed instead of launched; they took {taken} MiB of the device"
    return step, Decision("graphs", runner.graphs, "machine", reason)


def planned_length(source: Source, device: Device, weights: int) -> int:
    """Positions that a sequence may have: those asked for, else what the memory behind weights has room for, by their headers."""
    config, costs, context = source.config, source.costs, source.facts.context
    if config.max_model_len is not None:
        return min(config.max_model_len, context)
    room = config.kv_cache_memory_bytes or cache_bytes(device, device.memory_bytes - weights, 0)
    return max(1, costs.longest(room // costs.block_bytes, context))


def _case(source: Source, dtype: str, device: Device) -> Case:
    """What decides who can compute the model's attention."""
    facts, config = source.facts, source.config
    group = facts.heads // facts.kv_heads
    return Case(device.capability, dtype, config.kv_dtype, facts.head_dim, facts.kv_heads, group, config.batch_invariant)
