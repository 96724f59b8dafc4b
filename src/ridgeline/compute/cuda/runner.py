"""The runner of a GPU: steps as launches over permanent memory.

Owns the buffers of a step, and which bucket a step is padded to. Between start-up and the end it
allocates nothing on the device and waits for it only where a host asks for results. Knows no request.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ridgeline.compute.cuda.attention import TRITON, Attention, Sizes
from ridgeline.compute.cuda.buckets import Bucket, Buckets
from ridgeline.compute.cuda.cache import DeviceKVCache
from ridgeline.compute.cuda.device import Device, Event
from ridgeline.compute.cuda.graphs import Graphs, run_all
from ridgeline.compute.cuda.ids import Ids
from ridgeline.compute.cuda.memory import scratch_bytes
from ridgeline.compute.cuda.plan import DevicePlan, Weights
from ridgeline.compute.cuda.programs import Program, Programs
from ridgeline.compute.cuda.providers import BIND
from ridgeline.compute.cuda.step import NO_SAMPLING, Sampled, StepBuffers
from ridgeline.compute.dummy import dummy_step, even
from ridgeline.compute.graph import Op, OpList, StepInputs
from ridgeline.compute.lowering.lower import head_of
from ridgeline.compute.ops.table import check
from ridgeline.compute.runner import stored_names
from ridgeline.core.plan import KVShape

Floats = NDArray[np.float32]


class Launched(NamedTuple):
    """A step that has been started: `host` has what it says once its last event has come; `first` is before its inputs' copy."""

    first: Event
    last: Event
    host: NDArray[np.int32]
    rows: int


class Slot(NamedTuple):
    """What a step needs while it is on its way: timed events at its two ends, and pinned memory for its results."""

    first: Event
    last: Event
    host: torch.Tensor
    seen: NDArray[np.int32]
    """The same memory."""


class CudaRunner:
    """Runs one lowered list.

    dtype                    of activations
    tokens, rows, positions  the most that a step has, and that a row has
    vocab                    ids that may be sampled, the first ones of the logits
    kv_heads                 of the cache
    depth                    steps that may be launched and not yet read
    invariant                a token's bits do not depend on what else is in its step
    attention                who computes it
    graphs                   what starts steps; None: the device's own graphs, if it has any
    """

    def __init__(
        self,
        oplist: OpList,
        weights: Weights,
        shape: KVShape,
        device: Device,
        dtype: torch.dtype,
        *,
        tokens: int,
        rows: int,
        positions: int,
        vocab: int,
        kv_heads: int,
        depth: int = 2,
        invariant: bool = False,
        attention: Attention = TRITON,
        graphs: Graphs | None = None,
    ) -> None:
        check(oplist)
        self.oplist, self.device, self.vocab = oplist, device, vocab
        self.shape, self._head = shape, head_of(oplist)
        self.buckets = Buckets(tokens, rows, positions, shape.block_tokens)
        largest = self.buckets.largest
        needed = scratch_bytes(
            oplist, weights, self.buckets,
            kv_heads=kv_heads, block_tokens=shape.block_tokens, dtype=dtype, device=device, invariant=invariant,
        )  # fmt: skip
        scratch = device.empty(needed, dtype=torch.uint8)
        sizes = {"tokens": largest.tokens, "rows": largest.rows}
        self.plan = DevicePlan(oplist, weights, shape, device, dtype, scratch=scratch, invariant=invariant, attention=attention, **sizes)
        self._reserved = attention.reserve(device, Sizes(oplist, shape, self.buckets))
        self.buffers = StepBuffers(device, len(shape.groups), largest, depth, nobody=rows)
        self.ids = Ids(device, rows, largest, vocab)
        self._slots = [_slot(device, largest.rows) for _ in range(depth + 1)]
        self._turn = 0
        self._current = largest
        self._programs = Programs(self.plan, self.buffers, self.ids)
        self._graphs = Graphs(device.capture if device.real else None, device.graph_pool()) if graphs is None else graphs

    @property
    def nbytes(self) -> int:
        """Bytes on the device beside weights, cache and graphs."""
        return self.plan.nbytes + self._reserved + self.buffers.nbytes + self.ids.nbytes

    @property
    def graphs_wanted(self) -> int:
        """Graphs that `warm_up` will capture; none where kernels are interpreted."""
        if self._graphs.capture is None:
            return 0
        return len(self.buckets.single) + len(self.buckets.segments) * (1 + sum(op.name == "attention" for op in self.oplist.ops))

    @property
    def graphs(self) -> int:
        """Graphs that there are."""
        return len(self._graphs)

    def attach(self, cache: DeviceKVCache) -> None:
        """The cache that steps write to from now on; graphs of another are dropped."""
        if self._programs.cache is not cache:
            self._programs.attach(cache)
            self._graphs.clear()

    def warm_up(
        self, progress: Callable[[str, float], None], rows: Collection[int] | None = None, tokens: Collection[int] | None = None
    ) -> None:
        """Captures every graph there may be, over steps that are nothing but padding; of single steps only those of so many `rows`, of
        mixed ones those of so many `tokens`, where these are given."""
        if self._graphs.capture is None:
            return
        self._graphs.clear()
        whole = [(bucket, True) for bucket in self.buckets.single if rows is None or bucket.rows in rows]
        pieces = [(self.buckets.mixed(count), False) for count in self.buckets.segments if tokens is None or count in tokens]
        for number, (bucket, single) in enumerate((*whole, *pieces)):
            program = self._padded(bucket)
            if single:
                self._graphs.add_single(bucket, program.body, program.tail)
            else:
                self._graphs.add_segments(bucket.tokens, program.body, program.tail)
            progress("capturing graphs", (number + 1) / (len(whole) + len(pieces)))
        self.device.settle()

    def compile_kernels(self, progress: Callable[[str, float], None]) -> None:
        """Launches the attentions of mixed steps of every kind, of padding: kernels are compiled now that would be compiled when
        somebody waits for a token. Elsewhere than on a GPU nothing is compiled."""
        mixtures = self.buckets.mixtures if self.device.real else ()
        for number, bucket in enumerate(mixtures):
            kinds = {_kind(call.attention): call for call in self._padded(bucket).body if call.attention}
            run_all(list(kinds.values()))
            progress("compiling kernels", (number + 1) / len(mixtures))
        self.device.settle()

    def profile_run(self) -> None:
        """The largest step there can be, on block 0."""
        program = self._padded(self.buckets.largest)
        run_all((*program.body, *program.tail))
        self.device.settle()

    def _padded(self, bucket: Bucket) -> Program:
        """Sends a step that fills a bucket and that nobody reads; returns its calls."""
        rows = min(bucket.rows, -(-bucket.tokens // bucket.most_q))
        step = dummy_step(even(bucket.tokens, rows), groups=len(self.shape.groups), block_tokens=self.shape.block_tokens)
        self._send(bucket, step, NO_SAMPLING)
        return self._programs.of(bucket)

    def launch(self, inputs: StepInputs, sampled: Sampled) -> Launched:
        """Starts a step and the way of its results to the host. An id of -1 is the last one sampled for its row.

        `inputs.select` has the last token of every row. At most `depth` steps may be launched and not yet read.
        """
        tokens, rows = len(inputs.ids), len(inputs.kv_len)
        most_q = 1 if tokens == rows else int(np.diff(inputs.cu_q).max())
        bucket = self.buckets.sized(tokens, rows, most_q, inputs.tables[0].shape[1])
        slot = self._slots[self._turn]
        self._turn = (self._turn + 1) % len(self._slots)
        slot.first.record()
        self._send(bucket, inputs, sampled)
        program = self._programs.of(bucket)
        self._graphs.run(bucket, program.body, program.tail)
        slot.host.copy_(self.ids.out, non_blocking=True)
        slot.last.record()
        return Launched(slot.first, slot.last, slot.seen, rows)

    def replay(self) -> None:
        """Starts the step that was launched last once more, over the inputs that it had: for measurements."""
        program = self._programs.of(self._current)
        self._graphs.run(self._current, program.body, program.tail)

    def read(self, launched: Launched) -> tuple[list[int], NDArray[np.bool_]]:
        """Waits for a step: the id that each row sampled, if it did, and whether its final hidden states are finite."""
        launched.last.synchronize()
        ids, finite = launched.host[:, : launched.rows]
        return ids.tolist(), finite != 0

    def seconds(self, launched: Launched) -> float:
        """The device's seconds for a step that has been read and behind which fewer than `depth` have been launched since: from the copy
        of its inputs to that of its results."""
        return self.device.seconds(launched.first, launched.last)

    def logits_of(self, rows: list[int]) -> Floats:
        """Logits fp32 [n, V] of some rows of the step that was launched last, which has been read."""
        bucket = self._current
        logits = self.plan.value(self.oplist.outputs["logits"], bucket.tokens, bucket.rows)
        return _numbers(logits[torch.tensor(rows, device=logits.device)])

    def hidden(self, tokens: int) -> Floats:
        """Final hidden states fp32 [T, D] of the step that was launched last, which has been read."""
        bucket = self._current
        return _numbers(self.plan.value(self.oplist.taps["hidden"], bucket.tokens, bucket.rows)[:tokens])

    def logits(self, hidden: Floats) -> Floats:
        """Final hidden states [N, D], rows of the tap "hidden" of any steps, to logits fp32 [N, V]; overwrites those of the last step."""
        head, most = self.oplist.ops[self._head :], self.buckets.single[0].rows
        found = []
        for start in range(0, len(hidden), most):
            part = torch.from_numpy(np.ascontiguousarray(hidden[start : start + most]))
            bucket = self.buckets.of([1] * len(part), 1)
            binding = self._programs.binding(bucket)
            self.plan.value(self.oplist.ops[self._head - 1].outputs[0], bucket.tokens, bucket.rows)[: len(part)].copy_(part)
            for op in head:
                BIND[op.name](binding, op)()
            logits = self.plan.value(self.oplist.outputs["logits"], bucket.tokens, bucket.rows)
            found.append(_numbers(logits[: len(part)]))
        return np.concatenate(found)

    def run(
        self, inputs: StepInputs, kv: DeviceKVCache, taps: Iterable[str] = (), *, keep: NDArray[np.int32] | None = None
    ) -> dict[str, Floats]:
        """One step by itself, for whoever wants numbers and not speed: `logits` fp32 [S, V] and the tap "hidden" fp32 [T, D]."""
        self.attach(kv)
        self.read(self.launch(replace(inputs, select=inputs.cu_q[1:] - 1), NO_SAMPLING))
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
            tokens=most.tokens, rows=most.rows, scratch=self.plan.scratch, invariant=self.plan.invariant,
            attention=self.plan.attention, reuse=False,
        )  # fmt: skip
        self._send(most, inputs, NO_SAMPLING)
        binding = self._programs.binding(most, plan)
        self.ids.resolve(binding)
        made: dict[str, NDArray[Any]] = {}
        for op in self.oplist.ops if until is None else self.oplist.ops[: until + 1]:
            BIND[op.name](binding, op)()
            self.device.settle()
            for name in op.outputs:
                value = plan.value(name, most.tokens, most.rows)
                made[name] = value[: self.oplist.values[name].axis.at(sizes)].float().cpu().numpy()
            made |= dict(zip(stored_names(op), _stored(op, inputs, self.shape, kv), strict=False))
        return made

    def close(self) -> None:
        """Waits for what was launched, and drops graphs and cache."""
        self.device.settle()
        self._programs.attach(None)
        self._graphs.clear()

    def _send(self, bucket: Bucket, inputs: StepInputs, sampled: Sampled) -> None:
        self._current = bucket
        self.plan.attention.prepare(bucket, self.buffers.send(bucket, inputs, sampled))


def _slot(device: Device, rows: int) -> Slot:
    """For results of so many rows."""
    host = device.host(2, rows, dtype=torch.int32)
    return Slot(device.event(timed=True), device.event(timed=True), host, host.numpy())


def _kind(op: Op) -> tuple[tuple[str, object], ...]:
    """What an attention's kernels depend on."""
    return tuple(sorted((name, value) for name, value in op.attributes.items() if name not in ("layer", "group")))


def _numbers(tensor: torch.Tensor) -> Floats:
    """A copy on the host, fp32: the device's memory is the next step's."""
    return tensor.to("cpu", torch.float32, copy=True).numpy()


def _stored(op: Op, inputs: StepInputs, shape: KVShape, kv: DeviceKVCache) -> tuple[Floats, ...]:
    """What a cache write stored for the step's tokens, as fp32 [T, KV heads, head dimension]: K, then V."""
    if not stored_names(op):
        return ()
    layer = int(op.attributes["layer"])  # type: ignore[arg-type]
    group = next(number for number, group in enumerate(shape.groups) if layer in group.layers)
    slots = torch.from_numpy(inputs.slots[group]).to(kv.pool.device)
    keys, values = kv.read(shape.groups[group].layers.index(layer), slots)
    return keys.cpu().numpy(), values.cpu().numpy()
