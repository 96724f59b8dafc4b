"""Slots of adapters: what lies in each, as the numpy runner's ops read it. Filled on the thread that computes, between two steps."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ridgeline.compute.adapters.rests import Rest, no_rest
from ridgeline.compute.ops.lora import Pair


@dataclass(frozen=True, slots=True)
class LoadedAdapter:
    """An adapter as the slots of a runner take it.

    pairs   by the names that `lowering.adapters` gives them; of what the adapter does not change there is none
    memory  what the pairs lie in
    nbytes  of it
    """

    pairs: Mapping[str, Any]
    memory: Any
    nbytes: int


class SlotPairs(list[Pair | None]):
    """The pair of one matrix in each slot: a weight of the op `lora`."""

    @property
    def nbytes(self) -> int:
        """None: adapters are counted where they are held."""
        return 0

    def dense(self) -> "SlotPairs":
        """Itself: the reference widens what it needs."""
        return self


class AdapterSlots:
    """So many slots for adapters that change some matrices, by the names of their pairs."""

    def __init__(self, matrices: Mapping[str, tuple[int, int]], slots: int) -> None:
        self.pairs = {name: SlotPairs([None] * slots) for name in matrices}

    def pack(self, pairs: Mapping[str, Pair], rest: Rest = no_rest) -> LoadedAdapter:
        """Copies the pairs of an adapter to where slots read them. Any thread may ask; `rest` is called between pieces of its work."""
        copied = {}
        for name, pair in pairs.items():
            copied[name] = replace(pair, a=np.array(pair.a, order="C"), b=np.array(pair.b, order="C"))
            rest()
        return LoadedAdapter(copied, copied, sum(pair.a.nbytes + pair.b.nbytes for pair in copied.values()))

    def fill(self, slot: int, adapter: LoadedAdapter) -> None:
        """Puts an adapter into a slot, in the place of what was there."""
        for name, pairs in self.pairs.items():
            pairs[slot] = adapter.pairs.get(name)
