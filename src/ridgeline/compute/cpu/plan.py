"""Native plans, made of phases: addresses of values, weights and cache, given once.

Owns the memory of values and keeps alive whatever the plan points to. What the extension must know of an op is a record of its parameters
(csrc/runtime/ops.def), filled by name.
"""

import mmap
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.cache import NativeKVCache
from ridgeline.compute.cpu.packing import PackedWeight, Stored
from ridgeline.compute.cpu.phases import Phase, arena, phases
from ridgeline.compute.graph import Axis, Op, OpList, Sizes, Weight
from ridgeline.compute.lowering.ahead import AHEAD
from ridgeline.compute.ops.table import OPS
from ridgeline.core.plan import KVShape
from ridgeline.facts.model import Rope

SCREEN_PHASES: Final = ("measure for", "bound", "threshold of", "compute")
"""The native phases of screening. Screening finds the largest outputs of each row of the last product (the logits) without computing all of
them: upper bounds of all outputs first, then only outputs whose bound reaches what can be among the largest (csrc/screen/screen.h)."""
SCREEN_COUNTS: Final = ("steps", "skipped", "pairs", "computed")
"""Counters of `native.screened` since the start: screened steps; steps that skipped screening, as it had saved too little before; of the
screened ones, pairs of a token and a block of 16 outputs, and how many of these pairs were computed after all."""
DTYPES: Final = {"f32": np.float32, "i32": np.int32, "i64": np.int64, "i8": np.int8}


class NativePlan:
    """One op list over given weights and cache, for steps of at most `sizes`.

    reuse  values take the place of others that nothing needs any more; off where all of them are to be read
    """

    def __init__(
        self,
        oplist: OpList,
        weights: Mapping[str, Stored],
        cache: NativeKVCache,
        shape: KVShape,
        sizes: Sizes,
        team: Any,
        *,
        reuse: bool = True,
    ) -> None:
        self.order = phases(oplist)
        self.cache = cache
        self.oplist, self._sizes = oplist, sizes
        self._arena = arena(oplist, self.order, sizes, reuse=reuse)
        # Anonymous memory: pages that no step is large enough to touch cost nothing.
        self._memory = np.frombuffer(mmap.mmap(-1, max(self._arena.size, 1)), np.uint8)
        self._weights, self._shape = weights, shape
        self._groups = {layer: number for number, group in enumerate(shape.groups) for layer in group.layers}
        self._index = {layer: index for group in shape.groups for index, layer in enumerate(group.layers)}
        self._kept: list[np.ndarray] = []
        self._full_views: dict[str, NDArray[Any]] = {}
        self.native = ext.native().Plan(ext.level_number(), team)
        for phase in self.order:
            self._add(phase)
        self.screened = self._can_screen()
        if self.screened:
            self.native.screen()

    @cached_property
    def names(self) -> list[str]:
        """Names of the native phases, for people."""
        found: list[str] = []
        for phase in self.order:
            found += [f"sort rows of {phase.ops[0]}"] if phase.kind == "experts" else []
            found.append("; ".join(str(op) for op in phase.ops))
            found += [f"merge {phase.ops[0]}"] if phase.kind == "attention" else []
        return found + [f"{step} {self.oplist.ops[-1]}" for step in SCREEN_PHASES if self.screened]

    def value(self, name: str, sizes: Sizes) -> NDArray[Any]:
        """A view of a value after a step of `sizes`; the next step overwrites it."""
        handle = self.oplist.values[name]
        shape = handle.shape(sizes)
        dtype = np.dtype(DTYPES[handle.dtype])
        start = self._arena.offsets[name]
        return self._memory[start : start + int(np.prod(shape)) * dtype.itemsize].view(dtype).reshape(shape)

    def rows_of(self, name: str, count: int) -> NDArray[Any]:
        """The first `count` rows of `value`, for one with a row per token or selected position. Called after every step, so cached."""
        full = self._full_views.get(name)
        if full is None:
            full = self._full_views[name] = self.value(name, self._sizes)
        return full[:count]

    def _add(self, phase: Phase) -> None:
        self.native.begin(phase.kind, phase.axis.kind == "selected", phase.axis.factor)
        for op in phase.ops:
            self.native.add(op.name, self._record(op))
            weight = self._weights[op.weights[0].name] if phase.kind == "experts" else None
            if isinstance(weight, PackedWeight) and weight.slots is not None:
                self.native.store(weight.slots.store, *weight.place)
                self._foresee(weight.place[0] + 1, phase.axis)

    def _foresee(self, group: int, axis: Axis) -> None:
        """Has the store told of experts that will probably be chosen of a group, behind the choice of the one before it."""
        name = self.oplist.taps.get(f"{AHEAD}{group}")
        if name is not None and self.axis(name).kind == axis.kind:
            self.native.foresee(group, self.at(name))

    def _record(self, op: Op) -> bytes:
        """The op's parameters, by the names that its reference gives them."""
        dtype, definition = ext.params(op.name), OPS[op.name]
        names = dtype.names or ()
        outputs = [name for name in names if name == "out" or name.startswith("out_")]
        values = dict(zip(outputs, op.outputs, strict=True)) | dict(zip(definition.inputs, op.inputs, strict=True))
        weights = dict.fromkeys(definition.weights) | dict(zip(definition.weights, op.weights, strict=False))
        return ext.record(dtype, {name: self._parameter(op, name, values, weights, dtype) for name in names})

    def _parameter(
        self, op: Op, name: str, values: Mapping[str, str], weights: Mapping[str, Weight | None], dtype: np.dtype[np.void]
    ) -> Any:
        if name in values:
            return self.at(values[name])
        if name in weights:
            weight = weights[name]
            return 0 if weight is None else self.matrix(weight) if dtype[name].names else self.vector(weight)
        return DERIVED_PARAMETERS[name](self, op) if name in DERIVED_PARAMETERS else op.attributes[name]

    def _can_screen(self) -> bool:
        """True where screening (`SCREEN_PHASES`) can stand in for the last product: a phase of its own, over a matrix packed for it."""
        last = self.oplist.ops[-1]
        weight = self._weights[last.weights[0].name] if last.name == "linear_codes" else None
        return isinstance(weight, PackedWeight) and weight.screened and len(self.order[-1].ops) == 1

    def at(self, name: str) -> int:
        """Address of a value."""
        return int(self._memory.ctypes.data) + self._arena.offsets[name]

    def width(self, name: str) -> int:
        """Floats in a row of a value."""
        return self.oplist.values[name].width

    def vector(self, weight: Weight) -> int:
        """Address of a vector, or of the records of adapters."""
        found = self._weights[weight.name]
        assert isinstance(found, np.ndarray)
        if found.dtype.names is not None:  # records of slots
            return int(found.ctypes.data)
        return ext.address(found, found.dtype.type, weight.shape)

    def by_tap(self, weight: Weight) -> int:
        """Address of the filters [taps, channels] of a convolution's weight [channels, taps]."""
        found = self._weights[weight.name]
        assert isinstance(found, np.ndarray)
        return self.keep(np.ascontiguousarray(found.T))

    def axis(self, name: str) -> Axis:
        """The row axis of a value."""
        return self.oplist.values[name].axis

    def packed(self, weight: Weight) -> PackedWeight:
        """A matrix, or one per expert."""
        found = self._weights[weight.name]
        assert isinstance(found, PackedWeight)
        return found

    def matrix(self, weight: Weight) -> tuple[int, int, int, int, int]:
        """A matrix as the extension takes it."""
        return self.packed(weight).matrix

    def keep(self, array: np.ndarray) -> int:
        """Address of an array that lives as long as the plan."""
        self._kept.append(array)
        return int(array.ctypes.data)

    def kv_group(self, op: Op) -> int:
        """The KV group of the op's layer."""
        return self._groups[int(op.attributes["layer"])]

    def state(self, op: Op) -> NDArray[np.float32]:
        """Arrays that are kept of the op's layer: tails of a convolution, states of a recurrence."""
        assert self.cache.states is not None, "a recurrent layer has states"
        kept = self.cache.states.tails if op.name == "short_conv" else self.cache.states.states
        return kept[int(op.attributes["layer"])]

    def layer(self, op: Op) -> tuple[int, ...]:
        """The cache of the op's layer, as the extension takes it."""
        return self.cache.record(self._index[int(op.attributes["layer"])])


def _width(plan: NativePlan, op: Op) -> int:
    """Floats in a row of what the op makes; a selection takes a token's rows together."""
    return plan.width(op.outputs[0]) * (int(op.attributes["factor"]) if op.name == "select" else 1)  # type: ignore[arg-type]


def _choices(plan: NativePlan, op: Op) -> Any:
    """Experts per token: said by the op that chooses them, else the width of what it chose or of its weights, which come last."""
    return op.attributes.get("k", plan.width(op.inputs[-1]))


def _parts(plan: NativePlan, op: Op) -> Any:
    """Heads of an op that works on each by itself."""
    if op.weights:
        return op.weights[0].shape[0]
    return op.attributes["heads"] if "heads" in op.attributes else plan.width(op.outputs[0]) // int(op.attributes["plain"])  # type: ignore[arg-type]


def _tail(plan: NativePlan, op: Op) -> int:
    taps, tails = op.weights[0].shape[1], plan.state(op)
    if tails.shape[1] < taps:
        raise ValueError(f"a convolution of {taps} taps is given places of {tails.shape[1]} inputs")
    return ext.address(tails, np.float32, (*tails.shape[:2], plan.width(op.inputs[0])))


def _state(plan: NativePlan, op: Op) -> int:
    states, values, key_dim = plan.state(op), op.weights[0].shape[0], int(op.attributes["key_dim"])  # type: ignore[arg-type]
    return ext.address(states, np.float32, (*states.shape[:2], values, key_dim, plan.width(op.outputs[0]) // values))


def _rotation_frequencies(plan: NativePlan, op: Op) -> int:
    rope = op.attributes["rope"]
    assert isinstance(rope, Rope)
    half = rope.dim // 2
    return plan.keep(rope.base ** (-np.arange(half) / half) / np.array(rope.divisors or 1.0))


DERIVED_PARAMETERS: Final[Mapping[str, Callable[[NativePlan, Op], Any]]] = {
    "width": _width,
    "norm_width": lambda plan, op: op.weights[0].shape[0],
    "by_position": lambda plan, op: op.inputs[0] == "positions",
    "activation": lambda plan, op: ext.values("Activation").index(str(op.attributes["activation"])),
    "half": lambda plan, op: plan.width(op.inputs[1] if op.name == "rotate" else op.outputs[0]) // 2,
    "frequencies": _rotation_frequencies,
    "rope_scale": lambda plan, op: op.attributes["rope"].scale,  # type: ignore[union-attr]
    "scores": lambda plan, op: ext.values("Scores").index(str(op.attributes["scores"])),
    "group_score": lambda plan, op: ext.values("GroupScore").index(str(op.attributes["group_score"])),
    "columns": lambda plan, op: plan.width(op.inputs[0]),
    "k": _choices,
    "value_dim": lambda plan, op: op.attributes["value_dim"] or op.attributes["head_dim"],
    "parts": _parts,
    "expert_bytes": lambda plan, op: plan.packed(op.weights[0]).stride,
    "input_per_expert": lambda plan, op: plan.axis(op.inputs[0]) == plan.axis(op.outputs[0]),
    "cache": lambda plan, op: plan.layer(op),
    "filters": lambda plan, op: plan.by_tap(op.weights[0]),
    "taps": lambda plan, op: op.weights[0].shape[1],
    "tail": _tail,
    "ring": lambda plan, op: plan.state(op).shape[1],
    "state": _state,
    "positions": lambda plan, op: plan.state(op).shape[1],
    "kv_group": lambda plan, op: plan.kv_group(op),
    "heads": lambda plan, op: plan.width(op.inputs[0]) // int(op.attributes["head_dim"]),  # type: ignore[arg-type]
}
"""Parameter of a native op → its value, for those that are not an input, an output, a weight or an attribute under its own name."""
