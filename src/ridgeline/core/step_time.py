"""The duration of a step as a linear model, and the prefill budget that follows from a target for it.

Pure arithmetic. Seconds are measured at the start and in every step since (`core.pace`), or modelled by the planner.
"""

from dataclasses import dataclass
from typing import Final

UNBOUNDED = 1 << 20
"""A prefill budget without bound: more tokens than any step has."""
REFERENCE_ROWS: Final = 16
"""Decoding rows beside which prompts always move, however long these rows take: otherwise prompts of a slow model would hardly advance."""


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Duration of a step in seconds: `fixed`, plus `row` per decoding row, plus `token` per prefill token."""

    fixed: float
    row: float
    token: float

    @classmethod
    def fit(cls, one: float, many: float, rows: int, chunk: float, tokens: int) -> "StepSeconds":
        """Fits the model to the seconds of three steps: one row that decodes, `rows` ≥ 2 of them, one row that prefills `tokens` tokens
        (1: no slope)."""
        row = max(0.0, many - one) / (rows - 1)
        return cls(max(0.0, one - row), row, max(0.0, chunk - one) / max(1, tokens - 1))

    def of(self, rows: int, tokens: int) -> float:
        """Returns the seconds of a step of `rows` decoding rows and `tokens` prefill tokens."""
        return self.fixed + self.row * rows + self.token * tokens

    def target_seconds(self, target: float) -> float:
        """Returns the seconds that a mixed step may take: `target`, or, if `REFERENCE_ROWS` decoding rows exceed it, they and the excess
        again."""
        decode = self.fixed + REFERENCE_ROWS * self.row
        return max(target, decode + (decode - target))

    def mixed_tokens(self, target: float) -> int:
        """Returns the prefill tokens that fit such a step without decoding rows, at least 1; each decoding row counts as `row_tokens`."""
        if not self.token:
            return UNBOUNDED
        return max(1, min(UNBOUNDED, int((self.target_seconds(target) - self.fixed) / self.token)))

    @property
    def row_tokens(self) -> float:
        """The cost of a decoding row in prefill tokens, at least 1."""
        return max(1.0, self.row / self.token) if self.token else 1.0
