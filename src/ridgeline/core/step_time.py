"""The prefill that a step may have beside rows that decode: from the seconds that a step takes to tokens.

Owns the arithmetic. Seconds come from whoever measured or modelled them; the scheduler sees tokens only.
"""

from dataclasses import dataclass
from typing import Final

UNBOUNDED = 1 << 20
"""More tokens than any step has."""
REFERENCE_ROWS: Final = 16
"""Rows beside whose next tokens prompts move, however long those take: else a slow model's prompts hardly would."""


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Duration of a step: `fixed`, `row` for each row that computes one token and samples, `token` for each token of the others."""

    fixed: float
    row: float
    token: float

    @classmethod
    def fit(cls, one: float, many: float, rows: int, chunk: float, tokens: int) -> "StepSeconds":
        """From the seconds of three steps: one row, `rows` rows (two or more), one row that computes `tokens` tokens (one: no slope)."""
        row = max(0.0, many - one) / (rows - 1)
        return cls(max(0.0, one - row), row, max(0.0, chunk - one) / max(1, tokens - 1))

    def target_seconds(self, wanted: float) -> float:
        """Seconds that a step may take: as wanted; where `REFERENCE_ROWS` rows take longer, as much more again as they take beyond it."""
        few = self.fixed + REFERENCE_ROWS * self.row
        return max(wanted, few + (few - wanted))

    def mixed_tokens(self, wanted: float) -> int:
        """Tokens that fit such a step, which rows that keep up share with those that catch up; at least 1."""
        if not self.token:
            return UNBOUNDED
        return max(1, min(UNBOUNDED, int((self.target_seconds(wanted) - self.fixed) / self.token)))

    @property
    def row_tokens(self) -> float:
        """The cost of a row that keeps up, in tokens."""
        return max(1.0, self.row / self.token) if self.token else 1.0
