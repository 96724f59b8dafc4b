"""Lifetimes of values, and their offsets in one buffer. Pure: names and sizes, no array.

A stage is what runs between two barriers: a phase of the native plan, a single op elsewhere. A value lives from the stage that makes it to
the last one that reads it.
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from ridgeline.compute.graph import Op, OpList

Stages = Sequence[Sequence[Op]]


def last_stages(oplist: OpList, stages: Stages) -> dict[str, int]:
    """Value → number of the last stage that makes or reads it; of results and taps, one behind the last stage."""
    last = {name: number for number, ops in enumerate(stages) for op in ops for name in (*op.inputs, *op.outputs)}
    return last | dict.fromkeys((*oplist.outputs.values(), *oplist.taps.values()), len(stages))


def last_uses(oplist: OpList) -> tuple[tuple[str, ...], ...]:
    """The values that are last used by each op; results and taps of the list are never among them."""
    last = last_stages(oplist, [[op] for op in oplist.ops])
    return tuple(tuple(sorted(name for name in {*op.inputs, *op.outputs} if last[name] == number)) for number, op in enumerate(oplist.ops))


class Buffer(NamedTuple):
    """`size` bytes that are needed from stage `first` to the end of stage `last`."""

    first: int
    last: int
    size: int


def place_buffers(buffers: Sequence[Buffer], *, reuse: bool = True) -> tuple[list[int], int]:
    """Offset of each buffer in bytes, and the bytes of all. A buffer takes the place of one of its size whose last stage is over; with
    `reuse` off each has a place of its own."""
    starts, size = [0] * len(buffers), 0
    free: dict[int, list[int]] = {}
    ending: list[tuple[int, int]] = []  # (last stage, number of the buffer)
    for number in sorted(range(len(buffers)), key=lambda number: buffers[number].first):
        first, last, needed = buffers[number]
        while reuse and ending and ending[0][0] < first:
            over = heappop(ending)[1]
            free.setdefault(buffers[over].size, []).append(starts[over])
        places = free.get(needed)
        starts[number] = places.pop() if places else size
        size = max(size, starts[number] + needed)
        heappush(ending, (last, number))
    return starts, size
