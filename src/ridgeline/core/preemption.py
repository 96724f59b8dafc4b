"""Making room: rows and blocks for one sequence, by waiting for what is coming, by a smaller chunk, or by pushing another out.

The first in the policy's order is never pushed out, and neither is a pinned sequence: one that was pushed out `max_preemptions` times
starts again only when blocks up to its very end are there, and what it has not taken of them yet is its claim, which nobody else may
use. So whoever comes first can always go on, and whoever is pinned too. Never takes a block itself.
"""

from ridgeline.core.admission import blocks_needed, blocks_needed_in_group
from ridgeline.core.kv_blocks import KVBlocks
from ridgeline.core.lifecycle import Lifecycle
from ridgeline.core.plan_builder import PlanBuilder
from ridgeline.core.policy import Policy
from ridgeline.core.sequence import Sequence, State


class Preemptor:
    """Decides who waits and who gives way."""

    def __init__(self, policy: Policy, cache: KVBlocks, lifecycle: Lifecycle) -> None:
        self.policy = policy
        self.cache = cache
        self.lifecycle = lifecycle
        self._full_groups = sum(not group.window for group in cache.shape.groups)

    def ensure_row(self, sequence: Sequence, builder: PlanBuilder) -> bool:
        """A row is free, within the policy's bound. A higher class pushes the youngest of the lowest class out."""
        lifecycle = self.lifecycle
        if self.policy.max_running is not None and len(lifecycle.running) >= self.policy.max_running:
            return False
        if not lifecycle.rows:
            victim = self.find_victim(sequence)
            if victim is not None:
                self._preempt(victim, sequence, "row", builder)
        return bool(lifecycle.rows)

    def can_start(self, sequence: Sequence, builder: PlanBuilder) -> bool:
        """A waiting sequence has the blocks to start with. If others give way as it grows, a block is enough; else all that it knows must
        find place, for with less it would soon be pushed out again. A pinned one needs what it takes to its very end. What it shares on the
        host needs blocks of the device too.
        """
        shape, away = self.cache.shape, self.cache.count_host_blocks(sequence)
        if self.lifecycle.is_pinned(sequence):
            return self.available_blocks(sequence) >= self._blocks_to_finish(sequence)
        if self.find_victim(sequence) is not None:
            return self._ensure_blocks(len(shape.groups) + away, sequence, builder)
        held = sum([block_id != 0 for table in sequence.tables for block_id in table]) - away
        return self.available_blocks(sequence) >= max(0, blocks_needed(shape, len(sequence.known)) - held)

    def ensure_tokens(self, sequence: Sequence, count: int, builder: PlanBuilder) -> int:
        """The number of `count` tokens that the sequence can have blocks for, after pushing others out if it must; 0 to wait."""
        if sequence.scheduled + count <= sequence.capacity:
            return count
        self.cache.free_out_of_window(sequence)
        size, groups = self.cache.shape.block_tokens, len(self.cache.shape.groups)
        spare = self.available_blocks(sequence)
        if spare < groups and sequence.scheduled == sequence.capacity:
            if not self._ensure_blocks(groups, sequence, builder):
                return 0
            spare = self.available_blocks(sequence)
        return min(count, sequence.capacity + max(0, spare) // groups * size - sequence.scheduled)

    def allocatable_drafts(self, sequence: Sequence, count: int) -> int:
        """The number of `count` drafted positions that it can have blocks for: those it has, and what is spare even if every running
        sequence took its next block. Nobody is pushed out for a draft, now or in the next step."""
        size, groups = self.cache.shape.block_tokens, len(self.cache.shape.groups)
        covered = sequence.capacity - sequence.scheduled
        if count <= covered:
            return count
        spare = self.available_blocks(sequence) - groups * len(self.lifecycle.running)
        return min(count, covered + max(0, spare) // groups * size)

    def _ensure_blocks(self, blocks: int, sequence: Sequence, builder: PlanBuilder) -> bool:
        """True if so many blocks can be taken now. False while as many are coming, or when nobody may be pushed out any more."""
        while self.available_blocks(sequence) < blocks:
            coming = self.cache.pool.count_pending_free() + self.cache.count_out_of_window(sequence)
            if self.available_blocks(sequence) + coming >= blocks:
                return False
            victim = self.find_victim(sequence)
            if victim is None:
                return False
            self._preempt(victim, sequence, "blocks", builder)
        return True

    def available_blocks(self, sequence: Sequence) -> int:
        """Blocks that the sequence may take: all without a holder, but for the claims of others.

        Who comes to share blocks may keep them from coming back, so for all others the windows of a pinned sequence count in full. Pinned
        sequences that run leave each other what each still misses: together that is never more than there is, so one can go on.
        """
        available, pinned = self.cache.pool.available, self.lifecycle.pinned
        if pinned:
            claim = self._blocks_to_finish if sequence in pinned else self._reserved_blocks
            available -= sum([claim(other) for other in pinned if other is not sequence])
        return available

    def _blocks_to_finish(self, pinned: Sequence) -> int:
        """Blocks that a sequence takes to its very end beside those it holds. Letting go of a shared block of a window gives none back."""
        shape, holders, missing = self.cache.shape, self.cache.pool.holders, 0
        for group, table in zip(shape.groups, pinned.tables, strict=True):
            held = sum([0 < block_id <= shape.blocks and (not group.window or holders[block_id] == 1) for block_id in table])
            missing += max(0, blocks_needed_in_group(group, shape.block_tokens, pinned.limit - 1) - held)
        return missing

    def _reserved_blocks(self, pinned: Sequence) -> int:
        """Blocks that a pinned sequence may still need. Its windows count in full, for it may have to leave blocks in them to others."""
        blocks = pinned.capacity // self.cache.shape.block_tokens
        return blocks_needed(self.cache.shape, pinned.limit - 1) - blocks * self._full_groups

    def find_victim(self, requester: Sequence) -> Sequence | None:
        """The youngest of the lowest class behind the requester; of a lower class if that waits. Never the first nor a pinned one."""
        running = self.lifecycle.running
        waits = requester.state is State.WAITING
        for candidate in reversed(running[1:]):
            if candidate.rank <= requester.rank or (waits and self.policy.same_class(candidate, requester)):
                return None
            if candidate not in self.lifecycle.pinned:
                return candidate
        return None

    def _preempt(self, victim: Sequence, by: Sequence, why: str, builder: PlanBuilder) -> None:
        """Preempts a sequence, which does not come back in the same step."""
        builder.starts_closed = True
        self.lifecycle.preempt(victim, by, why)
