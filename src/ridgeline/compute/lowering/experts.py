"""Experts of a runner that sorts: choices are put in the order of their experts once a routing, and its products read that order. Pure."""

from collections import Counter
from dataclasses import replace

from ridgeline.compute.graph import Formats, Handle, Op, OpList

EXPERTS = {"linear_experts_sorted": 1, "linear_experts_glu": 2}
"""Products over sorted choices, and how many matrices they have; behind these stand biases."""


def sort_choices(oplist: OpList, formats: Formats) -> OpList:
    """`sort_experts` in front of the first product with the experts that are chosen; products become `linear_experts_sorted`, those with
    gate and up, of one format, one `linear_experts_glu` with their unit."""
    values = dict(oplist.values)
    ops: list[Op] = []
    units = _units(oplist, formats)
    gone = {name for unit in units.values() for name in unit.inputs}
    sorted_: set[str] = set()
    made = {op.outputs[0]: op for op in oplist.ops if op.name == "linear_experts"}
    for op in oplist.ops:
        if op.outputs and op.outputs[0] in gone:
            continue
        unit = units.get(op.outputs[0]) if op.outputs else None
        if unit is None and op.name != "linear_experts":
            ops.append(op)
            continue
        parts = [op] if unit is None else [made[name] for name in unit.inputs]
        x, ids = parts[0].inputs
        names = (f"{ids}.order", f"{ids}.tiles")
        if ids not in sorted_:
            sorted_.add(ids)
            choices = values[ids].axis * values[ids].width
            values |= {name: Handle(name, choices, width, "i32") for name, width in zip(names, (1, 3), strict=True)}
            ops.append(Op("sort_experts", (ids,), names, {"count": parts[0].weights[0].shape[0]}))
        weights = tuple(weight for number in range(len(parts[0].weights)) for weight in (part.weights[number] for part in parts))
        kind = "linear_experts_sorted" if unit is None else "linear_experts_glu"
        ops.append(Op(kind, (x, ids, *names), op.outputs, {} if unit is None else unit.attributes, weights))
    return replace(oplist, ops=tuple(ops), values=values)


def _units(oplist: OpList, formats: Formats) -> dict[str, Op]:
    """Gated units of two products with experts that nothing else reads, by what they make."""
    read = Counter(name for op in oplist.ops for name in op.inputs) + Counter((*oplist.outputs.values(), *oplist.taps.values()))
    products = {op.outputs[0]: op for op in oplist.ops if op.name == "linear_experts" and read[op.outputs[0]] == 1}

    def fit(unit: Op) -> bool:
        if unit.name != "glu" or not all(name in products for name in unit.inputs):
            return False
        gate, up = (products[name] for name in unit.inputs)
        same = formats.get(gate.weights[0].name) == formats.get(up.weights[0].name)
        return same and gate.inputs == up.inputs and len(gate.weights) == len(up.weights)

    return {op.outputs[0]: op for op in oplist.ops if fit(op)}
