"""Vectors of texts: final hidden states become one vector per row, over as many steps as the text takes.

Sums run token by token in double precision, so that chunks cannot change a bit of a mean.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.params import Pooling

Floats = NDArray[np.float32]
LEAST_LENGTH: Final = 1e-12
"""A vector that is shorter than this is divided by it, as torch's `normalize` does: zeros stay zeros."""


class RowPool:
    """One row's text, as far as it has been computed."""

    def __init__(self, asked: Pooling) -> None:
        self.asked = asked
        self._sum: NDArray[np.float64] | None = None
        self._count = 0
        self._picked: Floats | None = None

    def add(self, hidden: Floats, start: int) -> None:
        """Takes final hidden states [T, D] of the text's next tokens, from position `start` on."""
        if self.asked.kind == "mean":
            if start == 0:
                self._sum, self._count = None, 0
            rows = hidden if self._sum is None else np.concatenate([self._sum[None], hidden])
            self._sum = np.add.reduce(rows, axis=0, dtype=np.float64)  # row after row: the reduced axis is not the contiguous one
            self._count += len(hidden)
        elif self.asked.kind == "last":
            self._picked = hidden[-1].copy()
        elif start == 0:
            self._picked = hidden[0].copy()

    def vector(self) -> bytes:
        """The text's vector, little-endian float32."""
        found = self._picked if self._sum is None else self._sum / self._count
        assert found is not None, "a text has tokens"
        kept = found[: self.asked.dimensions or None].astype(np.float64)
        if self.asked.normalise:
            kept /= max(float(np.sqrt(np.add.reduce(kept * kept))), LEAST_LENGTH)
        return kept.astype("<f4").tobytes()
