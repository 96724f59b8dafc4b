"""The calls of every bucket, over views that are made when it is first met.

Owns what is shared: there are thousands of buckets, and only attention needs to know all of a bucket's sizes. Launches nothing.
"""

from functools import partial
from typing import Final, NamedTuple

from ridgeline.compute.cuda.buckets import Bucket
from ridgeline.compute.cuda.cache import DeviceKVCache
from ridgeline.compute.cuda.ids import Ids
from ridgeline.compute.cuda.plan import Binding, Call, DevicePlan
from ridgeline.compute.cuda.step import StepBuffers
from ridgeline.compute.lowering.lower import head_of

MOST_PROGRAMS: Final = 1024
"""Buckets whose calls are kept: a list and an attention a layer each."""


class Program(NamedTuple):
    """The calls of a bucket: `body` depends on tokens, but for attention; `tail`, from the selection on, on rows."""

    body: list[Call]
    tail: list[Call]


class Programs:
    """Of one plan, over the cache that is attached."""

    def __init__(self, plan: DevicePlan, buffers: StepBuffers, ids: Ids) -> None:
        self._plan, self._buffers, self._ids = plan, buffers, ids
        self._first = head_of(plan.oplist) - 1
        self._results = plan.oplist.outputs["logits"], plan.oplist.taps["hidden"]
        self._programs: dict[Bucket, Program] = {}
        self._calls: dict[tuple[int, ...], list[Call]] = {}
        self.cache: DeviceKVCache | None = None

    def attach(self, cache: DeviceKVCache | None) -> None:
        """The cache that calls write to from now on; what knows the addresses of another is dropped."""
        self.cache = cache
        self._programs.clear()
        self._calls.clear()

    def binding(self, bucket: Bucket, plan: DevicePlan | None = None) -> Binding:
        """A bucket's views for the ops of a plan, or of another than this one."""
        assert self.cache is not None, "a runner computes with a cache: attach one"
        return Binding(plan or self._plan, self._buffers.views(bucket), self.cache, self._ids.of_tokens[: bucket.tokens])

    def of(self, bucket: Bucket) -> Program:
        """The calls of a bucket."""
        found = self._programs.get(bucket)
        if found is None:
            if len(self._programs) >= MOST_PROGRAMS:
                del self._programs[next(iter(self._programs))]
            binding = self.binding(bucket)
            key = (bucket.tokens,)
            if key not in self._calls:
                self._calls[key] = [Call(partial(self._ids.resolve, binding)), *self._plan.bind(binding, 0, self._first)]
            body = [self._plan.attentions(binding, call) for call in self._calls[key]]
            found = self._programs[bucket] = Program(body, self._tail(binding))
        return found

    def _tail(self, binding: Binding) -> list[Call]:
        """From the selection on: the same for all buckets of so many tokens and rows."""
        bucket = binding.inputs.bucket
        key = bucket.tokens, bucket.rows
        if key not in self._calls:
            logits, hidden = binding.values(self._results)
            sampling = [Call(self._ids.sampling(binding, logits, hidden)), Call(partial(self._ids.remember, binding))]
            self._calls[key] = [*self._plan.bind(binding, self._first, len(self._plan.oplist.ops)), *sampling]
        return self._calls[key]
