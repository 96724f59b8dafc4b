"""The runner of a GPU: steps as launches over permanent memory.

Owns the buffers of a step, and which bucket a step is padded to. Between start-up and the end it
allocates nothing on the device and waits for it only where a host asks for results. Knows no request.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
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
from ridgeline.compute.cuda.plan import Binding, Call, DevicePlan, Weights
from ridgeline.compute.cuda.providers import BIND
from ridgeline.compute.cuda.step import NOBODY, NOTHING, Sampled, StepBuffers
from ridgeline.compute.diff import stored_names
from ridgeline.compute.graph import SELECTED, Op, OpList, StepInputs
from ridgeline.compute.lower import head_of
from ridgeline.compute.ops.table import check
from ridgeline.core.plan import KVShape

Floats = NDArray[np.float32]


class Program(NamedTuple):
    """The calls of a bucket: `body` depends on tokens, but for attention; `tail`, from the selection on, on rows."""

    body: list[Call]
    tail: list[Call]


class Launched(NamedTuple):
    """A step that has been started: what it will have written to the host once its event has come."""

    event: Event
    host: torch.Tensor
    rows: int


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
        self._shape, self._head = shape, head_of(oplist)
        self._results = {"logits": oplist.outputs["logits"], "hidden": oplist.taps["hidden"]}
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
        self._read = [(device.event(), device.host(2, largest.rows, dtype=torch.int32)) for _ in range(depth + 1)]
        self._turn = 0
        self._current = largest
        self._cache: DeviceKVCache | None = None
        self._programs: dict[Bucket, Program] = {}
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
        if self._cache is not cache:
            self._cache = cache
            self._programs.clear()
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
            self._send(bucket, NOTHING, NOBODY)
            program = self._program(bucket)
            if single:
                self._graphs.add_single(bucket, program.body, program.tail)
            else:
                self._graphs.add_segments(bucket.tokens, program.body, program.tail)
            progress("capturing graphs", (number + 1) / (len(whole) + len(pieces)))
        self.device.settle()

    def dry(self) -> None:
        """The largest step there can be, of padding alone."""
        bucket = self.buckets.largest
        self._send(bucket, NOTHING, NOBODY)
        program = self._program(bucket)
        run_all((*program.body, *program.tail))
        self.device.settle()

    def launch(self, inputs: StepInputs, sampled: Sampled) -> Launched:
        """Starts a step and the way of its results to the host. An id of -1 is the last one sampled for its row.

        `inputs.select` has the last token of every row. At most `depth` steps may be launched and not yet read.
        """
        bucket = self.buckets.of(np.diff(inputs.cu_q).tolist(), inputs.tables[0].shape[1])
        self._send(bucket, inputs, sampled)
        program = self._program(bucket)
        self._graphs.run(bucket, program.body, program.tail)
        event, host = self._read[self._turn]
        self._turn = (self._turn + 1) % len(self._read)
        host.copy_(self.ids.out, non_blocking=True)
        event.record()
        return Launched(event, host, inputs.sizes.R)

    def replay(self) -> None:
        """Starts the step that was launched last once more, over the inputs that it had: for measurements."""
        program = self._program(self._current)
        self._graphs.run(self._current, program.body, program.tail)

    def read(self, launched: Launched) -> tuple[list[int], NDArray[np.bool_]]:
        """Waits for a step: the id that each row sampled, if it did, and whether its final hidden states are finite."""
        launched.event.synchronize()
        ids, finite = launched.host.numpy()[:, : launched.rows]
        return ids.tolist(), finite != 0

    def logits_of(self, rows: list[int]) -> Floats:
        """Logits fp32 [n, V] of some rows of the step that was launched last, which has been read."""
        bucket = self._current
        logits = self.plan.value(self.oplist.outputs["logits"], bucket.tokens, bucket.rows)
        return logits[torch.tensor(rows, device=logits.device)].float().cpu().numpy()

    def hidden(self, tokens: int) -> Floats:
        """Final hidden states fp32 [T, D] of the step that was launched last, which has been read."""
        bucket = self._current
        return self.plan.value(self.oplist.taps["hidden"], bucket.tokens, bucket.rows)[:tokens].float().cpu().numpy()

    def logits(self, hidden: Floats) -> Floats:
        """Final hidden states [N, D], rows of the tap "hidden" of any steps, to logits fp32 [N, V]; overwrites those of the last step."""
        head, most = self.oplist.ops[self._head :], self.buckets.rows[-1]
        found = []
        for start in range(0, len(hidden), most):
            part = torch.from_numpy(np.ascontiguousarray(hidden[start : start + most]))
            bucket = self.buckets.of([1] * len(part), 1)
            binding = self._binding(self.plan, bucket)
            self.plan.value(self.oplist.ops[self._head - 1].outputs[0], bucket.tokens, bucket.rows)[: len(part)].copy_(part)
            for op in head:
                BIND[op.name](binding, op)()
            logits = self.plan.value(self.oplist.outputs["logits"], bucket.tokens, bucket.rows)
            found.append(logits[: len(part)].float().cpu().numpy())
        return np.concatenate(found)

    def run(self, inputs: StepInputs, kv: DeviceKVCache, taps: Iterable[str] = (), *, best: bool = False) -> dict[str, Floats]:
        """One step by itself, for whoever wants numbers and not speed: `logits` fp32 [S, V] and the tap "hidden" fp32 [T, D]."""
        self.attach(kv)
        self.read(self.launch(replace(inputs, select=inputs.cu_q[1:] - 1), NOBODY))
        hidden = self.hidden(inputs.sizes.T)
        found = {"logits": self.logits(hidden[inputs.select])}
        return found | ({"hidden": hidden} if "hidden" in taps else {})

    def values(self, inputs: StepInputs, kv: DeviceKVCache, until: int | None = None) -> dict[str, NDArray[Any]]:
        """Runs ops 0 … `until` and returns every named value that they made, as fp32; see `compute/diff.py`. At most as many positions
        may be selected as the runner has rows."""
        self.attach(kv)
        sizes = inputs.sizes
        most = self.buckets.largest
        plan = DevicePlan(
            self.oplist, self.plan.weights, self._shape, self.device, self.plan.dtype,
            tokens=most.tokens, rows=most.rows, scratch=self.plan.scratch, invariant=self.plan.invariant,
            attention=self.plan.attention, reuse=False,
        )  # fmt: skip
        self._send(most, inputs, NOBODY)
        binding = self._binding(plan, most)
        self.ids.resolve(binding)
        made: dict[str, NDArray[Any]] = {}
        for op in self.oplist.ops if until is None else self.oplist.ops[: until + 1]:
            BIND[op.name](binding, op)()
            self.device.settle()
            for name in op.outputs:
                value = plan.value(name, most.tokens, most.rows)
                count = sizes.S if self.oplist.values[name].shape[0] == SELECTED else sizes.T
                made[name] = value[:count].float().cpu().numpy()
            made |= dict(zip(stored_names(op), self._stored(op, inputs, kv), strict=False))
        return made

    def close(self) -> None:
        """Waits for what was launched, and drops graphs and cache."""
        self.device.settle()
        self._programs.clear()
        self._graphs.clear()
        self._cache = None

    def _send(self, bucket: Bucket, inputs: StepInputs, sampled: Sampled) -> None:
        self._current = bucket
        self.plan.attention.prepare(bucket, self.buffers.send(bucket, inputs, sampled))

    def _binding(self, plan: DevicePlan, bucket: Bucket) -> Binding:
        assert self._cache is not None, "a runner computes with a cache: attach one"
        return Binding(plan, self.buffers.views(bucket), self._cache, self.ids.of_tokens[: bucket.tokens])

    def _program(self, bucket: Bucket) -> Program:
        """The calls of a bucket, over views that are made when it is first met."""
        found = self._programs.get(bucket)
        if found is None:
            binding = self._binding(self.plan, bucket)
            calls = self.plan.bind(binding)
            first = self._head - 1
            logits, hidden = (binding.value(self._results[name]) for name in ("logits", "hidden"))
            tail = [Call(self.ids.sampling(binding, logits, hidden)), Call(partial(self.ids.remember, binding))]
            body = [Call(partial(self.ids.resolve, binding)), *calls[:first]]
            found = self._programs[bucket] = Program(body, [*calls[first:], *tail])
        return found

    def _stored(self, op: Op, inputs: StepInputs, kv: DeviceKVCache) -> tuple[Floats, ...]:
        """What a cache write stored for the step's tokens, as fp32 [T, KV heads, head dimension]: K, then V."""
        if not stored_names(op):
            return ()
        layer = int(op.attributes["layer"])  # type: ignore[arg-type]
        group = next(number for number, group in enumerate(self._shape.groups) if layer in group.layers)
        slots = torch.from_numpy(inputs.slots[group]).to(self.device.torch)
        keys, values = kv.read(self._shape.groups[group].layers.index(layer), slots)
        return keys.cpu().numpy(), values.cpu().numpy()
