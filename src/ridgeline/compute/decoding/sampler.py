"""The next token of each row: greedy, or Gumbel-max over what temperature, top-k and top-p leave (in this order, as in vLLM).

Owns the choice and nothing else: it keeps no state, and a row's result is a function of its logits, parameters, position and
number of outputs. Whether logits are finite is the runtime's matter; here they only must not do harm.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.decoding.filters import top_k, top_p
from ridgeline.compute.decoding.logprobs import token_logprobs
from ridgeline.compute.decoding.rng import GUMBEL_MAX, gumbel
from ridgeline.core.params import RowParams
from ridgeline.core.plan import TokenLogprobs

_FEW = 1024
"""So few candidates all get their noise; of more, those that cannot beat the likeliest with the greatest noise are spared it."""
_ROUNDING = 1e-9
"""Covers the rounding of sums of float64 where a bound decides."""


def sample(
    logits: NDArray[np.float32], params: Sequence[RowParams], positions: Sequence[int], outputs: Sequence[int]
) -> tuple[list[int], list[TokenLogprobs | None]]:
    """One token for each row of logits [R, V], and its log-probabilities where the row asks for them.

    positions[i]: absolute position of the token being sampled, below 2**32. outputs[i]: outputs that exist already; before
    `min_tokens` of them the ids in `banned_until` (all below V) cannot be sampled.
    """
    likeliest = logits.argmax(axis=1)
    tokens: list[int] = []
    logprobs: list[TokenLogprobs | None] = []
    for row, wanted, best, position, count in zip(logits, params, likeliest, positions, outputs, strict=True):
        allowed = row
        if wanted.banned_until and count < wanted.min_tokens:
            allowed = row.copy()
            allowed[list(wanted.banned_until)] = -np.inf
            best = allowed.argmax()
        greedy = wanted.temperature == 0 or not np.isfinite(allowed[best])
        token = int(best) if greedy else _gumbel_max(allowed, int(best), wanted, position)
        tokens.append(token)
        logprobs.append(None if wanted.logprobs is None else token_logprobs(row, token, wanted.logprobs))
    return tokens, logprobs


def _gumbel_max(logits: NDArray[np.float32], best: int, params: RowParams, position: int) -> int:
    """Samples from softmax(logits [V] / temperature) after the filters; `best` is the lowest id of the largest logit, which is finite."""
    ids, highest = np.arange(len(logits)), float(logits[best])
    if 0 < params.top_k < len(logits):
        ids = top_k(logits, params.top_k)
        logits = logits[ids]
    with np.errstate(over="ignore"):
        scaled = (logits.astype(np.float64) - highest) / params.temperature
    if params.top_p < 1:
        kept = top_p(scaled, params.top_p)
        ids, scaled = ids[kept], scaled[kept]
    key = (params.seed, params.choice, position)
    if len(ids) > _FEW:
        reached = gumbel(*key, np.array([best]))[0]
        able = np.flatnonzero(scaled >= reached - GUMBEL_MAX - _ROUNDING)
        ids, scaled = ids[able], scaled[able]
    return int(ids[np.argmax(scaled + gumbel(*key, ids))])
