"""Edits of a row's logits before temperature: masks, allowed ids, bad words, min_tokens, bias, penalties; the history they look back at.

A feature is a function and its line in `EDITS`, which apply in the order of the table (vLLM's). A row that asks for none of them pays for
none: its logits are not even copied. Numbers are computed in float64 and rounded once.
"""

from array import array
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.params import RowParams

Logits = NDArray[np.float32]
Mask = NDArray[np.uint32]


class History:
    """All ids of a sequence, and how often each was an output: a function of the ids, whether pushed one by one or given at once.

    ids    prompt and outputs
    seen   each id once, in the order in which they came
    times  how often each of `seen` was an output; 0 for an id that only the prompt has
    """

    __slots__ = ("_places", "ids", "seen", "times")

    def __init__(self, ids: Sequence[int], prompt_tokens: int) -> None:
        """A sequence that knows `ids`, the first `prompt_tokens` of which are its prompt."""
        self.ids = array("i", ids[:prompt_tokens])
        self.seen = array("i", dict.fromkeys(self.ids))
        self.times = array("i", [0]) * len(self.seen)
        self._places = {token: place for place, token in enumerate(self.seen)}
        for token in ids[prompt_tokens:]:
            self.push(token)

    def copy(self) -> "History":
        """Another one of the same ids."""
        made = History.__new__(History)
        made.ids, made.seen, made.times, made._places = self.ids[:], self.seen[:], self.times[:], self._places.copy()
        return made

    def push(self, token: int) -> None:
        """One more output."""
        self.ids.append(token)
        place = self._places.setdefault(token, len(self.seen))
        if place == len(self.seen):
            self.seen.append(token)
            self.times.append(0)
        self.times[place] += 1


class Context(NamedTuple):
    """Knowledge of edits about a position, besides the row's parameters.

    history  all ids before it; None where no edit of the row looks back
    mask     uint32 [≥ V / 32]: bit i of word w is set where the row's grammar, or the end of its reasoning, takes id 32 w + i; None: all
    """

    history: History | None = None
    mask: Mask | None = None


class Edit(NamedTuple):
    """A feature.

    asked       tells if a row with these parameters wants it at its output number so and so (from 0)
    apply       changes logits [V] in place; called where it is asked for
    looks_back  the row needs a history
    masks       it only takes ids out, and runners that leave out logits do so behind it
    """

    asked: Callable[[RowParams, int], bool]
    apply: Callable[[Logits, RowParams, Context], None]
    looks_back: bool = False
    masks: bool = False


def follow_mask(logits: Logits, row: RowParams, context: Context) -> None:
    """`grammar`, and the end of reasoning whose budget is spent: only ids that they take next keep their logit."""
    if context.mask is not None:
        taken = np.unpackbits(context.mask.view(np.uint8), count=len(logits), bitorder="little")
        logits[taken == 0] = -np.inf


def _may_be_masked(row: RowParams, output: int) -> bool:
    thinking = row.sampling.thinking
    return row.sampling.grammar is not None or (thinking is not None and thinking.may_force(output))


def allow(logits: Logits, row: RowParams, context: Context) -> None:
    """`allowed_token_ids`: only these ids keep their logit."""
    ids = list(row.sampling.allowed_ids or ())
    kept = logits[ids]
    logits.fill(-np.inf)
    logits[ids] = kept


def ban_bad_words(logits: Logits, row: RowParams, context: Context) -> None:
    """`bad_words`: bans what would complete one. Prompt and outputs count alike, as in transformers (vLLM leaves the prompt out)."""
    assert context.history is not None
    ban(logits, completing(row.sampling.bad_words, context.history.ids))


def ban_stops(logits: Logits, row: RowParams, context: Context) -> None:
    """`min_tokens`: bans the stop ids before so many outputs exist."""
    ban(logits, row.banned_until)


def add_bias(logits: Logits, row: RowParams, context: Context) -> None:
    """`logit_bias`: a number is added to the logit of an id; ids differ from each other."""
    ids = [token for token, _ in row.sampling.logit_bias]
    values = logits[ids].astype(np.float64) + np.array([bias for _, bias in row.sampling.logit_bias])
    logits[ids] = values.astype(np.float32)


def penalise(logits: Logits, row: RowParams, context: Context) -> None:
    """Repetition, frequency and presence penalties, in this order.

    repetition  of ids in prompt or outputs: positive logits are divided, others multiplied (Keskar et al. 2019, as in transformers)
    frequency, presence  of ids in the outputs, c times: c · frequency + [c > 0] · presence is subtracted (OpenAI)
    """
    assert context.history is not None
    sampling = row.sampling
    ids, times = np.array(context.history.seen), np.array(context.history.times, np.float64)
    values = logits[ids].astype(np.float64)
    values = np.where(values > 0, values / sampling.repetition_penalty, values * sampling.repetition_penalty)
    values -= sampling.frequency_penalty * times + sampling.presence_penalty * (times > 0)
    logits[ids] = values.astype(np.float32)


def _penalised(row: RowParams, output: int) -> bool:
    sampling = row.sampling
    return sampling.repetition_penalty != 1 or sampling.frequency_penalty != 0 or sampling.presence_penalty != 0


EDITS: Final[tuple[Edit, ...]] = (
    Edit(_may_be_masked, follow_mask, masks=True),
    Edit(lambda row, output: row.sampling.allowed_ids is not None, allow),
    Edit(lambda row, output: bool(row.sampling.bad_words), ban_bad_words, looks_back=True),
    Edit(lambda row, output: output < row.min_tokens and bool(row.banned_until), ban_stops),
    Edit(lambda row, output: bool(row.sampling.logit_bias), add_bias),
    Edit(_penalised, penalise, looks_back=True),
)


def edited(logits: Logits, row: RowParams, output: int, context: Context) -> Logits:
    """The logits [V] that output number `output` is chosen from: `logits` themselves where nothing changes them, else a copy."""
    edits = [edit for edit in EDITS if edit.asked(row, output)]
    if edits:
        logits = logits.copy()
    for edit in edits:
        edit.apply(logits, row, context)
    return logits


def needed(row: RowParams, output: int) -> int:
    """Number of the largest logits that output number `output` is a function of, equals of the last among them; 0: all.

    1 is just the id of the largest: greedy, or the only one that top-k leaves. Edits may raise any logit, and log-probabilities are of all.
    Of a row that follows a grammar: of the largest that its mask leaves.
    """
    asked = row.sampling
    if asked.logprobs is not None or any(edit.asked(row, output) for edit in EDITS if not edit.masks):
        return 0
    return 1 if asked.temperature == 0 else max(0, asked.top_k)


def is_free(row: RowParams) -> bool:
    """True where no output depends on anything but all logits and noise: no filter, and no edit but masks."""
    asked = row.sampling
    filters = asked.top_k > 0 or asked.top_p < 1 or asked.min_p > 0
    return asked.logprobs is None and not filters and not any(edit.asked(row, 0) for edit in EDITS if not edit.masks)


def history_of(row: RowParams, ids: Sequence[int]) -> History | None:
    """The history of such a row when it knows `ids`; None where nothing that it asks for looks back."""
    looks_back = row.prompt_logprobs is not None or any(edit.looks_back and edit.asked(row, 0) for edit in EDITS)
    return History(ids, row.prompt_tokens) if looks_back else None


def ban(logits: Logits, ids: Sequence[int]) -> None:
    """Takes `ids` out of logits [V], unless nothing would be left: where two wishes cannot both hold, the one applied first does."""
    places = list(ids)
    kept = logits[places]
    logits[places] = -np.inf
    if places and logits.max() == -np.inf:
        logits[places] = kept


def completing(words: Sequence[tuple[int, ...]], ids: Sequence[int]) -> list[int]:
    """Ids, ascending, behind which one of `words` would stand complete at the end of `ids`."""
    found = {word[-1] for word in words if len(word) - 1 <= len(ids) and tuple(ids[len(ids) - len(word) + 1 :]) == word[:-1]}
    return sorted(found)
