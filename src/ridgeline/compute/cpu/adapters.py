"""Slots of adapters as native kernels read them: a record for each matrix and slot, changed between two steps."""

from collections.abc import Mapping

import numpy as np

from ridgeline.compute.adapters.slots import AdapterSlots, LoadedAdapter
from ridgeline.compute.cpu import ext


class NativeAdapterSlots(AdapterSlots):
    """`records`: [slots] of csrc/runtime/ops.def's LoraPair, by the names of their pairs. The pairs keep alive what records point to."""

    def __init__(self, matrices: Mapping[str, tuple[int, int]], slots: int) -> None:
        super().__init__(matrices, slots)
        self.records = {name: np.zeros(slots, ext.struct("LoraPair")) for name in matrices}

    def fill(self, slot: int, adapter: LoadedAdapter) -> None:
        """Puts an adapter into a slot, in the place of what was there."""
        super().fill(slot, adapter)
        formats = ext.values("Format")
        for name, records in self.records.items():
            pair = adapter.get(name)
            if pair is None:
                records[slot] = 0
            else:
                records[slot] = formats.index(pair.kind), pair.scale, len(pair.a), pair.a.ctypes.data, pair.b.ctypes.data
