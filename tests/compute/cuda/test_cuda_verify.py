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
    kept = on_device(np.arange(100, 100 + 4 * (ROWS + 1)).reshape(ROWS + 1, 4), torch.int32)
    places, before = on_device(np.full(ROWS + 1, -1), torch.int32), kept.clone()
    targets, kv_len = random.permutation(ROWS), counts + random.integers(0, 30, ROWS)
    flags, standing = poisoned(ROWS, dtype=torch.int32), poisoned(ROWS, dtype=torch.int32)
    columns = [on_device(np.array(each), torch.int32) for each in (sampled, ids, finite, [0, *ends], samples, kv_len)]
    verify(*columns, on_device(4 * targets), kept, places, flags, standing, 8)()  # type: ignore[call-arg]
    for row, end in enumerate(ends.tolist()):
        own = slice(end - counts[row], end)
        expected, is_finite = walked(sampled[own].tolist(), ids[own].tolist(), finite[own].tolist(), int(samples[row]))
        assert (int(standing[row]), bool(flags[row])) == (len(expected), is_finite), (row, counts, samples)
        target = int(targets[row])
        place = int(kv_len[row] - samples[row]) + max(1, len(expected))
        assert int(places[target]) == place, "the place of the last id that stands, or the least"
        if expected:
            assert (int(kept[target, 0]), int(kept[target, 3])) == (expected[-1], ids[end - samples[row] + len(expected) - 1])
        else:
            assert torch.equal(kept[target], before[target])
        assert torch.equal(kept[target, 1:3], before[target, 1:3])
    assert torch.equal(kept[ROWS], before[ROWS]) and int(places[ROWS]) == -1
