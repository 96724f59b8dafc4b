"""Phases of a lowered op list: what a team of threads computes between two barriers, and where values lie.

Pure: no address, no array. Ops of one token at a time stand in one phase one behind the other, since a token's chunk runs them all;
products of values that exist already share a phase; an attention is a phase by itself, and so is a recurrence, whose state no other op
sees.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ridgeline.compute.graph import INPUTS, Axis, Op, OpList, Sizes
from ridgeline.compute.liveness import Buffer, last_stages, place_buffers

PRODUCTS = frozenset({"linear", "linear_codes", "linear_add", "linear_codes_add"})
KINDS = {
    **dict.fromkeys(PRODUCTS, "products"), "attention": "attention",
    **dict.fromkeys(("linear_experts", "linear_experts_codes", "linear_heads", "linear_heads_codes"), "experts"),
    **dict.fromkeys(("short_conv", "gated_delta"), "recurrences"),
}  # fmt: skip
"""Kind of the phase that an op stands in; of all others it is rows."""
ALONE = frozenset({"attention", "recurrences"})
"""Kinds of phases of one op."""
BYTES = {"f32": 4, "i32": 4, "i64": 8, "i8": 1}
ALIGNMENT = 64
"""Bytes: a cache line, so that two values never share one."""


@dataclass(slots=True)
class Phase:
    """Ops that run without a barrier between them. `kind`: rows, products, experts, attention, recurrences; `axis`: what they run over."""

    kind: str
    axis: Axis
    ops: list[Op] = field(default_factory=list)


def phases(oplist: OpList) -> list[Phase]:
    """Every op in the first phase that it can stand in: behind all that it reads, or, among ops of one token, in the same phase."""
    made: list[Phase] = []
    ready: dict[str, int] = {}  # phase in which a value, or a layer's cache, is made
    for op in oplist.ops:
        kind, axis = KINDS.get(op.name, "rows"), _axis(oplist, op)
        last = max((ready[name] for name in _reads(op) if name in ready), default=-1)
        place = _place(made, kind, axis, last)
        made[place].ops.append(op)
        ready |= dict.fromkeys(_makes(op), place)
    return made


def _place(made: list[Phase], kind: str, axis: Axis, last: int) -> int:
    """The phase of an op that reads nothing made behind phase `last`; a new one if none fits."""
    if kind not in ALONE:
        for number in range(max(last, 0), len(made)):
            fits = made[number].kind == kind and made[number].axis == axis
            if fits and (number > last or kind == "rows"):
                return number
    made.append(Phase(kind, axis))
    return len(made) - 1


def _axis(oplist: OpList, op: Op) -> Axis:
    """The rows of what the op makes; of a write to the cache those of what it stores. A selection takes a token's rows together; of
    a product by heads each head of a token is a row."""
    axis = oplist.values[(op.outputs or op.inputs)[0]].axis
    if op.name in ("linear_heads", "linear_heads_codes"):
        return axis * op.weights[0].shape[0]
    return Axis(axis.kind) if op.name == "select" else axis


def _reads(op: Op) -> tuple[str, ...]:
    return (*op.inputs, f"cache.{op.attributes['layer']}") if op.name == "attention" else op.inputs


def _makes(op: Op) -> tuple[str, ...]:
    return (*op.outputs, f"cache.{op.attributes['layer']}") if op.name == "kv_write" else op.outputs


@dataclass(frozen=True, slots=True)
class Arena:
    """Bytes from the start of one piece of memory to each value, and how many bytes there are."""

    offsets: Mapping[str, int]
    size: int


def arena(oplist: OpList, order: list[Phase], sizes: Sizes, *, reuse: bool = True) -> Arena:
    """Room for all values at the largest `sizes`. A value takes the place of one of its size that no phase needs any more.

    Results, taps and what is read but made by no op keep their places; with `reuse` off every value does.
    """
    stages = [phase.ops for phase in order]
    last = last_stages(oplist, stages)
    first = {name: number for number, ops in enumerate(stages) for op in ops for name in op.outputs}
    given = sorted({name for ops in stages for op in ops for name in op.inputs} - first.keys() - INPUTS)
    buffers = {name: Buffer(-1, len(stages), _bytes(oplist, name, sizes)) for name in given}
    buffers |= {name: Buffer(number, last[name], _bytes(oplist, name, sizes)) for name, number in first.items()}
    starts, size = place_buffers([*buffers.values()], reuse=reuse)
    return Arena(dict(zip(buffers, starts, strict=True)), size)


def _bytes(oplist: OpList, name: str, sizes: Sizes) -> int:
    handle = oplist.values[name]
    rows, width = handle.shape(sizes)
    return -(-rows * width * BYTES[handle.dtype] // ALIGNMENT) * ALIGNMENT
