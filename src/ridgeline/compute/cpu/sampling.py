"""Sampling in native code: `decoding.sampler.sample_rows` for rows of one vocabulary, with the same answers.

Owns how parameters become records of the extension, field by field as its table names them (csrc/sample/record.h); what they mean is said
in `compute/decoding`. Where the largest logit of a row is not finite, its log-probabilities are the reference's.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import isnan
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.cpu import ext
from ridgeline.compute.decoding.edits import History, Mask
from ridgeline.compute.decoding.sampler import Sampled, rank, token_logprobs
from ridgeline.compute.runner import Places
from ridgeline.core.params import RowParams, Sampling
from ridgeline.core.plan import TokenLogprobs

Floats = NDArray[np.float32]
Records = NDArray[np.void]

NUMBERS: Final[Mapping[str, Any]] = MappingProxyType({"int64_t": np.int64, "uint64_t": np.uint64, "double": np.float64})
"""Types of fields that are numbers; the others are lists, an address and a count."""
LISTS: Final[Mapping[str, Callable[[Any], np.ndarray]]] = MappingProxyType({
    "Ids": lambda ids: np.array(ids, np.int32),
    "Biases": lambda pairs: np.array(list(pairs), [("id", np.int64), ("bias", np.float64)]),
    "Words": lambda words: np.array([number for word in words for number in (len(word), *word)], np.int32),
})  # fmt: skip
"""Types of fields that are lists, and the array of each value."""
SCORED: Final = RowParams(seed=0, choice=0, prompt_tokens=0, sampling=Sampling(temperature=0.0, logprobs=0))
"""Nothing but log-probabilities: which token the row would sample is not looked at."""


class Prepared(NamedTuple):
    """The part of a row that stays the same from step to step: parameters, the record made of them, arrays that the record points to."""

    params: RowParams
    record: bytes
    arrays: tuple[np.ndarray, ...]


class Answer(NamedTuple):
    """The arrays that a step's answers are written to, an entry for each sampling position; `returned` for each row."""

    ids: NDArray[np.int32]
    log_sum_exp: NDArray[np.float64]
    best: NDArray[np.int32]
    returned: NDArray[np.int32]


class Sampler:
    """Samples rows of `vocab` logits; its threads are those of `team` (an `ext.native().Team`). Used by one thread at a time."""

    def __init__(self, vocab: int, team: Any, *, level: str | None = None) -> None:
        self._vocab = vocab
        self._native = ext.native().Sampler(ext.level_number(level), team, vocab)
        self._prepared: dict[int, Prepared] = {}

    def sample_rows(
        self,
        logits: Floats,
        params: Sequence[RowParams],
        drafts: Sequence[Sequence[int]],
        positions: Sequence[int],
        histories: Sequence[History | None],
        finite: NDArray[np.bool_] | None = None,
        maxima: Floats | None = None,
        masks: Sequence[Mask | None] | None = None,
        places: Places | None = None,
    ) -> Sampled:
        """Walks the rows that sample: see `decoding.sampler.sample_rows`.

        maxima: the largest of each SAMPLE_BLOCK logits of the positions, as `NativeRunner.run` gives them.
        places: rows of these that ask, draw first and make a mask where their grammar does not take the token.

        Raises IndexError where a row names an id that the vocabulary has not.
        """
        single = len(logits) == len(params)
        counts = None if single else [len(drafted) + 1 for drafted in drafts]
        samples = len(params) if counts is None else sum(counts)
        if logits.dtype != np.float32 or logits.shape != (samples, self._vocab) or logits.strides[1] != logits.itemsize:
            raise ValueError(f"expected {samples} rows of {self._vocab} float32 logits, got {logits.dtype} {logits.shape}")
        if not params:
            return Sampled([], [])
        rows = self._records(params, positions, histories, counts)
        for index, mask in enumerate(masks or ()):
            if mask is not None:
                rows[index]["masks"] = mask.ctypes.data, mask.shape[1]
        if places is not None:
            asks = places.records[:, 3]
            rows["follower"] = asks * (places.records.ctypes.data + places.records.strides[0] * np.arange(len(rows)))
            rows["calls"] = asks * places.calls.ctypes.data
        following = None if single else np.array([token for drafted in drafts for token in (*drafted, -1)], np.int32)
        answer = self._answer(rows, logits, finite, following, maxima)
        ids = _ids(answer, counts if finite is None else counts or [1] * samples)
        if answer.returned.min() < 0:
            raise IndexError(f"row {int(answer.returned.argmin())} names an id outside the vocabulary of {self._vocab}")
        for tokens, history in zip(ids, histories, strict=True):
            if history is not None:
                for token in tokens:
                    history.push(token)
        if rows["logprobs"].max() < 0:
            return Sampled(ids, [None] * len(ids))
        return Sampled(ids, _logprobs(params, logits, ids, counts, answer))

    def score(self, logits: Floats, tokens: Sequence[int], counts: Sequence[int]) -> list[TokenLogprobs]:
        """Log-probabilities of given tokens and of the best ids, so many as `counts` say: to the bit those of sampled ones."""
        rows: Records = np.frombuffer(bytearray(prepare(SCORED).record * len(tokens)), record())
        rows["first"], rows["count"], rows["logprobs"] = np.arange(len(tokens)), 1, counts
        answer = self._answer(rows, logits)
        return [_scored(*each) for each in zip(counts, tokens, logits, answer.log_sum_exp.tolist(), answer.best, strict=True)]

    def _answer(
        self,
        rows: Records,
        logits: Floats,
        finite: NDArray[np.bool_] | None = None,
        following: NDArray[np.int32] | None = None,
        maxima: Floats | None = None,
    ) -> Answer:
        """Runs records; `following` is the draft behind each position, -1 at a row's end."""
        most = min(max(0, int(rows["logprobs"].max())), self._vocab)
        samples = len(logits)
        best = np.empty((samples, most), np.int32)
        answer = Answer(np.empty(samples, np.int32), np.empty((samples, 2)), best, np.empty(len(rows), np.int32))
        blocks = -(-self._vocab // ext.native().SAMPLE_BLOCK)
        self._native.run(
            rows.ctypes.data,
            len(rows),
            logits.ctypes.data,
            logits.strides[0] // logits.itemsize,
            0 if maxima is None else ext.address(maxima, np.float32, (samples, blocks)),
            blocks if maxima is None else maxima.strides[0] // maxima.itemsize,
            0 if finite is None else ext.address(finite, np.bool_, (samples,)),
            0 if following is None else following.ctypes.data,
            answer.ids.ctypes.data,
            answer.log_sum_exp.ctypes.data,
            best.ctypes.data,
            most,
            answer.returned.ctypes.data,
        )
        return answer

    def _records(
        self, params: Sequence[RowParams], positions: Sequence[int], histories: Sequence[History | None], counts: Sequence[int] | None
    ) -> Records:
        """Records of a step; they point to arrays of `_prepared` and of the histories."""
        known = self._prepared
        self._prepared = {id(row): known.get(id(row)) or prepare(row) for row in params}
        rows: Records = np.frombuffer(bytearray().join([self._prepared[id(row)].record for row in params]), record())
        rows["position"] = positions
        if counts is None:
            rows["first"], rows["count"] = np.arange(len(rows)), 1
        else:
            if max(counts) > ext.native().MOST_SAMPLES:
                raise ValueError(f"a row samples {max(counts)} positions; {ext.native().MOST_SAMPLES} at most")
            rows["count"] = counts
            rows["first"] = np.cumsum(counts) - counts
        for index, history in enumerate(histories):
            if history is not None:
                row = rows[index]
                for name in ("ids", "seen", "times"):
                    row[name] = getattr(history, name).buffer_info()
        return rows


@cache
def record() -> np.dtype[np.void]:
    """A record, `SampleRow`: each field as the extension's table has it."""
    size, fields = ext.native().SAMPLE_ROW
    formats = [NUMBERS.get(kind, (np.uint64, 2)) for _, kind, _ in fields]
    names, offsets = [name for name, _, _ in fields], [offset for _, _, offset in fields]
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size})


def prepare(row: RowParams) -> Prepared:
    """The record of a row's parameters: every field that is an attribute of theirs, by its name."""
    made = np.zeros((), record())
    arrays: list[np.ndarray] = []
    for name, kind, _ in ext.native().SAMPLE_ROW[1]:
        value = getattr(row.sampling, name, getattr(row, name, None))
        if kind in NUMBERS:
            made[name] = -1 if value is None and kind == "int64_t" else value or 0
        elif value is not None:
            array = LISTS[kind](value)
            arrays.append(array)
            made[name] = array.ctypes.data, len(array)
    return Prepared(row, made.tobytes(), tuple(arrays))


def _ids(answer: Answer, counts: Sequence[int] | None) -> list[tuple[int, ...]]:
    """The ids that each row samples; counts None: one each."""
    tokens = answer.ids.tolist()
    if counts is None:
        return [*zip(tokens)]
    ids, first = [], 0
    for count, returned in zip(counts, answer.returned.tolist(), strict=True):
        ids.append(tuple(tokens[first : first + returned]))
        first += count
    return ids


def _logprobs(
    params: Sequence[RowParams], logits: Floats, ids: Sequence[tuple[int, ...]], counts: Sequence[int] | None, answer: Answer
) -> list[tuple[TokenLogprobs, ...] | None]:
    """Log-probabilities of each row's ids; None for rows that do not ask."""
    found: list[tuple[TokenLogprobs, ...] | None] = []
    numbers, at = list(zip(logits, answer.log_sum_exp.tolist(), answer.best, strict=True)), 0
    for row, tokens, samples in zip(params, ids, counts or [1] * len(params), strict=True):
        count = row.sampling.logprobs
        found.append(None if count is None else tuple([_scored(count, token, *numbers[at + i]) for i, token in enumerate(tokens)]))
        at += samples
    return found


def _scored(count: int, token: int, logits: Floats, sums: tuple[float, float], best: NDArray[np.int32]) -> TokenLogprobs:
    """Log-probabilities of a token and of the `count` best ids, from the largest logit and the log of the sum of weights beside it."""
    highest, total = sums
    if isnan(total):
        return token_logprobs(logits, token, count)
    ids = best[:count]
    values = logits[ids].astype(np.float64) - highest - total
    order = np.lexsort((ids, -values))
    top = tuple(zip(ids[order].tolist(), values[order].tolist(), strict=True))
    return TokenLogprobs(float(logits[token]) - highest - total, top, rank(logits, token, top))
