"""Experts that will probably be chosen: beside each choice of experts the router of the next one, over what this one reads. Pure.

A layer changes a token little, so that the next router chooses nearly the same from it (Eliseev and Mazur 2023, "Fast Inference of
Mixture-of-Experts Language Models with Offloading", section 3.2). It is one small matrix, in phases that are there anyway.
"""

from dataclasses import replace
from itertools import pairwise
from typing import Final

from ridgeline.compute.graph import Op, OpList

AHEAD: Final = "ahead."
"""The beginning of names of taps of such choices; behind it stands the number of the choice that they foresee, of those in the list."""


def choose_ahead(oplist: OpList) -> OpList:
    """The list with choices foreseen, as taps: of every choice but the first whose router reads a plain norm, as does the one before it,
    and that takes as many experts. Changes no other value."""
    read = {op.inputs[1] for op in oplist.ops if op.name == "linear_experts"}
    routes = [op for op in oplist.ops if op.name == "route" and op.outputs[0] in read]
    norms = {op.outputs[0]: op for op in oplist.ops if op.name == "rms_norm"}
    values, taps, added = dict(oplist.values), dict(oplist.taps), dict[str, tuple[Op, ...]]()
    for number, (here, later) in enumerate(pairwise(routes), 1):
        own, norm = norms.get(here.inputs[0]), norms.get(later.inputs[0])
        if own is None or norm is None or here.attributes["k"] != later.attributes["k"]:
            continue
        normed, ids, weights = f"{norm.outputs[0]} ahead", *(_ahead(name) for name in later.outputs)
        like = (own.outputs[0], *here.outputs)
        values |= {new: replace(values[old], name=new) for new, old in zip((normed, ids, weights), like, strict=True)}
        taps[f"{AHEAD}{number}"] = ids
        guess = Op("route", (normed,), (ids, weights), later.attributes, later.weights)
        added[here.outputs[0]] = (Op("rms_norm", own.inputs, (normed,), norm.attributes, norm.weights), guess)
    ops = [each for op in oplist.ops for each in (op, *(added.get(op.outputs[0], ()) if op.outputs else ()))]
    return OpList(oplist.name, tuple(ops), values, oplist.outputs, taps)


def _ahead(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    return f"{stem} ahead.{kind}"
