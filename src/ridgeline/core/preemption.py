"""Rows and blocks for a sequence: what it can have, and the preemption of others where the rules allow it.

The first sequence in the policy's order is never preempted, nor a pinned one. A sequence that was preempted `max_preemptions` times is
pinned: it starts again only if blocks up to its last token are available, and those that it has not allocated yet are reserved for it. So
the first and the pinned sequences can always advance. Allocates no blocks itself.
"""

from collections import Counter
from collections.abc import Iterator

from ridgeline.core.admission import blocks_needed, blocks_needed_in_group
from ridgeline.core.kv_blocks import KVBlocks
from ridgeline.core.lifecycle import Lifecycle
from ridgeline.core.plan_builder import PlanBuilder
from ridgeline.core.policy import Policy
from ridgeline.core.reservation import Reservation
from ridgeline.core.sequence import Sequence, State


class Preemptor:
    """Decides whether a sequence waits, gets a smaller chunk, or preempts another."""

    def __init__(self, policy: Policy, cache: KVBlocks, lifecycle: Lifecycle) -> None:
        self.policy = policy
        self.cache = cache
        self.lifecycle = lifecycle
        self.reservation = Reservation(cache.shape, lifecycle.lengths)

    def ensure_row(self, sequence: Sequence, builder: PlanBuilder) -> bool:
        """Returns True if there is a free row within the policy's limit. A higher class preempts the last sequence of the lowest class."""
        lifecycle = self.lifecycle
        if self.policy.max_running is not None and len(lifecycle.running) >= self.policy.max_running:
            return False
        if not lifecycle.rows:
            victim = self.find_victim(sequence)
            if victim is not None:
                self._preempt(victim, sequence, "row", builder)
        return bool(lifecycle.rows)

    def free_slot(self, sequence: Sequence, builder: PlanBuilder) -> bool:
        """Preempts sequences of a lower class, the last first, until no running one uses some slot; none where that frees no slot.
        Returns True if a slot will be free once steps in flight are committed. False under a policy without classes."""
        slots, victims = self.lifecycle.adapters, list[Sequence]()
        if not self.policy.classes:
            return False
        users = Counter(each.request.adapter.digest for each in self.lifecycle.running if each.request.adapter is not None)
        candidates = self._victims(sequence)
        while not slots.has_unused(users):
            victim = next(candidates, None)
            if victim is None:
                return False
            victims.append(victim)
            if victim.request.adapter is not None:
                users[victim.request.adapter.digest] -= 1
        for victim in victims:
            self._preempt(victim, sequence, "adapter slot", builder)
        return True

    def can_start(self, sequence: Sequence, builder: PlanBuilder) -> bool:
        """Returns True if a waiting sequence, whose cached prefix is attached, has the blocks to start.

        If it can preempt others as it grows, one block per group is enough. Otherwise all its known ids need blocks, and beside running
        sequences so does what is expected of its output and theirs, or one of them would soon be preempted. A pinned one needs the
        blocks up to its last token. Attached host blocks need device blocks too.
        """
        shape, on_host = self.cache.shape, self.cache.count_host_blocks(sequence)
        if self.lifecycle.is_pinned(sequence):
            return self.available_blocks(sequence) >= self._blocks_to_finish(sequence)
        if self.find_victim(sequence) is not None:
            return self._ensure_blocks(len(shape.groups) + on_host, sequence, builder)
        held = sum([block_id != 0 for table in sequence.tables for block_id in table]) - on_host
        available, lifecycle = self.available_blocks(sequence), self.lifecycle
        if available < max(0, blocks_needed(shape, len(sequence.known)) - held):
            return False
        if not lifecycle.running:
            return True  # alone it fits, as admission has checked; blocks of its windows would be counted twice below
        if sequence.scheduled == sequence.capacity and available - on_host < len(shape.groups):
            return False  # its windows hold as many blocks as it ever needs, and none of them can be left before the next token
        growing = [each for each in lifecycle.running if each not in lifecycle.pinned] if lifecycle.pinned else lifecycle.running
        return self.reservation.will_fit([*growing, sequence], available - on_host)

    def has_blocks_for_all(self, sequence: Sequence) -> bool:
        """True if all known ids of a sequence that is to be computed in one step can have blocks, and nobody is preempted for it."""
        blocks = -(-sequence.target // self.cache.shape.block_tokens)
        return len(self.cache.shape.groups) * blocks <= self.available_blocks(sequence)

    def ensure_tokens(self, sequence: Sequence, count: int, builder: PlanBuilder) -> int:
        """Returns how many of `count` tokens can have blocks, after preempting others if that is needed for one; 0: it waits."""
        upto = sequence.scheduled + sequence.drafted
        if upto + count <= sequence.capacity:
            return count
        self.cache.free_out_of_window(sequence)
        size, groups = self.cache.shape.block_tokens, len(self.cache.shape.groups)
        available = self.available_blocks(sequence)
        if available < groups and sequence.scheduled == sequence.capacity:
            if not self._ensure_blocks(groups, sequence, builder):
                return 0
            available = self.available_blocks(sequence)
        return max(0, min(count, sequence.capacity + max(0, available) // groups * size - upto))

    def allocatable_drafts(self, sequence: Sequence, count: int) -> int:
        """Returns how many of `count` drafted positions can have blocks: those it has, and those that are left if every running sequence
        takes its next block. So no sequence is preempted for a draft, now or in the next step."""
        size, groups = self.cache.shape.block_tokens, len(self.cache.shape.groups)
        covered = sequence.capacity - sequence.scheduled - sequence.drafted
        if count <= covered:
            return count
        available = self.available_blocks(sequence) - groups * len(self.lifecycle.running)
        return min(count, covered + max(0, available) // groups * size)

    def _ensure_blocks(self, blocks: int, sequence: Sequence, builder: PlanBuilder) -> bool:
        """Preempts others until `blocks` blocks are available. Returns False if steps in flight will free enough, or if nobody is left."""
        while self.available_blocks(sequence) < blocks:
            pending = self.cache.pool.count_pending_free() + self.cache.count_out_of_window(sequence)
            if self.available_blocks(sequence) + pending >= blocks:
                return False
            victim = self.find_victim(sequence)
            if victim is None:
                return False
            self._preempt(victim, sequence, "blocks", builder)
        return True

    def available_blocks(self, sequence: Sequence) -> int:
        """Returns the blocks that the sequence may allocate: free and cached ones, without those reserved for pinned sequences.

        Another sequence may come to share blocks behind a pinned one's window, which are not freed then: so towards others its windows
        count in full. Running pinned sequences reserve what each still needs: in sum never more than there is, so one of them can advance.
        """
        available, pinned = self.cache.pool.available, self.lifecycle.pinned
        if pinned:
            reserved = self._blocks_to_finish if sequence in pinned else self.reservation.most_to_come
            available -= sum([reserved(other) for other in pinned if other is not sequence])
        return available

    def _blocks_to_finish(self, pinned: Sequence) -> int:
        """Returns the blocks up to the last token that a sequence does not hold yet. Freeing a shared block of a window returns none."""
        shape, holders, missing = self.cache.shape, self.cache.pool.holders, 0
        for group, table in zip(shape.groups, pinned.tables, strict=True):
            held = sum([0 < block_id <= shape.blocks and (not group.window or holders[block_id] == 1) for block_id in table])
            missing += max(0, blocks_needed_in_group(group, shape.block_tokens, pinned.limit - 1) - held)
        return missing

    def find_victim(self, requester: Sequence) -> Sequence | None:
        """Returns the sequence to preempt for `requester`: the last in order behind it, of a lower class if `requester` waits; never the
        first in order, nor a pinned one. None if there is none."""
        return next(self._victims(requester), None)

    def _victims(self, requester: Sequence) -> Iterator[Sequence]:
        running = self.lifecycle.running
        waits = requester.state is State.WAITING
        for candidate in reversed(running[1:]):
            if candidate.rank <= requester.rank or (waits and self.policy.same_class(candidate, requester)):
                return
            if candidate not in self.lifecycle.pinned:
                yield candidate

    def _preempt(self, victim: Sequence, by: Sequence, why: str, builder: PlanBuilder) -> None:
        """Preempts a sequence, which cannot start again in the same step."""
        builder.starts_closed = True
        self.lifecycle.preempt(victim, by, why)
