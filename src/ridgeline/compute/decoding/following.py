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
_FREE: Final = (0, 0, -1, 0, 0, 0, 0)
"""The record of a row without a grammar."""


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
        mask, room, kinds = bits.ctypes.data, bits.strides[0], keep.tolist()
        are_whole, are_best = 0 in kinds, kinds.count(1) == len(kinds)
        dear_too = are_whole or len(grammars) > FEW_ROWS
        self._asks: list[bool] = []
        self._raw: list[bool] = []
        """Rows that need logits which their mask forbids: log-probabilities are of these, and a draw before there is a mask."""
        records: list[tuple[int, ...]] = []
        addresses: list[int] = []
        for grammar, row in zip(grammars, params, strict=True):
            raw, asks = row.sampling.logprobs is not None, False
            if grammar is None:
                records.append(_FREE)
            else:
                if grammar.masks_leave_most or (dear_too and grammar.masks_are_dear):
                    asks = are_best or (are_whole and is_free(row))
                raw = raw or (asks and are_whole)
                matcher, token = grammar.leave()
                records.append((matcher, mask, token, asks, 0, 0, 0))
            addresses.append(0 if raw or grammar is None else mask)
            self._asks.append(asks)
            self._raw.append(raw)
            mask += room
        self.places = Places(calls, np.array(records, np.int64).reshape(len(records), 7), np.array(addresses, np.int64))

    def masks(self, are_applied: bool) -> list[Mask | None]:
        """Masks that a sampler needs behind the runner's step: uint32 [1, W] of each row; None: any id may come, or the row asks.

        are_applied: those of `Places.addresses` were.
        """
        return [
            None if grammar is None or asks or (are_applied and not raw) else self._bits[i : i + 1]
            for i, (grammar, asks, raw) in enumerate(zip(self._grammars, self._asks, self._raw, strict=True))
        ]

    def moved(self) -> list[tuple[int, GrammarError]]:
        """The rows that cannot go on behind a step that has been sampled, by their number, and why."""
        lost: list[tuple[int, GrammarError]] = []
        told = self.places.records[:, 4:].tolist()
        for number, (grammar, (state, nanoseconds, left)) in enumerate(zip(self._grammars, told, strict=True)):
            if grammar is not None:
                try:
                    grammar.moved(state, nanoseconds * 1e-9, left)
                except GrammarError as error:
                    lost.append((number, error))
        return lost
