"""Launches of every bucket, and which of them are replayed as CUDA graphs.

A decode step is one graph, sampling included, and so is one that verifies a few drafts a row. Of a small mixed step everything between
two attentions is a graph, as it depends on the number of tokens alone; attention, the head and sampling are launched. A large mixed step is
launched op by op: it computes for longer than that takes. Graphs are captured at the start, over addresses that never change; a step whose
bucket has none is launched.

Owns what buckets share: there are thousands, and only attention depends on all sizes of a bucket.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from ridgeline.compute.cuda.buckets import SEGMENT_TOKENS, Bucket
from ridgeline.compute.cuda.cache import DeviceKVCache
from ridgeline.compute.cuda.device import Event, Graph
from ridgeline.compute.cuda.plan import Binding, DevicePlan, Run
from ridgeline.compute.cuda.providers import PROVIDERS
from ridgeline.compute.cuda.sampler import SampledIds
from ridgeline.compute.cuda.states import StepStates
from ridgeline.compute.cuda.step import StepBuffers
from ridgeline.compute.graph import Op
from ridgeline.compute.lowering.lower import head_of

MAX_BUCKETS: Final = 1024
"""Buckets whose launches are kept: a list, and one attention per layer, each."""
MARKS: Final = 128
"""Layers by which the host may be ahead of the device until marks are reused."""

Capture = Callable[[Callable[[], None], Any], Graph]
"""(what launches, memory pool) → the graph of it."""


class Launch(NamedTuple):
    """One launch, or a few. `attention`: the op where it is one, which depends on rows and tables and stands between two segments; `name`:
    in a trace."""

    run: Run
    attention: Op | None = None
    name: str = "launch"


class BucketLaunches(NamedTuple):
    """The launches of a bucket: `body` depends on tokens, but for attention; `tail`, from the selection on, on rows."""

    body: list[Launch]
    tail: list[Launch]


class Marks:
    """Events behind the attentions of steps that are launched op by op: how far the device is in a long one. Where it is behind by more
    than there are events, the later marks count."""

    def __init__(self, event: Callable[[], Event]) -> None:
        self._events = [event() for _ in range(MARKS)]
        self._placed = self._passed = 0

    def place(self) -> None:
        """Places a mark behind all launches so far."""
        self._events[self._placed % MARKS].record()
        self._placed += 1

    def count(self) -> int:
        """Marks that have been placed, and those that the device has passed. For one thread, which may be another than places them."""
        while self._passed < self._placed and self._events[self._passed % MARKS].query():
            self._passed += 1
        return self._placed + self._passed


class LaunchCache:
    """Launches of the buckets of one plan, over the cache that is attached; bound when a bucket is first met. Launches nothing itself."""

    def __init__(self, plan: DevicePlan, buffers: StepBuffers, ids: SampledIds, marks: Marks, states: StepStates | None) -> None:
        self._plan, self._buffers, self._ids, self._marks, self._states = plan, buffers, ids, marks, states
        self._select = head_of(plan.oplist) - 1
        self._results = plan.oplist.outputs["logits"], plan.oplist.taps["hidden"]
        self._buckets: dict[Bucket, BucketLaunches] = {}
        self._shared: dict[tuple[int, ...], list[Launch]] = {}
        self.cache: DeviceKVCache | None = None

    def attach(self, cache: DeviceKVCache | None) -> None:
        """Launches write to `cache` from now on; what knows the addresses of another is dropped."""
        self.cache = cache
        self._buckets.clear()
        self._shared.clear()

    def binding(self, bucket: Bucket, plan: DevicePlan | None = None) -> Binding:
        """A bucket's views for the ops of `plan`; None: of the cache's own. RuntimeError where no cache is attached."""
        if self.cache is None:
            raise RuntimeError("the runner has no KV cache: call attach first")
        return Binding(plan or self._plan, self._buffers.device_views(bucket), self.cache, self._ids.token_ids[: bucket.tokens])

    def bind(self, binding: Binding, op: Op) -> Run:
        """The launch of one op over the views of a bucket."""
        return PROVIDERS[op.name](binding, op)

    def launches(self, bucket: Bucket) -> BucketLaunches:
        """All launches of a bucket."""
        found = self._buckets.get(bucket)
        if found is None:
            if len(self._buckets) >= MAX_BUCKETS:
                del self._buckets[next(iter(self._buckets))]
            binding = self.binding(bucket)
            key = (bucket.tokens,)
            if key not in self._shared:
                self._shared[key] = [
                    Launch(self._ids.begin(binding, self._buffers.tables), name="resolve ids"),
                    *self._bound(binding, 0, self._select),
                ]
            first, *ops = self._shared[key]
            places = [Launch(run, name="find places") for run in self._ids.place(binding, self._buffers.tables)]
            places += [Launch(run, name="take hidden states") for run in (self._states.take(binding) if self._states else ())]
            body = [first, *places, *(self._rebound(binding, launch) for launch in ops)]
            found = self._buckets[bucket] = BucketLaunches(body, self._tail(binding))
        return found

    def _tail(self, binding: Binding) -> list[Launch]:
        """Launches from the selection on: the same for all buckets of so many tokens and rows that all verify, or do not."""
        bucket = binding.inputs.bucket
        key = bucket.tokens, bucket.rows, bucket.verifies
        if key not in self._shared:
            logits, hidden = binding.values(self._results)
            places = self._states.states.places[: bucket.rows] if self._states and self._states.of_heads else None
            sampling = [
                Launch(self._ids.sampling(binding, logits, hidden, places), name="sample"),
                *(Launch(run, name="keep hidden states") for run in (self._states.keep(binding) if self._states else ())),
                Launch(self._ids.store_last(binding), name="store ids"),
            ]
            self._shared[key] = [*self._bound(binding, self._select, len(self._plan.oplist.ops)), *sampling]
        return self._shared[key]

    def _bound(self, binding: Binding, first: int, end: int) -> list[Launch]:
        """Launches of the ops first ≤ n < end."""
        ops = self._plan.oplist.ops[first:end]
        return [Launch(self.bind(binding, op), op if op.name == "attention" else None, str(op)) for op in ops]

    def _rebound(self, binding: Binding, launch: Launch) -> Launch:
        """The launch for another bucket of as many tokens: itself, unless it is an attention. One of a large step places a mark."""
        if launch.attention is None:
            return launch
        run = self.bind(binding, launch.attention)
        is_large = binding.inputs.bucket.tokens > SEGMENT_TOKENS[-1]
        return Launch(partial(_run_and_mark, run, self._marks) if is_large else run, launch.attention, launch.name)


def _run_and_mark(run: Run, marks: Marks) -> None:
    run()
    marks.place()


def run_all(launches: Sequence[Launch]) -> None:
    """Launches one by one, in their order."""
    for launch in launches:
        launch.run()


def segments(launches: Sequence[Launch]) -> Iterator[tuple[list[Launch], Launch | None]]:
    """Launchs between attentions, each with the attention behind it; None behind the last."""
    part: list[Launch] = []
    for launch in launches:
        if launch.attention:
            yield part, launch
            part = []
        else:
            part.append(launch)
    yield part, None


class Graphs:
    """Graphs of whole steps by bucket, and of segments by number of tokens; `body` and `tail` as in `BucketLaunches`.

    capture   makes a graph; None where the device has none
    new_pool  a pool of memory that all graphs share: one of them runs at a time. A pool whose graphs are all gone takes no others
    """

    def __init__(self, capture: Capture | None, new_pool: Callable[[], Any] = lambda: None) -> None:
        self.capture, self._new_pool = capture, new_pool
        self._pool = new_pool()
        self._steps: dict[Bucket, Graph] = {}
        self._segments: dict[int, list[Graph]] = {}

    def __len__(self) -> int:
        return len(self._steps) + sum(len(parts) for parts in self._segments.values())

    def clear(self) -> None:
        """Drops all graphs: their addresses are about to be freed."""
        self._steps.clear()
        self._segments.clear()
        self._pool = self._new_pool()

    def add_step(self, bucket: Bucket, body: Sequence[Launch], tail: Sequence[Launch]) -> None:
        """Captures a whole step. Everything is launched once before: kernels are compiled and libraries prepared outside of captures."""
        launches = [*body, *tail]
        run_all(launches)
        self._steps[bucket] = self._captured(launches)

    def add_segments(self, tokens: int, body: Sequence[Launch], tail: Sequence[Launch]) -> None:
        """Captures the launches between attentions in a mixed step of so many tokens."""
        run_all([*body, *tail])
        self._segments[tokens] = [self._captured(part) for part, _ in segments(body)]

    def _captured(self, launches: Sequence[Launch]) -> Graph:
        assert self.capture is not None, "there are no graphs on this device"
        return self.capture(lambda: run_all(launches), self._pool)

    def run(self, bucket: Bucket, body: Sequence[Launch], tail: Sequence[Launch]) -> None:
        """Starts a step: replays its graphs where there are any, launches the rest."""
        graph = self._steps.get(bucket)
        if graph is not None:
            graph.replay()
            return
        parts = None if bucket.is_decode else self._segments.get(bucket.tokens)
        if parts is None:
            run_all(body)
        else:
            attentions = (launch for launch in body if launch.attention)
            for number, part in enumerate(parts):
                if number:
                    next(attentions).run()
                part.replay()
        run_all(tail)
