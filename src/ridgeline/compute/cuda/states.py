"""Hidden states on the device: a step of the target leaves those of its tokens there, and heads that draft take them up in front of the
next one. A head leaves its own behind the last of them, for its next pass, until the target's come in their place."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ridgeline.compute.cuda.device import Device
from ridgeline.compute.cuda.plan import Binding
from ridgeline.compute.cuda.triton.states import keep_states, take_states

FEATURES = "features"
"""The value that heads are given."""


class HiddenStates:
    """The last hidden states of permanent rows by position modulo `window`, [rows + 1, window, width]; the last row is padding's.

    width   numbers of a token, of several taps one behind the other
    ids     int32 [rows + 1, window]: those at these positions
    places  int32 [rows + 1], by row of a pass: the target's position of what its last token drafts
    """

    def __init__(self, device: Device, rows: int, window: int, width: int, dtype: torch.dtype) -> None:
        self.kept = device.zeros(rows + 1, window, width, dtype=dtype)
        self.ids = device.zeros(rows + 1, window, dtype=torch.int32)
        self.places = device.zeros(rows + 1, dtype=torch.int32)

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self.kept.nbytes + self.ids.nbytes + self.places.nbytes


@dataclass(frozen=True, slots=True)
class StepStates:
    """Hidden states that steps of a list keep, its taps of these names, and that those of heads take before, as `FEATURES`."""

    states: HiddenStates
    taps: tuple[str, ...]
    of_heads: bool = False

    def take(self, binding: Binding) -> list[Callable[[], None]]:
        """The launch in front of the first op, once positions are known; none of the target."""
        if not self.of_heads:
            return []
        inputs = binding.inputs
        columns = [inputs[name] for name in ("positions", "source", "row_of_token", "kv_len", "shifts")]
        states = self.states
        return [take_states(states.kept, binding.value(FEATURES), states.ids, binding.ids, *columns, states.places)]

    def keep(self, binding: Binding) -> list[Callable[[], None]]:
        """Launches behind the last op."""
        inputs, first, found = binding.inputs, 0, []
        columns = [inputs[name] for name in ("positions", "source", "row_of_token", "kv_len")]
        shifts = inputs["shifts"] if self.of_heads else None
        for name in self.taps:
            values = binding.value(binding.plan.oplist.taps[name])
            found.append(keep_states(values, self.states.kept[:, :, first:], binding.ids, self.states.ids, *columns, shifts))
            first += values.shape[1]
        return found
