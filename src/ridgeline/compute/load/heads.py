"""Op lists of heads that draft, and the taps of the target's list that they read.

A module of `ridgeline.models.heads` is no architecture: `step(g, facts, w, number)` records what drafts the id behind `number` others. It
takes hidden states as "features", and taps as "next" what stands for that of a token which the target has not seen yet.
"""

from dataclasses import replace
from importlib import import_module

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.graph import OpList, Recorder, Weights
from ridgeline.compute.load.record import record
from ridgeline.compute.ops.table import OPS
from ridgeline.errors import ConfigError
from ridgeline.facts.headers.heads import DraftHeads
from ridgeline.facts.model import ModelFacts

OUTER = ("token_embd.weight", "output.weight")
"""Matrices of the target that heads without their own share."""

NEXT = "next"
"""The tap that stands for the hidden state of a draft; heads without it read the last of the target for every draft."""


def target_list(target: ModelFacts, heads: DraftHeads | None) -> OpList:
    """The target's op list, with the taps that heads read."""
    step = record(target)["step"]
    return step if heads is None else tap_layers(step, heads.tapped)


def record_heads(heads: DraftHeads, target: ModelFacts) -> list[OpList]:
    """The list that drafts the first id, and those of the further ones; the last stands for all behind it."""
    step = import_module(f"ridgeline.models.heads.{heads.kind}").step
    outer = {name: target.tensors[name].shape for name in OUTER if name in target.tensors}
    weights = Weights({**outer, **{name: tensor.shape for name, tensor in heads.facts.tensors.items()}})
    facts = replace(heads.facts, tied="output.weight" not in outer)
    changes = {"norm_before_residual": True} if heads.norm_before_residual else {}
    lists = []
    for number in range(heads.most or (2 if heads.kind == "eagle3" else 1)):
        g = Recorder(OPS)
        lists.append(g.finish(f"{heads.kind} {number}", logits=step(g, facts, weights, number, **changes)))
    return lists


def tap_layers(oplist: OpList, layers: tuple[int, ...]) -> OpList:
    """The target's list with its hidden states in front of some layers as taps (`tap_name`). Raises ConfigError where a layer does not
    begin with a norm of them."""
    taps = dict(oplist.taps)
    for layer in layers:
        norm = next((op for op in oplist.ops if op.name == "rms_norm" and op.weights[0].name == f"blk.{layer}.attn_norm.weight"), None)
        if norm is None:
            raise ConfigError(
                f"--draft-model has EAGLE-3 heads, which read the target in front of layer {layer}; there is no norm to find it by",
                fix={"--draft-model": None, "--speculative": "suffix"},
            )
        taps[tap_name(layer)] = norm.inputs[0]
    return replace(oplist, taps=taps)


def tap_name(layer: int) -> str:
    """The name of the tap in front of a layer."""
    return f"before.{layer}"


def target_ids(heads: DraftHeads, vocab: int) -> NDArray[np.int32] | None:
    """int32 [vocab]: the head's id of each of the target's, -1 where it has none; None where both are the same.

    Raises ConfigError where one is beyond the vocabulary.
    """
    if heads.offsets is None:
        return None
    tensor = heads.offsets
    offsets = np.fromfile(tensor.file, np.int64, tensor.shape[0], offset=tensor.offset)
    ids = np.arange(len(offsets)) + offsets
    if tensor.kind != "I64" or len(ids) != heads.facts.tokens or ids.min(initial=0) < 0 or ids.max(initial=0) >= vocab:
        raise ConfigError(f"--draft-model: d2t names ids of 0 … {ids.max(initial=0)}, the target has {vocab}; give the heads of this model")
    found = np.full(vocab, -1, np.int32)
    found[ids] = np.arange(len(ids))
    return found
