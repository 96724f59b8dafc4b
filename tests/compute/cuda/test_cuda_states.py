"""Hidden states that outlive their step, beside numpy."""

import numpy as np
import torch
from tensors import DEVICE

from ridgeline.compute.cuda.triton import states as kernels

WINDOW, WIDTH = 5, 1100  # more than a program has


def column(numbers: list[int]) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32, device=DEVICE)


def test_the_target_leaves_those_that_heads_take() -> None:
    """Rows of seven tokens, more than are kept, and of two, in places of their own; then those that stand in front of the heads' ids."""
    draw = torch.Generator(DEVICE).manual_seed(1)
    values = torch.randn(10, WIDTH, generator=draw, device=DEVICE)
    kept, kept_ids = torch.full((4, WINDOW, 2 * WIDTH), torch.nan, device=DEVICE), column([-1] * 4 * WINDOW).view(4, WINDOW)
    positions, source, row = [3, 4, 5, 6, 7, 8, 9, 4, 5, 0], [2] * 7 + [0] * 2 + [3], [0] * 7 + [1] * 2 + [2]
    of = (column(positions), column(source), column(row), column([10, 6, 0]))
    kernels.keep_states(values, kept[:, :, WIDTH:], column([*range(20, 30)]), kept_ids, *of)()
    there = {(2, at % WINDOW): at - 3 for at in range(5, 10)} | {(0, at % WINDOW): at + 3 for at in (4, 5)} | {(3, 0): 9}
    for permanent, place in np.ndindex(4, WINDOW):
        token = there.get((permanent, place))
        assert kept_ids[permanent, place] == (-1 if token is None else 20 + token)
        assert kept[permanent, place, :WIDTH].isnan().all()
        assert kept[permanent, place, WIDTH:].isnan().all() if token is None else torch.equal(kept[permanent, place, WIDTH:], values[token])

    out, ids, places = torch.empty(4, WIDTH, device=DEVICE), column([0, 0, 99, 98]), column([0, 0])
    heads = (column([1, 2, 3, 0]), column([2, 2, 2, 0]), column([0, 0, 0, 1]), column([4, 1]), column([6] * 4))
    kernels.take_states(kept[:, :, WIDTH:], out, kept_ids, ids, *heads, places)()
    assert torch.equal(out, values[[3, 4, 5, 8]])
    assert ids.tolist() == [24, 25, 99, 98], "all but the last of a row are what the target has had there"
    assert places.tolist() == [10, 7]


def test_heads_leave_that_of_the_token_they_have_read_last() -> None:
    values, kept = torch.randn(3, WIDTH, device=DEVICE), torch.zeros(2, WINDOW, WIDTH, device=DEVICE)
    none = column([0] * 2 * WINDOW).view(2, WINDOW)
    of = (column([0, 1, 0]), column([1, 1, 0]), column([0, 0, 1]), column([2, 1]), column([7, 7, 2]))
    kernels.keep_states(values, kept, column([5, 6, 7]), none, *of)()
    assert torch.equal(kept[1, 8 % WINDOW], values[1]) and torch.equal(kept[0, 2], values[2])
    assert kept.abs().sum(dim=2).count_nonzero() == 2 and not none.any()
