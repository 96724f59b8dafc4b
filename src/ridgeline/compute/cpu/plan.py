"""From phases to a native plan: addresses of values, weights and cache, given once.

Owns the memory of values and keeps alive whatever the plan points to. Every op has one line in `EMIT`.
"""

import mmap
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.cache import NativeKVCache
from ridgeline.compute.cpu.packing import PackedWeight
from ridgeline.compute.cpu.phases import Phase, arena, phases
from ridgeline.compute.cpu.weights import Stored
from ridgeline.compute.graph import Op, OpList, Sizes
from ridgeline.core.plan import KVShape
from ridgeline.facts.model import Rope

ACTIVATIONS: Final = {"silu": 0, "gelu_tanh": 1}
SCREEN_PHASES: Final = ("measure for", "bound", "threshold of", "compute")
"""What stands in for the last product where only the largest of each row is wanted and its matrix is screened (csrc/linear/screen.h)."""
SCREEN_COUNTS: Final = ("steps", "passed", "pairs", "computed")
"""What `native.screened` counts from the beginning: screened steps; steps that were not, since few outputs could be left out before; of the
former, pairs of a token and 16 outputs, and how many of these were computed after all."""
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
        self._oplist, self._sizes = oplist, sizes
        self._arena = arena(oplist, self.order, sizes, reuse=reuse)
        # Anonymous memory: pages that no step is large enough to touch cost nothing.
        self._memory = np.frombuffer(mmap.mmap(-1, max(self._arena.size, 1)), np.uint8)
        self._weights, self._shape = weights, shape
        self._groups = {layer: number for number, group in enumerate(shape.groups) for layer in group.layers}
        self._index = {layer: index for group in shape.groups for index, layer in enumerate(group.layers)}
        self._kept: list[np.ndarray] = []
        self._wholes: dict[str, NDArray[Any]] = {}
        self.native = ext.native().Plan(ext.level_number(), team)
        for phase in self.order:
            self._add(phase)
        self.screened = self._can_screen()
        if self.screened:
            self.native.screen()

    @property
    def names(self) -> list[str]:
        """What each native phase computes, for people."""
        found: list[str] = []
        for phase in self.order:
            found.append("; ".join(str(op) for op in phase.ops))
            found += [f"merge {phase.ops[0]}"] if phase.kind == "attention" else []
        return found + [f"{step} {self._oplist.ops[-1]}" for step in SCREEN_PHASES if self.screened]

    def value(self, name: str, sizes: Sizes) -> NDArray[Any]:
        """A view of a value after a step of `sizes`; the next step overwrites it."""
        handle = self._oplist.values[name]
        shape = handle.shape(sizes)
        dtype = np.dtype(DTYPES[handle.dtype])
        start = self._arena.offsets[name]
        return self._memory[start : start + int(np.prod(shape)) * dtype.itemsize].view(dtype).reshape(shape)

    def first(self, name: str, count: int) -> NDArray[Any]:
        """`value` for one whose rows are tokens or selected positions, of which the step has `count`. Quick: behind every step."""
        whole = self._wholes.get(name)
        if whole is None:
            whole = self._wholes[name] = self.value(name, self._sizes)
        return whole[:count]

    def _add(self, phase: Phase) -> None:
        if phase.kind == "rows":
            self.native.begin_rows(phase.axis.kind == "selected", phase.axis.factor)
        elif phase.kind == "products":
            self.native.begin_products(phase.axis.kind == "selected", phase.axis.factor)
        for op in phase.ops:
            EMIT[op.name](self, op)

    def _can_screen(self) -> bool:
        """Whether the list ends in a product by itself, over a matrix that is packed for it."""
        last = self._oplist.ops[-1]
        weight = self._weights[last.weights[0].name] if last.name == "linear_codes" else None
        return isinstance(weight, PackedWeight) and weight.screened and len(self.order[-1].ops) == 1

    def at(self, name: str) -> int:
        """Address of a value."""
        return int(self._memory.ctypes.data) + self._arena.offsets[name]

    def width(self, name: str) -> int:
        """Floats in a row of a value."""
        return self._oplist.values[name].width

    def vector(self, op: Op, number: int = 0) -> int:
        """Address of one of the op's vectors."""
        found = self._weights[op.weights[number].name]
        assert isinstance(found, np.ndarray)
        return ext.address(found, np.int32 if op.name == "reorder" else np.float32, op.weights[number].shape)

    def matrix(self, op: Op) -> tuple[int, int, int, int, int]:
        """The op's matrix as the extension takes it."""
        found = self._weights[op.weights[0].name]
        assert isinstance(found, PackedWeight)
        return found.matrix

    def keep(self, array: np.ndarray) -> int:
        """Address of an array that lives as long as the plan."""
        self._kept.append(array)
        return int(array.ctypes.data)

    def layer(self, op: Op) -> tuple[int, ...]:
        """KV group of the op's layer, then type, addresses of K and V, KV heads, head dimension and block size."""
        layer = int(op.attributes["layer"])
        keys, values = self.cache.addresses(self._index[layer])
        cache = self.cache
        return self._groups[layer], cache.type_number, keys, values, cache.kv_heads, cache.head_dim, self._shape.block_tokens


def _embed(plan: NativePlan, op: Op) -> None:
    (out,) = op.outputs
    plan.native.embed(plan.at(out), op.inputs[0] == "positions", *plan.matrix(op))


def _select(plan: NativePlan, op: Op) -> None:
    plan.native.select(plan.at(op.inputs[0]), plan.at(op.outputs[0]), plan.width(op.outputs[0]) * op.attributes["factor"])


def _reorder(plan: NativePlan, op: Op) -> None:
    plan.native.reorder(plan.at(op.inputs[0]), plan.at(op.outputs[0]), plan.width(op.inputs[0]), plan.vector(op))


def _quantise(plan: NativePlan, op: Op) -> None:
    plan.native.quantise(plan.at(op.inputs[0]), plan.width(op.inputs[0]), op.attributes["group"], *map(plan.at, op.outputs))


def _linear_codes(plan: NativePlan, op: Op) -> None:
    codes, scales, sums, *residual = map(plan.at, op.inputs)
    plan.native.product(*plan.matrix(op), codes, scales, sums, *(residual or (0,)), plan.at(op.outputs[0]))


def _linear(plan: NativePlan, op: Op) -> None:
    x, *residual = map(plan.at, op.inputs)
    plan.native.product_of_floats(*plan.matrix(op), x, *(residual or (0,)), plan.at(op.outputs[0]))


def _rms_norm(plan: NativePlan, op: Op) -> None:
    (x,), (out,), (piece,) = op.inputs, op.outputs, op.weights[0].shape
    plan.native.rms_norm(plan.at(x), plan.at(out), plan.width(x), plan.vector(op), piece, op.attributes["eps"])


def _layer_norm(plan: NativePlan, op: Op) -> None:
    (x,), (out,) = op.inputs, op.outputs
    plan.native.layer_norm(plan.at(x), plan.at(out), plan.width(x), plan.vector(op), plan.vector(op, 1), op.attributes["eps"])


def _add(plan: NativePlan, op: Op) -> None:
    plan.native.add(*map(plan.at, op.inputs), plan.at(op.outputs[0]), plan.width(op.outputs[0]))


def _add_bias(plan: NativePlan, op: Op) -> None:
    plan.native.add_bias(plan.at(op.inputs[0]), plan.at(op.outputs[0]), plan.width(op.outputs[0]), plan.vector(op))


def _by_number(name: str, attribute: str) -> Callable[[NativePlan, Op], None]:
    """An op of one value and one number."""

    def emit(plan: NativePlan, op: Op) -> None:
        getattr(plan.native, name)(plan.at(op.inputs[0]), plan.at(op.outputs[0]), plan.width(op.outputs[0]), op.attributes[attribute])

    return emit


def _activate(plan: NativePlan, op: Op) -> None:
    gated = plan.at(op.inputs[1]) if op.name == "glu" else 0
    activation = ACTIVATIONS[str(op.attributes["activation"])]
    plan.native.activate(plan.at(op.inputs[0]), gated, plan.at(op.outputs[0]), plan.width(op.outputs[0]), activation)


def _rotation(plan: NativePlan, op: Op) -> None:
    rope = op.attributes["rope"]
    assert isinstance(rope, Rope)
    half = rope.dim // 2
    frequencies = rope.base ** (-np.arange(half) / half) / np.array(rope.divisors or 1.0)
    plan.native.rotation(plan.at(op.outputs[0]), plan.keep(frequencies), half, rope.scale)


def _rotate(plan: NativePlan, op: Op) -> None:
    x, turn = op.inputs
    plan.native.rope(plan.at(x), plan.at(turn), plan.at(op.outputs[0]), plan.width(x), op.attributes["head_dim"], plan.width(turn) // 2)


def _kv_write(plan: NativePlan, op: Op) -> None:
    plan.native.kv_write(*map(plan.at, op.inputs), *plan.layer(op))


def _attention(plan: NativePlan, op: Op) -> None:
    (q,), (out,), said = op.inputs, op.outputs, op.attributes
    heads = plan.width(q) // int(said["head_dim"])
    plan.native.attention(plan.at(q), plan.at(out), *plan.layer(op), heads, said["scale"], said["window"], said["softcap"])


EMIT: Final[Mapping[str, Callable[[NativePlan, Op], None]]] = {
    "embed": _embed,
    "select": _select,
    "reorder": _reorder,
    "quantise": _quantise,
    "linear": _linear,
    "linear_add": _linear,
    "linear_codes": _linear_codes,
    "linear_codes_add": _linear_codes,
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "add": _add,
    "add_bias": _add_bias,
    "scale": _by_number("scale", "factor"),
    "softcap": _by_number("softcap", "cap"),
    "activate": _activate,
    "glu": _activate,
    "rotation": _rotation,
    "rotate": _rotate,
    "kv_write": _kv_write,
    "attention": _attention,
}
"""Op → how it enters the native plan."""
