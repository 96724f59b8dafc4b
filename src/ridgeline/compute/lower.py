"""Lowering: pure passes from an op list to a list of the same type.

Owns what a runner's list has and a model's has not: quantised activations, rotations that are computed once. Never touches an array. Every
value that survives a pass keeps its name, so that `diff` can compare a lowered list with the semantic one.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import reduce

from ridgeline.compute.fuse import fuse_norms, fuse_writes, merge_products, quantise_fp8
from ridgeline.compute.graph import Dim, Handle, Op, OpList, Weight
from ridgeline.facts.model import Rope

Formats = Mapping[str, str]
"""Name of a weight → the stored kind that its runner multiplies with (Q8_0, BF16 …). Where a matrix has its columns in another order than
its inputs come in: its name and `ORDER` → the name of the vector that says in which."""

ORDER = " order"

Pass = Callable[[OpList, Formats], OpList]

FLOATS = frozenset({"F32", "F16", "BF16"})
"""Kinds whose products take fp32 activations; all others take codes."""

CODE_GROUP, SUM_GROUP = 32, 16
"""Activations that share a scale; codes that a sum counts."""


def lower(oplist: OpList, runner: str, formats: Formats | None = None) -> OpList:
    """The list that `runner` executes: its passes one after the other."""
    return reduce(lambda current, step: step(current, formats or {}), PASSES[runner], oplist)


def quantise_activations(oplist: OpList, formats: Formats) -> OpList:
    """Gives every `linear` over integer weights codes: one `quantise` for each value that such products read, and for each order of its
    columns that their matrices have."""
    ops: list[Op] = []
    values = dict(oplist.values)
    coded: dict[tuple[str, str | None], tuple[str, ...]] = {}
    for op in oplist.ops:
        if op.name != "linear" or formats[op.weights[0].name] in FLOATS:
            ops.append(op)
            continue
        (source,) = op.inputs
        order = formats.get(op.weights[0].name + ORDER)
        if (source, order) not in coded:
            read = values[source]
            if order is not None:
                read = Handle(f"{source} by {order}", read.shape)
                values[read.name] = read
                ops.append(Op("reorder", (source,), (read.name,), weights=(Weight(order, (read.width,)),)))
            made = _codes(read)
            values |= {handle.name: handle for handle in made}
            coded[source, order] = tuple(handle.name for handle in made)
            ops.append(Op("quantise", (read.name,), coded[source, order]))
        ops.append(Op("linear_codes", coded[source, order], op.outputs, op.attributes, op.weights))
    return OpList(oplist.name, tuple(ops), values, oplist.outputs, oplist.taps)


def _codes(x: Handle) -> tuple[Handle, ...]:
    rows = x.shape[:-1]
    return (
        Handle(f"{x.name}.codes", x.shape, "i8"),
        Handle(f"{x.name}.scales", (*rows, Dim(x.width // CODE_GROUP))),
        Handle(f"{x.name}.sums", (*rows, Dim(x.width // SUM_GROUP)), "i32"),
    )


def share_rotations(oplist: OpList, formats: Formats) -> OpList:
    """Computes cosines and sines once for each rotation of the model: `rope` becomes `rotate` by a value of `rotation`."""
    ops: list[Op] = []
    values = dict(oplist.values)
    turns: dict[tuple[str, Rope], str] = {}
    for op in oplist.ops:
        rope = op.attributes.get("rope")
        if op.name != "rope" or not isinstance(rope, Rope):
            ops.append(op)
            continue
        source, positions = op.inputs
        if (positions, rope) not in turns:
            name = turns[positions, rope] = f"rotation.{len(turns) + 1}"
            values[name] = Handle(name, (values[positions].shape[-1], Dim(rope.dim)))
            ops.append(Op("rotation", (positions,), (name,), {"rope": rope}))
        attributes = {"head_dim": op.attributes["head_dim"]}
        ops.append(Op("rotate", (source, turns[positions, rope]), op.outputs, attributes))
    return OpList(oplist.name, tuple(ops), values, oplist.outputs, oplist.taps)


PASSES: dict[str, tuple[Pass, ...]] = {
    "numpy": (),
    "native": (share_rotations, quantise_activations),
    "cuda": (share_rotations, merge_products, fuse_norms, fuse_writes, quantise_fp8),
}
"""Runner → its passes. The numpy runner defines what ops mean, so it runs the semantic list."""


def head_of(oplist: OpList) -> int:
    """Number of the first op behind `select`: from there on a list turns final hidden states, its tap "hidden", into logits.

    Raises ValueError where what is selected is not that tap, or where a later op reads anything else that was made before.
    """
    selects = [number for number, op in enumerate(oplist.ops) if op.name == "select"]
    if len(selects) != 1 or oplist.ops[selects[0]].inputs != (oplist.taps.get("hidden"),):
        raise ValueError(f"the list {oplist.name!r} must select once, from its tap 'hidden'")
    first = selects[0] + 1
    made = {name for op in oplist.ops[selects[0] :] for name in op.outputs}
    strange = [str(op) for op in oplist.ops[first:] if not made.issuperset(op.inputs)]
    if strange:
        raise ValueError(f"{strange[0]} reads what was made before the selection")
    return first


def last_uses(oplist: OpList) -> tuple[tuple[str, ...], ...]:
    """For each op the values that nothing needs after it; results of the list are never among them."""
    kept = {*oplist.outputs.values(), *oplist.taps.values()}
    uses = Counter(name for op in oplist.ops for name in op.inputs)
    done: list[tuple[str, ...]] = []
    for op in oplist.ops:
        uses.subtract(op.inputs)
        ended = {*op.inputs, *op.outputs}
        done.append(tuple(sorted(name for name in ended if uses[name] == 0 and name not in kept)))
    return tuple(done)
