"""Inputs that steps of the same rows share, against those made for each step alone."""

from array import array
from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from ridgeline.compute.backend import Work
from ridgeline.compute.runtime.inputs import MOST_SHARED, Inputs, ResidentRows
from ridgeline.core.params import RowParams, Sampling
from ridgeline.core.plan import LAST, IntColumn, NewRow, Plan

BLOCK_TOKENS = 4
PROMPT = 5


def resident(min_tokens: int) -> ResidentRows:
    rows = ResidentRows(3, 1, 40)
    new = []
    for row in range(3):
        params = RowParams(0, 0, PROMPT, Sampling(temperature=0.0), min_tokens=min_tokens, banned_until=(7,))
        new.append(NewRow(row, row, params, tuple(range(PROMPT)), (tuple(range(1 + 40 * row, 41 + 40 * row)),)))
    rows.apply(plan(array("i", [0, 1, 2]), [0, 0, 0], [PROMPT] * 3, [1] * 3, new))
    return rows


def plan(row: IntColumn, start: Sequence[int], count: Sequence[int], sample: Sequence[int], new: Sequence[NewRow] = ()) -> Plan:
    tokens = [(3 * position + index) % 50 for index, number in enumerate(count) for position in range(number)]
    if max(count) == 1:
        tokens = [LAST] * len(count)
    return Plan(1, row, array("i", start), array("i", count), array("i", tokens), bytearray(sample), new_rows=tuple(new))


def equal(one: Work, other: Work) -> bool:
    same = all(np.array_equal(getattr(one.inputs, each.name), getattr(other.inputs, each.name)) for each in fields(one.inputs))
    parts = (np.array_equal(getattr(one, name), getattr(other, name)) for name in ("unknown", "unknown_rows", "keep"))
    return same and all(parts) and list(map(list, one.drafts)) == list(map(list, other.drafts))


def test_steps_that_sample_alike_share_their_inputs() -> None:
    """Drafts that change in number from step to step, chunks of prompts between them, and rows that change."""
    draw = np.random.default_rng(1)
    for min_tokens in (0, 12):
        rows, known = resident(min_tokens), set()
        inputs, column, start = Inputs(rows, BLOCK_TOKENS), array("i", [0, 1, 2]), [PROMPT] * 3
        for number in range(90):
            if number % 30 == 29:
                column = array("i", draw.permutation(3))
            count = [1 + int(each) for each in draw.integers(0, 3, 3)]
            sample = count if number % 3 else [1, 0, count[2]]
            made = plan(column, start, count, sample)
            work = inputs.make_work(made)
            assert equal(work, Inputs(rows, BLOCK_TOKENS).make_work(made)), number
            known.add(id(work.rows))
            start = [each + int(step) for each, step in zip(start, draw.integers(0, 2, 3), strict=True)]
        assert len(known) < 90


def test_what_is_shared_is_bounded() -> None:
    rows, column = resident(0), array("i", [0, 1, 2])
    inputs = Inputs(rows, BLOCK_TOKENS)
    for number in range(4 * MOST_SHARED):
        count = [1 + number % 4, 1 + number // 4 % 4, 1 + number // 16]
        inputs.make_work(plan(column, [PROMPT] * 3, count, count))
        assert len(inputs._shared) <= MOST_SHARED
