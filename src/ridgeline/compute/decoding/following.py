"""Rows of a step that follow grammars, for a runner that moves them while it computes (csrc/runtime/follow.h).

A greedy row whose largest logit its grammar takes needs no mask: that logit is also the largest of those that the mask would leave. So such
a runner may ask the grammar first, and makes masks for the rows whose largest logit it does not take. A sampler may do so where no filter
looks at other logits. It pays where the last mask left most ids, since the next token is nearly always one of them, or where masks cost
much.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.decoding.edits import Mask, is_free
from ridgeline.compute.decoding.grammar import GrammarError, RowGrammar
from ridgeline.compute.runner import Places
from ridgeline.core.params import RowParams

FEW_ROWS: Final = 2
"""Rows whose masks are ready when the last product begins; dear ones leave so few ids that it is over at once."""


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
        keep: NDArray[np.int32],
    ) -> None:
        """calls: `Tokenizer.calls`. grammars, params: of each row. bits: uint32 [≥ S, W], room for masks. keep: of `Work`. Where the step
        makes all logits, or the largest alone, tokens may be chosen before there is a mask."""
        self._grammars, self._bits = grammars, bits
        begin, step = bits.ctypes.data, bits.strides[0]
        rows: list[tuple[int, ...]] = []
        self._raw: list[bool] = []
        """Rows that need logits which their mask forbids: log-probabilities are of these, and a draw before there is a mask."""
        are_whole = not keep.all()
        may_ask, are_few = are_whole or bool((keep == 1).all()), not are_whole and len(keep) <= FEW_ROWS
        for place, (grammar, row) in enumerate(zip(grammars, params, strict=True)):
            asks = grammar is not None and may_ask and _pays(grammar, are_few) and (not are_whole or is_free(row))
            self._raw.append((asks and are_whole) or row.sampling.logprobs is not None)
            if grammar is None:
                rows.append((0, 0, -1, 0, 0, 0, 0))
            else:
                matcher, token = grammar.leave()
                rows.append((matcher, begin + step * place, token, asks, 0, 0, 0))
        records = np.array(rows, np.int64).reshape(len(rows), 7)
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
        for number, (grammar, (state, nanoseconds, left)) in enumerate(zip(self._grammars, told, strict=True)):
            if grammar is not None:
                try:
                    grammar.moved(state, nanoseconds * 1e-9, left)
                except GrammarError as error:
                    lost.append((number, error))
        return lost


def _pays(grammar: RowGrammar, are_few: bool) -> bool:
    """Whether to ask before there is a mask."""
    return grammar.masks_leave_most or (grammar.masks_are_dear and not are_few)
