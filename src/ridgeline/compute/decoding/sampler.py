"""The next tokens of each row: edits of its logits first (`edits`), then greedy, or Gumbel-max over what temperature and the filters leave.

A row samples the last 1 + d positions of its tokens, the last d of which are drafts. The sampler walks them in order: each position sees
the edits of its own output, over all ids before it, and the walk ends with the first id that differs from its draft. The order of features
is vLLM's. Owns the choice and nothing else: what a row samples is a function of its logits, parameters, position and history, so that
drafts can change how many ids come at once and never which. Log-probabilities are of raw logits: before temperature, filters and bans.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.decoding.edits import Context, History, Mask, edited
from ridgeline.compute.decoding.filters import min_p, top_k, top_p
from ridgeline.compute.decoding.rng import GUMBEL_MAX, gumbel
from ridgeline.core.params import RowParams, Sampling
from ridgeline.core.plan import TokenLogprobs

_FEW = 1024
"""So few candidates all get their noise; of more, those that cannot beat the likeliest with the greatest noise are spared it."""
_ROUNDING = 1e-9
"""Covers the rounding of sums of float64 where a bound decides."""


class Sampled(NamedTuple):
    """The outcome of a step, row for row: ids, and a log-probability of each where the row asks for them."""

    ids: list[tuple[int, ...]]
    logprobs: list[tuple[TokenLogprobs, ...] | None]


def sample_rows(
    logits: NDArray[np.float32],
    params: Sequence[RowParams],
    drafts: Sequence[Sequence[int]],
    positions: Sequence[int],
    histories: Sequence[History | None],
    finite: NDArray[np.bool_] | None = None,
    maxima: None = None,
    masks: Sequence[Mask | None] | None = None,
) -> Sampled:
    """Walks the rows that sample; ids that are sampled are pushed onto their histories.

    logits     fp32 [S, V], S = Σ (1 + drafts) in row order; all ids are below V
    drafts     of each row the ids of its last positions, which its samples are held against; none where it samples one position
    positions  absolute position of the token that each row samples first, below 2**32
    histories  `edits.history_of` the row, over all ids before that position
    finite     bool [S]: a row's walk ends before the first position that is not; None: all are
    maxima     None: the runner of this sampler gives whole rows
    masks      of each row with a grammar uint32 [1 + drafts, ≥ V / 32], a mask for each position (`edits.Context`); None: no row has one
    """
    likeliest = logits.argmax(axis=1).tolist()
    ids: list[tuple[int, ...]] = []
    logprobs: list[tuple[TokenLogprobs, ...] | None] = []
    first = 0
    for row, drafted, position, history, mask in zip(params, drafts, positions, histories, masks or [None] * len(params), strict=True):
        masks_from = None if mask is None else (mask, first)

        def choose(
            at: int, place: int, row: RowParams = row, history: History | None = history, masks: tuple[Mask, int] | None = masks_from
        ) -> int:
            context = Context(history, None if masks is None else masks[0][at - masks[1]])
            return _sample(logits[at], likeliest[at], row, place, context)

        tokens = _walk(choose, first, position, drafted, history, finite)
        count = row.sampling.logprobs
        ids.append(tokens)
        logprobs.append(None if count is None else tuple(token_logprobs(logits[first + i], token, count) for i, token in enumerate(tokens)))
        first += len(drafted) + 1
    return Sampled(ids, logprobs)


def accept(
    best: Sequence[int],
    drafts: Sequence[Sequence[int]],
    histories: Sequence[History | None],
    finite: NDArray[np.bool_] | None = None,
) -> list[tuple[int, ...]]:
    """`sample_rows` where the id of each position is known, since all need no more than that of their largest logit: `best` [S]."""
    ids, first = [], 0
    for drafted, history in zip(drafts, histories, strict=True):
        ids.append(_walk(lambda at, _: best[at], first, 0, drafted, history, finite))
        first += len(drafted) + 1
    return ids


def score(logits: NDArray[np.float32], tokens: Sequence[int], counts: Sequence[int]) -> list[TokenLogprobs]:
    """`token_logprobs` of each row of logits [N, V]."""
    return [token_logprobs(*each) for each in zip(logits, tokens, counts, strict=True)]


def token_logprobs(logits: NDArray[np.float32], token: int, k: int) -> TokenLogprobs:
    """Log-softmax of logits [V] at `token` and at the k best ids, in descending order, equals by id; k ≥ 0 is cut at V. And its rank.

    Logits that are not finite give NaN rather than an error.
    """
    best = top_k(logits, min(k, len(logits))) if k else np.empty(0, dtype=np.int64)
    with np.errstate(over="ignore", invalid="ignore"):
        highest = logits.max()
        total = float(np.log(np.exp(logits - highest).sum(dtype=np.float64)))
        values = logits[best].astype(np.float64) - float(highest) - total  # one after the other: beside a large logit a sum would round
    top = tuple((int(best[i]), float(values[i])) for i in np.lexsort((best, -values)))
    return TokenLogprobs(float(logits[token]) - float(highest) - total, top, rank(logits, token, top))


def rank(logits: NDArray[np.float32], token: int, top: Sequence[tuple[int, float]]) -> int:
    """Place of `token` among the ids by descending logits [V], equals by id, from 1; where `top`, the first of them, has it, nothing is
    counted."""
    for place, (other, _) in enumerate(top, 1):
        if other == token:
            return place
    value = logits[token]
    return 1 + int(np.count_nonzero(logits > value)) + int(np.count_nonzero(logits[:token] == value))


def _walk(
    choose: Callable[[int, int], int],
    first: int,
    position: int,
    drafted: Sequence[int],
    history: History | None,
    finite: NDArray[np.bool_] | None,
) -> tuple[int, ...]:
    """Ids of a row whose first sampling position is number `first` of the step's: choose(number, position of the token) gives each."""
    tokens: list[int] = []
    for offset in range(len(drafted) + 1):
        if finite is not None and not finite[first + offset]:
            break
        tokens.append(choose(first + offset, position + offset))
        if history is not None:
            history.push(tokens[-1])
        if offset == len(drafted) or tokens[-1] != drafted[offset]:
            break
    return tuple(tokens)


def _sample(logits: NDArray[np.float32], best: int, row: RowParams, position: int, context: Context) -> int:
    """The token at `position`; `best` is the lowest id of the largest of logits [V]. Logits that are not finite do no harm."""
    final = edited(logits, row, position - row.prompt_tokens, context)
    if final is not logits:
        best = int(final.argmax())
    if row.sampling.temperature == 0 or not np.isfinite(final[best]):
        return best
    return _gumbel_max(final, best, row.sampling, (row.seed, row.choice, position))


def _gumbel_max(logits: NDArray[np.float32], best: int, asked: Sampling, key: tuple[int, int, int]) -> int:
    """Samples from softmax(logits [V] / temperature) after the filters; `best` is the lowest id of the largest logit, which is finite.

    key  seed, choice and position, which the noise is a function of
    """
    ids, highest = np.arange(len(logits)), float(logits[best])
    if 0 < asked.top_k < len(logits):  # which are the k largest does not depend on temperature or min-p
        ids = top_k(logits, asked.top_k)
        logits = logits[ids]
    with np.errstate(over="ignore"):
        scaled = (logits.astype(np.float64) - highest) / asked.temperature
    if asked.min_p > 0:
        kept = min_p(scaled, asked.min_p)
        ids, scaled = ids[kept], scaled[kept]
    if asked.top_p < 1:
        kept = top_p(scaled, asked.top_p)
        ids, scaled = ids[kept], scaled[kept]
    if len(ids) > _FEW:
        reached = gumbel(*key, np.array([best]))[0]
        able = np.flatnonzero(scaled >= reached - GUMBEL_MAX - _ROUNDING)
        ids, scaled = ids[able], scaled[able]
    return int(ids[np.argmax(scaled + gumbel(*key, ids))])
