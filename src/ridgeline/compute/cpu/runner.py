"""The native runner: one call per step into the extension, which walks the lowered list with a team of threads.

Owns the team and the plan; never owns weights or the cache, and knows nothing of requests.
"""

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.adapters import NativeAdapterSlots
from ridgeline.compute.cpu.cache import NativeKVCache
from ridgeline.compute.cpu.packing import PackedWeight
from ridgeline.compute.cpu.phases import PRODUCTS
from ridgeline.compute.cpu.plan import SCREEN_COUNTS, NativePlan, Stored
from ridgeline.compute.graph import Formats, Op, OpList, Sizes, StepInputs
from ridgeline.compute.lowering.adapters import add_adapters, changed_matrices, changes_of_codes
from ridgeline.compute.lowering.ahead import choose_ahead
from ridgeline.compute.lowering.early import ATTENDED
from ridgeline.compute.lowering.lower import head_of, lower
from ridgeline.compute.ops.definition import Floats
from ridgeline.compute.ops.table import check
from ridgeline.compute.runner import Places, finite_tokens, stored_names
from ridgeline.compute.trace import RUN, StepTrace
from ridgeline.core.plan import ExpertReads, KVShape


class _Lists(NamedTuple):
    """Lowered lists of a step: of all tokens to the end, and behind the last attention of selected ones alone."""

    whole: OpList
    early: OpList


def _lowered(oplist: OpList, formats: Formats) -> _Lists:
    return _Lists(*(lower(oplist, name, formats) for name in ("native, all tokens", "native")))


class NativeRunner:
    """Runs one op list over packed weights.

    weights   by name: packed matrices, vectors as fp32
    tokens, selected  the most that a step has
    vocab     ids that may be sampled, the first ones of the logits
    threads   that share a step; no result depends on how many
    trace     takes what they do, from step to step; it may be another or None in each
    slots     how many adapters its steps may have; 0: none
    team      of another runner, which computes at other times; None: its own
    """

    def __init__(
        self,
        oplist: OpList,
        weights: Mapping[str, Stored],
        shape: KVShape,
        *,
        tokens: int,
        selected: int,
        vocab: int,
        threads: int = 1,
        trace: StepTrace | None = None,
        slots: int = 0,
        team: Any = None,
    ) -> None:
        check(oplist)
        slots_of = (weight.slots for weight in weights.values() if isinstance(weight, PackedWeight) and weight.slots is not None)
        self._slots = next(slots_of, None)
        reads = self._slots is not None and self._slots.count < self._slots.experts
        formats = {name: weight.format for name, weight in weights.items() if isinstance(weight, PackedWeight)}
        self._lists = {False: _lowered(choose_ahead(oplist) if reads else oplist, formats)}
        self.oplist = self._lists[False].whole
        self.adapters: NativeAdapterSlots | None = None
        if slots:
            changed = add_adapters(oplist)
            self._lists[True] = _lowered(choose_ahead(changed) if reads else changed, formats)
            self.adapters = NativeAdapterSlots(changed_matrices(changed), slots, changes_of_codes(self._lists[True].whole))
            weights = {**weights, **self.adapters.records}
        self._weights, self._shape = weights, shape
        # Of a list that ends in a product, a row's largest are found where they are made.
        ends = self.oplist.ops[-1].name in PRODUCTS and self.oplist.values[self.oplist.outputs["logits"]].width == vocab
        self._maxima = np.empty((selected, -(-vocab // ext.native().SAMPLE_BLOCK)), np.float32) if ends else None
        self._most = Sizes(T=tokens, R=selected, S=selected)
        self.trace = trace
        self._team = ext.native().Team(threads) if team is None else team
        self._share: Callable[[int], int] | None = None
        self._plans: dict[tuple[bool, bool], NativePlan] = {}
        """Plans by (a row has an adapter, all tokens are computed to the end)."""
        self._head: NativePlan | None = None

    moves_grammars = True

    @property
    def team(self) -> Any:
        """The threads, for others that compute between steps."""
        return self._team

    def share_threads(self, share: Callable[[int], int]) -> None:
        """Gives each further step as many of the threads as `share` says of their number."""
        self._share = share

    def run(
        self,
        inputs: StepInputs,
        kv: NativeKVCache,
        taps: Sequence[str] = (),
        *,
        keep: NDArray[np.int32] | None = None,
        masks: Callable[[], NDArray[np.int64]] | Places | None = None,
        given: Mapping[str, Floats] | None = None,
    ) -> dict[str, NDArray[Any]]:
        """One step: `logits` fp32 [S, V], `finite` bool [T], and the taps that are asked for, "hidden" fp32 [T, D] among them.

        Logits and hidden states are views that the next step overwrites. With the tap "hidden" the last layer is computed for all tokens,
        else, or where all are selected, behind its attention only for selected ones. `finite` is true of a token if its final hidden state
        is finite, or, where it has none, what the last attention made.
        keep: int32 [S], how many of the largest logits of each row are needed, with those that equal the last; 0, or None: all.
        masks: as `compute.runner.Runner.run` has them; called in front of the last product, where `keep` leaves any out. Places in grammars
        move beside the first ops; rows whose `best` is found without a mask may have none.

        Where the list allows it: with one of every row `best` int32 [S] in place of `logits`, the lowest id of each row's largest; else
        `maxima` fp32 [S, ceil(V / SAMPLE_BLOCK)] beside them, the largest of each block, NaN where one is. With some of every row the rest
        may be left out: -infinity is in its place, or anything in a block whose maximum is that.
        """
        if self._share is not None:
            self._team.use(self._share(self._team.threads))
        whole = "hidden" in taps and len(inputs.select) < len(inputs.ids)
        plan = self._of(kv, changed=inputs.adapter is not None, whole=whole)
        oplist = plan.oplist
        for name, rows in (given or {}).items():
            plan.rows_of(name, len(rows))[:] = rows
        wanted, found = self._wanted(plan.rows_of(oplist.outputs["logits"], len(inputs.select)), keep)
        bounded = self._maxima is not None and keep is not None and bool(keep.all())
        self._run(plan, inputs, wanted, masks, bounded)
        values = {name: _tapped(plan, name, inputs) for name in taps} | {"finite": _finite(plan, oplist, inputs)}
        return values | found

    def logits(self, hidden: Floats) -> Floats:
        """Final hidden states fp32 [N, D] to logits fp32 [N, V], N at most what a step selects: a view that the next call overwrites.

        Bit for bit what those steps give the same positions when they are selected.
        """
        assert self._plans, "hidden states come from a step"
        if self._head is None:
            end = self.oplist.with_ops(self.oplist.ops[head_of(self.oplist) - 1 :])
            cache = next(iter(self._plans.values())).cache
            self._head = NativePlan(end, self._weights, cache, self._shape, self._most, self._team)
        sizes = Sizes(T=len(hidden), R=0, S=len(hidden))
        self._head.value(self.oplist.taps["hidden"], sizes)[:] = hidden
        self._head.native.run(*arguments(_all_of(len(hidden))), 0, self._head.native.phases, 0, 0)
        return self._head.value(self.oplist.outputs["logits"], sizes)

    def values(self, inputs: StepInputs, kv: NativeKVCache, until: int | None = None) -> dict[str, NDArray[Any]]:
        """Runs ops 0 … `until` and returns every named value that they made; see `compute/runner.py`."""
        oplist = self._lists[inputs.adapter is not None].whole
        ops = oplist.ops if until is None else oplist.ops[: until + 1]
        plan = NativePlan(oplist.with_ops(ops), self._weights, kv, self._shape, self._most, self._team, reuse=False)
        plan.native.run(*arguments(inputs), 0, plan.native.phases, 0, 0)
        made = {name: plan.value(name, inputs.sizes).copy() for op in ops for name in op.outputs}
        for op in ops:
            made |= dict(zip(stored_names(op), self._stored(op, inputs, kv), strict=False))
        return made

    def beat(self) -> int:
        """A number that changes with every chunk of a phase that a thread claims or finishes."""
        plans = (*self._plans.values(), *(() if self._head is None else (self._head,)))
        return sum(plan.native.beat for plan in plans)

    def expert_reads(self) -> ExpertReads | None:
        """Uses and reads of experts that are not all in memory, since the start; None where all are."""
        if self._slots is None:
            return None
        uses, misses, read, waited, *guesses = self._slots.store.counts
        return ExpertReads(uses, misses, read, waited / 1e9, *guesses)

    def close(self) -> None:
        """Ends the runner's threads. Safe to call twice."""
        self._plans = {}
        self._head = self._team = None
        if self.trace is not None:
            self.trace.close()

    def _wanted(self, logits: Floats, keep: NDArray[np.int32] | None) -> tuple[tuple[int, int, int], dict[str, NDArray[Any]]]:
        """Addresses of what is wanted of the logits, for a plan, and arrays that it writes by name: see `run`."""
        count = len(logits)
        if self._maxima is None:
            return (0, 0, 0), {"logits": logits}
        if keep is not None and (keep == 1).all():
            best = np.empty(count, np.int32)
            return (best.ctypes.data, 0, 0), {"best": best}
        maxima = self._maxima[:count]
        kept = 0 if keep is None else ext.address(keep, np.int32, (count,))
        return (0, kept, maxima.ctypes.data), {"logits": logits, "maxima": maxima}

    def _run(
        self,
        plan: NativePlan,
        inputs: StepInputs,
        wanted: tuple[int, int, int],
        masks: Callable[[], NDArray[np.int64]] | Places | None,
        bounded: bool,
    ) -> None:
        """One call, or two where the last product waits for masks. bounded: that product leaves out what masks do."""
        best, keep, maxima = wanted
        given, phases, first, count = arguments(inputs), plan.native.phases, 0, len(inputs.select)
        columns = None if self.trace is None else np.zeros((self._team.threads, phases, 3), np.int64)
        trace = 0 if columns is None else columns.ctypes.data
        began = perf_counter()
        allowed: NDArray[np.int64] | None = None
        following: tuple[int, ...] = ()
        if isinstance(masks, Places):
            native = ext.native()
            allowed = None if self._maxima is None else masks.addresses
            calls = ext.address(masks.calls, np.int64, (native.GRAMMAR_CALLS,))
            following = calls, ext.address(masks.records, np.int64, (count, native.FOLLOWER))
        elif masks is not None and bounded:
            first = plan.native.last_product
            plan.native.run(*given, 0, first, trace)
            allowed = masks()
        address = 0 if allowed is None else ext.address(allowed, np.int64, (count,))
        passed = perf_counter() - began
        plan.native.run(*given, first, phases, trace, best, keep, address, maxima, *following)
        if self.trace is None or columns is None:
            return
        self.trace.span(RUN, began, perf_counter(), tokens=len(inputs.ids), rows=len(inputs.kv_len))
        columns[:, first:, :2] += int(passed * 1e9) if first else 0
        if any(wanted[:2]) and plan.screened:
            self.trace.count(began, "screened head", dict(zip(SCREEN_COUNTS, plan.native.screened, strict=True)))
        self.trace.phases(began, plan.names, columns)

    def _of(self, kv: NativeKVCache, *, changed: bool = False, whole: bool = False) -> NativePlan:
        """The plan of a step over `kv`, made for the first such step. changed: a row has an adapter; whole: all tokens to the end."""
        lists, plan = self._lists[changed], self._plans.get((changed, whole))
        if plan is None or plan.cache is not kv:
            plan = NativePlan(lists.whole if whole else lists.early, self._weights, kv, self._shape, self._most, self._team)
            self._plans = {**self._plans, (changed, whole): plan}  # another thread may be counting beats
        return plan

    def _stored(self, op: Op, inputs: StepInputs, kv: NativeKVCache) -> tuple[Floats, ...]:
        """The keys and values that a cache write stored for the step's tokens, as fp32 [T, KV heads, head dimension]: K, then V."""
        if op.name != "kv_write":
            return ()
        layer = int(op.attributes["layer"])
        group = next(number for number, group in enumerate(self._shape.groups) if layer in group.layers)
        return kv.read(self._shape.groups[group].layers.index(layer), inputs.slots[group])


def arguments(inputs: StepInputs) -> tuple[tuple[Any, ...], ...]:
    """Sizes and arrays of a step, as the extension takes them; it refuses arrays of another type, or that are not contiguous."""
    width = inputs.tables[0].shape[1]
    columns = inputs.ids, inputs.positions, inputs.row_of_token, inputs.cu_q, inputs.kv_len, inputs.select
    return (
        (len(inputs.ids), len(inputs.kv_len), len(inputs.select), width),
        (*columns, inputs.adapter, inputs.state_rows),
        inputs.tables,
        inputs.slots,
    )


def _tapped(plan: NativePlan, name: str, inputs: StepInputs) -> Floats:
    """A tap behind a step of `plan`, "hidden" also where its list has selected rows alone, which are all then."""
    taps, tokens, selected = plan.oplist.taps, len(inputs.ids), len(inputs.select)
    if name == "selected":
        return plan.rows_of(taps[name], selected) if name in taps else plan.rows_of(taps["hidden"], tokens)[inputs.select]
    return plan.rows_of(taps[name if name in taps else "selected"], tokens)


def _finite(plan: NativePlan, oplist: OpList, inputs: StepInputs) -> NDArray[np.bool_]:
    """[T]: whether a token's numbers are finite behind a step of `plan`, which runs `oplist`."""
    tokens, select = len(inputs.ids), inputs.select
    if "hidden" in oplist.taps:
        return finite_tokens(plan.rows_of(oplist.taps["hidden"], tokens))
    selected = finite_tokens(plan.rows_of(oplist.taps["selected"], len(select)))
    if len(select) == tokens:
        return selected
    found = finite_tokens(plan.rows_of(oplist.taps[ATTENDED], tokens))
    found[select] &= selected
    return found


def _all_of(count: int) -> StepInputs:
    """The inputs of a step whose head reads the first `count` tokens, and which computes nothing else."""
    none = np.zeros(0, np.int32)
    slots = (np.zeros(0, np.int64),)
    return StepInputs(none, none[None], none, none, none, (none[None],), slots, np.arange(count, dtype=np.int32))
