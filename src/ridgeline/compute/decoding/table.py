"""Every feature that changes a row's logits before temperature, one line each, in the order in which they apply (vLLM's).

A row that asks for none of them pays for none: its logits are not even copied.
"""

from collections.abc import Sequence
from typing import Final

from ridgeline.compute.decoding.allowed import ALLOWED
from ridgeline.compute.decoding.bad_words import BAD_WORDS
from ridgeline.compute.decoding.bias import BIAS
from ridgeline.compute.decoding.edit import Edit, Logits
from ridgeline.compute.decoding.history import History
from ridgeline.compute.decoding.min_tokens import MIN_TOKENS
from ridgeline.compute.decoding.penalties import PENALTIES
from ridgeline.core.params import RowParams

EDITS: Final[tuple[Edit, ...]] = (
    ALLOWED,
    BAD_WORDS,
    MIN_TOKENS,
    BIAS,
    PENALTIES,
)


def edited(logits: Logits, row: RowParams, output: int, history: History | None) -> Logits:
    """The logits [V] that output number `output` is chosen from: `logits` themselves where nothing changes them, else a copy."""
    edits = [edit for edit in EDITS if edit.asked(row, output)]
    if edits:
        logits = logits.copy()
    for edit in edits:
        edit.apply(logits, row, history)
    return logits


def needed(row: RowParams, output: int) -> int:
    """How many of the largest logits output number `output` is a function of, equals of the last among them; 0: all.

    1 is just the id of the largest: greedy, or the only one that top-k leaves. Edits may raise any logit, and log-probabilities are of all.
    """
    asked = row.sampling
    if asked.logprobs is not None or any(edit.asked(row, output) for edit in EDITS):
        return 0
    return 1 if asked.temperature == 0 else max(0, asked.top_k)


def history_of(row: RowParams, ids: Sequence[int]) -> History | None:
    """What such a row looks back at when it knows `ids`; None where nothing that it asks for does."""
    looks_back = row.prompt_logprobs is not None or any(edit.looks_back and edit.asked(row, 0) for edit in EDITS)
    return History(ids, row.prompt_tokens) if looks_back else None
