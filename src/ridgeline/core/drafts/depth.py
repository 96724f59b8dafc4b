"""Depth of drafts, row by row: from what a step costs and how often drafts of a row were right.

Owns the arithmetic. Pure: seconds are those that were measured at the start and those that results bring, so that a replay decides alike.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

MOST_DRAFTS: Final = 64
"""Drafts of all rows of a step: more are never looked at."""
GAIN: Final = 1.04
"""A step that drafts is worth it where it brings so much more per second: estimates err, and a mode that changes often costs too."""
NEIGHBOUR: Final = 0.98
"""Share that is left, at least, of the rate at which any row in the step gets ids, drafted for or not."""
BARRIER_SECONDS: Final = 0.0004
ROW_SECONDS: Final = 0.00001
"""Seconds that the device waits for the host at a barrier, in all and per row: steps that run ahead hide them."""
CHANGE: Final = 1 / 16
FORGET: Final = 1 / 512
"""Shares of a new measurement in an old one, and of the way back to what was measured at the start, per step that tells nothing."""
WORST: Final = 4.0
"""A measurement counts for so many times what was expected, at most: one slow step says little."""


class StepCost:
    """Seconds of a step by its tokens, each of a row that decodes or verifies.

    table  (tokens, samples, seconds) as measured at the start; where nobody measured, steps of all sizes are taken to cost the same, as
           they do where weights are read once per step, until they are seen to differ
    """

    def __init__(self, table: Sequence[tuple[int, int, float]]) -> None:
        self._table = sorted({tokens: seconds for tokens, _, seconds in table}.items()) or [(1, 1.0), (2, 1.0)]
        if len(self._table) == 1:
            self._table.append((self._table[0][0] + 1, self._table[0][1]))
        self._tokens = [tokens for tokens, _ in self._table]
        self._line: dict[int, float] = {}
        """Answers of `_measured`."""
        self._scale, self._known = 1.0, bool(table)
        self._seen: dict[int, float] = {}
        """Tokens → seconds seen over those of the table, both scaled alike."""

    def seconds(self, tokens: int) -> float:
        """Seconds of a step of so many tokens, as far as is known now; before anything is known all are alike."""
        return self._measured(tokens) * self._scale * self._seen.get(tokens, 1.0)

    def _measured(self, tokens: int) -> float:
        """Seconds from the table: a line between its neighbours, the last one's slope behind them."""
        found = self._line.get(tokens)
        if found is None:
            found = self._line[tokens] = self._interpolated(tokens)
        return found

    def _interpolated(self, tokens: int) -> float:
        right = min(max(1, bisect_left(self._tokens, tokens)), len(self._table) - 1)
        (few, less), (many, more) = self._table[right - 1], self._table[right]
        return max(less + (more - less) * (tokens - few) / (many - few), 1e-9)

    def learn(self, tokens: int, seconds: float) -> None:
        """Takes note that a step of so many tokens took that long."""
        expected = self._measured(tokens)
        if not self._known:
            self._scale, self._known = seconds / expected, True
        seen = self._seen.get(tokens, 1.0)
        found = min(WORST, seconds / (expected * self._scale))
        for other, ratio in self._seen.items():
            self._seen[other] = ratio + FORGET * (1.0 - ratio)
        self._seen[tokens] = seen + CHANGE * (found - seen)
        self._scale *= 1 + CHANGE * (found / seen - 1)


def choose_depths(price: StepCost, tokens: int, chances: Sequence[Sequence[float]], others: int, most: int, barrier: bool) -> list[int]:
    """The number of drafts that each row should have; all 0 where none are worth it.

    tokens   of the step without drafts          others   rows of the step that have no drafts to offer
    chances  per row: the chance that its first, second … draft counts, in falling order
    barrier  the step would else be hidden behind another: its host time comes on top
    """
    gains = sorted([(-chance, index, place) for index, each in enumerate(chances) for place, chance in enumerate(each)])
    gains = gains[: min(most, MOST_DRAFTS)]
    rows = others + len(chances)
    plain = price.seconds(tokens)
    waits = BARRIER_SECONDS + ROW_SECONDS * rows if barrier else 0.0
    expected = [1.0] * len(chances)
    total, best, chosen = float(rows), GAIN * rows / plain, 0
    for count, (chance, index, _) in enumerate(gains, 1):
        expected[index] -= chance
        total -= chance
        seconds = price.seconds(tokens + count) + waits
        if total > best * seconds and (1.0 if others else min(expected)) * plain >= NEIGHBOUR * seconds:
            best, chosen = total / seconds, count
    found = [0] * len(chances)
    for _, index, _ in gains[:chosen]:
        found[index] += 1
    return found
