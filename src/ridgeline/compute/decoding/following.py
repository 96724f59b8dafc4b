"""Rows of a step that follow grammars, for a runner that moves them while it computes (csrc/runtime/follow.h).

A greedy row whose largest logit its grammar takes needs no mask: that logit is also the largest of those that the mask would leave. So such
a runner may ask the grammar first, and makes masks for the rows whose largest logit it does not take. A sampler may do so where no filter
looks at other logits, and masks have cost much.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.decoding.edits import Mask, is_free
from ridgeline.compute.decoding.grammar import GrammarError, RowGrammar
from ridgeline.compute.runner import Places
from ridgeline.core.params import RowParams


class Following:
    """Places of the rows that sample one position each.

    places  as runners take them
    """

    def __init__(
        self,
        calls: NDArray[np.int64],
        grammars: Sequence[RowGrammar | None],
        params: Sequence[RowParams],
        bits: NDArray[np.uint32],
        *,
        are_whole: bool,
    ) -> None:
        """calls: `Tokenizer.calls`. grammars, params: of each row. bits: uint32 [≥ S, W], room for masks. are_whole: the step makes all
        logits, so that samplers may draw before there is a mask."""
        self._grammars, self._bits = grammars, bits
        begin, step = bits.ctypes.data, bits.strides[0]
        rows: list[tuple[int, ...]] = []
        self._raw: list[bool] = []
        """Rows that need logits which their mask forbids: log-probabilities are of these, and a draw before there is a mask."""
        for place, (grammar, row) in enumerate(zip(grammars, params, strict=True)):
            asks = are_whole and grammar is not None and grammar.masks_are_dear and is_free(row)
            self._raw.append(asks or row.sampling.logprobs is not None)
            if grammar is None:
                rows.append((0, 0, -1, 0, 0, 0))
            else:
                matcher, token = grammar.leave()
                rows.append((matcher, begin + step * place, token, asks, 0, 0))
        records = np.array(rows, np.int64).reshape(len(rows), 6)
        self.places = Places(calls, records, np.where(self._raw, 0, records[:, 1]))

    def masks(self, are_applied: bool) -> list[Mask | None]:
        """Behind the runner's step, what a sampler needs: uint32 [1, W] of each row; None: any id may come, or the row asks.

        are_applied: those of `Places.addresses` were.
        """
        asks = self.places.records[:, 3].tolist()
        return [
            None if grammar is None or ask or (are_applied and not raw) else self._bits[i : i + 1]
            for i, (grammar, ask, raw) in enumerate(zip(self._grammars, asks, self._raw, strict=True))
        ]

    def moved(self) -> list[tuple[int, GrammarError]]:
        """When the step has been sampled: the rows that cannot go on, by their number, and why."""
        lost: list[tuple[int, GrammarError]] = []
        told = self.places.records[:, 4:].tolist()
        for number, (grammar, (state, nanoseconds)) in enumerate(zip(self._grammars, told, strict=True)):
            if grammar is not None:
                try:
                    grammar.moved(state, nanoseconds * 1e-9)
                except GrammarError as error:
                    lost.append((number, error))
        return lost
