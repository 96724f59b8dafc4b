"""The share of drafts that came true, recent ones before older ones: what the depth of a drafter that costs time follows."""

from typing import Final

DECAY: Final = 0.93
"""Factor of a comparison's weight per further comparison."""
FADE: Final = 0.996
"""Factor of all weights per step without drafts: a row that gave up is tried again after some hundred steps."""
PRIOR_WEIGHT: Final = 4.0
"""Comparisons that the prior counts for."""


class Acceptance:
    """Decayed counts of drafts that were right among those that were compared; a draft behind a wrong one is not."""

    __slots__ = ("compared", "right")

    def __init__(self) -> None:
        self.right = self.compared = 0.0

    def record(self, drafted: int, accepted: int) -> None:
        """Counts `accepted` of `drafted` drafts as right, and the one behind them as wrong."""
        for is_right in (*(True,) * accepted, *(False,) * (accepted < drafted)):
            self.compared = DECAY * self.compared + 1.0
            self.right = DECAY * self.right + is_right

    def fade(self) -> None:
        """A step without drafts."""
        self.compared *= FADE
        self.right *= FADE

    def estimate(self, prior: float) -> float:
        """The chance that the next draft is right; `prior` where nothing was compared."""
        return (self.right + PRIOR_WEIGHT * prior) / (self.compared + PRIOR_WEIGHT)
