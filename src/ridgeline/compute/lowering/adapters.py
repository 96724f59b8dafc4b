"""Adapters in an op list: a change behind every product that an adapter may change. Pure; `lower` makes of it what a runner takes.

Who has no adapter in any row of a step runs the list without them, whose bits are the same.
"""

from dataclasses import replace
from typing import Final

from ridgeline.compute.graph import TOKENS, Formats, Handle, Op, OpList, Weight

SLOTS: Final = "adapters"
"""The value that holds the slot of each token."""

CHANGES: Final = {1: "lora", 2: "lora_pair", 3: "lora_triple"}
"""Changes of so many products of one value."""


def add_adapters(oplist: OpList) -> OpList:
    """The list with `lora` behind each product with a matrix of a layer. The change's output takes the product's place in what follows; its
    weight is named after the matrix (`pairs_of`)."""
    values = dict(oplist.values) | {"adapter": Handle("adapter", TOKENS, dtype="i32"), SLOTS: Handle(SLOTS, TOKENS, dtype="i32")}
    ops = [Op("adapters", ("adapter",), (SLOTS,))]
    changed: dict[str, str] = {}
    for op in oplist.ops:
        ops.append(replace(op, inputs=tuple(changed.get(name, name) for name in op.inputs)))
        if op.name == "linear" and op.weights[0].name.startswith("blk."):
            (product,), x = op.outputs, ops[-1].inputs[0]
            changed[product] = name = f"{product} changed"
            values[name] = replace(values[product], name=name)
            ops.append(Op("lora", (x, product, SLOTS), (name,), weights=(Weight(pairs_of(op.weights[0].name), op.weights[0].shape),)))
    return replace(oplist, ops=tuple(ops), values=values)


def pairs_of(matrix: str) -> str:
    """The name of the weight that holds the adapters' changes of a matrix."""
    return f"{matrix.removesuffix('.weight')}.pairs"


def changed_matrices(oplist: OpList) -> dict[str, tuple[int, int]]:
    """Matrices [N, K] that adapters may change in a list that `add_adapters` has made, by the names of their pairs."""
    changes = [op for op in oplist.ops if op.name in CHANGES.values()]
    return {weight.name: (weight.shape[0], weight.shape[1]) for op in changes for weight in op.weights}


def changes_of_codes(oplist: OpList) -> frozenset[str]:
    """Names of the pairs of a lowered list that change products of codes."""
    makers = {name: op.name for op in oplist.ops for name in op.outputs}
    return frozenset(op.weights[0].name for op in oplist.ops if op.name == "lora" and makers[op.inputs[1]].startswith("linear_codes"))


def merge_changes(oplist: OpList, formats: Formats) -> OpList:
    """Changes of the products that one op makes become one op behind it. They read the step's own slots, from which a GPU's runner makes
    its order of tokens."""
    changes = {op.inputs[1]: op for op in oplist.ops if op.name == "lora"}
    merged: set[int] = set()
    ops: list[Op] = []
    for op in oplist.ops:
        if op.name != "adapters" and id(op) not in merged:
            ops.append(op)
        found = [changes[name] for name in op.outputs if name in changes]
        if found:
            merged |= {id(each) for each in found}
            inputs = (found[0].inputs[0], *(each.inputs[1] for each in found), "adapter")
            outputs, weights = tuple(each.outputs[0] for each in found), tuple(each.weights[0] for each in found)
            ops.append(Op(CHANGES[len(found)], inputs, outputs, weights=weights))
    return oplist.with_ops(tuple(ops))
