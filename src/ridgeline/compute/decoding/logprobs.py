"""Log-probabilities of a sampled position: from the raw logits, before temperature, filters and bans."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.decoding.filters import top_k
from ridgeline.core.plan import TokenLogprobs


def token_logprobs(logits: NDArray[np.float32], token: int, k: int) -> TokenLogprobs:
    """Log-softmax of logits [V] at `token` and at its k best ids, in descending order, equals by id; k ≥ 0 is cut at V.

    Logits that are not finite give NaN rather than an error.
    """
    best = top_k(logits, min(k, len(logits))) if k else np.empty(0, dtype=np.int64)
    with np.errstate(over="ignore", invalid="ignore"):
        total = log_sum_exp(logits)
        values = logits[best].astype(np.float64) - total
    top = tuple((int(best[i]), float(values[i])) for i in np.lexsort((best, -values)))
    return TokenLogprobs(float(logits[token]) - total, top)


def score(logits: NDArray[np.float32], tokens: Sequence[int], counts: Sequence[int]) -> list[TokenLogprobs]:
    """`token_logprobs` of each row of logits [N, V]."""
    return [token_logprobs(*each) for each in zip(logits, tokens, counts, strict=True)]


def log_sum_exp(logits: NDArray[np.float32]) -> float:
    """log Σ exp of logits [V], summed in float64."""
    highest = logits.max()
    return float(np.log(np.exp(logits - highest).sum(dtype=np.float64))) + float(highest)
