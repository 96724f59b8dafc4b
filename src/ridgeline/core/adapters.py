"""Slots of the executor for adapters: who lies in each, who uses them, and who makes room for whom.

Sheng et al. 2023, "S-LoRA". A sequence takes its adapter's slot when it starts and holds it until its row is free, so that nothing that a
step in flight reads is replaced. Slots without a user keep what they hold; the one whose last user started longest ago is filled first.
"""

from collections import Counter
from itertools import islice

from ridgeline.core.params import Adapter
from ridgeline.core.plan import SlotFill


class AdapterSlots:
    """`count` slots, 0 where no adapter is taken.

    slots   digest of each adapter in a slot → its slot, that of the one that was taken longest ago first
    rows    digest → rows that use it
    open    digest → open sequences that name it: their weights must stay in host memory
    fills   slots that the next step fills before it computes
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.slots: dict[bytes, int] = {}
        self.rows: Counter[bytes] = Counter()
        self.open: Counter[bytes] = Counter()
        self.fills: list[SlotFill] = []
        self._free = list(range(count - 1, -1, -1))
        self._pins: dict[bytes, None] = {}
        self._kept: frozenset[bytes] = frozenset()
        """The first pins, one fewer than there are slots: others must find one."""

    def has_room(self, adapter: Adapter) -> bool:
        """True if the adapter is in a slot, or one can be filled with it now."""
        return adapter.digest in self.slots or bool(self._free) or self.has_unused(self.rows)

    def take(self, adapter: Adapter) -> int:
        """The adapter's slot, which a row uses from now on. There is room."""
        digest = adapter.digest
        slot = self.slots.pop(digest, None)
        if slot is None:
            if self._free:
                slot = self._free.pop()
            else:
                unused = self._unused(self.rows)
                assert unused is not None, "no slot can be filled"
                slot = self.slots.pop(unused)
            self.fills.append(SlotFill(slot, digest))
        self.slots[digest] = slot
        self.rows[digest] += 1
        return slot

    def pin(self, digest: bytes, is_pinned: bool) -> None:
        """Lets an adapter keep its slot once it has one, or no longer."""
        if is_pinned:
            self._pins[digest] = None
        else:
            self._pins.pop(digest, None)
        self._kept = frozenset(islice(self._pins, max(0, self.count - 1)))

    def release(self, adapter: Adapter) -> None:
        """A row does not use the adapter any more."""
        self.rows[adapter.digest] -= 1
        if not self.rows[adapter.digest]:
            del self.rows[adapter.digest]

    def name(self, adapter: Adapter, count: int) -> None:
        """Counts sequences that are opened (1) or closed (−1) with the adapter."""
        self.open[adapter.digest] += count
        if not self.open[adapter.digest]:
            del self.open[adapter.digest]

    def has_unused(self, users: Counter[bytes]) -> bool:
        """True if a slot can be filled with another adapter where those of `users` alone are in use."""
        return self._unused(users) is not None

    def _unused(self, users: Counter[bytes]) -> bytes | None:
        return next((digest for digest in self.slots if not users[digest] and digest not in self._kept), None)
