"""Drives an executor by hand, one step after the other, with drafts: rows have blocks of their own and never lose them."""

from array import array
from collections.abc import Mapping, Sequence

from ridgeline.core.params import RowParams
from ridgeline.core.plan import NewRow, Plan, Result, TokenLogprobs
from ridgeline.engine.executor import Executor


class Driven:
    """A sequence in a row: all its ids, how many of them have keys and values, and what it said of its outputs."""

    def __init__(self, row: int, params: RowParams, prompt: Sequence[int]) -> None:
        self.row, self.params = row, params
        self.ids, self.computed = list(prompt), 0
        self.logprobs: list[TokenLogprobs] = []

    @property
    def outputs(self) -> list[int]:
        return self.ids[self.params.prompt_tokens :]


class Hand:
    """Plans for an executor with one KV group or several, whose rows have `blocks` blocks of each."""

    def __init__(self, executor: Executor, blocks: int) -> None:
        self.executor, self.blocks = executor, blocks
        self.number = 0
        self.rows: list[Driven] = []
        self.freed: tuple[int, ...] = ()

    def admit(self, params: RowParams, prompt: Sequence[int]) -> Driven:
        """A sequence in the next row; it is computed from the next step on."""
        self.rows.append(Driven(len(self.rows), params, prompt))
        return self.rows[-1]

    def clear(self) -> None:
        """All rows are free from the next step on."""
        self.freed, self.rows = tuple(row.row for row in self.rows), []

    def tables(self, driven: Driven) -> tuple[tuple[int, ...], ...]:
        """The row's blocks of each KV group."""
        groups = len(self.executor.info.kv.groups)
        first = 1 + driven.row * groups * self.blocks
        return tuple(tuple(range(first + group * self.blocks, first + (group + 1) * self.blocks)) for group in range(groups))

    def step(self, drafts: Mapping[int, Sequence[int]] | None = None) -> Result:
        """All rows catch up and sample, those named behind their drafts; checks what a result may say."""
        drafts = drafts or {}
        starts, counts, tokens, samples = array("i"), array("i"), array("i"), bytearray()
        for row in self.rows:
            drafted = drafts.get(row.row, ())
            starts.append(row.computed)
            counts.append(len(row.ids) - row.computed + len(drafted))
            tokens.extend([*row.ids[row.computed :], *drafted])
            samples.append(1 + len(drafted))
        new = tuple(NewRow(row.row, 100 + row.row, row.params, tuple(row.ids), self.tables(row)) for row in self.rows if not row.computed)
        plan = Plan(self.number, array("i", [row.row for row in self.rows]), starts, counts, tokens, samples, new, self.freed)
        self.number, self.freed = self.number + 1, ()
        result = self.executor.collect(self.executor.submit(plan))
        for index, row in enumerate(self.rows):
            got, drafted = result.sampled[index], list(drafts.get(row.row, ()))
            assert 0 < len(got) <= samples[index] and list(got[:-1]) == drafted[: len(got) - 1]
            assert len(got) == samples[index] or got[-1] != drafted[len(got) - 1]
            assert result.finite[index]
            row.ids += got
            row.computed = len(row.ids) - 1
            asked = row.params.sampling.logprobs is not None
            logprobs = result.logprobs[index] if result.logprobs is not None else None
            assert (logprobs is not None) == asked
            row.logprobs += logprobs or ()
        return result
