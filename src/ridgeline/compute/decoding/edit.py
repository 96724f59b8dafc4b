"""What a feature is that changes a row's logits before temperature, and the one thing that bans have in common."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.decoding.history import History
from ridgeline.core.params import RowParams

Logits = NDArray[np.float32]


class Edit(NamedTuple):
    """A feature.

    asked       whether a row with these parameters wants it at its output number so and so (from 0)
    apply       changes logits [V] in place; called where it is asked for, with the row's history if it looks back
    looks_back  the row needs a history
    """

    asked: Callable[[RowParams, int], bool]
    apply: Callable[[Logits, RowParams, History | None], None]
    looks_back: bool = False


def ban(logits: Logits, ids: Sequence[int]) -> None:
    """Takes `ids` out of logits [V], unless nothing would be left: where two wishes cannot both hold, the one applied first does."""
    places = list(ids)
    kept = logits[places]
    logits[places] = -np.inf
    if places and logits.max() == -np.inf:
        logits[places] = kept
