"""Lowering: pure passes from an op list to a list of the same type.

Owns what a runner's list has and a model's has not: quantised activations, rotations that are computed once. Never touches an array. Every
value that survives a pass keeps its name, so that `diff` can compare a lowered list with the semantic one.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import reduce

from ridgeline.compute.graph import Formats, Handle, Op, OpList, Weight, WeightFormat
from ridgeline.compute.lowering.adapters import merge_changes
from ridgeline.compute.lowering.early import select_early
from ridgeline.compute.lowering.experts import sort_choices
from ridgeline.compute.lowering.fuse import fuse_gates, fuse_norms, fuse_residuals, fuse_writes, merge_products, quantise_fp8
from ridgeline.facts.model import Rope

Pass = Callable[[OpList, Formats], OpList]

FLOATS = WeightFormat("F32")
"""The format of a matrix that is not named."""

CODED = {"linear": "linear_codes", "linear_experts": "linear_experts_codes", "linear_heads": "linear_heads_codes"}
"""Products, and what they become over codes."""

SCALE_CODES, SUM_CODES, STEPPED_CODES = 32, 16, 256
"""Codes of a scale in memory, that a sum counts, and of a group that may be stepped, as outliers want; see `ops/quantised.py`."""


def lower(oplist: OpList, runner: str, formats: Formats | None = None) -> OpList:
    """The list that `runner` executes: its passes one after the other."""
    return reduce(lambda current, step: step(current, formats or {}), PASSES[runner], oplist)


def split_routing(oplist: OpList, formats: Formats) -> OpList:
    """`route` becomes a product like any other, and the choice by its logits, `route_logits`."""
    ops: list[Op] = []
    values = dict(oplist.values)
    for op in oplist.ops:
        if op.name != "route":
            ops.append(op)
            continue
        matrix, *bias = op.weights
        name = f"{op.outputs[0].removesuffix('.ids')}.logits"
        values[name] = Handle(name, values[op.inputs[0]].axis, matrix.shape[0])
        ops.append(Op("linear", op.inputs, (name,), weights=(matrix,)))
        ops.append(Op("route_logits", (name,), op.outputs, op.attributes, tuple(bias)))
    return replace(oplist, ops=tuple(ops), values=values)


def quantise_activations(oplist: OpList, formats: Formats) -> OpList:
    """Gives products over integer weights codes: one `quantise` for each value that such products read, whatever number of experts a
    token has, and for each order of its columns that their matrices have. Its groups are as wide as the widest span of those matrices: a
    function of the model alone. Stepped are those of an activation function, which has outliers, where all these spans are of 256."""
    ops: list[Op] = []
    values = dict(oplist.values)
    coded: dict[Read, tuple[str, ...]] = {}
    spans = _spans(oplist, formats)
    activated = {name for op in oplist.ops if op.name in ("glu", "activate") for name in op.outputs}
    for op in oplist.ops:
        if (read := _read(op, formats)) is None:
            ops.append(op)
            continue
        if read not in coded:
            source, order = read
            x = values[source]
            if order is not None:
                x = Handle(f"{source} by {order}", x.axis, x.width)
                values[x.name] = x
                ops.append(Op("reorder", (source,), (x.name,), weights=(Weight(order, (x.width,)),)))
            made = _codes(x)
            values |= {handle.name: handle for handle in made}
            coded[read] = tuple(handle.name for handle in made)
            stepped = source in activated and spans[read] == {STEPPED_CODES}
            ops.append(Op("quantise", (x.name,), coded[read], {"group": max(spans[read]), "stepped": stepped}))
        ops.append(Op(CODED[op.name], (*coded[read], *op.inputs[1:]), op.outputs, op.attributes, op.weights))
    return replace(oplist, ops=tuple(ops), values=values)


Read = tuple[str, str | None]
"""A value that is to be quantised, and the order in which."""


def _read(op: Op, formats: Formats) -> Read | None:
    """The value that a product of integers reads; None of other ops."""
    found = formats.get(op.weights[0].name, FLOATS) if op.name in CODED else FLOATS
    return (op.inputs[0], found.order) if found.takes == "i8" else None


def _spans(oplist: OpList, formats: Formats) -> dict[Read, set[int]]:
    """Inputs that the products of each value that is quantised add up as integers."""
    found: dict[Read, set[int]] = {}
    for op in oplist.ops:
        if (read := _read(op, formats)) is not None:
            found.setdefault(read, set()).add(max(formats[op.weights[0].name].span, SCALE_CODES))
    return found


def _codes(x: Handle) -> tuple[Handle, ...]:
    return (
        Handle(f"{x.name}.codes", x.axis, x.width, "i8"),
        Handle(f"{x.name}.scales", x.axis, x.width // SCALE_CODES),
        Handle(f"{x.name}.sums", x.axis, x.width // SUM_CODES, "i32"),
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
            values[name] = Handle(name, values[positions].axis, rope.dim)
            ops.append(Op("rotation", (positions,), (name,), {"rope": rope}))
        attributes = {"head_dim": op.attributes["head_dim"]}
        ops.append(Op("rotate", (source, turns[positions, rope]), op.outputs, attributes))
    return replace(oplist, ops=tuple(ops), values=values)


PASSES: dict[str, tuple[Pass, ...]] = {
    "numpy": (),
    "native": (split_routing, select_early, share_rotations, quantise_activations, fuse_residuals),
    "native, all tokens": (split_routing, share_rotations, quantise_activations, fuse_residuals),
    "cuda": (share_rotations, merge_products, merge_changes, fuse_gates, sort_choices, fuse_norms, fuse_writes, quantise_fp8),
}
"""Runner → its passes. The numpy runner defines what ops mean, so it runs the semantic list. The native one has a second list, for steps
that need the final hidden states of all tokens."""


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
