"""Buffers that live at the same time never share a byte, and places are taken over."""

from itertools import combinations, pairwise
from random import Random

import pytest

from ridgeline.compute.cpu.phases import arena, phases
from ridgeline.compute.graph import TOKENS, Handle, Op, OpList, Sizes
from ridgeline.compute.liveness import Buffer, last_stages, last_uses, place_buffers


@pytest.mark.parametrize("seed", range(20))
def test_buffers_that_live_together_lie_apart(seed: int) -> None:
    rng = Random(seed)
    buffers = []
    for _ in range(40):
        first = rng.randrange(12)
        buffers.append(Buffer(first, rng.randrange(first, 12), 64 * rng.randint(1, 3)))
    starts, size = place_buffers(buffers)
    for (one, start), (other, begin) in combinations(zip(buffers, starts, strict=True), 2):
        together = one.first <= other.last and other.first <= one.last
        assert not together or start + one.size <= begin or begin + other.size <= start
    assert size == max(start + each.size for start, each in zip(starts, buffers, strict=True))
    whole = place_buffers(buffers, reuse=False)[1]
    assert size < whole == sum(each.size for each in buffers)


def chain(length: int) -> OpList:
    names = ["ids", *(f"v{number}" for number in range(length))]
    ops = tuple(Op("scale", (a,), (b,), {"factor": 2.0}) for a, b in pairwise(names))
    values = {name: Handle(name, TOKENS, 16) for name in names}
    return OpList("step", ops, values, {"logits": names[-1]}, {"hidden": "v1"})


def test_results_and_taps_live_to_the_end() -> None:
    oplist = chain(5)
    last = last_stages(oplist, [[op] for op in oplist.ops])
    assert last == {"ids": 0, "v0": 1, "v1": 5, "v2": 3, "v3": 4, "v4": 5}
    assert last_uses(oplist) == (("ids",), ("v0",), (), ("v2",), ("v3",))


def test_an_arena_has_what_nobody_makes_from_the_beginning() -> None:
    oplist = chain(4)
    cut = oplist.with_ops(oplist.ops[1:])
    found = arena(cut, phases(cut), Sizes(T=8, R=1, S=1))
    assert set(found.offsets) == {"v0", "v1", "v2", "v3"} and found.offsets["v0"] == 0
    assert found.size == 4 * 8 * 16 * 4
