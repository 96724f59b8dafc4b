"""Rows that sample one position each: what a step of most tests is, in the samplers' words and in fewer."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.decoding.edits import History
from ridgeline.compute.decoding.sampler import Sampled
from ridgeline.core.params import RowParams
from ridgeline.core.plan import TokenLogprobs

Answer = tuple[list[int], list[TokenLogprobs | None]]


def single(
    sample_rows: Callable[..., Sampled],
    logits: NDArray[np.float32],
    params: Sequence[RowParams],
    positions: Sequence[int],
    histories: Sequence[History | None] | None = None,
    maxima: Any = None,
) -> Answer:
    """One id for each row of logits [R, V], and its log-probabilities where the row asks; histories stay as they are."""
    histories = [None] * len(params) if histories is None else deepcopy(list(histories))
    found = sample_rows(logits, params, [()] * len(params), positions, histories, None, maxima)
    return [tokens[0] for tokens in found.ids], [None if each is None else each[0] for each in found.logprobs]
