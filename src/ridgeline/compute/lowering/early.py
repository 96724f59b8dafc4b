"""Early selection: what only selected positions need is computed for them alone.

Behind a model's last attention, or its last recurrence, nothing mixes tokens, and nobody reads the logits of positions that are not
selected: all rows but one of a prompt that samples once would go through the last layer's output projection and feed-forward part in
vain. Pure; touches no array.
"""

from dataclasses import replace
from typing import Final

from ridgeline.compute.graph import INPUTS, SELECTED, Formats, Handle, Op, OpList
from ridgeline.compute.ops.table import OPS

ATTENDED: Final = "attended"
"""The tap of what the last attention or recurrence made, for all tokens. K, V and states that are not finite, of any layer, leave it not
finite."""

_KEPT: Final = frozenset({"keys", "tail", "state"})
"""Reads of an op that mixes tokens: of what earlier ones have left."""


def select_early(oplist: OpList, formats: Formats) -> OpList:
    """Selects in front of ops of one token in place of behind them, as far back as nobody needs what they make of other tokens. Of a value
    with several rows per token all rows of a selected token are taken.

    Values at selected positions are named `NAME selected`, but what `select` made keeps its name and its bits. The tap "hidden", of all
    tokens, is gone: "selected" has its selected rows, and there is `ATTENDED`. A list in which nothing can move comes back as it is.
    """
    selects = [op for op in oplist.ops if op.name == "select"]
    attended = [op.outputs[0] for op in oplist.ops if op.outputs and not _KEPT.isdisjoint(OPS[op.name].reads)]
    moved = _movable(oplist, selects[0]) if len(selects) == 1 and attended else set()
    if not moved:
        return oplist
    (source,), (result,) = selects[0].inputs, selects[0].outputs
    values, ops = dict(oplist.values), list[Op]()
    chosen = {source: result}  # value → its selected rows
    for op in oplist.ops:
        if moved.isdisjoint(op.outputs):
            ops += [] if op is selects[0] else [op]
            continue
        for name in op.inputs:
            if name not in chosen:
                chosen[name] = _choose(values, name)
                ops.append(Op("select", (name,), (chosen[name],), {"factor": values[name].axis.factor}))
        chosen |= {name: _choose(values, name) for name in op.outputs if name != source}
        inputs, outputs = (tuple(chosen[name] for name in names) for names in (op.inputs, op.outputs))
        ops.append(Op(op.name, inputs, outputs, op.attributes, op.weights))
    for name in moved:
        del values[name]
    taps = {name: value for name, value in oplist.taps.items() if value != source}
    return OpList(oplist.name, tuple(ops), values, oplist.outputs, taps | {"selected": result, ATTENDED: attended[-1]})


def _movable(oplist: OpList, select: Op) -> set[str]:
    """Values of which nobody needs more rows than `select` takes, made by ops that can make these alone, from other values."""
    readers: dict[str, list[Op]] = {}
    for op in oplist.ops:
        for name in op.inputs:
            readers.setdefault(name, []).append(op)
    results = {*oplist.outputs.values(), *(value for name, value in oplist.taps.items() if name != "hidden")}
    found: set[str] = set()
    for op in reversed(oplist.ops):
        needed = [reader for name in op.outputs for reader in readers.get(name, ())]
        alone = results.isdisjoint(op.outputs) and all(reader is select or not found.isdisjoint(reader.outputs) for reader in needed)
        if OPS[op.name].per_token and INPUTS.isdisjoint(op.inputs) and needed and alone:
            found |= set(op.outputs)
    return found


def _choose(values: dict[str, Handle], name: str) -> str:
    """Enters the value's selected rows among the values."""
    chosen = f"{name} selected"
    values[chosen] = replace(values[name], name=chosen, axis=SELECTED * values[name].axis.factor)
    return chosen
