"""Lowering: pure passes from an op list to a list of the same type.

Owns fusion; never touches an array. Every value that survives a pass keeps its name, so that `diff` can compare a lowered
list with the semantic one.
"""

from collections import Counter
from collections.abc import Callable
from functools import reduce

from ridgeline.compute.graph import Op, OpList

Pass = Callable[[OpList], OpList]


def lower(oplist: OpList, runner: str) -> OpList:
    """The list that `runner` executes: its passes one after the other."""
    return reduce(lambda current, step: step(current), PASSES[runner], oplist)


def fuse_add_rms_norm(oplist: OpList) -> OpList:
    """Turns every `add` directly followed by an `rms_norm` of the whole sum into one `add_rms_norm`."""
    ops: list[Op] = []
    for op in oplist.ops:
        before = ops[-1] if ops else None
        if before is not None and before.name == "add" and op.name == "rms_norm" and op.inputs == before.outputs and _whole(oplist, op):
            ops[-1] = Op("add_rms_norm", before.inputs, before.outputs + op.outputs, op.attributes, op.weights)
        else:
            ops.append(op)
    return oplist.with_ops(tuple(ops))


def _whole(oplist: OpList, norm: Op) -> bool:
    return oplist.values[norm.inputs[0]].width == norm.weights[0].shape[0]


PASSES: dict[str, tuple[Pass, ...]] = {"numpy": ()}
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
