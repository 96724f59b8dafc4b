"""The runner of a GPU: steps as launches over permanent memory.

Owns the buffers of a step, and the bucket that a step is padded to. Between start-up and the end it allocates nothing on the device and
waits for it only where the host asks for results. Knows no request.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ridgeline.compute.cuda.adapters import AdapterColumns, DeviceAdapterSlots
from ridgeline.compute.cuda.buckets import Bucket, Buckets
from ridgeline.compute.cuda.cache import DeviceKVCache
from ridgeline.compute.cuda.device import Device, Event
from ridgeline.compute.cuda.graphs import BucketLaunches, Graphs, LaunchCache, Marks, run_all
from ridgeline.compute.cuda.memory import scratch_bytes
from ridgeline.compute.cuda.plan import DevicePlan
from ridgeline.compute.cuda.sampler import KeptIds, SampledIds
from ridgeline.compute.cuda.states import StepStates
from ridgeline.compute.cuda.step import NO_SAMPLING, SAMPLING_COLUMNS, DeviceSampling, OpenRows, StepBuffers
from ridgeline.compute.cuda.tables import BlockTables
from ridgeline.compute.cuda.trace import DeviceTrace
from ridgeline.compute.cuda.weights import DeviceWeights
from ridgeline.compute.dummy import dummy_step, even_counts
from ridgeline.compute.graph import Op, OpList, Sizes, StepInputs
from ridgeline.compute.lowering.lower import head_of
from ridgeline.compute.ops.table import check
from ridgeline.compute.runner import stored_names
from ridgeline.core.plan import KVShape
from ridgeline.facts.model import CachedHeads

Floats = NDArray[np.float32]


class LaunchedStep(NamedTuple):
    """A step that has been started.

    start, end  timed events: before the copy of its inputs, behind the copy of its results
    results     on the host, as `SampledIds.results`: valid once `end` has come
    token_ids   int32 [T], as `SampledIds.token_ids`, where the step was launched to tell them
    ends        int32 [R]: last token of each row
    verifies    as in `Bucket`
    """

    start: Event
    end: Event
    results: NDArray[np.int32]
    token_ids: NDArray[np.int32]
    ends: NDArray[np.int32]
    verifies: bool

    def standing(self, samples: bytearray) -> list[tuple[int, ...]]:
        """The ids of each row that stand, of a step that verifies and has been read: up to the first that differs from its draft, before
        the first position that is not finite. samples: how many of its last positions sample."""
        firsts, counts = self.ends + 1 - np.frombuffer(samples, np.uint8), self.results[2]
        return [tuple(self.results[0, first : first + count].tolist()) for first, count in zip(firsts, counts, strict=False)]


class ResultBuffer(NamedTuple):
    """Events and pinned memory of one step in flight. `results` and `token_ids` are parts of `pinned`, as in `SampledIds.readable`."""

    start: Event
    end: Event
    pinned: torch.Tensor
    results: NDArray[np.int32]
    token_ids: NDArray[np.int32]


class CudaRunner:
    """Runs one lowered op list.

    dtype                    of activations
    tokens, rows, positions  most of a step, and most positions of a row
    vocab                    ids that may be sampling, the first ones of the logits
    cached                   what a layer caches of a token
    depth                    steps that may be launched and not yet read
    invariant                a token's bits do not depend on what else is in its step
    graphs                   starts steps; None: the device's own graphs, if it has any
    adapters                 slots of those that rows may have; None: the list changes nothing
    drafts, backlog          see `Buckets`; 0: none
    kept                     of what drafts: ids of rows, which the target's runner has; None: its own
    states                   hidden states that steps keep, and heads take; None: nobody reads them
    tables                   of another list of the same heads, which brings the changes; None: its own
    logit_ids                as `SampledIds` has them
    """

    def __init__(
        self,
        oplist: OpList,
        weights: DeviceWeights,
        shape: KVShape,
        device: Device,
        dtype: torch.dtype,
        *,
        tokens: int,
        rows: int,
        positions: int,
        vocab: int,
        cached: CachedHeads,
        depth: int = 2,
        invariant: bool = False,
        graphs: Graphs | None = None,
        adapters: DeviceAdapterSlots | None = None,
        drafts: int = 0,
        backlog: int = 0,
        kept: KeptIds | None = None,
        states: StepStates | None = None,
        tables: BlockTables | None = None,
        logit_ids: torch.Tensor | None = None,
    ) -> None:
        check(oplist)
        self.adapters = adapters
        self.oplist, self.device, self.vocab = oplist, device, vocab
        self.shape, self._head = shape, head_of(oplist)
        self.buckets = Buckets(tokens, rows, positions, shape.block_tokens, drafts, backlog)
        largest = self.buckets.largest
        sizes = Sizes(T=largest.tokens, R=largest.rows, S=self.buckets.selected)
        needed = scratch_bytes(
            oplist, weights, self.buckets,
            cached=cached, block_tokens=shape.block_tokens, dtype=dtype, device=device, invariant=invariant,
            adapters=adapters,
        )  # fmt: skip
        scratch = device.empty(needed, dtype=torch.uint8)
        self.plan = DevicePlan(
            oplist, weights, shape, device, dtype, sizes=sizes, scratch=scratch, invariant=invariant, adapters=adapters,
        )  # fmt: skip
        columns = None if adapters is None else AdapterColumns(adapters.count, invariant)
        self.tables = tables or BlockTables(device, len(shape.groups), rows, largest.blocks, depth)
        room = largest, *self.buckets.verification[:1]
        ids = kept or KeptIds(device, rows, drafts)
        self.ids = SampledIds(device, ids, sizes, vocab, dtype, drafts=kept is not None, logit_ids=logit_ids)
        self.buffers = StepBuffers(
            device, self.tables, room, depth,
            dummy_row=rows, width=ids.ids.shape[1], adapters=columns, shifts=states is not None and states.of_heads,
        )  # fmt: skip
        self._results = [_result_buffer(device, self.ids) for _ in range(depth + 1)]
        self._next = 0
        self._current = largest
        self._ends = np.zeros(0, np.int32)
        """Bucket of the last step, and the last token of its rows."""
        self.marks = Marks(device.event)
        self.trace: DeviceTrace | None = None
        """Starts steps while they are traced."""
        self._launches = LaunchCache(self.plan, self.buffers, self.ids, self.marks, states)
        self._graphs = Graphs(device.capture if device.real else None, device.graph_pool) if graphs is None else graphs

    @property
    def nbytes(self) -> int:
        """Bytes on the device without weights, adapters, cache and graphs."""
        return self.plan.nbytes + self.buffers.nbytes + self.tables.nbytes + self.ids.nbytes

    @property
    def planned_graphs(self) -> int:
        """Number of graphs that `warm_up` will capture; 0 where kernels are interpreted."""
        if self._graphs.capture is None:
            return 0
        whole = len(self.buckets.decode) + len(self.buckets.verification)
        return whole + len(self.buckets.segments) * (1 + sum(op.name == "attention" for op in self.oplist.ops))

    @property
    def graphs(self) -> int:
        """Number of graphs that have been captured."""
        return len(self._graphs)

    def attach(self, cache: DeviceKVCache) -> None:
        """Steps write to `cache` from now on; graphs over another are dropped."""
        if self._launches.cache is not cache:
            self._launches.attach(cache)
            self._graphs.clear()

    def warm_up(
        self, progress: Callable[[str, float], None], rows: Collection[int] | None = None, tokens: Collection[int] | None = None
    ) -> None:
        """Captures all graphs over steps of padding: decode steps of `rows` rows, those that verify their drafts, mixed steps of `tokens`
        tokens; None: of all sizes."""
        if self._graphs.capture is None:
            return
        self._graphs.clear()
        whole = [bucket for bucket in self.buckets.decode if rows is None or bucket.rows in rows]
        whole += [bucket for bucket in self.buckets.verification if rows is None or bucket.rows - 1 in rows]
        mixed = [self.buckets.smallest_mixed(count) for count in self.buckets.segments if tokens is None or count in tokens]
        for number, bucket in enumerate((*whole, *mixed)):
            launches = self._padded(bucket)
            if number < len(whole):
                self._graphs.add_step(bucket, *launches)
            else:
                self._graphs.add_segments(bucket.tokens, *launches)
            progress("capturing graphs", (number + 1) / (len(whole) + len(mixed)))
        self.device.settle()

    def compile_kernels(self, progress: Callable[[str, float], None]) -> None:
        """Launches every kind of attention of mixed steps over padding, so that no request waits for a compiler. Only on a GPU."""
        mixed = self.buckets.compiled if self.device.real else ()
        for number, bucket in enumerate(mixed):
            kinds = {_kernel_key(launch.attention): launch for launch in self._padded(bucket).body if launch.attention}
            run_all(list(kinds.values()))
            progress("compiling kernels", (number + 1) / len(mixed))
        self.device.settle()

    def profile_run(self) -> None:
        """Runs the largest step that is possible, on block 0."""
        launches = self._padded(self.buckets.largest)
        run_all((*launches.body, *launches.tail))
        self.device.settle()

    def _padded(self, bucket: Bucket) -> BucketLaunches:
        """Sends a dummy step that fills a bucket; returns the launches of the bucket."""
        rows = min(bucket.rows, -(-bucket.tokens // bucket.max_q))
        step = dummy_step(even_counts(bucket.tokens, rows), groups=len(self.shape.groups), block_tokens=self.shape.block_tokens)
        self._send(bucket, step, NO_SAMPLING)
        return self._launches.launches(bucket)

    def launch(self, inputs: StepInputs, sampling: DeviceSampling, tells_ids: bool = False, open: OpenRows | None = None) -> LaunchedStep:
        """Starts a step and the copy of its results to the host, with its tokens' ids if it `tells_ids`. An id of LAST is the last one
        sampled for its row; see also `sampler.drafted_id`. open: rows that may stand farther than `inputs` say; None: all stand there.

        `inputs.select` has the last token of every row. Block tables are those of `tables`, by the permanent rows of `sampling`. At most
        `depth` steps may be launched and not yet read.
        """
        bucket = self.buckets.of_step(inputs, 0 if open is None else open.most)
        buffer = self._results[self._next]
        self._next = (self._next + 1) % len(self._results)
        buffer.start.record()
        self._send(bucket, inputs, sampling, open)
        start = self._graphs.run if self.trace is None else self.trace.run
        start(bucket, *self._launches.launches(bucket))
        read = buffer.results.size + tells_ids * len(inputs.ids)
        buffer.pinned[:read].copy_(self.ids.readable[:read], non_blocking=True)
        buffer.end.record()
        return LaunchedStep(buffer.start, buffer.end, buffer.results, buffer.token_ids, self._ends, bucket.verifies)

    def replay(self) -> None:
        """Starts the last step once more, over the same inputs: for measurements."""
        self._graphs.run(self._current, *self._launches.launches(self._current))

    def read(self, launched: LaunchedStep) -> tuple[list[int], NDArray[np.bool_]]:
        """Waits for a step: the id sampled at each selected position [S], and bool [R], True where a row's final hidden states are finite,
        up to its last id where drafts are verified."""
        launched.end.synchronize()
        rows = len(launched.ends)
        ids = launched.results[0, : launched.ends[-1] + 1 if launched.verifies else rows]
        return ids.tolist(), launched.results[1, :rows] != 0

    def seconds(self, launched: LaunchedStep) -> float:
        """Seconds on the device of a step that has been read, from the copy of its inputs to that of its results. Fewer than `depth` steps
        may have been launched since."""
        return self.device.seconds(launched.start, launched.end)

    def logits_of(self, rows: list[int]) -> Floats:
        """Logits fp32 [len(rows), V] of some rows of the last step, which has been read."""
        logits = self.ids.logits(self.plan.value(self.oplist.outputs["logits"], self._current))
        at = self._ends[rows].tolist() if self._current.verifies else rows
        return _to_host(logits[torch.tensor(at, device=logits.device)])

    def hidden(self, tokens: int) -> Floats:
        """Final hidden states fp32 [T, D] of the last step, which has been read."""
        return _to_host(self.plan.value(self.oplist.taps["hidden"], self._current)[:tokens])

    def logits(self, hidden: Floats) -> Floats:
        """Final hidden states [N, D], rows of the tap "hidden" of any steps, to logits fp32 [N, V]; overwrites those of the last step."""
        head, most = self.oplist.ops[self._head :], self.buckets.decode[0].rows
        found = []
        for start in range(0, len(hidden), most):
            part = torch.from_numpy(np.ascontiguousarray(hidden[start : start + most]))
            bucket = self.buckets.of([1] * len(part), 1)
            binding = self._launches.binding(bucket)
            self.plan.value(self.oplist.ops[self._head - 1].outputs[0], bucket)[: len(part)].copy_(part)
            for op in head:
                self._launches.bind(binding, op)()
            logits = self.plan.value(self.oplist.outputs["logits"], bucket)
            found.append(_to_host(logits[: len(part)]))
        return np.concatenate(found)

    def run(
        self, inputs: StepInputs, kv: DeviceKVCache, taps: Iterable[str] = (), *, keep: NDArray[np.int32] | None = None
    ) -> dict[str, Floats]:
        """One step by itself, for tests: `logits` fp32 [S, V] and the tap "hidden" fp32 [T, D]."""
        self.attach(kv)
        self.read(self.launch(replace(inputs, select=inputs.cu_q[1:] - 1), _alone(inputs, self.tables)))
        hidden = self.hidden(inputs.sizes.T)
        found = {"logits": self.logits(hidden[inputs.select])}
        return found | ({"hidden": hidden} if "hidden" in taps else {})

    def values(self, inputs: StepInputs, kv: DeviceKVCache, until: int | None = None) -> dict[str, NDArray[Any]]:
        """Runs ops 0 … `until` and returns every named value that they made, as fp32; see `compute/runner.py`. At most as many positions
        may be selected as the runner has rows."""
        self.attach(kv)
        sizes = inputs.sizes
        most = self.buckets.largest
        plan = DevicePlan(
            self.oplist, self.plan.weights, self.shape, self.device, self.plan.dtype,
            sizes=self.plan.sizes, scratch=self.plan.scratch, invariant=self.plan.invariant, adapters=self.adapters, reuse=False,
        )  # fmt: skip
        self._send(most, inputs, _alone(inputs, self.tables))
        binding = self._launches.binding(most, plan)
        self.ids.begin(binding, self.tables)()
        made: dict[str, NDArray[Any]] = {}
        for op in self.oplist.ops if until is None else self.oplist.ops[: until + 1]:
            self._launches.bind(binding, op)()
            self.device.settle()
            for name in op.outputs:
                value = plan.value(name, most)
                made[name] = value[: self.oplist.values[name].axis.at(sizes)].float().cpu().numpy()
            made |= dict(zip(stored_names(op), _stored_kv(op, inputs, self.shape, kv), strict=False))
        return made

    def close(self) -> None:
        """Waits for all launches, and drops graphs and cache."""
        self.device.settle()
        self._launches.attach(None)
        self._graphs.clear()

    def _send(self, bucket: Bucket, inputs: StepInputs, sampling: DeviceSampling, open: OpenRows | None = None) -> None:
        self._current, self._ends = bucket, inputs.cu_q[1:] - 1
        self.buffers.send(bucket, inputs, sampling, open)


def _alone(inputs: StepInputs, tables: BlockTables) -> DeviceSampling:
    """Permanent rows of a step that no plan made, which get its block tables; nothing is sampled for them."""
    rows = np.arange(len(inputs.kv_len), dtype=np.int32)
    tables.write(rows.tolist(), inputs.tables)
    return DeviceSampling(rows, np.zeros(len(rows), np.bool_), dict.fromkeys(SAMPLING_COLUMNS, np.zeros(len(rows))))


def _result_buffer(device: Device, ids: SampledIds) -> ResultBuffer:
    """Events and pinned memory for the results of a step."""
    pinned, size = device.host(len(ids.readable), dtype=torch.int32), ids.results.numel()
    results, token_ids = pinned[:size].view(ids.results.shape).numpy(), pinned[size:].numpy()
    return ResultBuffer(device.event(timed=True), device.event(timed=True), pinned, results, token_ids)


def _kernel_key(op: Op) -> tuple[tuple[str, object], ...]:
    """The attributes that an attention's kernels depend on."""
    return tuple(sorted((name, value) for name, value in op.attributes.items() if name not in ("layer", "group")))


def _to_host(tensor: torch.Tensor) -> Floats:
    """A copy on the host, fp32: the next step overwrites the device's memory."""
    return tensor.to("cpu", torch.float32, copy=True).numpy()


def _stored_kv(op: Op, inputs: StepInputs, shape: KVShape, kv: DeviceKVCache) -> tuple[Floats, ...]:
    """K and V that a cache write stored for the step's tokens, fp32 [T, KV heads, head dimension] each."""
    if not stored_names(op):
        return ()
    layer = int(op.attributes["layer"])  # type: ignore[arg-type]
    group = next(number for number, group in enumerate(shape.groups) if layer in group.layers)
    slots = torch.from_numpy(inputs.slots[group]).to(kv.pool.device)
    keys, values = kv.read(shape.groups[group].layers.index(layer), slots)
    return keys.cpu().numpy(), values.cpu().numpy()
