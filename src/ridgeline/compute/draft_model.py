"""The draft model: its list runs in front of the target's, over blocks of its own, and its ids stand in the step that verifies them.

It draws with the row's own parameters, history, grammar and noise, over logits in the order of the target's ids: where both have the same
distribution they draw the same id (Daliri, Musco and Suresh 2024, "Coupling without Communication and Drafter-Invariant Speculative
Decoding"). Nothing that it does reaches an answer: the target's sampler takes a draft only where it has sampled that id itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter, process_time
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.backend import RowState, Work
from ridgeline.compute.decoding.grammar import GrammarError, mask_words
from ridgeline.compute.decoding.sampler import Sampled
from ridgeline.compute.dummy import dummy_step, last_positions
from ridgeline.compute.graph import StepInputs
from ridgeline.compute.runner import Runner
from ridgeline.core.plan import DRAFT, DraftSpan, KVShape

TIMED_ROWS: Final = (1, 2, 4, 8, 16)
"""Rows of the passes that are timed at the start."""
ROUNDS: Final = 3


class TokenMap(NamedTuple):
    """Ids of the draft model by those of the target, int32 [target's ids]; the counterpart has the same text.

    inputs  what stands for an id in the draft model's context: any id where it has no counterpart
    logits  the counterpart, whose logit it gets; -1: none, which is never drafted
    """

    inputs: NDArray[np.int32]
    logits: NDArray[np.int32]


@dataclass(slots=True)
class Drafting:
    """A row that drafts.

    number   its index among the rows that sample
    end      the position behind its known ids; place: the next one in the cache of what drafts
    ids      drafted so far, of `count`; history: with these
    keep     how many of the largest logits its draws need (`Work.keep`)
    hidden   fp32 [width]: hidden state that heads draft the next id from
    """

    number: int
    row: int
    end: int
    place: int
    count: int
    ids: list[int]
    history: Any
    keep: int
    hidden: Any = None


class DraftModel:
    """Drafts ids for rows of a step.

    runner   of the draft model; used by the thread that computes steps alone
    kv       its cache, of `shape`
    sample   as `decoding.sampler.sample_rows`
    rows     permanent rows; blocks: most per row and group
    vocab    ids that may be sampled
    threads  that a pass is computed with
    """

    def __init__(self, runner: Runner, kv: Any, shape: KVShape, sample: Any, *, rows: int, blocks: int, vocab: int, threads: int) -> None:
        self._runner, self._kv, self._shape, self._sample = runner, kv, shape, sample
        self._tables = tuple(np.zeros((rows, blocks), np.int32) for _ in shape.groups)
        self._vocab, self._threads = vocab, threads
        self._map: TokenMap | None = None
        self.seconds = 0.0
        """Seconds of the newest step."""

    def use_map(self, tokens: TokenMap) -> None:
        """The target's ids differ from the draft model's. Only before the first step."""
        self._map = tokens

    def draft(self, work: Work, state: RowState) -> tuple[tuple[int, ...], ...]:
        """Computes the spans of a step's plan. Writes the drafts to `work`, and returns those of each span."""
        began = perf_counter()
        spans = work.plan.spans
        self._take_blocks(spans)
        numbers = {row: number for number, row in enumerate(work.rows.sampling_ids.tolist())}
        firsts = np.cumsum([0, *(1 + len(ids) for ids in work.drafts)]).tolist()
        drafting = [
            self._drafting(work, span, numbers[span.row], state, work.keep[firsts[numbers[span.row]]]) for span in spans if span.drafts
        ]
        self._fill(work, state, drafting)
        tokens, ends = work.inputs.ids, work.inputs.cu_q[1:].tolist()
        by_row = dict(zip(work.rows.row_ids.tolist(), ends, strict=True))
        found = []
        for span in spans:
            ids = work.drafts[numbers[span.row]] if span.drafts else ()
            found.append(tuple(ids))
            tokens[by_row[span.row] - len(ids) : by_row[span.row]] = ids
        self.seconds = perf_counter() - began
        return tuple(found)

    def _take_blocks(self, spans: Sequence[DraftSpan]) -> None:
        """Appends the blocks of spans to the tables of their rows."""
        for span in spans:
            for group, first, blocks in span.blocks:
                self._tables[group][span.row, first : first + len(blocks)] = blocks

    def _fill(self, work: Work, state: RowState, drafting: Sequence[Drafting]) -> None:
        """Computes the spans, and writes the drafts of all rows to `work`: an id of each row a pass."""
        values = self._begin(work.plan.spans, drafting)
        while drafting:
            self._draw(work, state, drafting, values)
            drafting = [each for each in drafting if len(each.ids) < each.count]
            if drafting:
                values = self._go_on(drafting)

    def pass_seconds(self, rows: int) -> tuple[tuple[int, float], ...]:
        """(rows, seconds) of passes over up to so many rows: the quickest of some rounds, in CPU time over threads."""
        found = []
        for count in sorted({min(rows, each) for each in TIMED_ROWS}):
            inputs = dummy_step([1] * count, groups=len(self._shape.groups), block_tokens=self._shape.block_tokens)
            best = float("inf")
            for _ in range(ROUNDS):
                began = process_time()
                self._timed_pass(inputs)
                best = min(best, (process_time() - began) / self._threads)
            found.append((count, best))
        return tuple(found)

    def close(self) -> None:
        """Drops weights and cache."""
        self._runner.close()

    def _timed_pass(self, inputs: StepInputs) -> None:
        self._runner.run(inputs, self._kv)

    def taps(self, work: Work) -> tuple[str, ...]:
        """Taps that a step of the target returns for drafts of later ones: none."""
        return ()

    def keep(self, work: Work, values: Mapping[str, NDArray[Any]], ids: Sequence[tuple[int, ...]]) -> None:
        """Takes these behind the step, with the ids that rows have sampled."""

    def _begin(self, spans: Sequence[DraftSpan], drafting: Sequence[Drafting]) -> dict[str, NDArray[Any]]:
        """The pass over what the spans name. Returns the logits of rows that draft."""
        rows = [(span.row, span.start, span.ids) for span in spans]
        return self._run(self._runner, rows, [int(span.drafts > 0) for span in spans], drafting)

    def _go_on(self, drafting: Sequence[Drafting]) -> dict[str, NDArray[Any]]:
        """The pass over the newest draft of each row."""
        return self._run(self._runner, newest(drafting), [1] * len(drafting), drafting)

    def _drafting(self, work: Work, span: DraftSpan, number: int, state: RowState, keep: int) -> Drafting:
        history, place = state.histories[span.row], span.start + len(span.ids)
        is_whole = self._map is not None or state.grammars[span.row] is not None
        copied, end = None if history is None else history.copy(), int(work.inputs.kv_len[work.rows.sampling[number]]) - span.drafts
        return Drafting(number, span.row, end, place, span.drafts, [], copied, 0 if is_whole else keep)

    def _run(
        self,
        runner: Runner,
        rows: Sequence[tuple[int, int, Sequence[int]]],
        samples: Sequence[int],
        drafting: Sequence[Drafting],
        **others: Any,
    ) -> dict[str, NDArray[Any]]:
        """One pass over (row, first position, the target's ids), of which those in `drafting` sample. others: as `Runner.run` has them."""
        keep = np.array([each.keep for each in drafting], np.int32)
        return runner.run(self._inputs(rows, samples), self._kv, keep=keep, **others)

    def _inputs(self, rows: Sequence[tuple[int, int, Sequence[int]]], samples: Sequence[int]) -> StepInputs:
        """Inputs of a pass over (row, first position, the target's ids); samples: 1 where a row's last position samples, else 0."""
        size = self._shape.block_tokens
        counts = np.array([len(ids) for *_, ids in rows], np.int32)
        starts, row_ids = np.array([start for _, start, _ in rows], np.int32), np.array([row for row, *_ in rows])
        cu_q = np.zeros(len(rows) + 1, np.int32)
        counts.cumsum(out=cu_q[1:])
        row = np.arange(len(rows), dtype=np.int32).repeat(counts)
        at = np.arange(cu_q[-1], dtype=np.int32) + (starts - cu_q[:-1])[row]
        ids = np.array([token for *_, tokens in rows for token in tokens], np.int32)
        width = -(-int((starts + counts).max()) // size)
        tables = tuple(table[row_ids, :width] for table in self._tables)
        return StepInputs(
            ids=ids if self._map is None else self._map.inputs[ids],
            positions=at[None],
            row_of_token=row,
            cu_q=cu_q,
            kv_len=starts + counts,
            tables=tables,
            slots=tuple(table[row, at // size] * np.int64(size) + at % size for table in tables),
            select=last_positions(cu_q, np.array(samples, np.int32)),
        )

    def _draw(self, work: Work, state: RowState, drafting: Sequence[Drafting], values: dict[str, NDArray[Any]]) -> None:
        """Draws the next id of each row from the selected logits, which come in their order."""
        if "best" in values:
            self._note(work, drafting, [(token,) for token in values["best"].tolist()])
            return
        logits, maxima = values["logits"], values.get("maxima")
        if self._map is not None:
            logits = np.ascontiguousarray(np.where(self._map.logits < 0, np.float32(-np.inf), logits[:, self._map.logits]))
        if self._map is not None or logits.shape[1] != self._vocab:
            maxima = None
        params = [work.rows.sampling_params[each.number] for each in drafting]
        masks = [_mask(state, each, mask_words(self._vocab)) for each in drafting]
        positions, histories = [each.end + len(each.ids) for each in drafting], [each.history for each in drafting]
        sampled: Sampled = self._sample(logits[:, : self._vocab], params, [()] * len(drafting), positions, histories, None, maxima, masks)
        self._note(work, drafting, sampled.ids)

    def _note(self, work: Work, drafting: Sequence[Drafting], drawn: Sequence[tuple[int, ...]]) -> None:
        """Appends an id to the drafts of each row. One beyond the target's vocabulary could never be right."""
        for each, (token,) in zip(drafting, drawn, strict=True):
            token = min(token, self._vocab - 1)
            ids = work.drafts[each.number]
            assert isinstance(ids, list) and ids[len(each.ids)] == DRAFT, "a row drafts that does not verify"
            ids[len(each.ids)] = token
            each.ids.append(token)


def newest(drafting: Sequence[Drafting]) -> list[tuple[int, int, Sequence[int]]]:
    """(row, position in the cache, the newest draft) of each."""
    return [(each.row, each.place + len(each.ids) - 1, each.ids[-1:]) for each in drafting]


def _mask(state: RowState, drafting: Drafting, words: int) -> NDArray[np.uint32] | None:
    """Mask of what the row's grammar takes behind the ids that are drafted; None: anything, also where it takes no such draft."""
    grammar = state.grammars[drafting.row]
    if grammar is None:
        return None
    found = np.zeros((len(drafting.ids) + 1, words), np.uint32)
    try:
        grammar.peek(drafting.ids, found)
    except GrammarError:
        return None  # the step itself will say so
    return found[-1:] if found[-1].any() else None
