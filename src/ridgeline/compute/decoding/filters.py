"""Min-p, top-k and top-p over one row of logits, without ever sorting the vocabulary.

All keep the likeliest tokens, top-k and top-p of equals the lowest ids: which tokens survive depends on this row alone.
"""

from math import log

import numpy as np
from numpy.typing import NDArray


def top_k(logits: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Ids (ascending) of the k largest of logits [V] without NaN; 1 ≤ k ≤ V."""
    position = len(logits) - k
    least = np.partition(logits, position)[position]
    kept = logits > least
    kept[np.flatnonzero(logits == least)[: k - np.count_nonzero(kept)]] = True
    return np.flatnonzero(kept)


def min_p(scaled: NDArray[np.float64], share: float) -> NDArray[np.int64]:
    """Indices (ascending) of the entries whose probability is at least `share` of the likeliest's; 0 < share ≤ 1. Nguyen et al. 2024.

    scaled [N]: logarithms of weights, the largest 0.
    """
    return np.flatnonzero(scaled >= log(share))


def top_p(scaled: NDArray[np.float64], p: float) -> NDArray[np.int64]:
    """Indices (ascending) of the smallest set of likeliest entries whose probability reaches p; 0 < p < 1.

    scaled [N]: logarithms of weights, the largest finite; −inf is a weight of 0. A weighted quickselect: each turn halves what is
    undecided, so the time is linear.
    """
    weight = np.exp(scaled - scaled.max())
    total = weight.sum()
    missing = p * total
    kept = np.zeros(len(scaled), dtype=bool)
    # Entries below an equal share of the mass that may be left out are not needed: all of them together are less than that mass.
    undecided = np.flatnonzero(weight >= (1 - p) * total / len(weight))
    while len(undecided):
        values = scaled[undecided]
        middle = len(values) // 2
        pivot = np.partition(values, middle)[middle]
        above = undecided[values > pivot]
        mass = weight[above].sum()
        if mass >= missing:
            undecided = above
            continue
        kept[above] = True
        equal = undecided[values == pivot]
        reached = mass + np.cumsum(weight[equal])
        kept[equal[: np.searchsorted(reached, missing) + 1]] = True
        if reached[-1] >= missing:
            break
        missing -= reached[-1]
        undecided = undecided[values < pivot]
    return np.flatnonzero(kept)
