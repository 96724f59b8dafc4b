"""Rows of a step that follow grammars, for a runner that moves them while it computes (csrc/runtime/follow.h).

A greedy row whose largest logit its grammar takes needs no mask: that logit is also the largest of those that the mask would leave. So such
a runner may ask the grammar first, and makes masks for the rows whose largest logit it does not take.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.decoding.edits import Mask
from ridgeline.compute.decoding.grammar import GrammarError, RowGrammar
from ridgeline.compute.runner import Places

LOST = -1
"""State of a row whose grammar cannot go on. Its mask has all ids."""


class Following:
    """Places of the rows that sample one position each.

    places  as runners take them
    """

    def __init__(
        self, calls: NDArray[np.int64], grammars: Sequence[RowGrammar | None], scored: Sequence[bool], bits: NDArray[np.uint32]
    ) -> None:
        """calls: `Tokenizer.calls`. grammars: of each row. scored: rows that need logits which their mask forbids, as log-probabilities are
        of these. bits: uint32 [≥ S, W], room for masks."""
        self._grammars, self._scored, self._bits = grammars, scored, bits
        begin, step = bits.ctypes.data, bits.strides[0]
        rows = [(0, 0, -1, 0, 0) if each is None else (*each.leave(begin + step * i), 0, 0) for i, each in enumerate(grammars)]
        records = np.array(rows, np.int64).reshape(len(rows), 5)
        self.places = Places(calls, records, np.where(scored, 0, records[:, 1]))

    def masks(self, are_applied: bool) -> list[Mask | None]:
        """Behind the step, what a sampler needs: uint32 [1, W] of each row; None: any id may come. are_applied: `Places.addresses` were."""
        return [
            None if grammar is None or (are_applied and not scored) else self._bits[i : i + 1]
            for i, (grammar, scored) in enumerate(zip(self._grammars, self._scored, strict=True))
        ]

    def moved(self) -> list[tuple[int, GrammarError]]:
        """Behind the step: the rows that cannot go on, by their number, and why."""
        lost: list[tuple[int, GrammarError]] = []
        told = self.places.records[:, 3:].tolist()
        for number, (grammar, (state, nanoseconds)) in enumerate(zip(self._grammars, told, strict=True)):
            if grammar is not None:
                try:
                    grammar.moved(state == LOST, nanoseconds * 1e-9)
                except GrammarError as error:
                    lost.append((number, error))
        return lost
