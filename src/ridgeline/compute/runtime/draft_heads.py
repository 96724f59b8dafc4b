"""Heads that draft from hidden states of the target: which of these are kept from step to step, and the passes over them.

A step keeps the hidden states of rows that sample, up to the last id that they have sampled: the next step's drafts are made of these and
of the ids behind them, in front of its own list. What a prefix hit brings, and what was computed before a row's last chunk, has none: the
heads' context begins behind it, at position 0 of their own cache. Rotations tell distances alone, so that this is a text that begins there;
hidden states know what came before.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.backend import Work
from ridgeline.compute.draft_model import Drafting, DraftModel, TokenMap, newest
from ridgeline.compute.graph import StepInputs
from ridgeline.compute.load.heads import NEXT
from ridgeline.compute.ops.definition import Floats
from ridgeline.compute.runner import Runner
from ridgeline.core.plan import DraftSpan, KVShape


class HiddenStates:
    """The last hidden states of rows, `window` at most: fp32 [rows, window, width] by position."""

    def __init__(self, rows: int, window: int, width: int) -> None:
        self._kept = np.empty((rows, window, width), np.float32)
        self._ends = np.zeros(rows, np.int64)
        self._window = window

    def put(self, row: int, start: int, hidden: Floats) -> None:
        """Those of positions from `start` on; the row has those in front of it, or none."""
        end = start + len(hidden)
        at = np.arange(max(start, end - self._window), end)
        self._kept[row, at % self._window] = hidden[at - start]
        self._ends[row] = end

    def newest(self, row: int, count: int) -> Floats:
        """The last `count`: [count, width]."""
        end = int(self._ends[row])
        return self._kept[row, np.arange(end - count, end) % self._window]


class HeadDrafts(DraftModel):
    """Drafts as `DraftModel` does, by heads.

    lists  runner of the first draft, and those of the further ones; the last stands for all behind it
    taps   of the target in front of layers; (): behind its last norm
    width  of what is kept of a token
    """

    def __init__(
        self,
        lists: Sequence[Runner],
        kv: Any,
        shape: KVShape,
        sample: Any,
        *,
        rows: int,
        blocks: int,
        vocab: int,
        threads: int,
        window: int,
        width: int,
        taps: Sequence[str] = (),
    ) -> None:
        super().__init__(lists[0], kv, shape, sample, rows=rows, blocks=blocks, vocab=vocab, threads=threads)
        self._lists = lists
        self._hidden = HiddenStates(rows, window, width)
        self._window, self._taps = window, tuple(taps)
        self._carried = (NEXT,) if NEXT in lists[-1].oplist.taps else ()

    def map_ids(self, logits: NDArray[np.int32]) -> None:
        """The heads draft some of the target's ids alone, by numbers of their own: int32 [target's ids], -1 for those that they do not."""
        self.use_map(TokenMap(np.arange(len(logits), dtype=np.int32), logits))

    def taps(self, work: Work) -> tuple[str, ...]:
        """Hidden states of all tokens where a chunk ends in a sample and heads read more than the last."""
        if self._taps or not work.rows.sampling:
            return self._taps
        return ("hidden",) if self._window > 1 and self._chunks(work) else ("selected",)

    def keep(self, work: Work, values: Mapping[str, NDArray[Any]], ids: Sequence[tuple[int, ...]]) -> None:
        """Keeps hidden states of the positions that stand."""
        plan, inputs = work.plan, work.inputs
        taps = self.taps(work)
        if not taps or not ids:
            return
        hidden = np.concatenate([values[name] for name in taps], axis=1) if len(taps) > 1 else values[taps[0]]
        first = 0
        for index, own, drafts in zip(work.rows.sampling, ids, work.drafts, strict=True):
            end, samples = int(inputs.cu_q[index + 1]), 1 + len(drafts)
            count = len(own) if taps == ("selected",) else end - int(inputs.cu_q[index]) - samples + len(own)
            start = first if taps == ("selected",) else int(inputs.cu_q[index])
            stands = plan.start[index] + plan.count[index] - samples + len(own)
            self._hidden.put(plan.row[index], stands - count, hidden[start : start + count])
            first += samples

    def close(self) -> None:
        """Drops weights and cache."""
        for runner in self._lists:
            runner.close()

    @staticmethod
    def _chunks(work: Work) -> bool:
        return any(work.plan.count[index] > 1 + len(drafts) for index, drafts in zip(work.rows.sampling, work.drafts, strict=True))

    def _begin(self, spans: Sequence[DraftSpan], drafting: Sequence[Drafting]) -> dict[str, NDArray[Any]]:
        rows = [(span.row, span.start, span.ids) for span in spans]
        features = np.concatenate([self._hidden.newest(span.row, len(span.ids)) for span in spans])
        ends = np.cumsum([len(span.ids) for span in spans]) - 1
        for each, end in zip(drafting, ends.tolist(), strict=True):
            each.hidden = features[end]
        return self._pass(0, rows, drafting, features, ends)

    def _go_on(self, drafting: Sequence[Drafting]) -> dict[str, NDArray[Any]]:
        features = np.stack([each.hidden for each in drafting])
        return self._pass(len(drafting[0].ids), newest(drafting), drafting, features, np.arange(len(drafting)))

    def _pass(
        self,
        number: int,
        rows: Sequence[tuple[int, int, Sequence[int]]],
        drafting: Sequence[Drafting],
        features: Floats,
        ends: NDArray[np.int64],
    ) -> dict[str, NDArray[Any]]:
        """One pass of list `number` over these features; `ends`: the last of each row's, which the next draft follows."""
        runner = self._lists[min(number, len(self._lists) - 1)]
        values = self._run(runner, rows, [1] * len(rows), drafting, taps=self._carried, given={"features": features})
        for each, end in zip(drafting, ends.tolist(), strict=True):
            if self._carried:
                each.hidden = values[NEXT][end].copy()
        return values

    def _timed_pass(self, inputs: StepInputs) -> None:
        last = self._lists[-1]
        features = np.zeros((len(inputs.ids), last.oplist.values["features"].width), np.float32)
        last.run(inputs, self._kv, given={"features": features})
