"""Which of several answers to one prompt are the best: `best_of` of OpenAI's completions."""

from collections.abc import Sequence
from math import isnan


def best(cumulative: Sequence[float], n: int) -> list[int]:
    """Indices of the n answers with the highest summed log-probability, likeliest first, of equals the lowest index; NaN comes last."""
    return sorted(range(len(cumulative)), key=lambda index: (isnan(cumulative[index]), -cumulative[index], index))[:n]
