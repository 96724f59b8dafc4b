"""States of recurrent layers: what a short convolution and a recurrence keep of a row, in memory.

Owns the arrays that ops of `compute/ops/recurrence.py` read as `tail` and `state`. A row has its place for as long as it is open; nothing
is shared between rows, and a new row reads nothing that another has left.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ridgeline.compute.ops.definition import Floats
from ridgeline.facts.model import ModelFacts


@dataclass(frozen=True, slots=True)
class RecurrentShape:
    """One recurrent layer.

    taps         inputs that its convolution sums up for each output
    channels     of that convolution
    value_heads, key_dim, value_dim  of its state, a matrix [key_dim, value_dim] for each value head
    """

    taps: int
    channels: int
    value_heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class StateCache:
    """States of all rows, by layer.

    tails   fp32 [rows, taps - 1 + P, channels]: inputs of the convolution, that of position p at p % (taps - 1 + P)
    states  fp32 [rows, P, value heads, key_dim, value_dim]: the state after position p at p % P

    P is how many of its last positions a row can go back to, itself included: 1, and the drafts of a step that may be refused.
    """

    tails: Mapping[int, Floats]
    states: Mapping[int, Floats]


def allocate_states(layers: Mapping[int, RecurrentShape], rows: int, positions: int) -> StateCache:
    """Room for the states of `rows` rows after each of their last `positions` positions. The operating system gives memory when it is first
    written."""
    tails = {layer: np.zeros((rows, shape.taps - 1 + positions, shape.channels), np.float32) for layer, shape in layers.items()}
    states = {
        layer: np.zeros((rows, positions, shape.value_heads, shape.key_dim, shape.value_dim), np.float32) for layer, shape in layers.items()
    }
    return StateCache(tails, states)


def states_of(facts: ModelFacts, rows: int, positions: int) -> StateCache | None:
    """Room for the states of a model's recurrent layers, as `allocate_states` has it; None of a model without."""
    state = facts.state
    if state is None:
        return None
    layer = RecurrentShape(state.kernel, state.channels, state.value_heads, state.key_dim, state.value_dim)
    return allocate_states({index: layer for index, kind in enumerate(facts.layer_kinds) if kind == "none"}, rows, positions)
