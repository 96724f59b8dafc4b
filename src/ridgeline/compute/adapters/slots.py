"""Slots of adapters: what lies in each, as the numpy runner's ops read it. Filled on the thread that computes, between two steps."""

from collections.abc import Mapping

from ridgeline.compute.ops.lora import Pair

LoadedAdapter = Mapping[str, Pair]
"""Pairs of matrices by the names that `lowering.adapters` gives them; of what the adapter does not change there is none."""


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

    def fill(self, slot: int, adapter: LoadedAdapter) -> None:
        """Puts an adapter into a slot, in the place of what was there."""
        for name, pairs in self.pairs.items():
            pairs[slot] = adapter.get(name)
