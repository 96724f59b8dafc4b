"""The next token of each row: first what changes logits (`table`), then greedy, or Gumbel-max over what temperature and the filters leave.

The order is vLLM's. Owns the choice and nothing else: it keeps no state, and a row's result is a function of its logits, parameters,
position and history. Whether logits are finite is the runtime's matter; here they only must not do harm.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.decoding.filters import min_p, top_k, top_p
from ridgeline.compute.decoding.history import History
from ridgeline.compute.decoding.logprobs import token_logprobs
from ridgeline.compute.decoding.rng import GUMBEL_MAX, gumbel
from ridgeline.compute.decoding.table import edited
from ridgeline.core.params import RowParams, Sampling
from ridgeline.core.plan import TokenLogprobs

_FEW = 1024
"""So few candidates all get their noise; of more, those that cannot beat the likeliest with the greatest noise are spared it."""
_ROUNDING = 1e-9
"""Covers the rounding of sums of float64 where a bound decides."""


def sample(
    logits: NDArray[np.float32],
    params: Sequence[RowParams],
    positions: Sequence[int],
    histories: Sequence[History | None],
    maxima: None = None,
) -> tuple[list[int], list[TokenLogprobs | None]]:
    """One token for each row of logits [R, V], and its log-probabilities (of the logits as they come) where the row asks for them.

    positions[i]: absolute position of the token being sampled, below 2**32. histories[i]: `table.history_of` the row. All ids are below V.
    maxima: none; the runner of this sampler gives whole rows.
    """
    likeliest = logits.argmax(axis=1)
    tokens: list[int] = []
    logprobs: list[TokenLogprobs | None] = []
    for row, wanted, best, position, history in zip(logits, params, likeliest, positions, histories, strict=True):
        asked = wanted.sampling
        final = edited(row, wanted, position - wanted.prompt_tokens, history)
        if final is not row:
            best = final.argmax()
        greedy = asked.temperature == 0 or not np.isfinite(final[best])
        key = (wanted.seed, wanted.choice, position)
        token = int(best) if greedy else _gumbel_max(final, int(best), asked, key)
        tokens.append(token)
        logprobs.append(None if asked.logprobs is None else token_logprobs(row, token, asked.logprobs))
    return tokens, logprobs


def _gumbel_max(logits: NDArray[np.float32], best: int, asked: Sampling, key: tuple[int, int, int]) -> int:
    """Samples from softmax(logits [V] / temperature) after the filters; `best` is the lowest id of the largest logit, which is finite.

    key  seed, choice and position, which the noise is a function of
    """
    ids, highest = np.arange(len(logits)), float(logits[best])
    if 0 < asked.top_k < len(logits):  # which are the k largest does not depend on temperature or min-p
        ids = top_k(logits, asked.top_k)
        logits = logits[ids]
    with np.errstate(over="ignore"):
        scaled = (logits.astype(np.float64) - highest) / asked.temperature
    if asked.min_p > 0:
        kept = min_p(scaled, asked.min_p)
        ids, scaled = ids[kept], scaled[kept]
    if asked.top_p < 1:
        kept = top_p(scaled, asked.top_p)
        ids, scaled = ids[kept], scaled[kept]
    if len(ids) > _FEW:
        reached = gumbel(*key, np.array([best]))[0]
        able = np.flatnonzero(scaled >= reached - GUMBEL_MAX - _ROUNDING)
        ids, scaled = ids[able], scaled[able]
    return int(ids[np.argmax(scaled + gumbel(*key, ids))])
