"""The table of all ops, by name, and the check of a list against them."""

from ridgeline.compute.graph import INPUTS, OpList
from ridgeline.compute.ops import (
    attention,
    elementwise,
    experts,
    fp8,
    fused,
    gather,
    heads,
    linear,
    lora,
    norm,
    quantised,
    recurrence,
    rope,
    sorted_experts,
)
from ridgeline.compute.ops.definition import CACHE_READS, Definition

FAMILIES = (
    gather, elementwise, norm, linear, quantised, rope, attention, heads, recurrence, experts, fused, fp8, lora, sorted_experts
)  # fmt: skip

OPS: dict[str, Definition] = {found.name: found for family in FAMILIES for found in vars(family).values() if isinstance(found, Definition)}
"""Name → definition: every one that a family's file makes."""


def taken_as_arrays(oplist: OpList) -> frozenset[str]:
    """Names of the weights that no op multiplies with as a matrix: vectors, and biases of experts."""
    taken: dict[bool, set[str]] = {True: set(), False: set()}
    for op in oplist.ops:
        definition = OPS[op.name]
        for place, weight in enumerate(op.weights):
            taken[definition.weights[place] in definition.matrices].add(weight.name)
    return frozenset(taken[False] - taken[True])


def check(oplist: OpList) -> None:
    """Raises ValueError unless every op is known, fits its definition, and names only values that exist before it."""
    made = {*INPUTS, *oplist.given}
    for number, op in enumerate(oplist.ops):
        definition = OPS.get(op.name)
        if definition is None:
            raise ValueError(f"op {number}: {op.name!r} is not an op; known: {', '.join(sorted(OPS))}")
        attributes = {*definition.attributes, *(("layer",) if CACHE_READS & set(definition.reads) else ())}
        absent = len(definition.weights) - len(op.weights)
        few = len(op.inputs) != len(definition.inputs) or not 0 <= absent <= definition.optional
        if few or set(op.attributes) != attributes:
            raise ValueError(f"op {number}: {op} does not fit {definition.name}{definition.parameters} with {sorted(attributes)}")
        missing = [name for name in op.inputs if name not in made]
        if missing or made & set(op.outputs):
            raise ValueError(f"op {number}: {op} reads {missing} before they exist, or makes a value twice")
        made |= set(op.outputs)
    for name, value in {**oplist.outputs, **oplist.taps}.items():
        if value not in made:
            raise ValueError(f"result {name!r} is {value!r}, which nothing makes")
