"""Sampling in native code: `decoding.sampler.sample` for rows of one vocabulary, with the same answers.

Owns how parameters become records of the extension (`SampleRow`); what they mean is said in `compute/decoding`. Where the
largest logit of a row is not finite, its log-probabilities are the reference's.
"""

from collections.abc import Sequence
from math import inf, isnan, log
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.cpu import ext
from ridgeline.compute.decoding.edits import EDITS, History, completing
from ridgeline.compute.decoding.sampler import Sampled, token_logprobs
from ridgeline.core.params import RowParams
from ridgeline.core.plan import TokenLogprobs

Floats = NDArray[np.float32]
Records = NDArray[np.void]

RECORD: Final = np.dtype(
    [
        ("logits", np.uint64), ("maxima", np.uint64), ("seed", np.uint64), ("choice", np.uint64), ("position", np.uint64),
        ("temperature", np.float64), ("top_p", np.float64), ("log_min_p", np.float64), ("top_k", np.int64),
        ("allowed", np.uint64),
        ("completing", np.uint64), ("completing_count", np.uint64),
        ("stops", np.uint64), ("stops_count", np.uint64),
        ("biased", np.uint64), ("bias", np.uint64), ("bias_count", np.uint64),
        ("seen", np.uint64), ("times", np.uint64), ("seen_count", np.uint64),
        ("repetition", np.float64), ("frequency", np.float64), ("presence", np.float64),
        ("best_count", np.int64), ("best_ids", np.uint64),
        ("token", np.int64), ("log_sum_exp", np.float64),
    ]
)  # fmt: skip
"""`SampleRow`, field for field; pointers are addresses, 0 for none."""


class Prepared(NamedTuple):
    """What stays the same from step to step of a row: its parameters, the record made of them, and the arrays that the record points to."""

    params: RowParams
    record: bytes
    arrays: tuple[np.ndarray, ...]
    changes: bool
    """Whether more than the position changes."""


class Sampler:
    """Samples rows of `vocab` logits; its threads are those of `team` (an `ext.native().Team`). Used by one thread at a time."""

    def __init__(self, vocab: int, team: Any, *, level: str | None = None) -> None:
        native = ext.native()
        assert RECORD.itemsize == native.SAMPLE_ROW_BYTES
        self._vocab = vocab
        self._native = native.Sampler(ext.level_number(level), team, vocab)
        self._prepared: dict[int, Prepared] = {}

    def sample(
        self,
        logits: Floats,
        params: Sequence[RowParams],
        positions: Sequence[int],
        histories: Sequence[History | None],
        maxima: Floats | None = None,
    ) -> tuple[list[int], list[TokenLogprobs | None]]:
        """One token for each row of logits fp32 [S, vocab], and its log-probabilities where it asks: see `decoding.sampler.sample`.

        maxima: the largest of each SAMPLE_BLOCK logits of the rows, as `NativeRunner.run` gives them.

        Raises IndexError where a row names an id that the vocabulary has not.
        """
        if logits.dtype != np.float32 or logits.shape != (len(params), self._vocab) or logits.strides[1] != logits.itemsize:
            raise ValueError(f"expected rows of {self._vocab} float32 logits for {len(params)} rows, got {logits.dtype} {logits.shape}")
        if not params:
            return [], []
        rows, alive = self._records(params, positions, histories)
        if maxima is not None:
            blocks = -(-self._vocab // ext.native().SAMPLE_BLOCK)
            rows["maxima"] = ext.address(maxima, np.float32, (len(params), blocks)) + maxima.strides[0] * np.arange(len(rows))
        best = self._answer(rows, logits)
        del alive
        tokens = rows["token"].tolist()
        if min(tokens) < 0:
            raise IndexError(f"row {tokens.index(-1)} names an id outside the vocabulary of {self._vocab}")
        sums = rows["log_sum_exp"].tolist()
        counts = [row.sampling.logprobs for row in params]
        return tokens, [_logprobs(*each) for each in zip(counts, logits, tokens, sums, best, strict=True)]

    def sample_rows(
        self,
        logits: Floats,
        params: Sequence[RowParams],
        drafts: Sequence[Sequence[int]],
        positions: Sequence[int],
        histories: Sequence[History | None],
        finite: NDArray[np.bool_] | None = None,
        maxima: Floats | None = None,
    ) -> Sampled:
        """See `decoding.sampler.sample_rows`."""
        firsts = np.cumsum([0, *(len(drafted) + 1 for drafted in drafts[:-1])])
        ids: list[list[int]] = [[] for _ in params]
        logprobs: list[list[TokenLogprobs]] = [[] for _ in params]
        rows, offset = list(range(len(params))), 0
        while rows := [row for row in rows if finite is None or finite[firsts[row] + offset]]:
            at = firsts[rows] + offset
            found = self.sample(
                logits[at],
                [params[row] for row in rows],
                [positions[row] + offset for row in rows],
                [histories[row] for row in rows],
                None if maxima is None else maxima[at],
            )
            for row, token, logprob in zip(rows, *found, strict=True):
                ids[row].append(token)
                if logprob is not None:
                    logprobs[row].append(logprob)
                if (history := histories[row]) is not None:
                    history.push(token)
            rows = [row for row in rows if offset < len(drafts[row]) and ids[row][-1] == drafts[row][offset]]
            offset += 1
        asked = [row.sampling.logprobs is not None for row in params]
        return Sampled([*map(tuple, ids)], [tuple(each) if wanted else None for each, wanted in zip(logprobs, asked, strict=True)])

    def score(self, logits: Floats, tokens: Sequence[int], counts: Sequence[int]) -> list[TokenLogprobs]:
        """Log-probabilities of given tokens and of the best ids, so many as `counts` say: to the bit those of `sample`."""
        rows: Records = np.zeros(len(tokens), RECORD)
        rows["top_p"], rows["log_min_p"], rows["repetition"], rows["best_count"] = 1.0, -inf, 1.0, counts
        best = self._answer(rows, logits)
        found = [_logprobs(*each) for each in zip(counts, logits, tokens, rows["log_sum_exp"].tolist(), best, strict=True)]
        return [each for each in found if each is not None]

    def _answer(self, rows: Records, logits: Floats) -> NDArray[np.int32]:
        """Answers records, whose logits are rows of `logits`; the ids that are best, row for row."""
        rows["logits"] = logits.ctypes.data + logits.strides[0] * np.arange(len(rows))
        best = np.empty((len(rows), min(max(0, int(rows["best_count"].max())), self._vocab)), np.int32)
        rows["best_ids"] = best.ctypes.data + best.strides[0] * np.arange(len(rows))
        self._native.run(rows.ctypes.data, len(rows))
        return best

    def _records(
        self, params: Sequence[RowParams], positions: Sequence[int], histories: Sequence[History | None]
    ) -> tuple[Records, list[np.ndarray]]:
        """Records of a step but for where logits are and best ids go, and arrays to be kept until they are answered."""
        known = self._prepared
        self._prepared = {id(row): known.get(id(row)) or prepare(row, self._vocab) for row in params}
        prepared = [self._prepared[id(row)] for row in params]
        rows: Records = np.frombuffer(bytearray().join(each.record for each in prepared), RECORD)
        rows["position"] = positions
        alive: list[np.ndarray] = []
        for index, (each, position, history) in enumerate(zip(prepared, positions, histories, strict=True)):
            if each.changes:
                alive += _change(rows[index], each.params, position, history)
        return rows, alive


def prepare(row: RowParams, vocab: int) -> Prepared:
    """The record of a row's parameters; what they ask for only at some outputs is in it too."""
    asked = row.sampling
    record = np.zeros((), RECORD)
    record["seed"], record["choice"] = row.seed, row.choice
    record["temperature"], record["top_p"], record["top_k"] = asked.temperature, asked.top_p, asked.top_k
    record["log_min_p"] = log(asked.min_p) if asked.min_p > 0 else -inf
    record["repetition"] = asked.repetition_penalty
    record["frequency"], record["presence"] = asked.frequency_penalty, asked.presence_penalty
    record["best_count"] = -1 if asked.logprobs is None else asked.logprobs
    arrays: list[np.ndarray] = []
    if asked.allowed_ids is not None:
        arrays += _point(record, mask(asked.allowed_ids, vocab), "allowed")
    if row.banned_until:
        arrays += _point(record, np.array(row.banned_until, np.int32), "stops", "stops_count")
    if asked.logit_bias:
        ids, values = zip(*asked.logit_bias, strict=True)
        arrays += _point(record, np.array(ids, np.int32), "biased", "bias_count")
        arrays += _point(record, np.array(values, np.float64), "bias", "bias_count")
    changes = bool(row.banned_until) or any(edit.looks_back and edit.asked(row, 0) for edit in EDITS)
    return Prepared(row, record.tobytes(), tuple(arrays), changes)


def _change(record: Any, row: RowParams, position: int, history: History | None) -> list[np.ndarray]:
    """Writes into a row's record what differs from step to step; what is returned must live until it is answered."""
    alive: list[np.ndarray] = []
    if position - row.prompt_tokens >= row.min_tokens:
        record["stops_count"] = 0
    if history is not None:
        banned = np.array(completing(row.sampling.bad_words, history.ids), np.int32)
        alive += _point(record, banned, "completing", "completing_count")
        record["seen"], record["seen_count"] = history.seen.buffer_info()
        record["times"], _ = history.times.buffer_info()
    return alive


def mask(ids: Sequence[int], vocab: int) -> NDArray[np.uint32]:
    """A bit for each id of the vocabulary, 32 in a word, lowest first: set where `ids` has it."""
    bits = np.zeros(-(-vocab // 32) * 32, np.uint8)
    bits[:vocab][list(ids)] = 1
    return np.packbits(bits, bitorder="little").view("<u4")


def argmax(logits: Floats, slice_size: int, *, level: str | None = None) -> int:
    """What `logits [V].argmax()` gives, from slices of the vocabulary."""
    return int(ext.native().argmax(ext.level_number(level), ext.address(logits, np.float32, (len(logits),)), len(logits), slice_size))


def _point(record: Any, array: np.ndarray, field: str, count: str | None = None) -> list[np.ndarray]:
    """Lets a field of a record point to an array, which must live as long."""
    record[field] = array.ctypes.data
    if count is not None:
        record[count] = len(array)
    return [array]


def _logprobs(count: int | None, logits: Floats, token: int, total: float, best: NDArray[np.int32]) -> TokenLogprobs | None:
    if count is None:
        return None
    if isnan(total):
        return token_logprobs(logits, token, count)
    ids = best[:count]
    values = logits[ids].astype(np.float64) - total
    order = np.lexsort((ids, -values))
    return TokenLogprobs(float(logits[token]) - total, tuple(zip(ids[order].tolist(), values[order].tolist(), strict=True)))
