"""Drafts that are verified where they were sampled: as many ids stand as the sampler's walk over single steps returns."""

import numpy as np
import pytest
import torch
from tensors import on_device, poisoned

from ridgeline.compute.cuda.triton.verify import verify

ROWS, VOCAB = 9, 3
"""Three ids: drafts are often right."""


def walked(sampled: list[int], ids: list[int], finite: list[bool], samples: int) -> tuple[list[int], bool]:
    """The ids of a row that stand, and whether all was finite up to the last of them, position by position: see `core.plan.Result`."""
    found: list[int] = []
    for at in range(len(ids)):
        if not finite[at]:
            return found, False
        if at < len(ids) - samples:
            continue
        found.append(sampled[at])
        if at + 1 < len(ids) and sampled[at] != ids[at + 1]:
            break
    return found, True


@pytest.mark.parametrize("seed", range(40))
def test_as_many_stand_as_the_walk_returns(seed: int) -> None:
    """Rows that sample none, one or several of their positions; positions that are not finite before, among and behind those that count."""
    random = np.random.default_rng(seed)
    counts = random.integers(1, 9, ROWS)
    counts[-2:] = 0  # padding
    samples = random.integers(0, counts + 1)
    ends = np.cumsum(counts)
    sampled, ids, finite = random.integers(0, VOCAB, ends[-1]), random.integers(0, VOCAB, ends[-1]), random.random(ends[-1]) > seed / 400
    last = on_device(np.arange(100, 100 + ROWS + 1), torch.int32)
    targets = random.permutation(ROWS)
    flags, standing = poisoned(ROWS, dtype=torch.int32), poisoned(ROWS, dtype=torch.int32)
    columns = [on_device(np.array(each), torch.int32) for each in (sampled, ids, finite, [0, *ends], samples)]
    verify(*columns, on_device(targets), last, flags, standing, 8)()  # type: ignore[call-arg]
    for row, end in enumerate(ends.tolist()):
        own = slice(end - counts[row], end)
        expected, is_finite = walked(sampled[own].tolist(), ids[own].tolist(), finite[own].tolist(), int(samples[row]))
        assert (int(standing[row]), bool(flags[row])) == (len(expected), is_finite), (row, counts, samples)
        assert int(last[targets[row]]) == (expected[-1] if expected else 100 + targets[row])
    assert int(last[ROWS]) == 100 + ROWS
